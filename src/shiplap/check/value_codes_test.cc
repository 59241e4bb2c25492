// Each code about values: the smallest plan that has it, and a sound plan next to it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shiplap/check/testing_internal.h"

namespace shiplap::check {
namespace {

using testing::Contains;
using testing::HasSubstr;

TEST(Nothing, CanBeRead) {
  constexpr std::string_view kRead = R"(mesh dp=1
tensor Q Query tok 1
program all on all
  buffer x rows 1 row_bytes 8 f32
  given x = Q
  r: compute other
    reads x = Q
)";
  const Finding finding = expect_finding({kRead, "  given x = Q\n", ""},
                                         {"D732", 0, 0, "`r: compute other` of rank 0 reads Q"});
  EXPECT_EQ(finding.diagnostic.why, "x of rank 0 holds uninitialized memory");
}

// The cause is on the rank that sends it.
TEST(Nothing, CanBeSentAndRead) {
  constexpr std::string_view kSent = R"(mesh pp=2
tensor Q Query tok 1
program first on pp=0
  buffer x rows 1 row_bytes 8 f32
  given x = Q
  s: send x to pp+1
program second on pp=1
  buffer x rows 1 row_bytes 8 f32
  receive x from pp-1
  compute other
    reads x = Q
)";
  const Finding finding =
      expect_finding({kSent, "  given x = Q\n", ""}, {"D732", 0, 0, "of rank 1 reads Q"});
  EXPECT_THAT(finding.diagnostic.why, HasSubstr("it comes from rank 0 in `s: send`"));
  EXPECT_THAT(finding.witness, Contains(OperationId{1, 1}));
}

TEST(Nothing, CanBeAddedTo) {
  constexpr std::string_view kAdd = R"(mesh dp=1
tensor G Grad sum sample 1
program all on all
  buffer g rows 1 row_bytes 8 f32
  goal g = G
  compute zero
    writes g = G sum none
  compute other
    adds g = G sum sample 0 +1
)";
  expect_finding({kAdd, "  compute zero\n    writes g = G sum none\n", ""},
                 {"D732", 0, 0, "an operation adds to g of rank 0, which is uninitialized"});
}

constexpr std::string_view kLife = R"(mesh dp=1
tensor Q Query tok 1
program all on all
  buffer x rows 1 row_bytes 8 f32
  allocate x
  w: compute other
    writes x = Q
  r: compute other
    reads x = Q
  free x
)";

TEST(Memory, IsNotUsedAfterItWasFreed) {
  const Finding finding = expect_finding({kLife, "  r: compute other\n    reads x = Q\n  free x\n",
                                          "  free x\n  r: compute other\n    reads x = Q\n"},
                                         {"D733", 0, 3, "x is used after it was freed"});
  EXPECT_EQ(finding.diagnostic.why, "`free` freed it");
  expect_finding({kLife, "  free x\n", "  free x\n  free x\n"},
                 {"D733", 0, 4, "x is used after it was freed"});
}

TEST(Memory, IsNotUsedBeforeItIsAllocated) {
  expect_finding({kLife, "  allocate x\n  w: compute other\n    writes x = Q\n",
                  "  w: compute other\n    writes x = Q\n  allocate x\n"},
                 {"D733", 0, 0, "x is used before it is allocated"});
}

TEST(Memory, IsNotAllocatedTwice) {
  expect_finding({kLife, "  allocate x\n", "  allocate x\n  allocate x\n"},
                 {"D733", 0, 1, "x is allocated again while it is in use"});
}

TEST(Memory, ThatIsGivenUpAndTakenAgainLosesWhatItHeld) {
  expect_finding({kLife, "  r: compute", "  f: free x\n  allocate x\n  r: compute"},
                 {"D733", 0, 2, "`f: free` of rank 0 frees Q, which is still needed"});
}

TEST(Overwriting, WhatIsStillNeededIsNamedAtTheWrite) {
  constexpr std::string_view kKept = R"(mesh dp=1
tensor Q[2] Query tok 1
program all on all
  buffer x rows 2 row_bytes 8 f32
  given x[0 +1] = Q[0]
  w: compute other
    writes x[1 +1] = Q[1]
  r: compute other
    reads x[0 +1] = Q[0]
)";
  const Finding finding =
      expect_finding({kKept, "writes x[1 +1]", "writes x[0 +1]"},
                     {"D735", 0, 0, "`w: compute other` of rank 0 overwrites Q[0]"});
  EXPECT_THAT(finding.witness, Contains(OperationId{0, 1}));
  // The last write that replaced it counts, not the first.
  expect_finding({kKept, "  r: compute",
                  "  compute other\n    writes x[0 +1] = Q[1]\n"
                  "  compute other\n    writes x[0 +1] = Q[0]\n"
                  "  l: compute other\n    writes x[0 +1] = Q[1]\n  r: compute"},
                 {"D735", 0, 3, "`l: compute other` of rank 0 overwrites Q[0]"});
}

TEST(Overwriting, AnOldVersionIsNamedAtTheReader) {
  constexpr std::string_view kVersions = R"(mesh pp=2
tensor W Weight
program first on pp=0
  buffer w rows 1 row_bytes 8 f32
  given w = W
  compute other
    writes w = new W
  send w to pp+1
program second on pp=1
  buffer w rows 1 row_bytes 8 f32
  receive w from pp-1
  r: compute other
    reads w = new W
)";
  expect_finding({kVersions, "reads w = new W", "reads w = W"},
                 {"D735", 1, 1, "of rank 1 reads W, and has new W"});
}

TEST(Sums, ThatAreNotCompleteAreForFewKernels) {
  constexpr std::string_view kKernel = R"(mesh tp=1
tensor P Partial sum part 2
program all on all
  buffer x rows 1 row_bytes 8 f32
  given x = P sum part 0 +1
  compute cast
    reads x = P sum part 0 +1
)";
  expect_finding({kKernel, "cast", "norm"}, {"D740", 0, 0, "`norm` reads a part of the sum `P`"});
}

constexpr std::string_view kPartial = R"(mesh tp=2
tensor P Partial sum part 2
program all on all
  buffer x rows 1 row_bytes 8 f32
  given x = P sum part tp +1
  all_reduce x over tp
  r: compute norm
    reads x = P
)";

TEST(Sums, ThatAreNotReducedAreNamedAtTheReader) {
  const Finding finding = expect_finding({kPartial, "  all_reduce x over tp\n", ""},
                                         {"D740", 0, 0, "reads `P`, which is missing part 1"});
  EXPECT_EQ(finding.diagnostic.help, "reduce it over the ranks that have the rest");
  EXPECT_THAT(finding.witness, Contains(OperationId{1, 0}));
}

TEST(Sums, ThatNoRankCompletesAreMissingAContribution) {
  constexpr std::string_view kAlone = R"(mesh tp=1
tensor P Partial sum part 3
program all on all
  buffer x rows 1 row_bytes 8 f32
  given x = P sum part 0 +3
  compute norm
    reads x = P
)";
  const Finding finding =
      expect_finding({kAlone, "part 0 +3", "part 0 +2"},
                     {"D741", 0, 0, "reads `P`, which is missing part 2, 1/3 of the sum"});
  EXPECT_EQ(finding.diagnostic.help, "compute the missing contributions: no rank does");
}

TEST(Sums, OfAGoalLackAContribution) {
  constexpr std::string_view kGoal = R"(mesh dp=2
tensor G WeightGrad sum sample 2
program all on all
  buffer g rows 1 row_bytes 8 f32
  goal g = G
  compute other
    writes g = G sum sample dp +1
  all_reduce g over dp
)";
  expect_finding(
      {kGoal, "  all_reduce g over dp\n", ""},
      {"D741", 0, -1, "at the end of the step rank 0 needs `G`, which is missing sample 1"});
}

TEST(Sums, OfGradientsLackAContribution) {
  constexpr std::string_view kUpdate = R"(mesh dp=2
tensor W Weight
tensor G WeightGrad sum sample 2
program all on all
  buffer w rows 1 row_bytes 8 f32
  buffer g rows 1 row_bytes 8 f32
  keep w = W
  given g = G sum sample dp +1
  all_reduce g over dp
  u: compute update
    reads g = G
    reads w = W
    writes w = new W
)";
  expect_finding(
      {kUpdate, "  all_reduce g over dp\n", ""},
      {"D741", 0, 0, "`u: compute update` of rank 0 reads `G`, which is missing sample 1"});
}

TEST(Sums, OfSeveralGradientsAreNamedInOneFinding) {
  const Finding finding = expect_finding(R"(mesh dp=2
tensor V Weight
tensor W Weight
tensor G WeightGrad sum sample 2
tensor H WeightGrad sum sample 2
program all on all
  buffer v rows 1 row_bytes 8 f32
  buffer w rows 1 row_bytes 8 f32
  buffer g rows 1 row_bytes 8 f32
  buffer h rows 1 row_bytes 8 f32
  keep v = V
  keep w = W
  given g = G sum sample dp +1
  given h = H sum sample dp +1
  compute update
    reads g = G
    reads v = V
    writes v = new V
  compute update
    reads h = H
    reads w = W
    writes w = new W
)",
                                         {"D741", 0, 0, "is missing sample 1, 1/2 of the sum"});
  EXPECT_THAT(finding.diagnostic.why, HasSubstr("summed over sample 0; also wrong: H"));
}

constexpr std::string_view kAdds = R"(mesh dp=2
tensor G Grad sum sample 4
program all on all
  buffer g rows 1 row_bytes 8 f32
  goal g = G
  compute other
    writes g = G sum sample 2*dp +1
  a: compute other
    adds g = G sum sample 2*dp+1 +1
  r: all_reduce g over dp
)";

TEST(Sums, ThatCountTwiceInAnAddAreNamedThere) {
  expect_finding({kAdds, "adds g = G sum sample 2*dp+1 +1", "adds g = G sum sample 2*dp +2"},
                 {"D742", 0, 1, "sample 0 of `G` is counted twice"});
}

TEST(Sums, ThatCountTwiceInAnAllReduceAreNamedThere) {
  const Finding finding =
      expect_finding({kAdds, "adds g = G sum sample 2*dp+1 +1", "adds g = G sum sample 1 +1"},
                     {"D742", 0, 2, "sample 1 of `G` is counted twice"});
  EXPECT_THAT(finding.diagnostic.why, HasSubstr("ranks 0 and 1 both contribute it"));
}

TEST(Sums, ThatAreNoneCannotBeAddedUp) {
  constexpr std::string_view kSame = R"(mesh dp=2
tensor Q Query tok 1
program all on all
  buffer x rows 1 row_bytes 8 f32
  given x = Q
  goal x = Q
  broadcast x over dp
)";
  expect_finding({kSame, "broadcast", "all_reduce"},
                 {"D742", 0, 0, "`Q` is not a sum, but is added to"});
}

TEST(Sums, ThatHaveTooMuchAreNamedAtTheReader) {
  constexpr std::string_view kMore = R"(mesh dp=1
tensor G Grad sum sample 2
program all on all
  buffer g rows 1 row_bytes 8 f32
  given g = G
  compute cast
    reads g = G
)";
  expect_finding({kMore, "reads g = G", "reads g = G sum sample 0 +1"},
                 {"D742", 0, 0, "`G` has extra sample 1"});
}

TEST(Sums, OfDifferentThingsAreNamedWhereTheyAreUnited) {
  constexpr std::string_view kShards = R"(mesh dp=2
tensor G Grad shard 2 sum sample 2
program all on all
  buffer g rows 1 row_bytes 8 f32
  given g = G shard 0 +1 sum sample dp +1
  goal g = G shard 0 +1
  all_reduce g over dp
)";
  const std::string given = "given g = G shard 0 +1";
  expect_finding({kShards, given, "given g = G shard dp +1"},
                 {"D743", 0, 0, "different values are summed: G shard 0"});
  constexpr std::string_view kCopy = R"(mesh dp=1
tensor G[2] Grad sum sample 2
program all on all
  buffer g rows 2 row_bytes 8 f32
  given g[0 +1] = G[0] sum sample 0 +1
  given g[1 +1] = G[0] sum sample 1 +1
  goal g[0 +1] = G[0]
  copy g[1 +1] to g[0 +1] add
)";
  expect_finding(
      {kCopy, "g[1 +1] = G[0]", "g[1 +1] = G[1]"},
      {"D743", 0, 0, "different values are summed: G[0], summed over sample 0 and G[1]"});
}

constexpr std::string_view kParts = R"(mesh dp=1
tensor Q[2] Query tok 2
tensor R[2] Other tok 2
program all on all
  buffer x rows 1 row_bytes 8 f32
  given x = Q[0] tok 0 +1
  r: compute other
    reads x = Q[0] tok 0 +1
)";

TEST(ValueTracker, OfAnotherPartOrInstanceOrTensorAreNamed) {
  const Finding finding = expect_finding({kParts, "tok 0 +1", "tok 1 +1"},
                                         {"D744", 0, 0, "of rank 0 reads Q[0] tok 1"});
  EXPECT_EQ(finding.diagnostic.why, "x of rank 0 holds Q[0] tok 0");
  expect_finding({kParts, "Q[0] tok 0", "Q[1] tok 0"}, {"D744", 0, 0, "reads Q[1] tok 0"});
  expect_finding({kParts, "Q[0] tok 0", "R[0] tok 0"}, {"D744", 0, 0, "reads R[0] tok 0"});
}

// The last rank to arrive at a call continues first; with one rank the result is unique.
constexpr std::string_view kScale = R"(mesh dp=1
tensor W Weight
tensor G WeightGrad sum sample 2 scale 1/2
program all on all
  buffer w rows 1 row_bytes 8 f32
  buffer g rows 1 row_bytes 8 f32
  keep w = W
  given g = G
  r: all_reduce g over dp scale 1/2
  u: compute update
    reads g = G scale 1/2
    reads w = W
    writes w = new W
)";

TEST(Scales, ThatAnUpdateIsNotDueAreNamed) {
  expect_finding(changed(changed(kScale, "over dp scale 1/2", "over dp"), "G scale 1/2", "G"),
                 {"D745", 0, 1, "`update` reads `G` at scale 1, expected 1/2: 2 times too large"});
  expect_sound(kScale);
}

TEST(Scales, ThatAreNotThereAreNamedAtTheReader) {
  const Finding finding =
      expect_finding({kScale, "over dp scale 1/2", "over dp"},
                     {"D745", 0, 1, "of rank 0 reads G at scale 1/2, and finds it at"});
  EXPECT_EQ(finding.diagnostic.why, "g of rank 0 holds G, written by `r: all_reduce`");
  expect_finding({kScale, "over dp scale 1/2", "over dp scale 1/4"},
                 {"D745", 0, 1, "of rank 0 reads G at scale 1/2, and finds it at"});
}

TEST(Scales, ThatDifferAreNotSummed) {
  constexpr std::string_view kTwo = R"(mesh dp=1
tensor G Grad sum sample 2
program all on all
  buffer g rows 1 row_bytes 8 f32
  given g = G sum sample 0 +1 scale 1/2
  goal g = G scale 1/2
  compute other
    adds g = G sum sample 1 +1 scale 1/2
)";
  expect_finding({kTwo, " scale 1/2", ""}, {"D745", 0, 0, "is added to"});
}

TEST(Operators, OtherThanSumLeaveAnUnknownState) {
  constexpr std::string_view kMax = R"(mesh tp=1
tensor P Partial sum part 1
program all on all
  buffer x rows 1 row_bytes 8 f32
  buffer y rows 1 row_bytes 8 f32
  given x = P
  all_reduce x to y over tp
  compute norm
    reads y = P
)";
  expect_finding({kMax, "over tp", "over tp operator max"},
                 {"D746", 0, 1, "reads P, but those rows do not hold a sum"});
}

constexpr std::string_view kGather = R"(mesh dp=2
tensor W Weight shard 2
program all on all
  buffer w rows 2 row_bytes 8 f32
  given w[dp +1] = W shard dp +1
  all_gather w[dp +1] to w over dp
  r: compute other
    reads w = W
)";

TEST(Weights, ThatAreNotGatheredAreNamedAtTheReader) {
  const Finding finding = expect_finding({kGather, "  all_gather w[dp +1] to w over dp\n", ""},
                                         {"D747", 0, 0, "of rank 0 reads W shard 1"});
  EXPECT_EQ(finding.diagnostic.help, "gather it from the ranks that have it");
}

TEST(Weights, OfAnotherShardAreNamedAtTheReader) {
  constexpr std::string_view kShard = R"(mesh dp=1
tensor W Weight shard 2
program all on all
  buffer w rows 1 row_bytes 8 f32
  given w = W shard 0 +1
  compute other
    reads w = W shard 0 +1
)";
  expect_finding({kShard, "shard 0", "shard 1"}, {"D747", 0, 0, "of rank 0 reads W shard 1"});
}

constexpr std::string_view kUpdate = R"(mesh dp=2
tensor W Weight shard 2
tensor G WeightGrad shard 2
program all on all
  buffer w rows 2 row_bytes 8 f32
  buffer g rows 1 row_bytes 8 f32
  keep w = W
  given g = G shard dp +1
  u: compute update
    reads g = G shard dp +1
    reads w[dp +1] = W shard dp +1
    writes w[dp +1] = new W shard dp +1
  all_gather w[dp +1] to w over dp
)";

TEST(Weights, ThatAreNotGatheredAfterTheUpdateAreOld) {
  const Finding finding = expect_finding({kUpdate, "  all_gather w[dp +1] to w over dp\n", ""},
                                         {"D748", 0, -1, "needs new W shard 1, and has W shard 1"});
  EXPECT_EQ(finding.diagnostic.why, "it is updated, but not sent to this rank");
}

TEST(Weights, ThatNoRankUpdatesAreOld) {
  constexpr std::string_view kKeep = R"(mesh dp=1
tensor W Weight
program all on all
  buffer w rows 1 row_bytes 8 f32
  keep w = W
  compute other
    reads w = W
    writes w = new W
)";
  const Finding finding = expect_finding({kKeep, "    writes w = new W\n", ""},
                                         {"D748", 0, -1, "rank 0 needs new W, and has W"});
  EXPECT_EQ(finding.diagnostic.why, "no rank updates it");
}

TEST(Weights, ThatNeverArriveAreMissingAtTheEnd) {
  constexpr std::string_view kRoot = R"(mesh dp=2
tensor W Weight
program all on all
  buffer w rows 1 row_bytes 8 f32
  when dp=0
    given w = W
  end
  goal w = W
  broadcast w over dp
)";
  expect_finding({kRoot, "broadcast w over dp", "compute other"},
                 {"D748", 1, -1, "at the end of the step rank 1 needs W"});
}

TEST(Weights, OfAnotherOwnerAreNotUpdated) {
  constexpr std::string_view kOwner = R"(mesh dp=2
tensor W Weight shard 2
tensor G WeightGrad shard 2
program all on all
  buffer w rows 1 row_bytes 8 f32
  buffer g rows 1 row_bytes 8 f32
  keep w = W shard dp +1
  given g = G shard dp +1
  u: compute update
    reads g = G shard dp +1
    reads w = W shard dp +1
    writes w = new W shard dp +1
)";
  const std::string other =
      changed(changed(changed(kOwner, "reads g = G shard dp", "reads g = G shard 0"),
                      "reads w = W shard dp", "reads w = W shard 0"),
              "new W shard dp", "new W shard 0");
  expect_sound(kOwner);
  expect_finding(other, {"D749", 1, 0, "of rank 1 reads G shard 0"});
}

constexpr std::string_view kLayers = R"(mesh dp=1
tensor A[3] Activation sample 2
tensor W[2] Weight
program all on all
  buffer a rows 6 row_bytes 8 f32
  buffer w rows 2 row_bytes 8 f32
  given a[0 +2] = A[0]
  given w[0 +1] = W[0]
  given w[1 +1] = W[1]
  repeat m 2
    f[0,m]: compute forward
      reads a[m +1] = A[0] sample m +1
      reads w[0 +1] = W[0]
      writes a[2+m +1] = A[1] sample m +1
    f[1,m]: compute forward
      reads a[2+m +1] = A[1] sample m +1
      reads w[1 +1] = W[1]
      writes a[4+m +1] = A[2] sample m +1
  end
)";

constexpr std::string_view kFirstLayer = R"(    f[0,m]: compute forward
      reads a[m +1] = A[0] sample m +1
      reads w[0 +1] = W[0]
      writes a[2+m +1] = A[1] sample m +1
)";

TEST(Layers, ThatNoRankComputesAreReportedAtTheReader) {
  expect_finding({kLayers, kFirstLayer, ""},
                 {"D750", 0, 0, "reads A[1] sample 0, a layer that no rank computes"});
}

TEST(Layers, ThatAreMixedBreakTheirKernel) {
  const Finding finding = expect_finding({kLayers, "reads w[1 +1] = W[1]", "reads w[0 +1] = W[0]"},
                                         {"D752", 0, 1, "`forward` mixes layers"});
  EXPECT_EQ(finding.diagnostic.why, "its operands are A[1], W[0], A[2]");
}

TEST(Samples, ThatNoRankComputesAreReportedAtTheReader) {
  const std::string only_first = "when m=0\n" + std::string(kFirstLayer) + "end\n";
  expect_finding({kLayers, kFirstLayer, only_first},
                 {"D753", 0, 2, "reads A[1] sample 1, which no rank computes"});
}

TEST(Kernels, ThatLackAnOperandOrHaveOneTooManyAreNamed) {
  expect_finding({kLayers, "      reads w[1 +1] = W[1]\n", ""},
                 {"D754", 0, 1, "`forward` reads no Weight"});
  expect_finding({kLayers, "      writes a[4+m +1] = A[2] sample m +1\n", ""},
                 {"D754", 0, 1, "`forward` writes no Activation"});
  expect_finding({kLayers, "writes a[4+m +1] = A[2] sample m +1",
                  "writes a[4+m +1] = A[2] sample m +1\n      writes w[0 +1] = new W[0]"},
                 {"D754", 0, 1, "`forward` writes `W`, which is of kind Weight"});
}

TEST(Kernels, ThatClaimMoreThanTheyReadAreNamed) {
  constexpr std::string_view kClaim = R"(mesh dp=1
tensor A[2] Activation sample 2
tensor W[1] Weight
program all on all
  buffer a rows 3 row_bytes 8 f32
  buffer w rows 1 row_bytes 8 f32
  given a[0 +1] = A[0] sample 0 +1
  given w = W[0]
  compute forward
    reads a[0 +1] = A[0] sample 0 +1
    reads w = W[0]
    writes a[1 +1] = A[1] sample 0 +1
)";
  expect_finding({kClaim, "writes a[1 +1] = A[1] sample 0 +1", "writes a[1 +2] = A[1]"},
                 {"D755", 0, 0, "`A[1]` needs sample 1 of `A[0]`, which this computation"});
}

TEST(Kernels, ThatUpdateWhatTheyDidNotReadAreNamed) {
  constexpr std::string_view kState = R"(mesh dp=1
tensor W Weight
tensor S OptState
tensor G WeightGrad
program all on all
  buffer w rows 1 row_bytes 8 f32
  buffer s rows 1 row_bytes 8 f32
  buffer g rows 1 row_bytes 8 f32
  keep w = W
  keep s = S
  given g = G
  compute update
    reads g = G
    reads w = W
    reads s = S
    writes w = new W
    writes s = new S
)";
  expect_finding({kState, "    reads s = S\n", ""},
                 {"D755", 0, 0, "`update` writes `new S` without reading its old version"});
}

// Tokens go to the experts and must come back.
TEST(Tokens, ThatDoNotReturnAreMissingAtTheEnd) {
  constexpr std::string_view kTokens = R"(mesh ep=2
tensor X Token tok 2
tensor Y Answer tok 2
table there
  message 0 1 0 1 0
  message 1 0 0 1 0
program all on all
  buffer x rows 1 row_bytes 8 f32
  buffer y rows 1 row_bytes 8 f32
  buffer z rows 1 row_bytes 8 f32
  given x = X tok ep +1
  goal z = Y tok ep +1
  exchange x to y by there over ep
  compute expert
    reads y = X tok 1-ep +1
    writes y = Y tok 1-ep +1
  exchange y to z by there reversed over ep
)";
  expect_finding({kTokens, "  exchange y to z by there reversed over ep\n", ""},
                 {"D756", 0, -1, "at the end of the step rank 0 needs Y tok 0"});
}

}  // namespace
}  // namespace shiplap::check
