#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
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
  EXPECT_THAT(known_systems(),
              ElementsAre("a100_80g", "b200", "gb200_nvl72", "h100_80g_nvl8", "h200", "mi300x"));
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
    for (const char* const part : {"matrix", "vector", "mem1", "mem2", "node"}) {
      EXPECT_NE(raw.find(part)->find("source"), nullptr) << name << " " << part;
    }
  }
}

// Counts every number, list and curve of a section, and of those within it.
void expect_basis(const Json& section, const std::string& path, const System& system) {
  static const std::vector<std::string> whole{"gflops_efficiency", "MB_efficiency", "collectives",
                                              "leaf", "ops"};
  for (const auto& [key, value] : section.as_object()) {
    const std::string at = path.empty() ? key : path + "." + key;
    const bool is_figure =
        value.is_number() || value.is_bool() || std::ranges::find(whole, key) != whole.end();
    if (is_figure) {
      EXPECT_EQ(std::ranges::count(system.figures, at, &FigureBasis::path), 1)
          << system.name << " " << at;
    } else if (key == "networks") {
      for (std::size_t k = 0; k < value.as_array().size(); ++k) {
        expect_basis(value.as_array()[k], at + "[" + std::to_string(k) + "]", system);
      }
    } else if (value.is_object() && key != "basis") {
      expect_basis(value, at, system);
    }
  }
}

TEST(KnownSystems, SayOfEveryFigureWhetherItIsPublishedFittedOrAssumed) {
  for (const std::string& name : known_systems()) {
    const Json raw = parse_json(file_text("data/hardware/" + name + ".json"), name);
    expect_basis(raw, "", find_system(name));
  }
}

TEST(FindSystem, ReadsAFileThatIsNamed) {
  const System named = find_system("data/hardware/h200.json");
  EXPECT_EQ(named, find_system("h200"));
  EXPECT_EQ(named.mem1.capacity, Bytes{std::int64_t{141} << 30});
}

TEST(FindSystem, KnowsTheFilesOfThePuzzlesByName) {
  EXPECT_EQ(find_system("h100_80g_nvl8.json"), find_system("h100_80g_nvl8"));
  EXPECT_THROW((void)find_system("h100.json"), InputError);
}

TEST(FindSystem, SaysWhichSystemMayBeMeant) {
  for (const char* const name : {"h100_80gnvl8", "h100-80g-nvl8"}) {
    try {
      (void)find_system(name);
      ADD_FAILURE() << name << " was found";
    } catch (const InputError& error) {
      ASSERT_EQ(error.diagnostics().size(), 1U);
      EXPECT_EQ(error.diagnostics()[0].code, "D601");
      EXPECT_EQ(error.diagnostics()[0].help, "did you mean `h100_80g_nvl8`?");
      EXPECT_THAT(error.diagnostics()[0].why, HasSubstr("b200, gb200_nvl72, h100_80g_nvl8, h200"));
    }
  }
}

TEST(FindSystem, CompletesANameIfThereIsOneWay) {
  EXPECT_EQ(find_system("h100").name, "h100_80g_nvl8");
  EXPECT_EQ(find_system("gb200"), find_system("gb200_nvl72"));
  EXPECT_EQ(system_file("a"), system_file("a100_80g"));
  EXPECT_THROW((void)find_system("h"), InputError);  // or h200
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
