#include "shiplap/base/catalogue.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "shiplap/base/error.h"

namespace shiplap {
namespace {

TEST(Catalogue, IsInOrderOfTheCodesAndHasEachOnce) {
  const auto entries = catalogue();
  ASSERT_FALSE(entries.empty());
  for (std::size_t i = 1; i < entries.size(); ++i) EXPECT_LT(entries[i - 1].code, entries[i].code);
}

TEST(Catalogue, HasATitleAndAnExplanationForEachCode) {
  for (const CatalogueEntry& entry : catalogue()) {
    const std::string first_line =
        "# " + std::string(entry.code) + ": " + std::string(entry.title) + "\n\n";
    EXPECT_TRUE(entry.page.starts_with(first_line)) << entry.code;
    EXPECT_FALSE(entry.title.empty()) << entry.code;
    EXPECT_FALSE(entry.title.ends_with('.')) << entry.code;
    EXPECT_GT(entry.page.size(), first_line.size() + 100) << entry.code << " explains little";
  }
}

// The tests run in the root of the repository, where the pages themselves are.
TEST(Catalogue, HoldsTheFilesOfTheRepository) {
  const std::filesystem::path folder = "docs/diagnostics";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "not run in the root of the repository";
  std::size_t files = 0;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    if (!file.path().filename().string().starts_with('D')) continue;
    ++files;
    std::ifstream stream(file.path(), std::ios::binary);
    const std::string content(std::istreambuf_iterator<char>(stream), {});
    const CatalogueEntry* entry = find_in_catalogue(file.path().stem().string());
    ASSERT_NE(entry, nullptr) << file.path();
    EXPECT_EQ(entry->page, content) << file.path();
  }
  EXPECT_EQ(files, catalogue().size());
}

TEST(FindInCatalogue, FindsEachCodeInUpperAndLowerCase) {
  for (const CatalogueEntry& entry : catalogue()) {
    EXPECT_EQ(find_in_catalogue(entry.code), &entry);
    std::string lower(entry.code);
    for (char& c : lower) c = static_cast<char>(c | 0x20);
    EXPECT_EQ(find_in_catalogue(lower), &entry);
  }
}

TEST(FindInCatalogue, FindsNothingElse) {
  for (const char* code : {"", "D", "D01", "D0100", "010", "E010", "D010 ", "D010.md"}) {
    EXPECT_EQ(find_in_catalogue(code), nullptr) << code;
  }
}

std::string help_for(const std::string& word) {
  try {
    (void)find_pages({word});
  } catch (const InputError& error) {
    return error.diagnostics().front().help;
  }
  return "";
}

TEST(FindPages, ListsThePagesAboutAWord) {
  EXPECT_TRUE(help_for("deadlock").starts_with("pages about it: D")) << help_for("deadlock");
  EXPECT_NE(help_for("Deadlock").find("D720 (a deadlock)"), std::string::npos);
  EXPECT_NE(help_for("hang").find("D617"), std::string::npos);
  EXPECT_EQ(help_for("hang").find("exchange"), std::string::npos) << "words, not parts of words";
}

TEST(FindPages, SearchesForWordsOnly) {
  for (const char* word : {"D9999", "x", "zyzzyva"}) {
    EXPECT_EQ(help_for(word), "`shiplap explain` lists all of them") << word;
  }
  EXPECT_EQ(help_for("D04"), "did you mean `D004`? `shiplap explain` lists all of them");
}

}  // namespace
}  // namespace shiplap
