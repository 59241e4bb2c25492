#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "shiplap/plan/lexer_internal.h"

namespace shiplap::plan {
namespace {

std::vector<Token> tokens(std::string_view text) {
  Lexer lexer(text, "test.plan");
  std::vector<Token> all;
  while (lexer.peek().kind != TokenKind::text_end) all.push_back(lexer.take());
  return all;
}

std::string words(std::string_view text) {
  std::string joined;
  for (const Token& token : tokens(text)) {
    joined += joined.empty() ? "" : " ";
    joined += token.text == "\n" ? std::string_view("/") : token.text;
  }
  return joined;
}

TEST(Lexer, CutsTextIntoWords) {
  EXPECT_EQ(words("x[4*l +2]"), "x [ 4 * l + 2 ]");
  EXPECT_EQ(words("a<=b>=c!=d==e..f<g"), "a <= b >= c != d == e .. f < g");
  EXPECT_EQ(words("b2_c 2b"), "b2_c 2 b");
  EXPECT_EQ(words(""), "");
}

TEST(Lexer, SemicolonsAndNewlinesEndALine) {
  EXPECT_EQ(words("a;b\nc"), "a ; b / c");
  for (const char* end : {";", "\n"}) {
    EXPECT_EQ(tokens(end).at(0).kind, TokenKind::line_end);
  }
}

TEST(Lexer, CommentsAreBlanksUpToTheEndOfTheLine) {
  EXPECT_EQ(words("a # b ; c\nd#e"), "a / d");
  EXPECT_EQ(words("#"), "");
}

TEST(Lexer, CountsLinesByNewlinesAlone) {
  std::vector<std::int32_t> lines;
  for (const Token& token : tokens("a; b\r\n\nc # x\nd")) {
    if (token.kind == TokenKind::name) lines.push_back(token.line);
  }
  EXPECT_EQ(lines, (std::vector<std::int32_t>{1, 1, 3, 4}));
}

TEST(Lexer, ReadsWholeNumbersExactlyUpToTwoToThe63) {
  const auto integer = [](std::string_view text) {
    const Token token = tokens(text).at(0);
    EXPECT_EQ(token.kind, TokenKind::integer) << text;
    return token.integer;
  };
  EXPECT_EQ(integer("0"), 0U);
  EXPECT_EQ(integer("007"), 7U);
  EXPECT_EQ(integer("4e9"), 4'000'000'000U);
  EXPECT_EQ(integer("0e999"), 0U);
  EXPECT_EQ(integer("9223372036854775807"), std::uint64_t{1} + 0x7ffffffffffffffeU);
  EXPECT_EQ(integer("9223372036854775808"), std::uint64_t{1} << 63);
  EXPECT_EQ(integer("9e18"), 9'000'000'000'000'000'000U);
}

TEST(Lexer, WhatIsNoWholeNumberOf64BitsIsADecimal) {
  for (const char* text :
       {"9223372036854775809", "1e19", "1e400", "0.5", "2.5e3", "1e-3", "1e+3"}) {
    EXPECT_EQ(tokens(text).at(0).kind, TokenKind::decimal) << text;
    EXPECT_EQ(tokens(text).size(), 1U) << text;
  }
  EXPECT_EQ(tokens("2.5e3").at(0).decimal, 2500);
  EXPECT_EQ(tokens("1e-3").at(0).decimal, 1e-3);
}

TEST(Lexer, ADotBelongsToANumberOnlyBeforeADigit) {
  EXPECT_EQ(words("1..3"), "1 .. 3");
  EXPECT_EQ(words("1.x"), "1 . x");
  EXPECT_EQ(words("4e"), "4 e");
}

TEST(Lexer, APlusBeginsACountIfItLeansOnWhatFollows) {
  const auto begins = [](std::string_view text) {
    for (const Token& token : tokens(text)) {
      if (token.is("+")) return token.begins_count();
    }
    return false;
  };
  EXPECT_TRUE(begins("a +1"));
  EXPECT_TRUE(begins("a\t+1"));
  EXPECT_TRUE(begins("+1"));
  EXPECT_FALSE(begins("a+1"));
  EXPECT_FALSE(begins("a + 1"));
  EXPECT_FALSE(begins("a+ 1"));
  EXPECT_FALSE(begins("a +"));
  EXPECT_FALSE(begins("a +\n1"));
}

TEST(Lexer, KnowsWhereEveryWordStands) {
  Lexer lexer("ab cd\n  ef", "test.plan");
  lexer.skip_line();
  const Where where = lexer.where(lexer.peek());
  EXPECT_EQ(where.file, "test.plan");
  EXPECT_EQ(where.line, 2);
  EXPECT_EQ(where.column, 3);
  EXPECT_EQ(where.length, 2);
  EXPECT_EQ(where.excerpt, "  ef");
}

TEST(Lexer, TheRestOfALineEndsBeforeCommentsAndSemicolons) {
  for (const char* text : {"label a  b \t\nnext", "label a  b;next", "label a  b # c\nnext"}) {
    Lexer lexer(text, "");
    lexer.take();
    EXPECT_EQ(lexer.take_rest_of_line(), "a  b");
    EXPECT_TRUE(lexer.at_line_end());
    lexer.skip_line();
    EXPECT_EQ(lexer.peek().text, "next");
    EXPECT_EQ(lexer.peek().line,
              std::string_view(text).find('\n') == std::string_view::npos ? 1 : 2);
  }
}

TEST(Lexer, AQuotationHidesMarksAndKnowsEscapes) {
  Lexer lexer(R"("a;b # \"c\" \\ \n d" next)", "");
  EXPECT_EQ(lexer.take_quoted(), "a;b # \"c\" \\ \n d");
  EXPECT_EQ(lexer.peek().text, "next");
}

TEST(Lexer, AQuotationMustCloseOnItsLine) {
  for (const char* text : {"\"abc", "\"abc\n\"", "\"abc\\\""}) {
    Lexer lexer(text, "");
    EXPECT_THROW(lexer.take_quoted(), ParseFailure) << text;
  }
}

TEST(Lexer, ForeignCharactersAreShownWhole) {
  EXPECT_EQ(words("a é 漢"), "a é 漢");
  EXPECT_EQ(describe(tokens("漢").at(0)), "`漢`");
}

}  // namespace
}  // namespace shiplap::plan
