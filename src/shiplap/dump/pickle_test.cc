#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "shiplap/base/error.h"
#include "shiplap/dump/document.h"

namespace shiplap::dump {
namespace {

using namespace std::string_literals;

// What Python writes with protocol 2: {"a": [1, -2, 300, None, True], "b": (1.5, "x")}.
const std::string kSmall =
    "\x80\x02}q\x00(X\x01\x00\x00\x00"s
    "aq\x01]q\x02(K\x01J\xfe\xff\xff\xffM\x2c\x01N\x88"
    "eX\x01\x00\x00\x00"s
    "bq\x03G\x3f\xf8\x00\x00\x00\x00\x00\x00X\x01\x00\x00\x00"s
    "xq\x04\x86q\x05u."s;

std::string code_of(std::string_view bytes) {
  Document document;
  try {
    parse_document(bytes, "dump", document);
  } catch (const InputError& error) {
    return error.diagnostics().front().code + ": " + error.diagnostics().front().what;
  }
  return "";
}

TEST(Pickle, ReadsPlainData) {
  Document document;
  parse_document(kSmall, "dump", document);
  EXPECT_FALSE(document.truncated);
  const auto list = document.root.find("a").items();
  ASSERT_EQ(list.size(), 5U);
  EXPECT_EQ(list[0].integer_or(0), 1);
  EXPECT_EQ(list[1].integer_or(0), -2);
  EXPECT_EQ(list[2].integer_or(0), 300);
  EXPECT_EQ(list[3].type(), Node::Type::null);
  EXPECT_TRUE(list[4].boolean_or(false));
  const auto pair = document.root.find("b").items();
  ASSERT_EQ(pair.size(), 2U);
  EXPECT_EQ(pair[0].real_or(0), 1.5);
  EXPECT_EQ(pair[1].text(), "x");
}

TEST(Pickle, LongIntegersHaveASign) {
  Document document;
  parse_document("\x80\x02(\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f\x8a\x01\xff\x8a\x00t."s, "dump",
                 document);
  const auto items = document.root.items();
  ASSERT_EQ(items.size(), 3U);
  EXPECT_EQ(items[0].integer_or(0), INT64_MAX);
  EXPECT_EQ(items[1].integer_or(0), -1);
  EXPECT_EQ(items[2].integer_or(1), 0);
}

TEST(Pickle, SharedValuesAreTheSame) {
  Document document;
  parse_document(
      "\x80\x02](]q\x01(K\x07"s
      "eh\x01"s
      "e."s,
      "dump", document);
  const auto items = document.root.items();
  ASSERT_EQ(items.size(), 2U);
  EXPECT_EQ(items[0].identity(), items[1].identity());
  EXPECT_EQ(items[1].items()[0].integer_or(0), 7);
}

// Every instruction that could import or call something.
TEST(Pickle, RejectsWhatWouldExecuteByName) {
  EXPECT_EQ(code_of("\x80\x02"
                    "cos\nsystem\n."),
            "D013: the pickle would execute code: instruction GLOBAL at byte 2");
  for (const auto& [instruction, name] : {std::pair{"\x93", "STACK_GLOBAL"},
                                          {"R", "REDUCE"},
                                          {"b", "BUILD"},
                                          {"i", "INST"},
                                          {"o", "OBJ"},
                                          {"\x81", "NEWOBJ"},
                                          {"\x92", "NEWOBJ_EX"},
                                          {"P", "PERSID"},
                                          {"Q", "BINPERSID"},
                                          {"\x82", "EXT1"},
                                          {"\x83", "EXT2"},
                                          {"\x84", "EXT4"}}) {
    const std::string found = code_of(std::string("\x80\x02}") + instruction + ".");
    EXPECT_EQ(found.substr(0, 4), "D013") << name;
    EXPECT_NE(found.find(std::string("instruction ") + name + " at byte 3"), found.npos) << found;
  }
}

TEST(Pickle, RejectsWhatIsNoPickle) {
  EXPECT_EQ(code_of(""), "D012: the file is empty");
  EXPECT_EQ(code_of("hello").substr(0, 4), "D012");
  for (const std::string& bytes :
       {"\x80\x02."s, "\x80\x02t."s, "\x80\x02"s + "a."s, "\x80\x02(s."s, "\x80\x02h\x05."s,
        "\x80\x02K\x01(K\x02"s + "e."s, "\x80\x02}(K\x01u."s, "\x80\x02r\xff\xff\xff\xff."s,
        "\x80\x09N."s, "\x80\x02\xff."s, "\x80\x02](a."s, "\x80\x02(K\x01\x86."s}) {
    EXPECT_EQ(code_of(bytes).substr(0, 4), "D012") << testing::PrintToString(bytes);
  }
}

// A job that is killed while it writes leaves the beginning of a dump.
TEST(Pickle, EveryBeginningOfADumpIsReadOrRejected) {
  for (std::size_t size = 0; size <= kSmall.size(); ++size) {
    Document document;
    try {
      parse_document(std::string_view(kSmall).substr(0, size), "dump", document);
      EXPECT_EQ(document.truncated, size < kSmall.size()) << size;
    } catch (const InputError& error) {
      EXPECT_EQ(error.diagnostics().front().code, "D012");
    }
  }
  Document document;
  const std::string cut = kSmall.substr(0, kSmall.find("\x88"));
  parse_document(cut, "dump", document);
  EXPECT_TRUE(document.truncated);
  EXPECT_EQ(document.root.find("a").items().size(), 4U);
}

}  // namespace
}  // namespace shiplap::dump
