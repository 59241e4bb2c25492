// The arithmetic on plans whose answers are known: those that were made to break check, and those
// that are sound.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "../mutations/families.h"
#include "oracle.h"
#include "shiplap/base/error.h"
#include "shiplap/plan/text.h"
#include "small_plans.h"

namespace shiplap::oracle {
namespace {

std::string read_file(const std::filesystem::path& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// The rule that the plan breaks, "" if it is sound.
std::string rule_of(const std::string& text) {
  const plan::Plan plan = plan::parse_text(text, "test.plan");
  const Verdict verdict = judge(plan);
  EXPECT_TRUE(verdict.matched && !verdict.deadlock_rendezvous && !verdict.race) << text;
  return verdict.rule;
}

std::string attack(const std::string& name) {
  return rule_of(read_file("tests/check/plans/attack/" + name + ".plan"));
}

// A1: a list names a row twice, and both arrive.
TEST(Attack, ScatterAddsAddOneRowAfterTheOther) {
  EXPECT_EQ(attack("a5"), "");
  EXPECT_EQ(attack("a5b"), "goal: holds");
  EXPECT_EQ(attack("R3good"), "");
  EXPECT_EQ(attack("R3bad"), "addition: nothing is counted twice");
}

// A2
TEST(Attack, AKernelClaimsFewerContributionsThanItRead) {
  const std::string rule = "contraction: states no less than was computed";
  EXPECT_EQ(attack("d8"), rule);
  EXPECT_EQ(attack("R0"), "");
  EXPECT_EQ(attack("R1"), rule);
  EXPECT_EQ(attack("R6"), rule);
  EXPECT_EQ(attack("R6b"), "addition: nothing is counted twice");
}

// A3
TEST(Attack, OperandsOfAnAdditionHaveSomethingInCommon) {
  EXPECT_EQ(attack("d5"), "linear: adds a contribution once");
  EXPECT_EQ(attack("R2"), "linear: adds a contribution once");
}

// A4, and a sum over other dimensions
TEST(Attack, AnAdditionDropsOrInventsContributions) {
  const std::string rule = "linear: states the contributions that were added";
  EXPECT_EQ(attack("d6"), rule);
  EXPECT_EQ(attack("d7"), rule);
  EXPECT_EQ(attack("d4"), "linear: every dimension of the sum was read");
}

// A5. A kernel that nobody knows and that reads nothing is a source, like `read_batch`: what it
// states is taken, even if its name is `bakward`.
TEST(Attack, NothingComesOfNothing) {
  const std::string rule = "linear: states the contributions that were added";
  EXPECT_EQ(attack("d3_add"), rule);
  EXPECT_EQ(attack("d3_cast"), rule);
  EXPECT_EQ(attack("d3_scale"), rule);
  EXPECT_EQ(attack("d3_zero"), "zero: states zero");
  EXPECT_EQ(attack("d1"), "");
  EXPECT_EQ(attack("d2"), "");
}

// A6
TEST(Attack, TheMeanIsTakenTwice) {
  EXPECT_EQ(attack("d13"), "linear: states the coefficient of the sum");
  EXPECT_EQ(attack("d14"), "scale: states the one computed");
}

// A7
TEST(Attack, NewWeightsAreReadEarly) {
  const std::string rule = "signature: weights of the version before";
  EXPECT_EQ(attack("d9"), rule);
  EXPECT_EQ(attack("d10"), rule);
  EXPECT_EQ(attack("R4good"), "");
  EXPECT_EQ(attack("R4bad"), rule);
}

// A8. Nothing in a plan says whose gradient a tensor is: d11 swaps those of two weights.
TEST(Attack, ALossInTheMiddle) {
  const std::string rule = "signature: loss of the last activation";
  EXPECT_EQ(attack("d11"), "");
  EXPECT_EQ(attack("d12"), rule);
  EXPECT_EQ(attack("R5bad"), rule);
}

// A9. The arithmetic writes every contribution out, so it takes the same plan with dimensions of 2.
TEST(Attack, AQuarterOfTheSumIsMissing) {
  EXPECT_THROW(attack("a4c"), InternalError);
  std::string text = read_file("tests/check/plans/attack/a4c.plan");
  const auto replace = [&](const std::string& from, const std::string& to) {
    for (auto at = text.find(from); at != std::string::npos; at = text.find(from)) {
      text.replace(at, from.size(), to);
    }
  };
  replace("131072", "2");
  replace("65536", "1");
  EXPECT_EQ(rule_of(text), "goal: holds");
}

// B1
TEST(Attack, MasksWithSeveralRowsAToken) {
  EXPECT_EQ(attack("a6"), "");
  EXPECT_EQ(attack("a6b"), "");
}

// B2
TEST(Attack, ATensorIsReadInTwoPieces) {
  EXPECT_EQ(attack("e2"), "");
  EXPECT_EQ(attack("e3"), "");
}

std::vector<std::filesystem::path> plans_in(const std::string& folder, const std::string& ending) {
  std::vector<std::filesystem::path> all;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().string().ends_with(ending)) all.push_back(entry.path());
  }
  std::ranges::sort(all);
  return all;
}

TEST(Sound, HandWrittenPlansBreakNoRule) {
  std::size_t seen = 0;
  const auto look = [&](const std::string& folder, const std::string& ending) {
    for (const auto& path : plans_in(folder, ending)) {
      ++seen;
      EXPECT_EQ(broken_rule(plan::parse_text(read_file(path), path.string())), "") << path;
    }
  };
  look("examples/plans", ".plan");
  look("museum", ".fixed.plan");
  look("tests/run/plans", ".plan");
  EXPECT_GE(seen, 30U);
}

// The sound plans that mutations start from, those of tests/check/plans among them; some of them
// have more contributions than can be written out.
TEST(Sound, PlansOfTheMutationsBreakNoRule) {
  const char* text = std::getenv("SHIPLAP_ARITHMETIC_EVERY");
  const std::size_t every = text == nullptr ? 1 : std::strtoull(text, nullptr, 10);
  const std::vector<mutations::Sound> all = mutations::sound_plans();
  std::size_t seen = 0;
  std::size_t too_large = 0;
  for (std::size_t k = 0; k < all.size(); k += every) {
    try {
      EXPECT_EQ(broken_rule(all[k].plan), "") << all[k].name;
      ++seen;
    } catch (const InternalError& error) {
      ++too_large;
      std::cout << all[k].name << ": " << error.what() << "\n";
    }
  }
  std::cout << seen << " plans, " << too_large << " more are too large\n";
  EXPECT_GT(seen, 20U);
}

TEST(RandomValues, ReachEveryRuleOnBothSides) {
  RuleCounts counts;
  std::size_t sound = 0;
  constexpr std::size_t kPlans = 3000;
  for (std::uint64_t seed = 1; seed <= kPlans; ++seed) {
    const Verdict verdict = judge(plan::parse_text(random_values(seed), "small.plan"));
    sound += verdict.matched && !verdict.race && verdict.rule.empty() ? 1U : 0U;
    for (const auto& [rule, count] : verdict.rules) {
      counts[rule].held += count.held > 0 ? 1 : 0;
      counts[rule].broken += count.broken;
    }
  }
  std::cout << kPlans << " plans, " << sound << " sound\n";
  EXPECT_GT(sound, kPlans / 3);
  EXPECT_LT(sound, kPlans * 2 / 3);
  EXPECT_EQ(counts.size(), kRules.size());
  for (const std::string rule : kRules) {
    std::cout << counts[rule].held << " held, " << counts[rule].broken << " broken: " << rule
              << "\n";
    EXPECT_GT(counts[rule].held, 0) << rule;
    EXPECT_GT(counts[rule].broken, 0) << rule;
  }
}

TEST(RandomValues, AreSoundByConstruction) {
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    const std::string text = random_sound_values(seed);
    const Verdict verdict = judge(plan::parse_text(text, "small.plan"));
    EXPECT_TRUE(verdict.matched && !verdict.deadlock_rendezvous && !verdict.race) << text;
    EXPECT_EQ(verdict.rule, "") << "seed " << seed << "\n" << text;
  }
}

}  // namespace
}  // namespace shiplap::oracle
