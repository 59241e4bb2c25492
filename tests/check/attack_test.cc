// Adversarial plans: unsound ones that `check` once accepted, sound ones that it rejected, and some
// that crashed it. The verdict on each, with and without symmetry.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>

#include "shiplap/base/error.h"
#include "shiplap/check/check.h"
#include "shiplap/plan/text.h"

namespace shiplap::check {
namespace {

plan::Plan read_plan(const std::string& name) {
  const std::string path = "tests/check/plans/attack/" + name + ".plan";
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return plan::parse_text(text.str(), path);
}

// "" if it is sound, otherwise the code of the first finding.
std::string code_of(const plan::Plan& plan, bool symmetry) {
  try {
    const Report report = check(plan, {.symmetry = symmetry});
    return report.sound() ? "" : report.findings.front().diagnostic.code;
  } catch (const InputError& error) {
    return error.diagnostics().front().code;
  }
}

std::string attack(const std::string& name) {
  const plan::Plan plan = read_plan(name);
  const std::string code = code_of(plan, true);
  EXPECT_EQ(code_of(plan, false), code) << name << " without symmetry";
  return code;
}

std::string advice(const std::string& name) {
  const Report report = check(read_plan(name), {});
  EXPECT_TRUE(report.sound()) << name;
  return report.advice.empty() ? "" : report.advice.front().code;
}

TEST(UnderAttack, CopiesThatAddToOneRowTwice) {
  EXPECT_EQ(attack("a5"), "");
  EXPECT_EQ(attack("a5b"), "D742");
  EXPECT_EQ(attack("R0"), "");
  EXPECT_EQ(attack("R3good"), "");
  EXPECT_EQ(attack("R3bad"), "D742");
}

TEST(UnderAttack, KernelsThatStateLessThanTheyCompute) {
  EXPECT_EQ(attack("d8"), "D755");
  EXPECT_EQ(attack("R1"), "D755");
  EXPECT_EQ(attack("R6"), "D755");
  EXPECT_EQ(attack("R6b"), "D742");
}

TEST(UnderAttack, AdditionsThatDoubleDropOrInvent) {
  EXPECT_EQ(attack("d5"), "D742");
  EXPECT_EQ(attack("v8"), "D742");  // twice a half of some, once the whole of others
  EXPECT_EQ(attack("R2"), "D742");
  EXPECT_EQ(attack("d6"), "D755");
  EXPECT_EQ(attack("d7"), "D755");
  EXPECT_EQ(attack("d4"), "D755");
}

TEST(UnderAttack, SomethingFromNothing) {
  EXPECT_EQ(attack("d3_add"), "D755");
  EXPECT_EQ(attack("d3_cast"), "D755");
  EXPECT_EQ(attack("d3_scale"), "D755");
  EXPECT_EQ(attack("d3_zero"), "D755");
  EXPECT_EQ(advice("d1"), "D757");
  EXPECT_EQ(advice("d2"), "D757");
  EXPECT_EQ(check(read_plan("d1"), {}).assumed.front().kernel, "bakward");
}

// A tensor without layers or versions, or with another number of them, loses the layer or version
// of its values. A plan may still state it, and it is then listed as assumed: layers that are
// skipped, swapped or updated with another layer's gradient.
TEST(UnderAttack, LayersThatNothingTellsAreListedAsAssumed) {
  const auto assumed = [](const std::string& name) {
    const Report report = check(read_plan(name), {});
    EXPECT_TRUE(report.sound()) << name;
    return report.assumed.empty() ? "" : report.assumed.front().kernel;
  };
  for (const char* const name : {"v1", "v2", "v3", "v4"}) EXPECT_EQ(assumed(name), "cast") << name;
  EXPECT_EQ(assumed("v5"), "backward");
  EXPECT_EQ(assumed("v6"), "backward_weight");
  EXPECT_EQ(assumed("v7"), "loss");
}

TEST(UnderAttack, TheMeanTakenTwice) {
  EXPECT_EQ(attack("d13"), "D745");
  EXPECT_EQ(attack("d14"), "D745");
}

TEST(UnderAttack, NewWeightsReadEarly) {
  EXPECT_EQ(attack("d9"), "D754");
  EXPECT_EQ(attack("d10"), "D754");
  EXPECT_EQ(attack("R4good"), "");
  EXPECT_EQ(attack("R4bad"), "D754");
}

TEST(UnderAttack, ALossInTheMiddle) {
  EXPECT_EQ(attack("d12"), "D750");
  EXPECT_EQ(attack("R5bad"), "D750");
}

TEST(UnderAttack, NumbersThatOverflow) {
  EXPECT_EQ(attack("a4"), "D741");
  EXPECT_EQ(attack("a4b"), "D741");
  EXPECT_EQ(attack("a4c"), "D741");
  EXPECT_EQ(attack("c1"), "D718");
  EXPECT_EQ(attack("c1b"), "D718");
  EXPECT_EQ(attack("c1c"), "D718");
  EXPECT_EQ(attack("c1d"), "D718");
}

TEST(UnderAttack, CornersOfFoldedAxes) {
  EXPECT_EQ(attack("a1"), "D209");
  EXPECT_EQ(attack("a2"), "D203");
  EXPECT_EQ(attack("k1"), "D209");
}

TEST(UnderAttack, MoreSlopesThanThereAreNumbersFor) { EXPECT_EQ(attack("a3"), "D744"); }

TEST(UnderAttack, MemoryThatEveryStepLoses) {
  EXPECT_EQ(attack("g4"), "D734");
  EXPECT_EQ(attack("g4b"), "D733");
}

// Each rank has the maximum number of iterations: rejecting the plan once took 95 s.
TEST(UnderAttack, LoopsThatDoNothingOnEveryRank) {
  EXPECT_EQ(attack("b3"), "D632");
  const plan::Plan plan = plan::parse_text(
      "shiplap-plan 1\nmesh dp=64\nprogram all on all\n"
      "  repeat m 100\n    let n = m*m\n    when n<m+dp\n    end\n  end\n  compute other\n",
      "test.plan");
  constexpr std::int64_t kAll = 64 * 300LL;
  for (const bool symmetry : {true, false}) {
    EXPECT_TRUE(check(plan, {.symmetry = symmetry, .iterations = kAll}).sound());
    EXPECT_THROW((void)check(plan, {.symmetry = symmetry, .iterations = kAll - 1}), InputError);
  }
}

TEST(UnderAttack, StepsWithoutAGoal) {
  EXPECT_EQ(advice("g1"), "D761");
  EXPECT_EQ(advice("g2"), "D761");
  EXPECT_EQ(advice("g5"), "D761");
}

TEST(UnderAttack, RightPlansThatWereRefused) {
  EXPECT_EQ(attack("a6"), "");
  EXPECT_EQ(attack("a6b"), "");
  EXPECT_EQ(attack("a7"), "");
  EXPECT_EQ(attack("e1_240000"), "");
  EXPECT_EQ(attack("e1_300000"), "");
  EXPECT_EQ(attack("e2"), "");
  EXPECT_EQ(attack("e3"), "");
  EXPECT_EQ(attack("r1"), "");
  EXPECT_EQ(attack("r3"), "");
}

// MPI and NCCL only read these rows, gloo writes partial sums (pytorch issue 76527).
TEST(UnderAttack, RowsThatAReduceInPlaceMayUse) { EXPECT_EQ(attack("r2"), "D730"); }

// A second round, against the rules that were added after the first.
TEST(UnderAttack, SumsOfDifferentTensorsAndLayers) {
  EXPECT_EQ(attack("t1"), "D752");
  EXPECT_EQ(attack("t2"), "D755");
  EXPECT_EQ(attack("t3"), "D755");
  EXPECT_EQ(attack("t4"), "D752");
  EXPECT_EQ(attack("t4good"), "");
}

TEST(UnderAttack, SumsThatAreNotZeroAndSumsTakenTwice) {
  EXPECT_EQ(attack("t5"), "D755");
  EXPECT_EQ(attack("t6"), "D742");
  EXPECT_EQ(attack("t7"), "D742");
}

TEST(UnderAttack, MasksThatLookUpWhatIsNotThere) { EXPECT_EQ(attack("t9"), "D203"); }

TEST(UnderAttack, KernelsThatMakeANewVersionWithoutARule) {
  const Report report = check(read_plan("t10"), {});
  ASSERT_EQ(report.assumed.size(), 1U);
  EXPECT_EQ(report.assumed.front().kernel, "adamw");
}

TEST(UnderAttack, WhatAReduceScatterInPlaceLeaves) { EXPECT_EQ(attack("t8"), "D735"); }

TEST(UnderAttack, LayoutsOfOneMaskedTensorAreToldApart) {
  EXPECT_EQ(attack("a8"), "D744");
  EXPECT_EQ(attack("h3"), "D744");
}

}  // namespace
}  // namespace shiplap::check
