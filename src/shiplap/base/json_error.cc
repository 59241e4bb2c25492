// Explains a JSON syntax error.
//
// Problem: the parser only reports that it stopped, and its events have no positions.
// Idea: the reader records the last complete token, its end and the innermost open bracket
// (JsonParseState), which determine the tokens that may come next. This file scans the text again
// from there, determines which token it finds, and reports "expected X, found Y", with a help text
// for common mistakes: trailing and missing commas, comments, single quotes, Python's literals.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "shiplap/base/error.h"
#include "shiplap/base/json_error_internal.h"
#include "shiplap/base/utf8_internal.h"

namespace shiplap {
namespace {

constexpr std::string_view kSpace = " \t\r\n";
constexpr std::string_view kDigits = "0123456789";
constexpr std::string_view kHexDigits = "0123456789abcdefABCDEF";
constexpr std::string_view kWord =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_";
constexpr std::size_t kMaxQuoteBytes = 40;

bool is_one_of(std::string_view set, char c) { return set.find(c) != set.npos; }

char at(std::string_view text, std::size_t offset) {
  return offset < text.size() ? text[offset] : '\0';
}

std::size_t end_of_run(std::string_view text, std::size_t begin, std::string_view set) {
  return std::min(text.find_first_not_of(set, begin), text.size());
}

int as_int(std::size_t n) {
  return static_cast<int>(std::min(n, static_cast<std::size_t>(std::numeric_limits<int>::max())));
}

std::size_t line_of(std::string_view text, std::size_t offset) {
  const auto before = text.substr(0, offset);
  return 1 + static_cast<std::size_t>(std::count(before.begin(), before.end(), '\n'));
}

std::size_t start_of_line(std::string_view text, std::size_t offset) {
  const auto newline = text.substr(0, offset).rfind('\n');
  return newline == text.npos ? 0 : newline + 1;
}

std::string hex_byte(char byte) {
  return fmt::format("0x{:02X}", static_cast<unsigned char>(byte));
}

// Truncates a long text, but not inside a character.
std::string quoted(std::string_view part) {
  if (part.size() <= kMaxQuoteBytes) return fmt::format("`{}`", part);
  std::size_t end = kMaxQuoteBytes;
  while (end > 0 && (static_cast<unsigned char>(part[end]) & 0xC0) == 0x80) --end;
  return fmt::format("`{}…`", part.substr(0, end));
}

std::string quoted(std::string_view text, JsonSpan span) {
  return quoted(text.substr(span.offset, span.length));
}

// The token at which parsing stopped, and the expected tokens.
struct Expectation {
  std::size_t begin = 0;
  std::string_view expected;
  bool value = false;     // a value is allowed here
  bool key = false;       // a key is allowed here
  char separator = '\0';  // the `,` or `:` between the last parsed token and this one
};

// The tokens that may follow the last parsed token without a separator.
Expectation after(JsonToken last) {
  switch (last) {
    case JsonToken::none:
      return {.expected = "a value", .value = true};
    case JsonToken::open_array:
      return {.expected = "a value or `]`", .value = true};
    case JsonToken::open_object:
      return {.expected = "a key in double quotes or `}`", .key = true};
    case JsonToken::key:
      return {.expected = "`:`"};
    case JsonToken::item:
      return {.expected = "`,` or `]`"};
    case JsonToken::member:
      return {.expected = "`,` or `}`"};
    case JsonToken::whole:
      return {.expected = "the end of the text"};
  }
  throw InternalError("unknown JSON token");
}

// The tokens that may follow its separator.
std::optional<Expectation> after_separator(JsonToken last) {
  if (last == JsonToken::key)
    return Expectation{.expected = "a value", .value = true, .separator = ':'};
  if (last == JsonToken::item)
    return Expectation{.expected = "a value", .value = true, .separator = ','};
  if (last == JsonToken::member) {
    return Expectation{.expected = "a key in double quotes", .key = true, .separator = ','};
  }
  return std::nullopt;
}

Expectation expectation(std::string_view text, const JsonParseState& state) {
  Expectation result = after(state.last);
  result.begin = end_of_json_space(text, state.end);
  const auto separated = after_separator(state.last);
  if (separated && at(text, result.begin) == separated->separator) {
    const auto begin = end_of_json_space(text, result.begin + 1);
    result = *separated;
    result.begin = begin;
  }
  return result;
}

JsonSpan token_at(std::string_view text, std::size_t begin) {
  if (begin >= text.size()) return {begin, 1};
  if (text[begin] == '"') {
    const auto close = text.find_first_of("\"\n", begin + 1);
    return {begin, close < text.size() && text[close] == '"' ? close + 1 - begin : 1};
  }
  const auto number = end_of_json_number(text, begin);
  const auto word = end_of_run(text, begin, kWord);
  if (std::max(number, word) > begin) return {begin, std::max(number, word) - begin};
  const auto character = first_code_point(text.substr(begin));
  return {begin, character ? character->bytes : 1};
}

std::string found(std::string_view text, JsonSpan token) {
  if (token.offset >= text.size()) return "the end of the text";
  const char first = text[token.offset];
  if (first == '"') return "a string";
  if (first == '`') return "a backquote";
  if (static_cast<unsigned char>(first) < 0x20 || first == 0x7F)
    return "the byte " + hex_byte(first);
  if (!first_code_point(text.substr(token.offset))) {
    return fmt::format("the byte {}, which is not UTF-8", hex_byte(first));
  }
  return quoted(text, token);
}

std::string help_with_word(std::string_view word) {
  for (const std::string_view right : {"true", "false", "null"}) {
    const bool same = std::equal(word.begin(), word.end(), right.begin(), right.end(),
                                 [](char a, char b) { return (a | 0x20) == b; });
    if (same) return fmt::format("write `{}`", right);
  }
  if (word == "None" || word == "nil" || word == "undefined") return "write `null`";
  if (word == "NaN" || word == "nan" || word == "Infinity" || word == "inf") {
    return "JSON has no such number; write `null`";
  }
  return {};
}

bool begins_value(char c) { return is_one_of("\"-[{", c) || is_one_of(kWord, c); }

std::string help_with_punctuation(std::string_view text, const Expectation& wanted) {
  const char c = at(text, wanted.begin);
  if (c == '/' || c == '#') return "JSON has no comments; remove it";
  if (c == '\'') return "write strings in double quotes";
  if ((c == ']' || c == '}') && wanted.separator == ',') {
    return fmt::format("remove the comma before `{}`", c);
  }
  if (c == ',' && wanted.separator == ',') return "remove one of the two commas";
  if ((c == '+' || c == '.') && wanted.value) return "begin a number with a digit or `-`";
  // Without a space between them, as in 0x10, both are probably one token.
  const bool apart = wanted.begin > 0 && is_one_of(kSpace, text[wanted.begin - 1]);
  if (apart && wanted.expected.starts_with("`,`") && begins_value(c)) {
    return "is a comma missing before it?";
  }
  return {};
}

std::string help_with(std::string_view text, const Expectation& wanted, JsonSpan token) {
  if (wanted.begin >= text.size()) return {};
  if (!is_one_of(kWord, text[token.offset]) || !(wanted.value || wanted.key)) {
    return help_with_punctuation(text, wanted);
  }
  const auto word = text.substr(token.offset, token.length);
  if (wanted.value) {
    if (auto help = help_with_word(word); !help.empty()) return help;
  }
  return "put it in double quotes, if it is meant as a string";
}

Diagnostic unclosed_string(const JsonSource& source, std::size_t begin, std::size_t stopped) {
  auto d = json_diagnostic(source, {begin, stopped - begin}, "a string is not closed");
  d.help = "close it with `\"`; a line break inside a string is written `\\n`";
  return d;
}

// The value of the four hexadecimal digits at `begin`.
std::optional<unsigned> four_hex_digits(std::string_view text, std::size_t begin) {
  unsigned value = 0;
  for (std::size_t i = begin; i < begin + 4; ++i) {
    if (i >= text.size() || !is_one_of(kHexDigits, text[i])) return std::nullopt;
    const char c = text[i];
    value = value * 16 + static_cast<unsigned>(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
  }
  return value;
}

// The length of the escape at `begin`, or its error.
struct Escape {
  std::size_t length = 2;
  std::string error;
};

Escape read_unicode_escape(std::string_view text, std::size_t begin) {
  const auto unit = four_hex_digits(text, begin + 2);
  if (!unit) return {2, "expected four hexadecimal digits after `\\u`"};
  if (*unit < 0xD800 || *unit > 0xDFFF) return {6, {}};
  if (*unit < 0xDC00 && text.substr(begin + 6, 2) == "\\u") {
    const auto second = four_hex_digits(text, begin + 8);
    if (second && *second >= 0xDC00 && *second <= 0xDFFF) return {12, {}};
  }
  return {6, fmt::format("`{}` is only half of a character", text.substr(begin, 6))};
}

Escape read_escape(std::string_view text, std::size_t begin) {
  const char c = at(text, begin + 1);
  if (c == 'u') return read_unicode_escape(text, begin);
  if (is_one_of("\"\\/bfnrt", c)) return {};
  const auto character = first_code_point(text.substr(begin + 1));
  const std::size_t length = 1 + (character ? character->bytes : 0);
  return {length, fmt::format("JSON has no escape {}", quoted(text, {begin, length}))};
}

// The error inside the string that begins at `begin`; nullopt if it is valid.
std::optional<Diagnostic> string_error(const JsonSource& source, std::size_t begin) {
  const auto text = source.text;
  std::size_t i = begin + 1;
  while (i < text.size() && text[i] != '"') {
    const char c = text[i];
    if (c == '\n' || c == '\r') return unclosed_string(source, begin, i);
    if (static_cast<unsigned char>(c) < 0x20) {
      auto d = json_diagnostic(source, {i, 1},
                               fmt::format("found the byte {} in a string", hex_byte(c)));
      d.help = fmt::format("write it as `\\u{:04x}`", static_cast<unsigned>(c));
      return d;
    }
    if (c == '\\' && i + 1 < text.size()) {
      auto escape = read_escape(text, i);
      if (!escape.error.empty()) {
        auto d = json_diagnostic(source, {i, escape.length}, std::move(escape.error));
        d.help = "a backslash itself is written `\\\\`";
        return d;
      }
      i += escape.length;
      continue;
    }
    const auto character = first_code_point(text.substr(i));
    if (!character) {
      return json_diagnostic(source, {i, 1}, fmt::format("the byte {} is not UTF-8", hex_byte(c)));
    }
    i += character->bytes;
  }
  if (i >= text.size()) return unclosed_string(source, begin, text.size());
  return std::nullopt;
}

Diagnostic number_error(const JsonSource& source, std::size_t begin) {
  const auto end = end_of_run(source.text, begin,
                              "+-.0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_");
  const JsonSpan span{begin, end - begin};
  if (end_of_json_number(source.text, begin) == end) {
    return json_diagnostic(source, span,
                           quoted(source.text, span) + " is too large for a 64-bit number");
  }
  auto d = json_diagnostic(source, span, quoted(source.text, span) + " is not a number");
  d.why = "a number has digits on both sides of its point, and after its `e`";
  return d;
}

// An error inside the token itself, rather than a misplaced token.
std::optional<Diagnostic> token_error(const JsonSource& source, const Expectation& wanted) {
  const char first = at(source.text, wanted.begin);
  if (first == '"' && (wanted.value || wanted.key)) return string_error(source, wanted.begin);
  if (wanted.value && (first == '-' || is_one_of(kDigits, first))) {
    return number_error(source, wanted.begin);
  }
  return std::nullopt;
}

// The end of the last token: a better location than an empty last line.
std::size_t end_of_content(std::string_view text) {
  const auto last = text.find_last_not_of(kSpace);
  return last == text.npos ? 0 : last + 1;
}

std::string still_open(const JsonSource& source, std::size_t opened) {
  return fmt::format("the `{}` of line {} is still open", source.text[opened],
                     line_of(source.text, opened));
}

bool has_leading_zero(std::string_view text, const JsonParseState& state, std::size_t begin) {
  const bool after_value = state.last != JsonToken::none && state.last != JsonToken::key;
  return after_value && begin > 0 && begin == state.end && text[begin - 1] == '0' &&
         is_one_of(kDigits, at(text, begin));
}

}  // namespace

std::size_t end_of_json_space(std::string_view text, std::size_t begin) {
  return end_of_run(text, begin, kSpace);
}

std::size_t end_of_json_number(std::string_view text, std::size_t begin) {
  std::size_t i = begin + (at(text, begin) == '-' ? 1 : 0);
  const auto whole = at(text, i) == '0' ? i + 1 : end_of_run(text, i, kDigits);
  if (whole == i) return begin;
  i = whole;
  if (at(text, i) == '.') {
    const auto fraction = end_of_run(text, i + 1, kDigits);
    if (fraction > i + 1) i = fraction;
  }
  if ((at(text, i) | 0x20) == 'e') {
    const auto digits = i + (is_one_of("+-", at(text, i + 1)) ? 2 : 1);
    const auto exponent = end_of_run(text, digits, kDigits);
    if (exponent > digits) i = exponent;
  }
  return i;
}

Diagnostic json_diagnostic(const JsonSource& source, JsonSpan span, std::string what) {
  const auto begin = start_of_line(source.text, span.offset);
  auto line = source.text.substr(begin);
  line = line.substr(0, line.find('\n'));
  if (line.ends_with('\r')) line.remove_suffix(1);

  Diagnostic d;
  d.code = "D010";
  d.what = std::move(what);
  d.where.file = source.file;
  d.where.line = as_int(line_of(source.text, span.offset));
  d.where.column = as_int(span.offset - begin + 1);
  d.where.length = as_int(std::max<std::size_t>(span.length, 1));
  d.where.excerpt = line;
  return d;
}

Diagnostic duplicate_key_error(const JsonSource& source, JsonSpan span, std::string_view key) {
  auto d = json_diagnostic(source, span, fmt::format("duplicate key {}", quoted(key)));
  d.why = "each key of an object has one value";
  d.help = "remove one of the two";
  return d;
}

Diagnostic explain_json_error(const JsonSource& source, const JsonParseState& state) {
  const auto text = source.text;
  const Expectation wanted = expectation(text, state);
  if (auto inside = token_error(source, wanted)) return *std::move(inside);

  const JsonSpan token = token_at(text, wanted.begin);
  if (has_leading_zero(text, state, token.offset)) {
    auto d = json_diagnostic(source, {token.offset - 1, 1}, "a number begins with an extra 0");
    d.help = "remove the 0";
    return d;
  }

  const bool at_end = wanted.begin >= text.size();
  const JsonSpan span = at_end ? JsonSpan{end_of_content(text), 1} : token;
  auto d = json_diagnostic(
      source, span, fmt::format("expected {}, found {}", wanted.expected, found(text, token)));
  d.help = help_with(text, wanted, token);
  const bool closes = is_one_of("]}", at(text, wanted.begin)) && wanted.separator == '\0';
  if (state.opened && (at_end || closes)) d.why = still_open(source, *state.opened);
  return d;
}

}  // namespace shiplap
