// Reads the JSON form. Each object is rewritten as lines of the text form, and these are parsed as
// text, so that there is one set of rules and the two forms cannot diverge. Errors in a generated
// line are reported at the object that it came from.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <span>
#include <utility>

#include "shiplap/base/error.h"
#include "shiplap/base/suggest.h"
#include "shiplap/plan/phrase_writer_internal.h"
#include "shiplap/plan/text.h"

namespace shiplap::plan {
namespace {

// A location in the JSON value. REQUIRES: `parent` outlives it.
struct JsonCursor {
  const Json& json;
  const JsonCursor* parent = nullptr;
  std::string_view key;
  std::size_t index = 0;

  // The JSON pointer: "/programs/0/body/3".
  [[nodiscard]] std::string path() const {
    if (parent == nullptr) return "";
    return parent->path() + "/" + (key.empty() ? std::to_string(index) : std::string(key));
  }
};

class GeneratedText {
 public:
  explicit GeneratedText(std::string_view file) : file_(file) {}

  std::string text;

  [[noreturn]] void fail(const JsonCursor& view, std::string what, std::string help = "") const {
    throw InputError(Diagnostic{.code = "D011",
                                .where = {.file = file_, .operation = at(view.path())},
                                .what = std::move(what),
                                .help = std::move(help)});
  }

  static std::string at(const std::string& path) { return "at " + (path.empty() ? "/" : path); }

  void add(const JsonCursor& view, std::string_view line) {
    paths_.emplace_back(count_, view.path());
    add_same(line);
  }

  // Adds another line for the same object.
  void add_same(std::string_view line) {
    text += line;
    text += '\n';
    ++count_;
  }

  // The JSON pointer of the object of a line (counted from 1).
  [[nodiscard]] std::string path_of(int line) const {
    const auto after = std::ranges::upper_bound(paths_, static_cast<std::size_t>(line) - 1, {},
                                                &std::pair<std::size_t, std::string>::first);
    return after == paths_.begin() ? "" : std::prev(after)->second;
  }

  // ---- access to the JSON value

  const Json::Array& array(const JsonCursor& view) const {
    if (!view.json.is_array()) {
      fail(view, fmt::format("expected an array, found {}", view.json.type_name()));
    }
    return view.json.as_array();
  }

  // Calls `visit` with each item of an array member; an absent member is an empty array.
  template <class Visit>
  void each(const JsonCursor& view, std::string_view key, const Visit& visit) const {
    const Json* member = view.json.find(key);
    if (member == nullptr) return;
    const JsonCursor list{*member, &view, key};
    const Json::Array& items = array(list);
    for (std::size_t k = 0; k < items.size(); ++k) visit(JsonCursor{items[k], &list, {}, k});
  }

  // Throws D011 if it is not an object or has an unknown member.
  void object(const JsonCursor& view, std::span<const std::string> known) const {
    if (!view.json.is_object()) {
      fail(view, fmt::format("expected an object, found {}", view.json.type_name()));
    }
    for (const auto& [key, value] : view.json.as_object()) {
      if (std::ranges::find(known, key) == known.end()) {
        fail(view, fmt::format("unknown member `{}`", key), suggest(key, known));
      }
    }
  }

  [[nodiscard]] bool has(const JsonCursor& view, std::string_view key) const {
    return view.json.find(key) != nullptr;
  }

  // A phrase: a string on one line, or an integer.
  std::string phrase(const JsonCursor& view) const {
    if (view.json.is_integer()) return std::to_string(view.json.as_integer());
    if (!view.json.is_string()) {
      fail(view,
           fmt::format("expected a string or a whole number, found {}", view.json.type_name()));
    }
    const std::string& text_here = view.json.as_string();
    if (text_here.find_first_of("\n;#") != text_here.npos) {
      fail(view, "a phrase must be on one line, without `;` and `#`");
    }
    return text_here;
  }

  std::string member(const JsonCursor& view, std::string_view key) const {
    const Json* found = view.json.find(key);
    if (found == nullptr) fail(view, fmt::format("member `{}` is missing", key));
    return phrase({*found, &view, key});
  }

  // " word phrase", or nothing if there is no such member.
  std::string optional(const JsonCursor& view, std::string_view key, std::string_view word) const {
    return has(view, key) ? fmt::format(" {} {}", word, member(view, key)) : "";
  }

  // " word" if the member is true.
  std::string flag(const JsonCursor& view, std::string_view key) const {
    const Json* found = view.json.find(key);
    if (found == nullptr) return "";
    if (!found->is_bool()) {
      fail({*found, &view, key},
           fmt::format("expected true or false, found {}", found->type_name()));
    }
    return found->as_bool() ? fmt::format(" {}", key) : "";
  }

 private:
  std::string file_;
  std::size_t count_ = 0;
  std::vector<std::pair<std::size_t, std::string>> paths_;  // the first line of each object
};

const std::vector<std::string>& statement_members() {
  static const std::vector<std::string> kMembers = {
      "do",      "name", "stream", "kernel", "accesses", "from",  "to",   "peer",  "tag",
      "channel", "add",  "over",   "split",  "operator", "scale", "root", "table", "reversed",
      "rows",    "body", "after",  "async",  "joined",   "work",  "at",   "label", "repeat",
      "count",   "when", "let",    "value",  "given",    "goal",  "keep"};
  return kMembers;
}

class JsonToText {
 public:
  explicit JsonToText(GeneratedText& lines) : lines_(lines) {}

  void plan(const JsonCursor& view) {
    static const std::vector<std::string> kMembers = {"schema",   "mesh",  "aliases", "values",
                                                      "sources",  "lists", "tensors", "tables",
                                                      "programs", "spares"};
    lines_.object(view, kMembers);
    const std::string schema = lines_.member(view, "schema");
    if (schema != "shiplap.plan/1") {
      lines_.fail(view,
                  fmt::format("unsupported schema \"{}\", expected \"shiplap.plan/1\"", schema));
    }
    lines_.add(view, "shiplap-plan 1");
    mesh(view);
    if (lines_.has(view, "values")) lines_.add(view, "values " + lines_.member(view, "values"));
    lines_.each(view, "sources", [this](const JsonCursor& v) { source(v); });
    lines_.each(view, "lists", [this](const JsonCursor& v) { list(v); });
    lines_.each(view, "tensors", [this](const JsonCursor& v) { tensor(v); });
    lines_.each(view, "tables", [this](const JsonCursor& v) { table(v); });
    lines_.each(view, "programs", [this](const JsonCursor& v) { program(v); });
    lines_.each(view, "spares",
                [this](const JsonCursor& v) { lines_.add(v, "spare on " + lines_.phrase(v)); });
  }

 private:
  void mesh(const JsonCursor& view) {
    static const std::vector<std::string> kAxis = {"axis", "size"};
    static const std::vector<std::string> kAlias = {"name", "axes"};
    std::string line = "mesh";
    lines_.each(view, "mesh", [&](const JsonCursor& axis) {
      lines_.object(axis, kAxis);
      line += " " + lines_.member(axis, "axis") + "=" + lines_.member(axis, "size");
    });
    lines_.add(view, line);
    lines_.each(view, "aliases", [&](const JsonCursor& alias) {
      lines_.object(alias, kAlias);
      line = "alias " + lines_.member(alias, "name") + " =";
      lines_.each(alias, "axes",
                  [&](const JsonCursor& axis) { line += " " + lines_.phrase(axis); });
      lines_.add(alias, line);
    });
  }

  void source(const JsonCursor& view) {
    static const std::vector<std::string> kMembers = {"name", "file", "function"};
    lines_.object(view, kMembers);
    std::string line = "source " + lines_.member(view, "name") + " " + text(view, "file");
    if (lines_.has(view, "function")) line += " in " + text(view, "function");
    lines_.add(view, line);
  }

  void list(const JsonCursor& view) {
    static const std::vector<std::string> kMembers = {"name", "values"};
    lines_.object(view, kMembers);
    std::string line = "list " + lines_.member(view, "name") + " =";
    lines_.each(view, "values",
                [&](const JsonCursor& value) { line += " " + lines_.phrase(value); });
    lines_.add(view, line);
  }

  void tensor(const JsonCursor& view) {
    static const std::vector<std::string> kMembers = {"name", "kind",  "instances", "part",
                                                      "sum",  "scale", "mask"};
    lines_.object(view, kMembers);
    std::string line = "tensor " + lines_.member(view, "name");
    if (lines_.has(view, "instances")) line += "[" + lines_.member(view, "instances") + "]";
    line += " " + lines_.member(view, "kind");
    line += dimensions(view, "part");
    if (lines_.has(view, "sum")) line += " sum" + dimensions(view, "sum");
    line += lines_.optional(view, "scale", "scale");
    line += lines_.optional(view, "mask", "mask");
    lines_.add(view, line);
  }

  std::string dimensions(const JsonCursor& view, std::string_view key) {
    static const std::vector<std::string> kMembers = {"dimension", "size"};
    std::string line;
    lines_.each(view, key, [&](const JsonCursor& dimension) {
      lines_.object(dimension, kMembers);
      line += " " + lines_.member(dimension, "dimension") + " " + lines_.member(dimension, "size");
    });
    return line;
  }

  void table(const JsonCursor& view) {
    static const std::vector<std::string> kMembers = {"name", "sends", "receives"};
    lines_.object(view, kMembers);
    lines_.add(view, "table " + lines_.member(view, "name"));
    rows(view, "sends", "send");
    rows(view, "receives", "receive");
  }

  void rows(const JsonCursor& view, std::string_view key, std::string_view word) {
    lines_.each(view, key, [&](const JsonCursor& row) {
      std::string line(word);
      for (const Json& number : lines_.array(row)) line += " " + lines_.phrase({number, &row, {}});
      lines_.add_same(line);
    });
  }

  void program(const JsonCursor& view) {
    static const std::vector<std::string> kMembers = {"name", "on", "buffers", "streams", "body"};
    static const std::vector<std::string> kBuffer = {"name", "rows", "row_bytes", "type", "memory"};
    lines_.object(view, kMembers);
    lines_.add(view, "program " + lines_.member(view, "name") + " on " + lines_.member(view, "on"));
    lines_.each(view, "buffers", [&](const JsonCursor& b) {
      lines_.object(b, kBuffer);
      const std::string memory = lines_.has(b, "memory") ? " " + lines_.member(b, "memory") : "";
      lines_.add(b, "buffer " + lines_.member(b, "name") + " rows " + lines_.member(b, "rows") +
                        " row_bytes " + lines_.member(b, "row_bytes") + " " +
                        lines_.member(b, "type") + memory);
    });
    lines_.each(view, "streams", [&](const JsonCursor& stream) {
      lines_.add(stream, "streams " + lines_.phrase(stream));
    });
    body(view);
  }

  void body(const JsonCursor& view) {
    lines_.each(view, "body", [this](const JsonCursor& v) { statement(v); });
  }

  void block(const JsonCursor& view, const std::string& head) {
    lines_.add(view, head);
    body(view);
    lines_.add(view, "end");
  }

  void statement(const JsonCursor& view) {
    lines_.object(view, statement_members());
    const auto has = [&](std::string_view key) { return lines_.has(view, key); };
    if (has("do")) return operation(view);
    if (has("repeat")) {
      return block(view,
                   "repeat " + lines_.member(view, "repeat") + " " + lines_.member(view, "count"));
    }
    if (has("when")) return block(view, "when " + lines_.member(view, "when"));
    if (has("let")) {
      return lines_.add(view,
                        "let " + lines_.member(view, "let") + " = " + lines_.member(view, "value"));
    }
    for (const std::string_view word : {"given", "goal", "keep"}) {
      if (has(word)) return lines_.add(view, region_is(view, word));
    }
    lines_.fail(
        view, "this object is not a statement",
        "a statement has a member `do`, `repeat`, `when`, `let`, `given`, `goal` or `keep`");
  }

  std::string region_is(const JsonCursor& view, std::string_view word) {
    return fmt::format("{} {}", word, lines_.member(view, word)) +
           lines_.optional(view, "value", "=");
  }

  void operation(const JsonCursor& view) {
    std::string line;
    if (lines_.has(view, "name")) line += lines_.member(view, "name") + ": ";
    if (lines_.has(view, "stream")) line += "@" + lines_.member(view, "stream") + " ";
    const std::string action = lines_.member(view, "do");
    line += action + operands(view, action) + trailing(view);
    if (action == "batch") return block(view, line);
    lines_.add(view, line);
    lines_.each(view, "accesses", [this](const JsonCursor& v) { access(v); });
  }

  void access(const JsonCursor& view) {
    static const std::vector<std::string> kMembers = {"reads", "writes", "adds", "value"};
    lines_.object(view, kMembers);
    for (const std::string_view word : {"reads", "writes", "adds"}) {
      if (lines_.has(view, word)) return lines_.add(view, region_is(view, word));
    }
    lines_.fail(view, "an access needs a member `reads`, `writes` or `adds`");
  }

  std::string operands(const JsonCursor& view, const std::string& action) {
    const auto must = [&](std::string_view key) { return " " + lines_.member(view, key); };
    const auto may = [&](std::string_view key) { return lines_.optional(view, key, key); };
    if (action == "compute") return must("kernel");
    if (action == "batch") return "";
    if (action == "allocate" || action == "free") return must("rows");
    if (action == "copy") return must("from") + " to" + must("to") + lines_.flag(view, "add");
    if (action == "send") return must("from") + " to" + must("peer") + may("tag") + may("channel");
    if (action == "receive") {
      return must("to") + " from" + must("peer") + lines_.flag(view, "add") + may("tag") +
             may("channel");
    }
    if (action == "exchange") {
      return must("from") + " to" + must("to") + " by" + must("table") +
             lines_.flag(view, "reversed") + " over" + must("over") + lines_.flag(view, "add");
    }
    const std::string from = action == "barrier" ? "" : must("from") + may("to");
    return from + " over" + must("over") + may("split") + may("operator") + may("scale") +
           may("root");
  }

  std::string trailing(const JsonCursor& view) {
    std::string line;
    lines_.each(view, "after", [&](const JsonCursor& reference) {
      line += (line.empty() ? " after " : ", ") + lines_.phrase(reference);
    });
    line += lines_.flag(view, "async");
    line += lines_.flag(view, "joined");
    line += lines_.optional(view, "work", "work");
    line += lines_.optional(view, "at", "at");
    return lines_.has(view, "label") ? line + " label " + text(view, "label") : line;
  }

  // A member that may be any text, in quotation marks.
  std::string text(const JsonCursor& view, std::string_view key) const {
    const Json* found = view.json.find(key);
    if (found == nullptr) lines_.fail(view, fmt::format("member `{}` is missing", key));
    if (!found->is_string()) lines_.fail({*found, &view, key}, "expected a string");
    std::string result = "\"";
    for (const char c : found->as_string()) {
      if (c == '"' || c == '\\') result += '\\';
      result += c == '\n' ? std::string("\\n") : std::string(1, c);
    }
    return result + "\"";
  }

  GeneratedText& lines_;
};

// Line numbers of generated text have no meaning for the user.
void clear_origins(std::vector<Statement>& body) {
  for (Statement& statement : body) {
    std::visit([](auto& node) { node.origin = {}; }, statement.node);
    if (auto* repeat = std::get_if<Repeat>(&statement.node)) clear_origins(repeat->body);
    if (auto* when = std::get_if<When>(&statement.node)) clear_origins(when->body);
    if (auto* operation = std::get_if<Operation>(&statement.node)) {
      if (auto* batch = std::get_if<Batch>(&operation->action)) clear_origins(batch->body);
    }
  }
}

// Rejects phrases that contain more than their member ("pp+1 wrap tag 5" as a peer): then the
// parsed plan has members that the input does not have.
void check_no_more(const GeneratedText& lines, const JsonCursor& given, const Json& read) {
  if (read.is_array()) {
    const Json::Array& items = lines.array(given);
    if (items.size() != read.as_array().size()) {
      lines.fail(given,
                 fmt::format("{} items were parsed as {}", items.size(), read.as_array().size()));
    }
    for (std::size_t k = 0; k < items.size(); ++k) {
      check_no_more(lines, {items[k], &given, {}, k}, read.as_array()[k]);
    }
  }
  if (!read.is_object()) return;
  for (const auto& [key, value] : read.as_object()) {
    const Json* member = given.json.find(key);
    if (member == nullptr && value.is_array() && value.as_array().empty()) continue;
    if (member == nullptr) {
      lines.fail(given, fmt::format("a phrase contains what belongs in a member `{}`", key),
                 fmt::format("put it there: {}", to_text(value, Layout::compact)));
    }
    check_no_more(lines, {*member, &given, key}, value);
  }
}

}  // namespace

Plan parse_plan_json(std::string_view text, std::string_view file) {
  const Json json = parse_json(text, file);
  GeneratedText lines(file);
  JsonToText(lines).plan({json});
  try {
    Plan plan = parse_text(lines.text, file);
    for (Program& program : plan.programs) clear_origins(program.body);
    check_no_more(lines, {json}, to_json(plan));
    return plan;
  } catch (const InputError& error) {
    std::vector<Diagnostic> diagnostics = error.diagnostics();
    for (Diagnostic& diagnostic : diagnostics) {
      // The line is generated: report its object instead, and show the line as excerpt.
      Where& where = diagnostic.where;
      if (where.line < 1) continue;
      where.operation = GeneratedText::at(lines.path_of(where.line));
      where.line = 0;
    }
    throw InputError(std::move(diagnostics));
  }
}

bool is_json_form(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  return first != text.npos && text[first] == '{';
}

Plan parse_plan(std::string_view text, std::string_view file) {
  return is_json_form(text) ? parse_plan_json(text, file) : parse_text(text, file);
}

}  // namespace shiplap::plan
