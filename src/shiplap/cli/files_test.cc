#include "shiplap/cli/files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <sstream>
#include <string>

namespace shiplap::cli {
namespace {

class Files : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  [[nodiscard]] std::string path(const std::string& name) const {
    return (folder_ / name).string();
  }

  std::string read(const std::string& file, const std::string& input = "") {
    std::istringstream in(input);
    std::ostringstream out;
    Context context{.in = in, .out = {.stream = out}, .err = {.stream = out}};
    return read_text(file, context.in).text;
  }

  Diagnostic failure(const std::string& file) {
    try {
      (void)read(file);
    } catch (const InputError& error) {
      return error.diagnostics().front();
    }
    return {};
  }

 private:
  // Of this case alone: others run at the same time.
  std::filesystem::path folder_ = std::filesystem::path(testing::TempDir()) /
                                  (std::string("shiplap_files_test.") +
                                   testing::UnitTest::GetInstance()->current_test_info()->name());
};

TEST_F(Files, AreReadByteForByte) {
  const std::string text("a\r\n\0b", 5);
  write_text(path("a"), text, "-o");
  EXPECT_EQ(read(path("a")), text);
}

TEST_F(Files, AByteOrderMarkIsLeftOut) {
  write_text(path("a"), "\xEF\xBB\xBFshiplap-plan 1\n", "-o");
  EXPECT_EQ(read(path("a")), "shiplap-plan 1\n");
  EXPECT_EQ(read("-", "\xEF\xBB\xBF"), "");
}

TEST_F(Files, ADashIsStandardInput) { EXPECT_EQ(read("-", "hello"), "hello"); }

TEST_F(Files, AMissingOneGetsASuggestion) {
  write_text(path("step.plan"), "", "-o");
  const Diagnostic found = failure(path("stpe.plan"));
  EXPECT_EQ(found.code, "D004");
  EXPECT_EQ(found.what, "cannot read the file: no such file or directory");
  EXPECT_EQ(found.help, "did you mean `" + path("step.plan") + "`?");
}

TEST_F(Files, AMissingFolderIsNamed) {
  EXPECT_EQ(failure(path("no/x.plan")).help, "no such directory: `" + path("no") + "`");
}

TEST_F(Files, ADirectoryIsNoFile) {
  write_text(path("step.plan"), "", "-o");
  const Diagnostic found = failure(path(""));
  EXPECT_EQ(found.what, "cannot read the file: is a directory");
  EXPECT_THAT(found.help, testing::HasSubstr("step.plan"));
}

TEST_F(Files, WhatCannotBeWrittenIsRefused) {
  for (const std::string& file : {path("no/x"), path("")}) {
    try {
      write_text(file, "x", "-o");
      FAIL() << file;
    } catch (const InputError& error) {
      EXPECT_EQ(error.diagnostics().front().code, "D005");
      EXPECT_EQ(error.diagnostics().front().where.flag, "-o");
    }
  }
}

TEST(Placed, FillsInFileAndExcerpt) {
  const SourceText source{.file = "a.plan", .text = "one\ntwo\nthree"};
  const Diagnostic found = add_source_location({.where = {.line = 3}}, source);
  EXPECT_EQ(found.where.file, "a.plan");
  EXPECT_EQ(found.where.excerpt, "three");
  EXPECT_EQ(add_source_location({.where = {.line = 9}}, source).where.excerpt, "");
}

TEST(ShellWord, IsQuotedOnlyIfItMustBe) {
  EXPECT_EQ(shell_word("a/b-c.plan"), "a/b-c.plan");
  EXPECT_EQ(shell_word("a b"), "'a b'");
  EXPECT_EQ(shell_word("it's"), "'it'\\''s'");
  EXPECT_EQ(shell_word(""), "''");
}

}  // namespace
}  // namespace shiplap::cli
