// What mutations of the checker's own source (tools/mutate) changed unnoticed by any other test.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "shiplap/check/check.h"
#include "shiplap/plan/text.h"

namespace shiplap::check {
namespace {

using testing::ElementsAre;
using testing::SizeIs;

Report checked(std::string_view text, const Options& options = {}) {
  return check(plan::parse_text("shiplap-plan 1\n" + std::string(text), "test.plan"), options);
}

std::string codes(const Report& report) {
  std::string text;
  for (const Finding& finding : report.findings) {
    text += (text.empty() ? "" : " ") + finding.diagnostic.code;
    for (const Diagnostic& note : finding.notes) text += "+" + note.code;
  }
  return text;
}

// The one finding of a plan.
Finding only(std::string_view text, const Options& options = {}) {
  const Report report = checked(text, options);
  EXPECT_THAT(report.findings, SizeIs(1)) << codes(report);
  return report.findings.empty() ? Finding{} : report.findings.front();
}

// ---- how much was checked

constexpr std::string_view kCounted = R"(mesh dp=4
tensor G Grad sum sample 4
program all on all
  buffer g rows 1 row_bytes 8 f32
  goal g = G
  compute zero
    writes g = G sum none
  w[0]: compute other after w[7]
    adds g = G sum sample dp +1
  r: all_reduce g over dp
)";

TEST(Report, SaysHowMuchWasLookedAt) {
  const Report report = checked(kCounted, {.symmetry = false});
  EXPECT_EQ(report.ranks, 4);
  EXPECT_EQ(report.programs, 4);
  EXPECT_EQ(report.operations, 4 * 3);
  EXPECT_THAT(report.assumed, ElementsAre(Assumed{"other", 4}));
  EXPECT_EQ(report.absent, 4);
  EXPECT_THAT(
      report.examined,
      ElementsAre(Examined{"collective calls", 1}, Examined{"messages", 0},
                  Examined{"ordered operations", 12},
                  // zero and other access g once each, all_reduce as its input and its output.
                  Examined{"accessed regions", 16}, Examined{"computations", 4},
                  Examined{"declared values", 4},
                  Examined{"sums", 4 + 3}));  // four additions to zero, three of the all_reduce
}

TEST(Report, SaysHowManyRanksStoodForAll) {
  const Report report = checked(kCounted);
  EXPECT_EQ(report.ranks, 4);
  EXPECT_EQ(report.programs, 1);
  EXPECT_EQ(report.operations, 3);
  EXPECT_THAT(report.assumed, ElementsAre(Assumed{"other", 1}));
  EXPECT_EQ(report.absent, 1);
}

// ---- witnesses, and what is folded

TEST(Deadlock, OfManyRanksIsToldByTheFirstEight) {
  const Finding finding = only(R"(mesh dp=12
program all on all
  buffer x rows 2 row_bytes 8 f32
  send x[0 +1] to dp+1 wrap
  receive x[1 +1] from dp-1 wrap
)");
  EXPECT_EQ(finding.diagnostic.code, "D721");
  EXPECT_THAT(finding.witness, SizeIs(8));
  EXPECT_THAT(finding.notes, SizeIs(8));
  EXPECT_EQ(finding.folded, 0);
}

TEST(Deadlock, OfBatchesThatOthersFollowHasItsCycle) {
  const Finding finding = only(R"(mesh pp=2
program all on all
  buffer x rows 2 row_bytes 8 f32
  batch
    send x[0 +1] to pp+1 wrap
  end
  receive x[1 +1] from pp-1 wrap
)");
  EXPECT_EQ(finding.diagnostic.code, "D721");
  EXPECT_THAT(finding.witness, ElementsAre(OperationId{0, 1}, OperationId{1, 1}));
}

TEST(Race, OfSeveralPairsCountsThemAll) {
  // On both ranks a and b, a and c, a and d, c and d.
  const Finding finding = only(R"(mesh dp=2
program all on all
  buffer x rows 3 row_bytes 8 f32
  streams s, t
  a: @s copy x[0 +1] to x[1 +1]
  b: @t copy x[1 +1] to x[2 +1]
  c: @t copy x[0 +1] to x[1 +1]
  d: copy x[1 +1] to x[0 +1]
)");
  EXPECT_EQ(finding.diagnostic.code, "D730");
  EXPECT_THAT(finding.witness,
              ElementsAre(OperationId{0, 0}, OperationId{0, 1}, OperationId{1, 1}));
  EXPECT_EQ(finding.folded, 7);
}

TEST(Messages, WithoutReceiveAreWitnesses) {
  const Finding finding = only(R"(mesh pp=2
program first on pp=0
  buffer x rows 1 row_bytes 8 f32
  send x to pp+1
  send x to pp+1
  send x to pp+1 tag 1
program second on pp=1
  buffer x rows 1 row_bytes 8 f32
  receive x from pp-1
)");
  EXPECT_EQ(finding.diagnostic.code, "D712");
  EXPECT_THAT(finding.witness, ElementsAre(OperationId{0, 1}));
  EXPECT_EQ(finding.folded, 1);
}

TEST(Messages, OneReceiveExplainsOneSend) {
  const Report report = checked(R"(mesh pp=2
program first on pp=0
  buffer x rows 1 row_bytes 8 f32
  send x to pp+1 tag 1
  send x to pp+1 tag 2
program second on pp=1
  buffer x rows 1 row_bytes 8 f32
  receive x from pp-1 tag 3
)");
  EXPECT_EQ(codes(report), "D715+D712");
}

TEST(Messages, InAnotherOrderAreOneCause) {
  const Report report = checked(R"(mesh pp=2
program first on pp=0
  buffer x rows 3 row_bytes 8 f32
  send x[0 +1] to pp+1
  send x[1 +2] to pp+1
program second on pp=1
  buffer x rows 3 row_bytes 8 f32
  receive x[1 +2] from pp-1
  receive x[0 +1] from pp-1
)");
  EXPECT_EQ(codes(report), "D714");
  EXPECT_EQ(report.findings.front().folded, 0);
}

TEST(Calls, OfWhichOneHasPiecesAndOneHasNone) {
  const Finding finding = only(R"(mesh dp=3
list cut = 0 1 2 3
program most on dp=0..1
  buffer x rows 3 row_bytes 8 f32
  all_to_all x over dp
program odd on dp=2
  buffer x rows 3 row_bytes 8 f32
  all_to_all x over dp split cut
)");
  EXPECT_EQ(finding.diagnostic.code, "D710");
  EXPECT_EQ(finding.place, (OperationId{2, 0}));
}

TEST(Calls, OnOneGroupInTwoOrdersAreOneCause) {
  const Finding finding = only(R"(mesh dp=2
program first on dp=0
  buffer x rows 2 row_bytes 8 f32
  all_gather x over dp{0, 1}
program second on dp=1
  buffer x rows 2 row_bytes 8 f32
  all_gather x over dp{1, 0}
)");
  EXPECT_EQ(finding.diagnostic.code, "D709");
  EXPECT_EQ(finding.place, (OperationId{1, 0}));
  EXPECT_THAT(finding.witness, ElementsAre(OperationId{1, 0}, OperationId{0, 0}));
}

// ---- values

TEST(Groups, OfOneRankAreGroups) {
  const Report report = checked(R"(mesh dp=1
tensor G Grad tok 2 sum sample 1
table turned
  message 0 0 0 1 1
  message 0 0 1 1 0
program all on all
  buffer x rows 2 row_bytes 8 f32
  buffer y rows 2 row_bytes 8 f32
  given x = G
  goal x = G
  goal y = G tok 1 +1 | 0 +1
  all_reduce x over dp
  reduce x over dp
  broadcast x over dp
  reduce_scatter x over dp
  all_gather x over dp
  all_to_all x over dp
  barrier over dp
  exchange x to y by turned over dp
)");
  EXPECT_EQ(codes(report), "");
  EXPECT_EQ(report.examined.front(), (Examined{"collective calls", 8}));
}

// Two cells in a row: the cut goes through the slowest dimension.
TEST(Rows, AreComparedCellByCellWhereTheirFormDiffers) {
  constexpr std::string_view kPlan = R"(mesh dp=1
tensor V Query a 2 b 3
program all on all
  buffer x rows 3 row_bytes 8 f32
  buffer y rows 3 row_bytes 8 f32
  given x = V
  compute other
    reads x[0 +1] = V a 0 +1 b 0 +2
  copy x[1 +2] to y[0 +2]
  copy x[0 +1] to y[2 +1]
  compute other
    reads y[1 +1] = V a 1 +1 b 1 +2
    reads y[2 +1] = V a 0 +1 b 0 +2
)";
  EXPECT_EQ(codes(checked(kPlan)), "");
}

// The four rows in the middle are no rectangle of cells.
TEST(Unknown, StaysAsLongAsItIs) {
  const Report report = checked(R"(mesh dp=1
tensor G Grad a 2 b 3 sum sample 1
program all on all
  buffer x rows 6 row_bytes 8 f32
  buffer y rows 6 row_bytes 8 f32
  given x = G
  given y = G sum none
  goal x[0 +1] = G a 0 +1 b 0 +1
  goal x[5 +1] = G a 1 +1 b 2 +1
  all_reduce y[1 +4] over dp operator max
  copy y to x add
)");
  EXPECT_EQ(codes(report), "");
}

// Neighbouring rows are read as one only if they are of one tensor, in one version.
TEST(Pieces, OfDifferentThingsAreNotJoined) {
  const auto gathered = [](const std::string& tensor, const std::string& second) {
    return codes(checked("mesh dp=2\n" + tensor + R"(
program first on dp=0
  buffer x rows 1 row_bytes 8 f32
  buffer y rows 2 row_bytes 8 f32
  given x = V tok 0 +1
  goal y = V
  all_gather x to y over dp
program second on dp=1
  buffer x rows 1 row_bytes 8 f32
  buffer y rows 2 row_bytes 8 f32
  given x = )" + second + R"(
  all_gather x to y over dp
)"));
  };
  EXPECT_EQ(gathered("tensor V Query tok 2", "V tok 1 +1"), "");
  EXPECT_NE(gathered("tensor V Query tok 2\ntensor U Query tok 2", "U tok 1 +1"), "");
  EXPECT_NE(gathered("tensor V Weight tok 2", "new V tok 1 +1"), "");
  EXPECT_NE(gathered("tensor V Query tok 2", "V tok 1 +1 scale 1/2"), "");
}

// Of the four rows in the middle, which lie there as one rectangle, the first two are right.
TEST(Rows, AreComparedToTheEndWhereTheCutsDiffer) {
  const Finding finding = only(R"(mesh dp=1
tensor V Query a 2 b 3
program all on all
  buffer x rows 6 row_bytes 8 f32
  given x[0 +1] = V a 0 +1 b 0 +1
  given x[1 +4] = V a 0 +2 b 1 +2
  given x[5 +1] = V a 1 +1 b 2 +1
  compute other
    reads x = V
)");
  EXPECT_EQ(finding.diagnostic.code, "D744");
}

TEST(Sums, OfDifferentTensorsAreNoSums) {
  const auto summed = [](const std::string& second) {
    return codes(checked(R"(mesh dp=2
tensor G Grad sum sample 2
tensor H Grad sum sample 2
program first on dp=0
  buffer x rows 1 row_bytes 8 f32
  given x = G sum sample 0 +1
  goal x = G
  all_reduce x over dp
program second on dp=1
  buffer x rows 1 row_bytes 8 f32
  given x = )" + second + R"( sum sample 1 +1
  all_reduce x over dp
)"));
  };
  EXPECT_EQ(summed("G"), "");
  EXPECT_EQ(summed("H").substr(0, 4), "D743");
}

TEST(Overwriting, IsBlamedOnTheFirstWhoDidIt) {
  const Finding finding = only(R"(mesh dp=1
tensor Q Query tok 1
tensor K Key tok 1
program all on all
  buffer x rows 1 row_bytes 8 f32
  buffer y rows 1 row_bytes 8 f32
  given x = Q
  given y = K
  copy y to x
  copy y to x
  compute other
    reads x = Q
)");
  EXPECT_EQ(finding.diagnostic.code, "D735");
  EXPECT_EQ(finding.place, (OperationId{0, 0}));
}

// A computation with wrong operands is not checked further.
TEST(Contracts, WrongOperandsAreReportedAlone) {
  const Report report = checked(R"(mesh dp=1
tensor A[2] Activation sample 2
tensor Q Query sample 2
tensor W Weight
program all on all
  buffer a rows 2 row_bytes 8 bf16
  buffer b rows 2 row_bytes 8 bf16
  buffer q rows 2 row_bytes 8 bf16
  buffer w rows 1 row_bytes 8 bf16
  given a = A[0]
  given w = W
  given q = Q
  compute forward
    reads a[0 +1] = A[0] sample 0 +1
    reads w = W
    reads q = Q
    writes b = A[1]
)");
  EXPECT_EQ(codes(report), "D754");
  EXPECT_EQ(report.findings.front().folded, 0);
}

// ---- symmetry

// Every rank has contribution 0. If all runs of a sum had the slope of the last one, none would.
TEST(Symmetry, DoesNotHoldWhereRunsOfASumMoveApart) {
  const Finding finding = only(R"(mesh dp=4
tensor G Grad sum sample 8
program all on all
  buffer g rows 1 row_bytes 8 f32
  given g = G sum sample 0 +1 | 1+2*dp +1
  goal g = G
  all_reduce g over dp
)");
  EXPECT_EQ(finding.diagnostic.code, "D742");
}

// Rank 0 receives what all ranks state that they receive.
TEST(Symmetry, TellsThePiecesOfAReduceScatterApart) {
  const Finding finding = only(R"(mesh dp=4
tensor G Grad tok 4 sum sample 4
program all on all
  buffer x rows 4 row_bytes 8 f32
  buffer y rows 1 row_bytes 8 f32
  given x = G sum sample dp +1
  goal y = G tok 0 +1
  reduce_scatter x to y over dp
)");
  EXPECT_EQ(finding.diagnostic.code, "D744");
  EXPECT_EQ(finding.place, (OperationId{1, -1}));
}

// Rank 0 reads the sample from which all ranks state that they compute.
TEST(Symmetry, DoesNotHideThatALawIsBroken) {
  const Finding finding = only(R"(mesh dp=4
tensor A[2] Activation sample 4
tensor W Weight
program all on all
  buffer a rows 1 row_bytes 8 bf16
  buffer b rows 1 row_bytes 8 bf16
  buffer w rows 1 row_bytes 8 bf16
  given a = A[0] sample dp +1
  given w = W
  compute forward
    reads a = A[0] sample dp +1
    reads w = W
    writes b = A[1] sample 0 +1
)");
  EXPECT_EQ(finding.diagnostic.code, "D755");
  EXPECT_EQ(finding.place, (OperationId{1, 0}));
}

// Only rank 2 is wrong. None of the ranks that are expanded, 0, 1 and 3, shows it.
TEST(Symmetry, LooksAtEveryNumberOfAPlan) {
  constexpr std::string_view kPlan = R"(mesh pp=2 dp=4
list odd = 0 0 1 0
tensor Q[2] Query tok 4
program all on pp=0
  buffer x rows 4 row_bytes 8 f32
  buffer y rows 2 row_bytes 8 f32
  buffer z rows 1 row_bytes 8 f32
  streams s
  given x = Q[0]
)";
  constexpr std::string_view kOther = R"(
program other on pp=1
  buffer x rows 4 row_bytes 8 f32
  goal x = Q[0]
  receive x from pp-1
)";
  const std::vector<std::string> wrong{
      "when odd[dp]=1\n compute other\n reads x = Q[1]\n end",
      "when 1=odd[dp]\n compute other\n reads x = Q[1]\n end",
      "repeat i odd[dp]\n compute other\n reads x = Q[1]\n end",
      "repeat i 1\n compute other\n reads x = Q[0]\n end\n let k = odd[dp]\n"
      " compute other\n reads x = Q[k]",
      "compute other\n reads x = Q[odd[dp]]",
      "compute other\n reads x[odd[dp] +1] = Q[0] tok 0 +1",
      "compute other\n reads x[0 +2-odd[dp]] = Q[0] tok 0 +2",
      "compute other\n reads x[0 +1] = Q[0] tok odd[dp] +1",
      "compute other\n reads x[0 +2] = Q[0] tok 0 +2-odd[dp]",
      "compute other\n reads x[0 +2] = Q[0] tok 0 +2 by 1+odd[dp]",
      "compute other\n reads x[0 +1] = Q[0] tok from odd[dp +1]",
      "goal x[odd[dp] +1] = Q[0] tok 0 +1",
      "goal x = Q[odd[dp]]",
      "copy x[odd[dp] +1] to y[0 +1]\n compute other\n reads y[0 +1] = Q[0] tok 0 +1",
      "copy x[0 +1] to y[odd[dp] +1]\n compute other\n reads y[0 +1] = Q[0] tok 0 +1",
      "copy x[0 +1] to y[1 +1]\n free y[odd[dp] +1]\n compute other\n"
      " reads y[1 +1] = Q[0] tok 0 +1",
      "copy x[0 +1] to y[1 +1]\n allocate y[odd[dp] +1]",
      "a[0]: @s copy x[0 +1] to y[0 +1]\n copy y[0 +1] to y[1 +1] after a[odd[dp]]",
      "a[odd[dp]]: @s copy x[0 +1] to y[0 +1]\n copy y[0 +1] to y[1 +1] after a[0]",
      "broadcast x over dp root odd[dp]",
      "broadcast x[odd[dp] +1] over dp\n compute other\n reads x[1 +1] = Q[0] tok 1 +1",
      "broadcast x[0 +1] to y[odd[dp] +1] over dp\n compute other\n"
      " reads y[0 +1] = Q[0] tok 0 +1",
      "batch\n when odd[dp]=1\n barrier over dp\n end\n end",
  };
  const auto check_with = [&](std::string plan, const std::string& line, const std::string& tag) {
    plan += line + "\n send x to pp+1" + tag;
    return checked(plan + std::string(kOther));
  };
  const auto rank_of = [](const Report& report) {
    return report.sound() ? -1 : report.findings.front().place.rank;
  };
  const std::string plan(kPlan);
  EXPECT_EQ(check_with(plan, "", "").programs, 2);
  EXPECT_EQ(rank_of(check_with(plan, "", "")), -1);
  EXPECT_EQ(rank_of(check_with(plan, "", " tag odd[dp]")), 2);
  for (const std::string& line : wrong) EXPECT_EQ(rank_of(check_with(plan, line, "")), 2) << line;
  for (const std::string_view size : {"z rows 1", "z rows 1 row_bytes 8"}) {
    std::string uneven = plan;
    uneven.insert(uneven.find(size) + size.size(), "*(1+odd[dp])");
    EXPECT_EQ(rank_of(check_with(uneven, "copy x[0 +1] to z", "")), 2) << uneven;
  }
}

}  // namespace
}  // namespace shiplap::check
