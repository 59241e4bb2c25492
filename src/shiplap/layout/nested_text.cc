// The parts of YAML and TOML that configuration files of frameworks use, line by line; lists and
// `{a: b}` may go on over several lines. Whatever else a line has is an error, so nothing is
// misread: anchors, tags, several documents and texts of several lines.
//
// `accelerate env` prints a configuration as items, `- name: value`, among lines about the system.
// Such items are members; lines whose name has blanks are left out.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstddef>

#include "shiplap/layout/reading_internal.h"

namespace shiplap::layout {
namespace {

constexpr std::size_t kMaxDepth = 20;
constexpr std::string_view kBlank = " \t\r";

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(kBlank);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlank) + 1 - begin);
}

bool is_key(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-' || c == '.';
  });
}

struct Member {
  std::string name;
  std::vector<std::string> values;
  bool is_null = false;
};

// Splits values like `[a, "b"] # comment` and `{a: 1, b: [x, y]}`. None if it cannot be read.
class ScalarReader {
 public:
  explicit ScalarReader(std::string_view text) : text_(text) {}

  // Members of members have names like "a.b".
  std::optional<std::vector<Member>> read_mapping() {
    std::vector<Member> members;
    skip_blank();
    if (!read_members("", members, 0)) return {};
    skip_blank();
    if (!done() && text_[position_] != '#') return {};
    return members;
  }

  // No value: null.
  std::optional<std::vector<std::string>> read() {
    skip_blank();
    std::vector<std::string> values;
    if (done() || text_[position_] == '#') return values;
    if (text_[position_] == '[') {
      if (has_lists(text_.substr(position_))) return {{lists_as_json(text_.substr(position_))}};
      ++position_;
      if (!read_items(values)) return {};
    } else {
      std::optional<std::string> value = scalar("#");
      if (!value) return {};
      if (*value != "null" && *value != "~") values.push_back(*std::move(value));
    }
    skip_blank();
    if (!done() && text_[position_] != '#') return {};
    return values;
  }

 private:
  [[nodiscard]] bool done() const { return position_ >= text_.size(); }
  void skip_blank() {
    while (!done() && kBlank.find(text_[position_]) != std::string_view::npos) ++position_;
  }

  static bool has_lists(std::string_view text) {
    const std::size_t next = text.find_first_not_of(kBlank, 1);
    return next != std::string_view::npos && text[next] == '[';
  }

  // Up to the last `]`.
  static std::string lists_as_json(std::string_view text) {
    std::string json;
    for (const char c : text.substr(0, text.rfind(']') + 1)) {
      if (c == ']') {
        while (json.ends_with(' ') || json.ends_with('\t')) json.pop_back();
        if (json.ends_with(',')) json.pop_back();
      }
      json += c == '\'' ? '"' : c;
    }
    return json;
  }

  bool take(char c) {
    skip_blank();
    if (done() || text_[position_] != c) return false;
    ++position_;
    return true;
  }

  bool read_members(const std::string& prefix, std::vector<Member>& members, std::size_t depth) {
    if (depth > kMaxDepth || !take('{')) return false;
    while (!take('}')) {
      skip_blank();
      if (done()) return false;
      const char first = text_[position_];
      const std::size_t colon = text_.find(':', position_);
      std::optional<std::string> key;
      if (first == '"' || first == '\'') {
        key = quoted(first);
      } else if (colon != std::string_view::npos) {
        key = trimmed(text_.substr(position_, colon - position_));
        position_ = colon;
      }
      if (!key || !is_key(*key) || !take(':')) return false;
      if (!read_member_value(prefix + *key, members, depth)) return false;
      if (!take(',')) return take('}');
    }
    return true;
  }

  bool read_member_value(const std::string& name, std::vector<Member>& members, std::size_t depth) {
    skip_blank();
    if (done()) return false;
    if (text_[position_] == '{') return read_members(name + ".", members, depth + 1);
    Member member{.name = name};
    if (take('[')) {
      if (!read_items(member.values)) return false;
    } else if (text_[position_] != ',' && text_[position_] != '}') {
      std::optional<std::string> value = scalar(",}");
      if (!value) return false;
      member.is_null = *value == "null" || *value == "~" || *value == "None";
      member.values.push_back(*std::move(value));
    } else {
      member.is_null = true;
    }
    members.push_back(std::move(member));
    return true;
  }

  bool read_items(std::vector<std::string>& values) {
    while (true) {
      skip_blank();
      if (done()) return false;
      if (text_[position_] == ']') {
        ++position_;
        return true;
      }
      std::optional<std::string> value = scalar(",]");
      if (!value) return false;
      values.push_back(*std::move(value));
      skip_blank();
      if (done() || (text_[position_] != ',' && text_[position_] != ']')) return false;
      if (text_[position_] == ',') ++position_;
    }
  }

  // Up to one of `ends`; `#` ends it only after a blank.
  std::optional<std::string> scalar(std::string_view ends) {
    const char first = text_[position_];
    if (first == '"' || first == '\'') return quoted(first);
    if (std::string_view("&*!|>%@`{}").find(first) != std::string_view::npos) return {};
    const std::size_t begin = position_;
    while (!done()) {
      const char c = text_[position_];
      const bool comment = c == '#' && position_ > begin &&
                           kBlank.find(text_[position_ - 1]) != std::string_view::npos;
      if (comment || (c != '#' && ends.find(c) != std::string_view::npos)) break;
      // `a: b` would be a mapping.
      if (c == ':' && (position_ + 1 == text_.size() || text_[position_ + 1] == ' ')) return {};
      ++position_;
    }
    return std::string(trimmed(text_.substr(begin, position_ - begin)));
  }

  std::optional<std::string> quoted(char quote) {
    std::string value;
    for (++position_; !done(); ++position_) {
      const char c = text_[position_];
      if (c == quote) {
        ++position_;
        return value;
      }
      if (c == '\\' && quote == '"') {
        ++position_;
        if (done() || (text_[position_] != '"' && text_[position_] != '\\')) return {};
      }
      value += text_[position_];
    }
    return {};
  }

  std::string_view text_;
  std::size_t position_ = 0;
};

// How many brackets more the value of a line opens than it closes; cuts its comment off.
int open_brackets(std::string_view& line) {
  int open = 0;
  char quote = 0;
  for (std::size_t k = 0; k < line.size(); ++k) {
    const char c = line[k];
    if (quote != 0) {
      if (c == quote) quote = 0;
    } else if (c == '"' || c == '\'') {
      quote = c;
    } else if (c == '#') {
      line = line.substr(0, k);
      return open;
    } else if (c == '[' || c == '{') {
      ++open;
    } else if (c == ']' || c == '}') {
      --open;
    }
  }
  return open;
}

// Does a value begin with a bracket?
bool begins_bracket(std::string_view line) {
  const std::size_t after = line.find_first_of(":=");
  if (after == std::string_view::npos) return false;
  const std::string_view value = trimmed(line.substr(after + 1));
  return value.starts_with('[') || value.starts_with('{');
}

class LineReader {
 public:
  LineReader(std::string_view text, Settings& settings) : text_(text), settings_(settings) {}

  void read_yaml() {
    for_each_line([this](std::string_view line) { return yaml_line(line); });
  }
  void read_toml() {
    for_each_line([this](std::string_view line) { return toml_line(line); });
  }

 private:
  struct Level {
    std::size_t indent = 0;
    std::string prefix;  // of the names of its members: "fsdp_config."
  };

  // Until a line cannot be read, of which `read` returns the reason.
  template <class Read>
  void for_each_line(Read read) {
    std::size_t begin = 0;
    while (begin < text_.size()) {
      const std::size_t end = std::min(text_.find('\n', begin), text_.size());
      const std::size_t line_begin = begin;
      const std::string_view line = text_.substr(begin, end - begin);
      const std::string_view content = trimmed(line);
      begin = end + 1;
      if (content.empty() || content[0] == '#') continue;
      const std::string problem =
          begins_bracket(content) ? read_joined(line, begin, read) : read(line);
      if (!problem.empty()) {
        settings_.findings().cannot_read(
            diagnostic_at(text_, line_begin, problem, "write `name: value` on a line of its own"));
        return;
      }
    }
  }

  // With the lines from `begin` that its brackets need.
  template <class Read>
  std::string read_joined(std::string_view line, std::size_t& begin, Read read) {
    std::string_view piece = line;
    int open = open_brackets(piece);
    if (open <= 0) return read(line);
    std::string joined(piece);
    while (open > 0 && begin < text_.size()) {
      const std::size_t end = std::min(text_.find('\n', begin), text_.size());
      piece = text_.substr(begin, end - begin);
      open += open_brackets(piece);
      joined += ' ';
      joined += trimmed(piece);
      begin = end + 1;
    }
    return open > 0 ? "a bracket in this line is not closed" : read(joined);
  }

  std::string set(const std::string& name, std::vector<std::string> values) {
    if (settings_.has(name)) return fmt::format("`{}` is there twice", name);
    settings_.set(name, {.values = std::move(values), .unknown = ""});
    return "";
  }

  std::string yaml_line(std::string_view line) {
    const std::size_t indent = line.find_first_not_of(' ');
    const std::string_view content = trimmed(line);
    if (content == "---" && levels_.empty()) return "";
    if (open_.empty() && content.starts_with("- ") && content.find(':') != std::string_view::npos) {
      return printed_member(content.substr(2));
    }
    if (line[indent] == '\t') return "a tab begins this line";
    if (content.starts_with("- ") || content == "-") return yaml_item(indent, content.substr(1));
    const std::size_t colon = content.find(':');
    if (colon == std::string_view::npos) return "there is no `:` in this line";
    const std::string_view rest = content.substr(colon + 1);
    const std::string_view key = trimmed(content.substr(0, colon));
    if (!is_key(key)) return "this is no name";
    if (!rest.empty() && rest[0] != ' ' && rest[0] != '\t') return "there is no blank after `:`";
    if (const std::string problem = find_level(indent); !problem.empty()) return problem;
    return yaml_member(levels_.back().prefix + std::string(key), rest);
  }

  // An item of what `accelerate env` prints.
  std::string printed_member(std::string_view item) {
    const std::size_t colon = item.find(':');
    const std::string_view key = trimmed(item.substr(0, colon));
    return is_key(key) ? yaml_member(std::string(key), item.substr(colon + 1)) : "";
  }

  // Makes the level of `indent` the last one.
  std::string find_level(std::size_t indent) {
    while (levels_.size() > 1 && indent < levels_.back().indent) levels_.pop_back();
    if (levels_.empty()) {
      levels_.push_back({.indent = indent, .prefix = ""});
    } else if (indent > levels_.back().indent) {
      if (open_.empty()) return "this line is indented more than the one before";
      if (levels_.size() >= kMaxDepth) return "mappings are nested too deeply";
      levels_.push_back({.indent = indent, .prefix = open_ + "."});
    } else if (indent < levels_.back().indent) {
      return "this line is indented less than the first one";
    }
    if (indent != levels_.back().indent) return "this line is indented as none before it";
    return "";
  }

  std::string yaml_member(const std::string& name, std::string_view rest) {
    const std::string_view content = trimmed(rest);
    open_.clear();
    list_.clear();
    if (content.starts_with('{')) return yaml_mapping(name, content);
    std::optional<std::vector<std::string>> values = ScalarReader(rest).read();
    if (!values) return "this value cannot be read";
    if (content.empty() || content[0] == '#') {
      open_ = name;  // of members or items, or null
      return "";
    }
    if (values->empty() && content[0] != '[') return "";  // null
    return set(name, *std::move(values));
  }

  std::string yaml_mapping(const std::string& name, std::string_view text) {
    std::optional<std::vector<Member>> members = ScalarReader(text).read_mapping();
    if (!members) return "this value cannot be read";
    for (Member& member : *members) {
      if (member.is_null) continue;
      std::string problem = set(name + "." + member.name, std::move(member.values));
      if (!problem.empty()) return problem;
    }
    return "";
  }

  std::string yaml_item(std::size_t indent, std::string_view rest) {
    if (open_.empty() || levels_.empty() || indent < levels_.back().indent) {
      return "this item is in no list";
    }
    std::optional<std::vector<std::string>> values = ScalarReader(rest).read();
    if (!values || values->size() != 1) return "this item cannot be read";
    list_.push_back(values->front());
    settings_.set(open_, {.values = list_, .unknown = ""});
    return "";
  }

  std::string toml_line(std::string_view line) {
    const std::string_view content = trimmed(line);
    if (content[0] == '[') {
      const std::size_t end = content.find(']');
      if (end == std::string_view::npos) return "there is no `]` in this line";
      const std::string_view section = trimmed(content.substr(1, end - 1));
      const std::string_view rest = trimmed(content.substr(end + 1));
      if (!is_key(section) || (!rest.empty() && rest[0] != '#')) return "this is no section";
      section_ = std::string(section) + ".";
      return "";
    }
    const std::size_t equals = content.find('=');
    if (equals == std::string_view::npos) return "there is no `=` in this line";
    const std::string_view key = trimmed(content.substr(0, equals));
    if (!is_key(key)) return "this is no name";
    std::optional<std::vector<std::string>> values =
        ScalarReader(content.substr(equals + 1)).read();
    if (!values) return "this value cannot be read";
    for (std::string& value : *values) {
      // 10_000
      if (value.find_first_not_of("0123456789_") == std::string::npos) std::erase(value, '_');
    }
    return set(section_ + std::string(key), *std::move(values));
  }

  std::string_view text_;
  Settings& settings_;
  std::vector<Level> levels_;
  std::string open_;  // the member of the line before, if it has no value yet
  std::vector<std::string> list_;
  std::string section_;
};

}  // namespace

void add_yaml(std::string_view text, Settings& settings) { LineReader(text, settings).read_yaml(); }

void add_toml(std::string_view text, Settings& settings) { LineReader(text, settings).read_toml(); }

}  // namespace shiplap::layout
