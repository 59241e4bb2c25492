#include <gtest/gtest.h>

#include <string>

#include "shiplap/base/error.h"
#include "shiplap/base/json.h"
#include "shiplap/base/json_error_internal.h"

namespace shiplap {
namespace {

// The error of a text that is not JSON.
Diagnostic fault(std::string_view text) {
  try {
    (void)parse_json(text, "test.json");
  } catch (const InputError& error) {
    EXPECT_EQ(error.diagnostics().size(), 1u);
    return error.diagnostics().at(0);
  }
  ADD_FAILURE() << "was read: " << text;
  return {};
}

std::string what(std::string_view text) { return fault(text).what; }
std::string help(std::string_view text) { return fault(text).help; }
std::string marked(std::string_view text) {
  const Where where = fault(text).where;
  const auto begin = static_cast<std::size_t>(where.column - 1);
  return where.excerpt.substr(begin, where.length);
}

TEST(JsonError, SaysWhereAndShowsTheLine) {
  const Diagnostic d = fault("{\n  \"a\": 1,\n  b: 2\r\n}\n");
  EXPECT_EQ(d.code, "D010");
  EXPECT_EQ(d.where,
            (Where{.file = "test.json", .line = 3, .column = 3, .length = 1, .excerpt = "  b: 2"}));
  EXPECT_EQ(d.what, "expected a key in double quotes, found `b`");
}

TEST(JsonError, SaysWhatWasExpectedInEveryPlace) {
  EXPECT_EQ(what(""), "expected a value, found the end of the text");
  EXPECT_EQ(what(" \n"), "expected a value, found the end of the text");
  EXPECT_EQ(what("]"), "expected a value, found `]`");
  EXPECT_EQ(what("[:"), "expected a value or `]`, found `:`");
  EXPECT_EQ(what("{1:2}"), "expected a key in double quotes or `}`, found `1`");
  EXPECT_EQ(what("{\"a\" 1}"), "expected `:`, found `1`");
  EXPECT_EQ(what("{\"a\", 1}"), "expected `:`, found `,`");
  EXPECT_EQ(what("{\"a\": }"), "expected a value, found `}`");
  EXPECT_EQ(what("{\"a\": 1 \"b\": 2}"), "expected `,` or `}`, found a string");
  EXPECT_EQ(what("{\"a\": 1, 2}"), "expected a key in double quotes, found `2`");
  EXPECT_EQ(what("[1 2]"), "expected `,` or `]`, found `2`");
  EXPECT_EQ(what("[1, , 2]"), "expected a value, found `,`");
  EXPECT_EQ(what("[1]]"), "expected the end of the text, found `]`");
  EXPECT_EQ(what("1 x"), "expected the end of the text, found `x`");
}

TEST(JsonError, SaysWhatWasFound) {
  EXPECT_EQ(what("[1, é]"), "expected a value, found `é`");
  EXPECT_EQ(what("[\xFF]"), "expected a value or `]`, found the byte 0xFF, which is not UTF-8");
  EXPECT_EQ(what("[\x01]"), "expected a value or `]`, found the byte 0x01");
  EXPECT_EQ(what(std::string_view("[1]\0", 4)),
            "expected the end of the text, found the byte 0x00");
  EXPECT_EQ(what(std::string_view("\0", 1)), "expected a value, found the byte 0x00");
  EXPECT_EQ(what(std::string_view("[1\0]", 4)), "expected `,` or `]`, found the byte 0x00");
  EXPECT_EQ(what("[`x`]"), "expected a value or `]`, found a backquote");
  EXPECT_EQ(what("[" + std::string(50, 'x') + "]"),
            "expected a value or `]`, found `" + std::string(40, 'x') + "…`");
}

TEST(JsonError, ANumberEndsWhereItEnds) {
  // The lexer reads one byte past a number, and that byte may look like a part of it.
  EXPECT_EQ(what("[1-2]"), "expected `,` or `]`, found `-2`");
  EXPECT_EQ(what("[12e3.4]"), "expected `,` or `]`, found `.`");
  EXPECT_EQ(what("1 1"), "expected the end of the text, found `1`");
  EXPECT_EQ(what("[0x10]"), "expected `,` or `]`, found `x10`");
  EXPECT_EQ(what("[-01]"), "a number begins with an extra 0");
  EXPECT_EQ(marked("{\"a\": 007}"), "0");
  EXPECT_EQ(fault("{\"a\": 1, \"b\": 07}").where.column, 15);
}

TEST(JsonError, RefusesNumbersThatAreNone) {
  EXPECT_EQ(what("[1.]"), "`1.` is not a number");
  EXPECT_EQ(what("[-]"), "`-` is not a number");
  EXPECT_EQ(what("[1e+]"), "`1e+` is not a number");
  EXPECT_EQ(what("{\"a\": -x}"), "`-x` is not a number");
  EXPECT_EQ(what("[1e999]"), "`1e999` is too large for a 64-bit number");
  EXPECT_EQ(marked("[2, -1e999]"), "-1e999");
  EXPECT_EQ(help("[.5]"), "begin a number with a digit or `-`");
}

TEST(JsonError, PointsIntoStrings) {
  EXPECT_EQ(what(R"(["a\qb"])"), "JSON has no escape `\\q`");
  EXPECT_EQ(marked(R"(["a\qb"])"), "\\q");
  EXPECT_EQ(what(R"(["\u12g4"])"), "expected four hexadecimal digits after `\\u`");
  EXPECT_EQ(what(R"(["\ud83d"])"), "`\\ud83d` is only half of a character");
  EXPECT_EQ(what(R"(["\ud83d\u0041"])"), "`\\ud83d` is only half of a character");
  EXPECT_EQ(what(R"(["\ude00"])"), "`\\ude00` is only half of a character");
  EXPECT_EQ(what(R"(["\ude00\ude00"])"), "`\\ude00` is only half of a character");
  EXPECT_EQ(fault(R"(["\ud83d\ude00\x"])").where.column, 15);
  EXPECT_EQ(what("[\"a\xFF\"]"), "the byte 0xFF is not UTF-8");
  EXPECT_EQ(fault("[\"é\xFF\"]").where.column, 5);
  EXPECT_EQ(what("{\"a\xC0\x80\": 1}"), "the byte 0xC0 is not UTF-8");
  EXPECT_EQ(what("[\"a\tb\"]"), "found the byte 0x09 in a string");
  EXPECT_EQ(help("[\"a\tb\"]"), "write it as `\\u0009`");
  EXPECT_EQ(what("[\"a\n\"]"), "a string is not closed");
  EXPECT_EQ(marked("[\"abc\n\"]"), "\"abc");
  EXPECT_EQ(what("[\"abc"), "a string is not closed");
  EXPECT_EQ(what("\"abc\\"), "a string is not closed");
  EXPECT_EQ(what(R"({"a\": 1})"), "a string is not closed");
}

TEST(JsonError, HelpsWithTheUsualMistakes) {
  EXPECT_EQ(help("[1, 2, ]"), "remove the comma before `]`");
  EXPECT_EQ(help("{\"a\": 1,\n}"), "remove the comma before `}`");
  EXPECT_EQ(help("[1,,2]"), "remove one of the two commas");
  EXPECT_EQ(help("[1 2]"), "is a comma missing before it?");
  EXPECT_EQ(help("{\"a\": 1 \"b\": 2}"), "is a comma missing before it?");
  EXPECT_EQ(help("[0x10]"), "");
  EXPECT_EQ(help("[True]"), "write `true`");
  EXPECT_EQ(help("{\"a\": FALSE}"), "write `false`");
  EXPECT_EQ(help("{\"a\": None}"), "write `null`");
  EXPECT_EQ(help("{\"a\": NaN}"), "JSON has no such number; write `null`");
  EXPECT_EQ(help("{\"a\": 'x'}"), "write strings in double quotes");
  EXPECT_EQ(help("{'a': 1}"), "write strings in double quotes");
  EXPECT_EQ(help("// x\n[1]"), "JSON has no comments; remove it");
  EXPECT_EQ(help("[1, # x\n2]"), "JSON has no comments; remove it");
  EXPECT_EQ(help("{a: 1}"), "put it in double quotes, if it is meant as a string");
  EXPECT_EQ(help("{true: 1}"), "put it in double quotes, if it is meant as a string");
  EXPECT_EQ(help("[truth]"), "put it in double quotes, if it is meant as a string");
}

TEST(JsonError, NamesTheBracketThatIsStillOpen) {
  const Diagnostic end = fault("{\n  \"a\": [\n    1,\n    2\n\n");
  EXPECT_EQ(end.what, "expected `,` or `]`, found the end of the text");
  EXPECT_EQ(end.why, "the `[` of line 2 is still open");
  EXPECT_EQ(end.where.line, 4);
  EXPECT_EQ(end.where.column, 6);
  EXPECT_EQ(fault("{\"a\": [1}\n").why, "the `[` of line 1 is still open");
  EXPECT_EQ(fault("{\n\"a\": [1]").why, "the `{` of line 1 is still open");
  EXPECT_EQ(fault("[1,]").why, "");
}

TEST(JsonError, PointsAtTheSecondOfTwoKeys) {
  const Diagnostic d = fault("{\"a\": {\"a\": 1},\n \"b\": 2, \"a\" : 3}");
  EXPECT_EQ(d.what, "duplicate key `a`");
  EXPECT_EQ(d.where.line, 2);
  EXPECT_EQ(d.where.column, 10);
  EXPECT_EQ(d.where.length, 3);
  EXPECT_EQ(marked(R"({"\"\\": 1, "\"\\": 2})"), R"("\"\\")");
  EXPECT_EQ(fault(R"({"\"\\": 1, "\"\\": 2})").where.column, 13);
  EXPECT_EQ(marked(R"({"\"\"": 1, "\"\"": 2})"), R"("\"\"")");
  EXPECT_EQ(what(R"({"a": 1, "\u0061": 2})"), "duplicate key `a`");
}

TEST(JsonError, QuotesOnlyTheBeginningOfALongKey) {
  const std::string key = std::string(39, 'k') + "€uro";
  const std::string text = "{\"" + key + "\": 1, \"" + key + "\": 2}";
  EXPECT_EQ(what(text), "duplicate key `" + std::string(39, 'k') + "…`");
}

TEST(JsonError, PointsAtTheBracketThatIsTooDeep) {
  const Diagnostic d = fault(std::string(300, '['));
  EXPECT_EQ(d.what, "arrays and objects are nested more than 200 deep");
  EXPECT_EQ(d.where.column, 201);
}

TEST(JsonError, CountsFromTheByteOrderMarkOn) {
  EXPECT_EQ(what("\xEF\xBB\xBF[x]"), "expected a value or `]`, found `x`");
  EXPECT_EQ(what("\xEF\xBB\xBF"), "expected a value, found the end of the text");
}

// Changing or cutting a good text anywhere must give a value or a diagnostic that points into the
// text.
TEST(JsonError, PointsIntoTheTextWhateverIsWrong) {
  const std::string good =
      "{\"k\\u00e9\": [1, -2.5e3, true, null],\n \"s\": \"a\\nb€\", \"o\": {}}";
  for (std::size_t i = 0; i <= good.size(); ++i) {
    for (int c = -1; c < 256; ++c) {
      std::string text = good.substr(0, i);
      if (c >= 0) text += static_cast<char>(c);
      if (c >= 0 && i < good.size()) text += good.substr(i + 1);
      try {
        (void)parse_json(text, "test.json");
      } catch (const InputError& error) {
        const Where& where = error.diagnostics().at(0).where;
        ASSERT_GE(where.line, 1);
        ASSERT_GE(where.column, 1);
        ASSERT_LE(static_cast<std::size_t>(where.column), where.excerpt.size() + 1) << text;
      }
    }
  }
}

TEST(EndOfJsonNumber, IsBehindTheLongestNumber) {
  EXPECT_EQ(end_of_json_number("12,", 0), 2u);
  EXPECT_EQ(end_of_json_number("-0.5e-3]", 0), 7u);
  EXPECT_EQ(end_of_json_number("01", 0), 1u);
  EXPECT_EQ(end_of_json_number("1.x", 0), 1u);
  EXPECT_EQ(end_of_json_number("1e+", 0), 1u);
  EXPECT_EQ(end_of_json_number("-", 0), 0u);
  EXPECT_EQ(end_of_json_number("x", 0), 0u);
  EXPECT_EQ(end_of_json_number("ab7", 2), 3u);
  EXPECT_EQ(end_of_json_number("", 0), 0u);
}

}  // namespace
}  // namespace shiplap
