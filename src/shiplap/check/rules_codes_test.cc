// The rules of each library: the smallest plan that breaks each of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shiplap/check/testing_internal.h"

namespace shiplap::check {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

// The plan is sound with these rules, but not with `any` or those of NCCL.
void expect_only_on_nccl(std::string_view text, const Expected& expected) {
  expect_sound(text, {.rules = Rules::mpi});
  expect_sound(text, {.rules = Rules::gloo});
  expect_finding(text, expected, {.rules = Rules::nccl});
  expect_finding(text, expected);
}

std::vector<std::string> advice(std::string_view text, Rules rules = Rules::any) {
  std::vector<std::string> codes;
  for (const Diagnostic& diagnostic : checked(text, {.rules = rules}).advice)
    codes.push_back(diagnostic.code);
  return codes;
}

constexpr std::string_view kRing = R"(mesh pp=4
program all on all
  buffer x rows 1 row_bytes 8 bf16
  buffer y rows 1 row_bytes 8 bf16
  s: send x to pp+1 wrap async
  r: receive y from pp-1 wrap
)";

TEST(Rules, HaveNames) {
  for (const std::string& name : rules_names()) {
    EXPECT_TRUE(parse_rules(name).has_value()) << name;
    EXPECT_EQ(check::name(parse_rules(name).value_or(Rules::any)), name);
  }
  EXPECT_FALSE(parse_rules("ncc").has_value());
}

TEST(OnNccl, ASendBlocksTheReceiveBehindItAsyncOrNot) {
  expect_only_on_nccl(kRing, {"D723", 0, 0, "4 of 4 ranks hang"});
}

TEST(OnNccl, AStreamOfItsOwnDoesNotHelp) {
  std::string text = changed(kRing, "s: send x to pp+1 wrap async", "s: @net send x to pp+1 wrap");
  text = changed(text, "  s:", "  streams net\n  s:");
  expect_only_on_nccl(text, {"D723", 0, 0, "on NCCL"});
}

TEST(OnNccl, ABatchProgressesTogether) {
  const std::string text =
      changed(changed(kRing, "  s: send x to pp+1 wrap async", "  batch\n    send x to pp+1 wrap"),
              "  r: receive y from pp-1 wrap", "    receive y from pp-1 wrap\n  end");
  expect_sound(text);
  EXPECT_THAT(advice(text), IsEmpty());
}

TEST(OnNccl, AChannelIsACommunicator) {
  const std::string text = changed(changed(kRing, "wrap async", "wrap channel there async"),
                                   "pp-1 wrap", "pp-1 wrap channel there");
  expect_only_on_nccl(text, {"D723", 0, 0, ""});
  // One channel for each direction: neither waits for the other.
  constexpr std::string_view kBothWays = R"(mesh pp=2
program zero on pp=0
  buffer x rows 1 row_bytes 8 bf16
  buffer y rows 1 row_bytes 8 bf16
  s: send x to pp+1 channel up async
  r: receive y from pp+1 channel down
program one on pp=1
  buffer x rows 1 row_bytes 8 bf16
  buffer y rows 1 row_bytes 8 bf16
  s: send x to pp-1 channel down async
  r: receive y from pp-1 channel up
)";
  expect_sound(kBothWays);
  EXPECT_THAT(advice(kBothWays), ElementsAre("D726"));
  EXPECT_THAT(advice(kBothWays, Rules::mpi), IsEmpty());
}

TEST(OnNccl, CommunicatorsInDifferentOrderAreAWarning) {
  constexpr std::string_view kTwo = R"(mesh pp=2
program zero on pp=0
  buffer x rows 1 row_bytes 8 bf16
  buffer y rows 1 row_bytes 8 bf16
  streams a, b
  @a broadcast x over pp/A
  @b broadcast y over pp/B
program one on pp=1
  buffer x rows 1 row_bytes 8 bf16
  buffer y rows 1 row_bytes 8 bf16
  streams a, b
  @b broadcast y over pp/B
  @a broadcast x over pp/A
)";
  const Report report = checked(kTwo);
  EXPECT_TRUE(report.sound());
  ASSERT_THAT(report.advice, SizeIs(1));
  EXPECT_EQ(report.advice.front().code, "D726");
  EXPECT_EQ(report.advice.front().severity, Severity::warning);
  EXPECT_THAT(report.advice.front().why, HasSubstr("wait cycle of length 2"));
  EXPECT_THAT(advice(kTwo, Rules::gloo), IsEmpty());
  const std::string same_order =
      changed(kTwo, "  @b broadcast y over pp/B\n  @a broadcast x over pp/A",
              "  @a broadcast x over pp/A\n  @b broadcast y over pp/B");
  EXPECT_THAT(advice(same_order), IsEmpty());
}

TEST(OnNccl, ThereAreNoTags) {
  constexpr std::string_view kTags = R"(mesh pp=2
program zero on pp=0
  buffer x rows 2 row_bytes 8 bf16
  a: send x[0 +1] to pp+1 tag 1
  b: send x[1 +1] to pp+1 tag 2 async
program one on pp=1
  buffer x rows 2 row_bytes 8 bf16
  a: receive x[0 +1] from pp-1 tag 1
  b: receive x[1 +1] from pp-1 tag 2
)";
  expect_sound(kTags);
  const std::string crossed = changed(
      changed(kTags, "a: send x[0 +1] to pp+1 tag 1", "a: send x[0 +1] to pp+1 tag 1 async"),
      "a: receive x[0 +1] from pp-1 tag 1\n  b: receive x[1 +1] from pp-1 tag 2",
      "b: receive x[1 +1] from pp-1 tag 2\n  a: receive x[0 +1] from pp-1 tag 1");
  expect_only_on_nccl(crossed,
                      {"D719", 0, 0, "`a: send` of rank 0 would match `b: receive` of rank 1"});
  // Channels distinguish them on all libraries.
  std::string channels = crossed;
  for (const char* name : {"1", "2"}) {
    for (int k = 0; k < 2; ++k) {
      channels = changed(channels, std::string("tag ") + name, std::string("channel c") + name);
    }
  }
  expect_sound(channels);
}

TEST(OnNccl, ABatchMeetsABatch) {
  constexpr std::string_view kHalf = R"(mesh pp=2
program zero on pp=0
  buffer x rows 1 row_bytes 8 bf16
  buffer y rows 1 row_bytes 8 bf16
  batch
    send x to pp+1
    receive y from pp+1
  end
program one on pp=1
  buffer x rows 1 row_bytes 8 bf16
  buffer y rows 1 row_bytes 8 bf16
  s: send x to pp-1
  r: receive y from pp-1
)";
  expect_sound(kHalf, {.rules = Rules::mpi});
  const Finding finding = expect_finding(kHalf, {"D724", 0, 1, "is in a batch"});
  EXPECT_EQ(finding.folded, 1);
}

TEST(OnNccl, AnAllToAllHasTwoRegions) {
  constexpr std::string_view kTurn = R"(mesh ep=2
tensor X Activation tok 4
program all on all
  buffer x rows 2 row_bytes 8 bf16
  buffer y rows 2 row_bytes 8 bf16
  given x = X tok 2*ep +2
  goal y = X tok ep +2 by 2
  t: all_to_all x to y over ep
)";
  expect_sound(kTurn);
  const std::string in_place = changed(changed(kTurn, "x to y over", "x over"), "goal y", "goal x");
  expect_only_on_nccl(in_place, {"D725", 0, 0, "all-to-all in place"});
}

TEST(OnGloo, AReduceInPlaceLeavesNothingOffItsRoot) {
  constexpr std::string_view kReduce = R"(mesh dp=2
tensor G WeightGrad sum s 2
program all on all
  buffer g rows 1 row_bytes 8 f32
  given g = G sum s dp +1
  r: reduce g over dp root 0
  when dp=0
    goal g = G
  end
  when dp=1
    goal g = G sum s 1 +1
  end
)";
  expect_sound(kReduce, {.rules = Rules::mpi});
  expect_sound(kReduce, {.rules = Rules::nccl});
  for (const Rules rules : {Rules::gloo, Rules::any}) {
    expect_finding(kReduce, {"D735", 1, 0, "overwrites"}, {.rules = rules});
  }
}

TEST(OnAll, AReduceScatterInPlaceLeavesItsOwnPieceAlone) {
  constexpr std::string_view kScatter = R"(mesh dp=2
tensor G WeightGrad shard 2 sum s 2
program all on all
  buffer g rows 2 row_bytes 8 f32
  given g = G sum s dp +1
  goal g[dp +1] = G shard dp +1
  r: reduce_scatter g over dp
)";
  expect_sound(kScatter);
  for (const std::string_view spelling :
       {"reduce_scatter g over", "reduce_scatter g to g[dp +1] over"}) {
    std::string text = changed(kScatter, "reduce_scatter g over", spelling);
    expect_sound(text);
    text = changed(text, "  r:", "  goal g[1-dp +1] = G shard 1-dp +1 sum s dp +1\n  r:");
    for (const Rules rules : {Rules::any, Rules::nccl, Rules::mpi, Rules::gloo}) {
      const Report report = checked(text, {.rules = rules});
      EXPECT_FALSE(report.sound()) << spelling;
    }
  }
}

}  // namespace
}  // namespace shiplap::check
