// to_text() of json.h.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "shiplap/base/json.h"
#include "shiplap/base/utf8_internal.h"

namespace shiplap {
namespace {

constexpr std::size_t kColumns = 100;
constexpr std::size_t kIndent = 2;

// The two characters of a short escape, or "".
std::string_view short_escape(char c) {
  switch (c) {
    case '"':
      return "\\\"";
    case '\\':
      return "\\\\";
    case '\b':
      return "\\b";
    case '\f':
      return "\\f";
    case '\n':
      return "\\n";
    case '\r':
      return "\\r";
    case '\t':
      return "\\t";
    default:
      return {};
  }
}

void write_string(std::string& out, std::string_view text) {
  out += '"';
  while (!text.empty()) {
    const auto character = first_code_point(text);
    const std::size_t bytes = character ? character->bytes : 1;
    if (!character) {
      out += "\uFFFD";
    } else if (const auto escape = short_escape(text[0]); !escape.empty()) {
      out += escape;
    } else if (character->value < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(character->value));
    } else {
      out += text.substr(0, bytes);
    }
    text.remove_prefix(bytes);
  }
  out += '"';
}

void write_double(std::string& out, double value) {
  if (!std::isfinite(value)) {
    out += "null";
    return;
  }
  const std::string digits = fmt::format("{}", value);
  out += digits;
  // Without a point or an exponent it would be parsed as an integer.
  if (digits.find_first_of(".e") == digits.npos) out += ".0";
}

void write_scalar(std::string& out, const Json& value) {
  if (value.is_null()) {
    out += "null";
  } else if (value.is_bool()) {
    out += value.as_bool() ? "true" : "false";
  } else if (value.is_integer()) {
    out += std::to_string(value.as_integer());
  } else if (value.is_number()) {
    write_double(out, value.as_number());
  } else {
    write_string(out, value.as_string());
  }
}

bool is_scalar(const Json& value) { return !value.is_array() && !value.is_object(); }

void write_compact(std::string& out, const Json& value) {
  if (is_scalar(value)) return write_scalar(out, value);
  const char* separator = "";
  if (value.is_array()) {
    out += '[';
    for (const Json& item : value.as_array()) {
      out += separator;
      write_compact(out, item);
      separator = ",";
    }
    out += ']';
    return;
  }
  out += '{';
  for (const auto& [key, member] : value.as_object()) {
    out += separator;
    write_string(out, key);
    out += ':';
    write_compact(out, member);
    separator = ",";
  }
  out += '}';
}

// An array or object of scalars on one line, or "" if it contains other values or would take more
// than `room` bytes.
std::string on_one_line(const Json& value, std::size_t room) {
  std::string line;
  const auto add = [&](std::string_view key, const Json& item) {
    if (!is_scalar(item) || line.size() > room) return false;
    line += line.empty() ? "" : ", ";
    if (value.is_object()) {
      write_string(line, key);
      line += ": ";
    }
    write_scalar(line, item);
    return true;
  };
  const bool whole =
      value.is_array()
          ? std::ranges::all_of(value.as_array(), [&](const Json& item) { return add("", item); })
          : std::ranges::all_of(value.as_object(),
                                [&](const Json::Member& m) { return add(m.first, m.second); });
  if (!whole || (!line.empty() && line.size() + 2 > room)) return {};
  return value.is_array() ? "[" + line + "]" : "{" + line + "}";
}

class IndentedWriter {
 public:
  explicit IndentedWriter(std::string& out) : out_(out) {}

  void write(const Json& value) {
    if (is_scalar(value)) return write_scalar(out_, value);
    const std::size_t taken = out_.size() - line_begin_ + 1;  // with the comma after it
    // The outermost object always has one member per line.
    const bool outermost = indent_ == 0 && value.is_object() && !value.as_object().empty();
    const std::string line =
        outermost ? std::string() : on_one_line(value, kColumns - std::min(taken, kColumns));
    if (!line.empty()) {
      out_ += line;
    } else if (value.is_array()) {
      write_array(value.as_array());
    } else {
      write_object(value.as_object());
    }
  }

 private:
  void write_array(const Json::Array& items) {
    begin_block('[');
    for (const Json& item : items) {
      begin_entry();
      write(item);
    }
    end_block(']');
  }

  void write_object(const Json::Object& members) {
    begin_block('{');
    for (const auto& [key, value] : members) {
      begin_entry();
      write_string(out_, key);
      out_ += ": ";
      write(value);
    }
    end_block('}');
  }

  void begin_block(char bracket) {
    out_ += bracket;
    first_ = true;
    indent_ += kIndent;
  }

  void begin_entry() {
    if (!first_) out_ += ',';
    begin_line();
  }

  void end_block(char bracket) {
    indent_ -= kIndent;
    begin_line();
    out_ += bracket;
  }

  void begin_line() {
    first_ = false;
    out_ += '\n';
    line_begin_ = out_.size();
    out_.append(indent_, ' ');
  }

  std::string& out_;
  std::size_t line_begin_ = 0;
  std::size_t indent_ = 0;
  bool first_ = true;  // nothing has been written in the innermost block yet
};

}  // namespace

std::string to_text(const Json& value, Layout layout) {
  std::string out;
  if (layout == Layout::compact) {
    write_compact(out, value);
  } else {
    IndentedWriter(out).write(value);
  }
  return out;
}

}  // namespace shiplap
