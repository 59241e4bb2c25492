#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "shiplap/base/error.h"
#include "shiplap/dump/document.h"

namespace shiplap::dump {
namespace {

constexpr std::string_view kSmall =
    R"({"a": [1, -2, 2.5, null, true, false], "b": {"c\n\"": "\u0041x"}, "d": []})";

bool is_rejected(std::string_view text) {
  Document document;
  try {
    parse_document(text, "dump", document);
  } catch (const InputError& error) {
    return error.diagnostics().front().code == "D012";
  }
  return false;
}

TEST(JsonDocument, ReadsPlainData) {
  Document document;
  parse_document(kSmall, "dump", document);
  EXPECT_FALSE(document.truncated);
  const auto list = document.root.find("a").items();
  ASSERT_EQ(list.size(), 6U);
  EXPECT_EQ(list[1].integer_or(0), -2);
  EXPECT_EQ(list[2].real_or(0), 2.5);
  EXPECT_EQ(list[3].type(), Node::Type::null);
  EXPECT_TRUE(list[4].boolean_or(false));
  EXPECT_EQ(document.root.find("b").find("c\n\"").text(), "Ax");
  EXPECT_TRUE(document.root.find("d").is_list());
}

TEST(JsonDocument, NumbersInStringsAreNumbers) {
  Document document;
  parse_document(R"({"last": "12", "none": "x"})", "dump", document);
  EXPECT_EQ(document.root.find("last").integer_or(-1), 12);
  EXPECT_EQ(document.root.find("none").integer_or(-1), -1);
}

TEST(JsonDocument, EveryBeginningOfADumpIsReadOrRejected) {
  for (std::size_t size = 0; size < kSmall.size(); ++size) {
    Document document;
    try {
      parse_document(kSmall.substr(0, size), "dump", document);
      EXPECT_TRUE(document.truncated) << size;
    } catch (const InputError& error) {
      EXPECT_EQ(error.diagnostics().front().code, "D012");
    }
  }
}

TEST(JsonDocument, RejectsWhatIsNotJson) {
  for (const std::string_view text :
       {"{]", "[}", "{1: 2}", R"({"a" 1})", "[1 2]", "[tru1]", "[-]", "{,}", R"(["a" "b"])"}) {
    EXPECT_TRUE(is_rejected(text)) << text;
  }
}

TEST(JsonDocument, DeepNestingIsNotRecursive) {
  Document document;
  parse_document(std::string(1'000'000, '['), "dump", document);
  EXPECT_TRUE(document.truncated);
}

}  // namespace
}  // namespace shiplap::dump
