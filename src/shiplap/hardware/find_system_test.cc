#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "shiplap/base/error.h"
#include "shiplap/hardware/system.h"

namespace shiplap::hardware {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string file_text(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

TEST(KnownSystems, AreTheFilesOfTheRepository) {
  EXPECT_THAT(known_systems(), ElementsAre("a100_80g", "b200", "h100_80g_nvl8", "h200", "mi300x"));
}

TEST(KnownSystems, AllLoadAndSayWhereTheirNumbersAreFrom) {
  for (const std::string& name : known_systems()) {
    const System system = find_system(name);
    EXPECT_EQ(system.name, name);
    EXPECT_EQ(system.processing_mode, ProcessingMode::roofline);
    ASSERT_EQ(system.networks.size(), 2U);
    EXPECT_TRUE(system.matrix.speed(DType::bf16).has_value()) << name;
    EXPECT_NE(system.vector.usable(DType::fp8_e4m3), nullptr) << name;
    const Json raw = parse_json(file_text("data/hardware/" + name + ".json"), name);
    EXPECT_NE(raw.find("source"), nullptr) << name;
    for (const char* const part : {"matrix", "vector", "mem1", "mem2"}) {
      EXPECT_NE(raw.find(part)->find("source"), nullptr) << name << " " << part;
    }
  }
}

TEST(FindSystem, ReadsAFileThatIsNamed) {
  const System named = find_system("data/hardware/h200.json");
  EXPECT_EQ(named, find_system("h200"));
  EXPECT_EQ(named.mem1.capacity, Bytes{std::int64_t{141} << 30});
}

TEST(FindSystem, SaysWhichSystemMayBeMeant) {
  for (const char* const name : {"h100_80g_nvl", "h100", "h100-80g-nvl8"}) {
    try {
      (void)find_system(name);
      ADD_FAILURE() << name << " was found";
    } catch (const InputError& error) {
      ASSERT_EQ(error.diagnostics().size(), 1U);
      EXPECT_EQ(error.diagnostics()[0].code, "D601");
      EXPECT_EQ(error.diagnostics()[0].help, "did you mean `h100_80g_nvl8`?");
      EXPECT_THAT(error.diagnostics()[0].why, HasSubstr("b200, h100_80g_nvl8, h200"));
    }
  }
}

TEST(FindSystem, SaysHowToListThem) {
  try {
    (void)find_system("list");
    ADD_FAILURE();
  } catch (const InputError& error) {
    EXPECT_THAT(error.diagnostics()[0].help, HasSubstr("`shiplap hardware` lists"));
  }
}

TEST(SystemFile, IsTheFileOfTheRepository) {
  for (const std::string& name : known_systems()) {
    EXPECT_EQ(system_file(name), file_text("data/hardware/" + name + ".json"));
  }
  EXPECT_THROW((void)system_file("data/hardware/h200.json"), InputError);
}

TEST(FindSystem, RefusesWhatIsNoFile) {
  for (const char* const name : {"", "data", "no/such/file.json", "data/hardware"}) {
    EXPECT_THROW((void)find_system(name), InputError) << name;
  }
}

}  // namespace
}  // namespace shiplap::hardware
