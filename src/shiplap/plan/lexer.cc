#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <utility>

#include "shiplap/plan/lexer_internal.h"

namespace shiplap::plan {
namespace {

constexpr std::uint64_t kMaxInteger = std::uint64_t{1} << 63;

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

std::size_t digits_from(std::string_view text, std::size_t position) {
  while (position < text.size() && is_digit(text[position])) ++position;
  return position;
}

// Reads `4000` and `4e9`. Returns false on overflow.
bool read_integer(std::string_view digits, std::string_view exponent, std::uint64_t& result) {
  result = 0;
  const auto append = [&result](unsigned digit) {
    if (result > (kMaxInteger - digit) / 10) return false;
    result = result * 10 + digit;
    return true;
  };
  for (const char c : digits) {
    if (!append(static_cast<unsigned>(c - '0'))) return false;
  }
  int zeros = 0;
  for (const char c : exponent) zeros = std::min(100, zeros * 10 + (c - '0'));
  for (; zeros > 0 && result > 0; --zeros) {
    if (!append(0)) return false;
  }
  return true;
}

}  // namespace

Lexer::Lexer(std::string_view text, std::string_view file) : text_(text), file_(file) {
  current_ = scan();
  next_ = scan();
}

Token Lexer::take() {
  const Token taken = current_;
  current_ = next_;
  next_ = scan();
  return taken;
}

bool Lexer::take_if(std::string_view word) {
  if (!current_.is(word)) return false;
  take();
  return true;
}

void Lexer::skip_line() {
  while (!at_line_end()) take();
  if (current_.kind == TokenKind::line_end) take();
}

void Lexer::skip_blank_lines() {
  while (current_.kind == TokenKind::line_end) take();
}

void Lexer::read_as(std::string_view word) {
  current_.kind = TokenKind::name;
  current_.text = word;
}

int Lexer::indent(const Token& token) const {
  std::size_t begin = token.offset;
  while (begin > 0 && is_blank(text_[begin - 1])) --begin;
  const bool is_first = begin == 0 || text_[begin - 1] == '\n';
  return is_first ? static_cast<int>(token.offset - begin) : -1;
}

std::string_view Lexer::text_since(const Token& token) const {
  std::string_view text = text_.substr(token.offset, current_.offset - token.offset);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  return text;
}

std::string_view Lexer::take_rest_of_line() {
  const std::size_t begin = current_.offset;
  std::size_t end = begin;
  if (!at_line_end()) end = std::min(text_.find_first_of("\n;#", begin), text_.size());
  std::string_view rest = text_.substr(begin, end - begin);
  while (!rest.empty() && is_blank(rest.back())) rest.remove_suffix(1);
  go_on_from(end, current_.line);
  return rest;
}

std::string Lexer::take_quoted() {
  const Token opening = current_;
  std::string quoted;
  for (std::size_t at = opening.offset + 1; at < text_.size() && text_[at] != '\n'; ++at) {
    if (text_[at] == '"') {
      go_on_from(at + 1, opening.line);
      return quoted;
    }
    if (text_[at] == '\\' && at + 1 < text_.size() && text_[at + 1] != '\n') {
      ++at;
      quoted += text_[at] == 'n' ? '\n' : text_[at];
    } else {
      quoted += text_[at];
    }
  }
  fail(opening, {.code = "D101",
                 .what = "this quotation is not closed on its line",
                 .help = "write `\"` where it stops; inside, a quotation mark is `\\\"`"});
}

void Lexer::go_on_from(std::size_t position, std::int32_t line) {
  position_ = position;
  line_ = line;
  current_ = scan();
  next_ = scan();
}

Where Lexer::where(std::size_t offset, std::size_t length) const {
  const std::string_view before = text_.substr(0, offset);
  const std::size_t line_begin = before.rfind('\n') == before.npos ? 0 : before.rfind('\n') + 1;
  const std::size_t line_end = std::min(text_.find('\n', offset), text_.size());
  return {.file = std::string(file_),
          .line = static_cast<int>(std::ranges::count(before, '\n')) + 1,
          .column = static_cast<int>(offset - line_begin) + 1,
          .length = static_cast<int>(std::max<std::size_t>(1, std::min(length, line_end - offset))),
          .excerpt = std::string(text_.substr(line_begin, line_end - line_begin))};
}

Where Lexer::where_line(int line) const {
  std::size_t begin = 0;
  for (int k = 1; k < line && begin < text_.size(); ++k) {
    begin = std::min(text_.find('\n', begin), text_.size() - 1) + 1;
  }
  Where result = where(begin, 1);
  result.column = 0;
  return result;
}

Where Lexer::where(const Token& token) const { return where(token.offset, token.text.size()); }

void Lexer::fail(const Token& token, Diagnostic diagnostic) const {
  diagnostic.where = where(token);
  throw ParseFailure(std::move(diagnostic));
}

void Lexer::expected(std::string_view what, std::string help) const {
  fail(current_, {.code = "D101",
                  .what = fmt::format("expected {}, found {}", what, describe(current_)),
                  .help = std::move(help)});
}

// Returns whether anything was skipped.
bool Lexer::skip_blanks_and_comments() {
  const std::size_t begin = position_;
  while (position_ < text_.size() && is_blank(text_[position_])) ++position_;
  if (position_ < text_.size() && text_[position_] == '#') {
    position_ = std::min(text_.find('\n', position_), text_.size());
  }
  return position_ > begin;
}

void Lexer::finish(Token& token, std::size_t length) {
  token.text = text_.substr(position_, length);
  position_ += length;
  token.blank_after =
      position_ >= text_.size() || is_blank(text_[position_]) || text_[position_] == '\n';
}

Token Lexer::scan() {
  const bool blank = skip_blanks_and_comments() || position_ == 0 || text_[position_ - 1] == '\n';
  Token token;
  token.blank_before = blank;
  token.offset = position_;
  token.line = line_;
  if (position_ >= text_.size()) return token;
  const char c = text_[position_];
  if (c == '\n' || c == ';') {
    token.kind = TokenKind::line_end;
    if (c == '\n') ++line_;
    finish(token, 1);
  } else if (is_digit(c)) {
    scan_number(token);
  } else if (is_letter(c)) {
    scan_name(token);
  } else {
    scan_symbol(token);
  }
  return token;
}

void Lexer::scan_name(Token& token) {
  std::size_t end = position_;
  while (end < text_.size() && (is_letter(text_[end]) || is_digit(text_[end]))) ++end;
  token.kind = TokenKind::name;
  finish(token, end - position_);
}

void Lexer::scan_number(Token& token) {
  std::size_t end = digits_from(text_, position_);
  const std::string_view whole = text_.substr(position_, end - position_);
  bool integer = true;
  // A dot is part of the number only if a digit follows: `1..3` is a range.
  if (end + 1 < text_.size() && text_[end] == '.' && is_digit(text_[end + 1])) {
    integer = false;
    end = digits_from(text_, end + 1);
  }
  std::string_view exponent;
  if (end < text_.size() && (text_[end] == 'e' || text_[end] == 'E')) {
    std::size_t begin = end + 1;
    const bool is_signed = begin < text_.size() && (text_[begin] == '-' || text_[begin] == '+');
    if (is_signed) ++begin;
    if (const std::size_t stop = digits_from(text_, begin); stop > begin) {
      integer = integer && !is_signed;
      exponent = text_.substr(begin, stop - begin);
      end = stop;
    }
  }
  finish(token, end - position_);
  token.kind = integer && read_integer(whole, exponent, token.integer) ? TokenKind::integer
                                                                       : TokenKind::decimal;
  if (token.kind == TokenKind::integer) {
    token.decimal = static_cast<double>(token.integer);
  } else {
    token.decimal = std::strtod(std::string(token.text).c_str(), nullptr);
  }
}

void Lexer::scan_symbol(Token& token) {
  constexpr std::array<std::string_view, 5> kPairs = {"<=", ">=", "!=", "==", ".."};
  const std::string_view two = text_.substr(position_, 2);
  token.kind = TokenKind::symbol;
  std::size_t length = 1;
  if (std::ranges::find(kPairs, two) != kPairs.end()) {
    length = 2;
  } else {
    // Take a whole UTF-8 character, not its first byte.
    while (position_ + length < text_.size() && (text_[position_ + length] & 0xC0) == 0x80 &&
           (text_[position_] & 0x80) != 0 && length < 4) {
      ++length;
    }
  }
  finish(token, length);
}

std::string describe(const Token& token) {
  switch (token.kind) {
    case TokenKind::text_end:
      return "the end of the file";
    case TokenKind::line_end:
      return token.text == ";" ? "`;`" : "the end of the line";
    default:
      return fmt::format("`{}`", token.text.substr(0, 40));
  }
}

}  // namespace shiplap::plan
