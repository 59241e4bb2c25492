// The lexer of the `.plan` text format: tokens with their source locations.
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <string_view>
#include <utility>

#include "shiplap/base/diagnostic.h"

namespace shiplap::plan {

enum class TokenKind : std::uint8_t { name, integer, decimal, symbol, line_end, text_end };

struct Token {
  TokenKind kind = TokenKind::text_end;
  bool blank_before = false;  // true at the beginning of a line
  bool blank_after = false;
  std::int32_t line = 1;
  std::size_t offset = 0;
  std::string_view text;
  std::uint64_t integer = 0;  // at most 2^63
  double decimal = 0;         // set for integers, too

  [[nodiscard]] bool is(std::string_view word) const {
    return text == word && (kind == TokenKind::name || kind == TokenKind::symbol);
  }
  // `x[a +4]`: a plus with a blank before it and none after it begins a count.
  [[nodiscard]] bool begins_count() const { return is("+") && blank_before && !blank_after; }
};

// Thrown by parsers on an invalid statement; the statement loop catches it and continues.
struct ParseFailure : std::exception {
  ParseFailure() = default;
  explicit ParseFailure(Diagnostic what_is_wrong) : diagnostic(std::move(what_is_wrong)) {}
  Diagnostic diagnostic;
};

class Lexer {
 public:
  Lexer(std::string_view text, std::string_view file);

  [[nodiscard]] const Token& peek() const { return current_; }
  [[nodiscard]] const Token& peek_second() const { return next_; }
  Token take();
  // Takes the next token if it is this word or symbol; returns whether it was.
  bool take_if(std::string_view word);

  [[nodiscard]] bool at_line_end() const { return current_.kind >= TokenKind::line_end; }
  void skip_line();
  void skip_blank_lines();
  // Replaces the next token by `word`. REQUIRES: `word` outlives the lexer.
  void read_as(std::string_view word);
  // Returns the indentation of `token`, or -1 if it is not the first on its line.
  [[nodiscard]] int indent(const Token& token) const;
  // The text from `token` to the next token, without trailing blanks.
  [[nodiscard]] std::string_view text_since(const Token& token) const;
  // Takes the rest of the line verbatim. The line end is next.
  std::string_view take_rest_of_line();
  // Takes a quoted string and unescapes it. REQUIRES: the next token is a quotation mark.
  std::string take_quoted();
  // The location of a whole line.
  [[nodiscard]] Where where_line(int line) const;

  [[nodiscard]] Where where(const Token& token) const;
  [[nodiscard]] Where where(std::size_t offset, std::size_t length) const;

  // Throws ParseFailure with the location of `token`.
  [[noreturn]] void fail(const Token& token, Diagnostic diagnostic) const;
  // Throws D101: "expected WHAT, found .."
  [[noreturn]] void expected(std::string_view what, std::string help = "") const;

 private:
  Token scan();
  void scan_number(Token& token);
  void scan_name(Token& token);
  void scan_symbol(Token& token);
  void finish(Token& token, std::size_t length);
  bool skip_blanks_and_comments();
  void go_on_from(std::size_t position, std::int32_t line);

  std::string_view text_;
  std::string_view file_;
  std::size_t position_ = 0;
  std::int32_t line_ = 1;
  Token current_;
  Token next_;
};

// "`foo`", "the end of the line", ..
[[nodiscard]] std::string describe(const Token& token);

}  // namespace shiplap::plan
