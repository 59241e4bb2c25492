#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "shiplap/base/error.h"
#include "shiplap/workload/model.h"

namespace shiplap::workload {
namespace {

TEST(FindModel, ReadsAllThatAreShippedWithoutAWarning) {
  EXPECT_GE(known_models().size(), 20);
  for (const std::string& name : known_models()) {
    const ModelFile found = find_model(name);
    EXPECT_EQ(found.model.name, name);
    EXPECT_TRUE(found.warnings.empty()) << name << "\n" << render(found.warnings);
  }
}

TEST(FindModel, ReadsAFileOrItsFolder) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "tiny-llama";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "config.json")
      << R"({"model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "vocab_size": 10,
             "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2})";
  const ModelFile found = find_model(folder.string());
  EXPECT_EQ(found.model.name, "tiny-llama");
  EXPECT_EQ(find_model((folder / "config.json").string()).model, found.model);
}

TEST(FindModel, SuggestsASimilarName) {
  try {
    (void)find_model("llama3-70");
    FAIL();
  } catch (const InputError& error) {
    EXPECT_EQ(error.diagnostics()[0].code, "D605");
    EXPECT_THAT(error.diagnostics()[0].help, testing::HasSubstr("llama3-70b"));
  }
}

}  // namespace
}  // namespace shiplap::workload
