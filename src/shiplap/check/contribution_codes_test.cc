// Diagnostics for sums, scales and cell orders that differ from what was stated, and how large sums
// may be.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "shiplap/base/error.h"
#include "shiplap/check/check.h"
#include "shiplap/check/testing_internal.h"

namespace shiplap::check {
namespace {

using testing::HasSubstr;

constexpr std::string_view kScatter = R"(mesh dp=2
tensor X Activation tok 2 sum k 2
program all on all
  buffer x rows 2 row_bytes 8 f32
  given x = X sum k dp +1
  goal x[dp +1] = X tok dp +1
  reduce_scatter x to x[dp +1] over dp
)";

TEST(Unknown, RowsThatAReductionInPlaceLeavesBehindAreNamedAsSuch) {
  expect_sound(kScatter);
  const Finding finding =
      expect_finding(changed(kScatter, "goal x[dp +1] = X tok dp +1", "goal x = X"),
                     {"D746", 0, -1, "but this rank has no result in those rows"});
  EXPECT_THAT(finding.diagnostic.why, HasSubstr("undefined leftovers of an in-place reduction"));
  EXPECT_THAT(finding.diagnostic.help, HasSubstr("own piece of a `reduce_scatter`"));
}

TEST(Unknown, AScaleThatNeedsMoreThan64BitsIsNamedAsSuch) {
  const Finding finding = expect_finding(R"(mesh dp=2
tensor X Activation tok 1 sum k 2
program all on all
  buffer x rows 1 row_bytes 8 f32
  given x = X sum k dp +1 scale 1/9000000000000000000
  goal x = X scale 1/3
  all_reduce x over dp scale 1/9000000000000000000
)",
                                         {"D746", 0, -1, "but its scale is unknown"});
  EXPECT_THAT(finding.diagnostic.help, HasSubstr("smaller numbers"));
}

TEST(Scales, OfAGroupOfOneAreFollowedLikeAllOthers) {
  expect_finding(R"(mesh dp=1
tensor W Weight
program all on all
  buffer w rows 1 row_bytes 8 f32
  given w = W
  goal w = W
  all_reduce w over dp scale 1/2
)",
                 {"D745", 0, -1, "needs W at scale 1, and finds it at 1/2"});
}

TEST(Cells, InAnotherOrderOfDimensionsAreNamedWithBothOrders) {
  const Finding finding = expect_finding(R"(mesh dp=1
tensor X Activation tok 2 head 2
program all on all
  buffer x rows 4 row_bytes 8 f32
  given x = X tok 0 +2 head 0 +2
  goal x = X head 0 +2 tok 0 +2
  compute other
)",
                                         {"D744", 0, -1, "finds its cells in a different order"});
  EXPECT_EQ(finding.diagnostic.why, "stated: by head, then tok; found: by tok, then head");
}

TEST(Sums, ThatLackPartsInAllDimensionsNameOneOfThem) {
  expect_finding(R"(mesh dp=2
tensor X Activation tok 1 sum i 2 j 2
program all on all
  buffer x rows 1 row_bytes 8 f32
  given x = X sum i dp +1 j dp +1
  goal x = X
  all_reduce x over dp
)",
                 {"D741", 0, -1, "which is missing i 1 and j 0 and 1 more parts"});
}

TEST(Lists, ThatCannotCutARegionAreNamed) {
  const Finding finding = expect_finding(R"(mesh dp=2
list cut = 0 1 3 4
program all on all
  buffer x rows 4 row_bytes 8 f32
  all_gather x over dp split cut
)",
                                         {"D704", 0, 0, "`split cut` does not cut 4 rows"});
  EXPECT_EQ(finding.diagnostic.why, "`cut` is 0 1 3 4");
}

// The list is right, and the region that is sent is not the rank's piece.
TEST(Lists, ThatCutARegionAreNotReportedForAnother) {
  expect_finding(R"(mesh dp=2
list cut = 0 1 4
program all on all
  buffer x rows 4 row_bytes 8 f32
  buffer y rows 2 row_bytes 8 f32
  all_gather y to x over dp split cut
)",
                 {"D704", 0, 0, "2 rows of 8 bytes go to 4 rows of 8 bytes"});
}

TEST(Cells, ThatAreOtherRowsOfOneCellAreNotCalledReordered) {
  const Finding finding = expect_finding(R"(mesh dp=1
tensor W Weight
program all on all
  buffer v rows 4 row_bytes 8 f32
  buffer w rows 4 row_bytes 8 f32
  given v = W
  goal w = W
  copy v[2 +2] to w[0 +2]
  copy v[0 +2] to w[2 +2]
)",
                                         {"D747", 0, -1, "needs W, and finds W"});
  EXPECT_THAT(finding.diagnostic.why, HasSubstr("written by `copy`"));
}

TEST(Nothing, IsAskedOfTheValuesOfAPlanWithoutTensors) {
  expect_sound(R"(mesh dp=2
program all on all
  buffer x rows 1 row_bytes 8 f32
  all_reduce x over dp
)");
}

TEST(Nothing, IsProvedByAGoalWithoutRows) {
  expect_finding(R"(mesh dp=1
tensor X Activation tok 2
program all on all
  buffer x rows 2 row_bytes 8 f32
  goal x[0 +0] = X tok 2 +0
  compute other
)",
                 {"D760", -1, -1, "no declared value was checked"});
}

// A causal mask, and keys that are dealt out round robin over the ranks.
std::string dealt_keys(std::int64_t tokens, std::int64_t ranks, std::string_view from = "p") {
  const std::string all = std::to_string(tokens);
  return "mesh p=" + std::to_string(ranks) + "\ntensor X Activation tok " + all + " sum k " + all +
         " mask k<=tok\nprogram all on all\n  buffer x rows " + all +
         " row_bytes 8 bf16\n  given x = X tok 0 +" + all + " sum k " + std::string(from) + " +" +
         std::to_string(tokens / ranks) + " by " + std::to_string(ranks) +
         "\n  goal x = X\n  all_reduce x over p\n";
}

TEST(Sums, OfKeysThatAreDealtOutRoundRobinGrowWithTheTokens) {
  expect_sound(dealt_keys(12, 2));
  expect_sound(dealt_keys(12, 4));
  EXPECT_EQ(checked(dealt_keys(12, 4, "3-p")).findings.size(), 0U);
  expect_finding(changed(dealt_keys(12, 4), "+3 by 4", "+2 by 4"),
                 {"D741", 0, -1, "which is missing k 8"});
  // 65,536 took more than a minute when interleaved sums were held contribution by contribution.
  EXPECT_TRUE(checked(dealt_keys(65'536, 2)).sound());
}

// Rows of many tokens each, and a block for every rank: most boxes differ in their first dimension.
TEST(Sums, OfRowsWithManyTokensEachAreChecked) {
  EXPECT_TRUE(checked(R"(mesh p=2
tensor X Activation tok 8192 sum k 8192 mask k<=tok
program all on all
  buffer x rows 64 row_bytes 8 bf16
  given x = X tok 0 +8192 sum k p*4096 +4096
  goal x = X
  all_reduce x over p
)")
                  .sound());
}

// A box of a thousand million contributions is no list of them.
TEST(Sums, OfVeryManyContributionsAreNamedByTheirRange) {
  expect_finding(R"(mesh dp=2
tensor X Activation tok 1 sum k 2000000000
program all on all
  buffer x rows 1 row_bytes 8 f32
  given x = X sum k dp*1000000000 +1000000000
  goal x = X
  compute other
)",
                 {"D741", 0, -1, "which is missing k 1000000000-1999999999, 1/2 of the sum"});
}

// No rank has every fifth contribution: without a constant stride, each one is stored separately.
TEST(Sums, WithTooManySeparatePartsAreRefusedWithTheirSize) {
  const std::string text = changed(dealt_keys(16'384, 4), "+4096 by 4", "+3276 by 5");
  try {
    static_cast<void>(checked(text));
    FAIL() << "was checked";
  } catch (const InputError& error) {
    EXPECT_EQ(error.diagnostics().front().code, "D632");
  }
}

}  // namespace
}  // namespace shiplap::check
