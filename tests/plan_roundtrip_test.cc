// Properties of every plan: writing and parsing it gives the same plan.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "flat_text.h"
#include "random_plan.h"
#include "shiplap/base/error.h"
#include "shiplap/base/json.h"
#include "shiplap/plan/text.h"

namespace shiplap::plan {
namespace {

constexpr std::uint64_t kSeeds = 1000;

std::string json_text(const Plan& plan) { return shiplap::to_text(to_json(plan), Layout::compact); }

// Parses text that was written from a plan. An error fails the test.
template <class Read>
Plan read(const Read& parse, const std::string& text) {
  try {
    return parse(text, "random.plan");
  } catch (const InputError& error) {
    ADD_FAILURE() << render(error.diagnostics()) << "in\n" << text;
    return {};
  }
}

TEST(PlanText, ReadingWhatWasPrintedGivesTheSamePlan) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    const Plan plan = random_plan(seed);
    const std::string text = to_text(plan);
    const Plan again = read(parse_text, text);
    ASSERT_TRUE(again == plan) << "seed " << seed << "\n" << text << "\n----\n" << to_text(again);
    ASSERT_EQ(to_text(again), text) << "seed " << seed;
  }
}

TEST(PlanJson, ReadingWhatWasPrintedGivesTheSamePlan) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    const Plan plan = random_plan(seed);
    const std::string text = json_text(plan);
    const Plan again = read(parse_plan_json, text);
    ASSERT_TRUE(again == plan) << "seed " << seed << "\n" << text << "\n----\n" << json_text(again);
    ASSERT_EQ(json_text(again), text) << "seed " << seed;
  }
}

TEST(Plan, IsReadFromEitherForm) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const Plan plan = random_plan(seed);
    EXPECT_TRUE(read(parse_plan, to_text(plan)) == plan) << "seed " << seed;
    EXPECT_TRUE(read(parse_plan, json_text(plan)) == plan) << "seed " << seed;
  }
}

TEST(Plan, ThatIsChangedAnywhereIsAnotherAndPrintsDifferently) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    const Plan plan = random_plan(seed);
    Plan changed = plan;
    ASSERT_TRUE(changed == plan);
    ASSERT_TRUE(change_something(changed, seed + 7));
    ASSERT_FALSE(changed == plan) << "seed " << seed << "\n" << to_text(plan);
    ASSERT_NE(to_text(changed), to_text(plan)) << "seed " << seed;
    ASSERT_NE(json_text(changed), json_text(plan)) << "seed " << seed;
  }
}

TEST(Plan, ACopySharesNothingWithItsOriginal) {
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    const Plan plan = random_plan(seed);
    const std::string before = to_text(plan);
    Plan copy = plan;
    (void)change_something(copy, seed);
    ASSERT_EQ(to_text(plan), before) << "seed " << seed;
  }
}

std::vector<std::string> examples() {
  std::vector<std::string> texts;
  for (const auto& entry : std::filesystem::directory_iterator("examples/plans")) {
    std::ifstream in(entry.path());
    texts.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  return texts;
}

TEST(Examples, SurviveBothForms) {
  ASSERT_GE(examples().size(), 10U);
  for (const std::string& text : examples()) {
    const Plan plan = read(parse_text, text);
    EXPECT_TRUE(read(parse_text, to_text(plan)) == plan) << text;
    EXPECT_TRUE(read(parse_plan_json, json_text(plan)) == plan) << text;
    for (std::int32_t rank = 0; rank < plan.mesh.ranks(); ++rank) {
      EXPECT_EQ(expansion_text(plan, Rank(rank)).find("refused"), std::string::npos)
          << expansion_text(plan, Rank(rank));
    }
  }
}

}  // namespace
}  // namespace shiplap::plan
