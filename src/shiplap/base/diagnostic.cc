// Renders diagnostics in the format of compiler messages.
//
// Everything in a diagnostic may come from an untrusted file, so rendering is bounded and safe:
// texts and lists are truncated, control characters and text-direction marks are replaced (see the
// "Trojan Source" attacks, Boucher and Anderson 2021), and bytes that are not UTF-8 are printed as
// `?`.
//
// An excerpt is one line of the file with marks below the error. Columns are counted in bytes,
// marks in characters, so the line is split into cells (characters with their bytes). A line may
// have gigabytes: only a window of bytes around the column is decoded, and of its cells only a
// window of kMaxExcerptWidth is printed.
#include "shiplap/base/diagnostic.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "shiplap/base/error.h"
#include "shiplap/base/utf8_internal.h"

namespace shiplap {
namespace {

constexpr std::size_t kMaxExcerptWidth = 96;  // code points
constexpr std::string_view kEllipsis = "…";
// A file may repeat an error a million times, or contain a name of a hundred megabytes.
constexpr std::size_t kMaxTextBytes = 4000;  // bytes
constexpr std::size_t kMaxShown = 100;       // diagnostics

std::string_view ansi(Severity severity) {
  switch (severity) {
    case Severity::note:
      return "\033[1;36m";
    case Severity::warning:
      return "\033[1;33m";
    case Severity::error:
      return "\033[1;31m";
  }
  throw InternalError("unknown severity");
}

constexpr std::string_view kAnsiHelp = "\033[32m";
constexpr std::string_view kAnsiOff = "\033[0m";

std::string styled(std::string_view text, std::string_view ansi_code, Colour colour) {
  if (colour == Colour::off || text.empty()) return std::string(text);
  return fmt::format("{}{}{}", ansi_code, text, kAnsiOff);
}

// Characters that a terminal interprets instead of printing: control characters, and the marks for
// text direction, which can disguise a line as another.
bool is_terminal_control(char32_t c) {
  return c < 0x20 || (c >= 0x7F && c < 0xA0) || c == 0x200E || c == 0x200F || c == 0x061C ||
         (c >= 0x2028 && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069);
}

// One printed character.
struct Cell {
  std::string_view shown;
  std::size_t bytes = 0;  // in the original text
};

Cell first_cell(std::string_view text) {
  const auto character = first_code_point(text);
  if (!character) return {"?", 1};
  if (is_terminal_control(character->value)) return {"?", character->bytes};
  return {text.substr(0, character->bytes), character->bytes};
}

// Safe to send to a terminal, on one line.
std::string printable(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    if (result.size() >= kMaxTextBytes) return result.append(kEllipsis);
    const Cell cell = first_cell(text);
    result += cell.shown;
    text.remove_prefix(cell.bytes);
  }
  return result;
}

// The same for a text of several lines. Lines after the first are indented.
std::string printable_lines(std::string_view text, std::size_t indent) {
  std::string result;
  while (true) {
    if (result.size() >= kMaxTextBytes) return result.append(kEllipsis);
    const auto newline = text.find('\n');
    result += printable(text.substr(0, newline));
    if (newline == text.npos) return result;
    text.remove_prefix(newline + 1);
    result += '\n' + std::string(indent, ' ');
  }
}

// "file:line:column", as far as it is known.
std::string place(const Where& where) {
  std::string result = printable(where.file);
  if (where.line <= 0) return result;
  result += result.empty() ? fmt::format("line {}", where.line) : fmt::format(":{}", where.line);
  if (where.column > 0) result += fmt::format(":{}", where.column);
  return result;
}

std::string location(const Where& where) {
  std::string result = place(where);
  if (!where.function.empty()) result += " in " + printable(where.function);
  const auto add = [&](const std::string& part) {
    if (part.empty()) return;
    if (!result.empty()) result += ", ";
    result += part;
  };
  add(printable(where.flag));
  if (where.rank) add(fmt::format("rank {}", *where.rank));
  add(printable(where.operation));
  return result;
}

// The excerpt and, below it, the marks.
struct Excerpt {
  std::string line;
  std::string before_marks;  // blanks and tabs that align the marks with the excerpt
  std::string marks;         // empty if the column is not known
};

// The bytes of an excerpt that can be shown; a file may be a single line of gigabytes.
struct ByteWindow {
  std::string_view text;
  std::size_t begin = 0;  // of `text` in the excerpt
  bool cut_after = false;
};

// A character takes at most four bytes, so the shown part never reaches the two ends of the window,
// where a character may be cut in two.
ByteWindow byte_window_around(std::string_view excerpt, std::size_t offset) {
  constexpr std::size_t kRadius = 4 * kMaxExcerptWidth;
  const std::size_t begin = offset > kRadius ? offset - kRadius : 0;
  const std::string_view text = excerpt.substr(begin, 2 * kRadius);
  return {.text = text, .begin = begin, .cut_after = begin + text.size() < excerpt.size()};
}

std::vector<Cell> cells_of(std::string_view text) {
  std::vector<Cell> cells;
  while (!text.empty()) {
    cells.push_back(text[0] == '\t' ? Cell{"\t", 1} : first_cell(text));
    text.remove_prefix(cells.back().bytes);
  }
  return cells;
}

// The cells that are shown: first .. last-1.
struct CellWindow {
  std::size_t first = 0;
  std::size_t last = 0;
};

// A third of the window lies before the column, if the text is long enough.
CellWindow cell_window_around(std::size_t cells, std::size_t column) {
  if (cells <= kMaxExcerptWidth) return {0, cells};
  const std::size_t wanted = column > kMaxExcerptWidth / 3 ? column - kMaxExcerptWidth / 3 : 0;
  const std::size_t first = std::min(wanted, cells - kMaxExcerptWidth);
  return {first, first + kMaxExcerptWidth};
}

// The index of the cell with byte `offset`, or the number of cells if that is past the end.
std::size_t cell_at(const std::vector<Cell>& cells, std::size_t offset) {
  std::size_t end = 0;
  std::size_t i = 0;
  while (i < cells.size() && (end += cells[i].bytes) <= offset) ++i;
  return i;
}

void trim_line_end(std::string_view& text) {
  while (text.ends_with('\n') || text.ends_with('\r')) text.remove_suffix(1);
}

Excerpt excerpt_of(const Where& where) {
  std::string_view whole = where.excerpt;
  trim_line_end(whole);
  const auto column = static_cast<std::size_t>(std::max(where.column, 1)) - 1;
  const std::size_t offset = std::min(column, whole.size());
  const auto length = static_cast<std::size_t>(std::max(where.length, 1));

  const ByteWindow near = byte_window_around(whole, offset);
  const std::vector<Cell> cells = cells_of(near.text);
  const std::size_t begin = cell_at(cells, offset - near.begin);
  const std::size_t last_marked = cell_at(cells, offset - near.begin + length - 1);
  const CellWindow window = cell_window_around(cells.size(), begin);

  Excerpt result;
  const bool cut_before = near.begin > 0 || window.first > 0;
  if (cut_before) {
    result.line = kEllipsis;
    result.before_marks = " ";
  }
  for (std::size_t i = window.first; i < window.last; ++i) {
    result.line += cells[i].shown;
    if (i < begin) result.before_marks += cells[i].shown == "\t" ? '\t' : ' ';
  }
  if (near.cut_after || window.last < cells.size()) result.line += kEllipsis;
  const std::size_t end = std::min(last_marked + 1, window.last);
  if (where.column > 0) result.marks = std::string(end > begin ? end - begin : 1, '^');
  return result;
}

// The excerpt with a gutter of `width` for the line number.
std::string excerpt_block(const Diagnostic& d, std::size_t width, Colour colour) {
  const Excerpt excerpt = excerpt_of(d.where);
  const std::string number = d.where.line > 0 ? fmt::format("{}", d.where.line) : std::string();
  std::string result = fmt::format("{:{}} |\n", "", width);
  result += fmt::format("{:>{}} | {}\n", number, width, excerpt.line);
  if (excerpt.marks.empty()) return result;
  result += fmt::format("{:{}} | {}{}\n", "", width, excerpt.before_marks,
                        styled(excerpt.marks, ansi(d.severity), colour));
  return result;
}

std::string headline(const Diagnostic& d, Colour colour) {
  std::string kind(name(d.severity));
  if (!d.code.empty()) kind += "[" + printable(d.code) + "]";
  return fmt::format("{}: {}\n", styled(kind, ansi(d.severity), colour), printable(d.what));
}

Json where_to_json(const Where& where) {
  Json result;
  if (!where.file.empty()) result.set("file", where.file);
  if (where.line > 0) result.set("line", where.line);
  if (where.column > 0) result.set("column", where.column);
  if (!where.function.empty()) result.set("function", where.function);
  if (!where.flag.empty()) result.set("flag", where.flag);
  if (where.rank) result.set("rank", *where.rank);
  if (!where.operation.empty()) result.set("operation", where.operation);
  return result;
}

}  // namespace

std::string_view name(Severity severity) {
  switch (severity) {
    case Severity::note:
      return "note";
    case Severity::warning:
      return "warning";
    case Severity::error:
      return "error";
  }
  throw InternalError("unknown severity");
}

std::string render(const Diagnostic& d, Colour colour) {
  const std::size_t width = d.where.line > 0 ? std::to_string(d.where.line).size() : 1;
  std::string result = headline(d, colour);
  if (const auto known = location(d.where); !known.empty()) {
    result += fmt::format("{:{}}--> {}\n", "", width, known);
  }
  if (!d.where.excerpt.empty()) result += excerpt_block(d, width, colour);
  if (!d.why.empty()) {
    result += fmt::format("{:{}} = {}\n", "", width, printable_lines(d.why, width + 3));
  }
  if (!d.help.empty()) {
    result += fmt::format("{:{}} {} {}\n", "", width, styled("help:", kAnsiHelp, colour),
                          printable_lines(d.help, width + 7));
  }
  return result;
}

std::string render(std::span<const Diagnostic> diagnostics, Colour colour) {
  std::string result;
  for (const Diagnostic& diagnostic : diagnostics.first(std::min(kMaxShown, diagnostics.size()))) {
    if (!result.empty()) result += '\n';
    result += render(diagnostic, colour);
  }
  if (diagnostics.size() > kMaxShown) {
    result += fmt::format("\nand {} more\n", diagnostics.size() - kMaxShown);
  }
  return result;
}

Json to_json(const Diagnostic& d) {
  Json result = Json::object({{"code", d.code}, {"severity", name(d.severity)}, {"what", d.what}});
  if (!d.why.empty()) result.set("why", d.why);
  if (!d.help.empty()) result.set("help", d.help);
  if (Json where = where_to_json(d.where); !where.is_null()) result.set("where", std::move(where));
  return result;
}

Json to_json(std::span<const Diagnostic> diagnostics) {
  Json list = Json::array();
  for (const Diagnostic& diagnostic : diagnostics) list.push(to_json(diagnostic));
  return list;
}

}  // namespace shiplap
