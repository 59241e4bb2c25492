// The numbers among the phrases: expressions, counts, comparisons, ratios.
#include <fmt/format.h>

#include <array>
#include <limits>
#include <tuple>

#include "shiplap/base/suggest.h"
#include "shiplap/plan/phrase_internal.h"

namespace shiplap::plan {
namespace {

constexpr int kDeepest = 100;
// Every sign copies what stands before it; the limit keeps that from growing with the square of a
// line.
constexpr std::size_t kLongest = 1000;

}  // namespace

Expr Phrases::sum(Plus plus) {
  Expr left = product(plus);
  for (;;) {
    const Token token = lexer_.peek();
    if (plus == Plus::counts && token.begins_count()) return left;
    if (!token.is("+") && !token.is("-")) return left;
    const Expr::Op op = token.is("+") ? Expr::Op::add : Expr::Op::subtract;
    lexer_.take();
    left = combined(token, op, left, product(plus));
  }
}

Expr Phrases::combined(const Token& sign, Expr::Op op, const Expr& left, const Expr& right) {
  if (left.code().size() + right.code().size() > kLongest) {
    lexer_.fail(sign, {.code = "D114",
                       .what = fmt::format("this expression has more than {} parts", kLongest),
                       .help = "name a part of it with `let`"});
  }
  return Expr::combine(op, left, right);
}

Expr Phrases::product(Plus plus) {
  Expr left = factor(plus);
  for (;;) {
    const Token token = lexer_.peek();
    Expr::Op op = Expr::Op::multiply;
    if (token.is("div")) {
      op = Expr::Op::divide;
    } else if (token.is("mod")) {
      op = Expr::Op::modulo;
    } else if (!token.is("*")) {
      return left;
    }
    lexer_.take();
    left = combined(token, op, left, factor(plus));
  }
}

Expr Phrases::factor(Plus plus) {
  if (!lexer_.peek().is("-")) return primary();
  const Token minus = lexer_.take();
  // 2^63 itself has no positive form.
  if (lexer_.peek().kind == TokenKind::integer && lexer_.peek().integer == std::uint64_t{1} << 63) {
    lexer_.take();
    return {std::numeric_limits<std::int64_t>::min()};
  }
  const Deeper deeper(*this, minus);
  return -factor(plus);
}

Phrases::Deeper::Deeper(Phrases& phrases, const Token& token) : phrases_(phrases) {
  if (phrases_.depth_ >= kDeepest) {
    phrases_.lexer_.fail(
        token, {.code = "D114",
                .what = fmt::format("this expression is nested more than {} deep", kDeepest),
                .help = "name a part of it with `let`"});
  }
  ++phrases_.depth_;
}

Expr Phrases::primary() {
  const Token& token = lexer_.peek();
  if (token.kind == TokenKind::integer) return number();
  if (token.kind == TokenKind::name) return named();
  if (token.kind == TokenKind::decimal) no_whole_number(token);
  if (!token.is("(")) lexer_.expected("a number or a name");
  const Deeper deeper(*this, token);
  lexer_.take();
  Expr inner = expression();
  symbol(")", "to close the parenthesis");
  return inner;
}

Expr Phrases::number() {
  const Token token = lexer_.take();
  if (token.integer > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    no_whole_number(token);
  }
  return {static_cast<std::int64_t>(token.integer)};
}

void Phrases::no_whole_number(const Token& token) {
  const bool is_whole =
      token.text.find('.') == token.text.npos && token.text.find('-') == token.text.npos;
  lexer_.fail(token, {.code = "D104",
                      .what = is_whole ? fmt::format("`{}` is beyond 64 bits", token.text)
                                       : fmt::format("`{}` is not a whole number", token.text),
                      .why = is_whole ? fmt::format("the largest number is {}",
                                                    std::numeric_limits<std::int64_t>::max())
                                      : ""});
}

Expr Phrases::named() {
  const Token token = lexer_.take();
  if (token.text == "rank") return Expr::rank();
  if (const auto id = lookup(names_.axes, token.text); id >= 0) return Expr::axis(AxisId(id));
  if (const auto id = lookup(names_.locals, token.text); id >= 0) return Expr::local(LocalId(id));
  if (const auto id = lookup(names_.lists, token.text); id >= 0) {
    symbol("[", "after the name of a list");
    const Deeper deeper(*this, token);
    const Expr index = expression();
    symbol("]", "to close the index");
    return Expr::element(ListId(id), index);
  }
  refuse_if_broken(token);
  std::string why;
  if (names_.buffers.contains(token.text)) why = "it is a buffer, and a number is meant here";
  if (names_.tensors.contains(token.text)) why = "it is a tensor, and a number is meant here";
  if (const auto line = lookup(names_.ended, token.text); line > 0) {
    why = fmt::format("it held to the end of its block, in line {}", line);
  }
  lexer_.fail(token, {.code = "D102",
                      .what = fmt::format("`{}` stands for no number here", token.text),
                      .why = why,
                      .help = suggest(token.text, names_.in_expressions())});
}

std::pair<Expr, Expr> Phrases::span(std::string_view what) {
  const Token first = lexer_.peek();
  Expr begin = sum(Plus::counts);
  if (!lexer_.peek().begins_count()) no_count(first, what);
  return {std::move(begin), count()};
}

Expr Phrases::count() {
  lexer_.take();
  Expr count = sum(Plus::counts);
  if (!lexer_.peek().begins_count()) return count;
  lexer_.fail(
      lexer_.peek(),
      {.code = "D107",
       .what = "a second count",
       .why = "a plus with a blank before it and none after it begins a count; any other adds",
       .help = "remove the blank before the plus that is to add"});
}

void Phrases::no_count(const Token& first, std::string_view what) {
  const std::string_view begin = lexer_.text_since(first);
  // `p + 1` and `p+ 1` may have meant one of two things.
  const std::size_t plus = begin.rfind('+');
  std::string help = fmt::format("write `{0} +1` for one {1} from {0} on", begin, what);
  if (plus != begin.npos && begin.find_first_of("()[]") == begin.npos) {
    std::string_view left = begin.substr(0, plus);
    std::string_view right = begin.substr(plus + 1);
    left = left.substr(0, left.find_last_not_of(" \t") + 1);
    right = right.substr(std::min(right.find_first_not_of(" \t"), right.size()));
    help = fmt::format(
        "write `{0} +{1}` to begin at {0} and count {1}, or `{0}+{1} +1` for one {2} from "
        "{0}+{1} on",
        left, right, what);
  }
  lexer_.fail(
      lexer_.peek(),
      {.code = "D107",
       .what = fmt::format("expected a count after `{}`, found {}", begin, describe(lexer_.peek())),
       .why = "a plus with a blank before it and none after it begins a count; any other adds",
       .help = std::move(help)});
}

std::int64_t Phrases::integer(std::string_view what, std::int64_t lowest, std::int64_t highest) {
  const bool negative =
      (lowest < 0 || lexer_.peek_second().kind == TokenKind::integer) && lexer_.take_if("-");
  const Token token = lexer_.peek();
  if (token.kind == TokenKind::decimal) no_whole_number(token);
  if (token.kind != TokenKind::integer) lexer_.expected(what);
  constexpr std::int64_t kHighest = std::numeric_limits<std::int64_t>::max();
  const auto limit = static_cast<std::uint64_t>(kHighest) + (negative ? 1 : 0);
  if (token.integer > limit) no_whole_number(token);
  const auto value = static_cast<std::int64_t>(negative ? 0 - token.integer : token.integer);
  if (value < lowest || value > highest) {
    const std::string bounds = highest == kHighest
                                   ? fmt::format("is at least {}", lowest)
                                   : fmt::format("is from {} to {}", lowest, highest);
    lexer_.fail(token, {.code = "D104", .what = fmt::format("{} {}, not {}", what, bounds, value)});
  }
  lexer_.take();
  return value;
}

Ratio Phrases::ratio() {
  constexpr std::int64_t kHighest = std::numeric_limits<std::int64_t>::max();
  const std::int64_t numerator = integer("the numerator of a scale", 1, kHighest);
  if (!lexer_.take_if("/")) return {numerator, 1};
  return {numerator, integer("the denominator of a scale", 1, kHighest)};
}

Comparator Phrases::comparator() {
  constexpr std::array<std::pair<std::string_view, Comparator>, 6> kComparators = {{
      {"=", Comparator::equal},
      {"!=", Comparator::not_equal},
      {"<", Comparator::less},
      {"<=", Comparator::less_equal},
      {">", Comparator::greater},
      {">=", Comparator::greater_equal},
  }};
  for (const auto& [text, comparator] : kComparators) {
    if (lexer_.take_if(text)) return comparator;
  }
  lexer_.expected("a comparison (= != < <= > >=)",
                  lexer_.peek().is("==") ? "one `=` is enough" : "");
}

Condition Phrases::condition() {
  Condition condition;
  do {
    Expr left = expression();
    const Comparator how = comparator();
    condition.push_back({std::move(left), how, expression()});
  } while (lexer_.take_if("and"));
  return condition;
}

}  // namespace shiplap::plan
