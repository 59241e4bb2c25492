// What a finding reports: its operation, its witness, its folded consequences. Found untested by
// mutations of the diagnose_*.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "gaps.h"

namespace shiplap::check {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// ---- several mistakes

TEST(Findings, OfOneRankAreFolded) {
  EXPECT_EQ(check_summary(R"(mesh dp=3
program most on dp=0..1
  buffer x rows 1 row_bytes 8 f32
  all_reduce x over dp
program odd on dp=2
  buffer x rows 1 row_bytes 8 f32
  send x to dp-1
  send x to dp-1
  send x to dp-1
)"),
            "D701@2:-1/3+D712");
}

TEST(Findings, OfMoreKindsThanCanBeToldAreCounted) {
  std::string plan = R"(mesh dp=3
program most on dp=0..1
  buffer x rows 1 row_bytes 8 f32
)";
  for (const std::string channel : {"a", "b", "c", "d", "e", "f"}) {
    plan += "  all_reduce x over dp/" + channel + "\n";
  }
  plan += "program odd on dp=2\n  buffer x rows 1 row_bytes 8 f32\n  compute other\n";
  EXPECT_EQ(check_summary(plan), "D701@2:-1/5+D701+D701+D701+D701");
}

// With eager sends the plan continues, and later mistakes are reported as well.
TEST(Findings, BehindADeadlockOfRendezvousSendsAreTold) {
  const auto plan = [](const std::string& last) {
    return R"(mesh pp=2
tensor A[2] Activation sample 2
tensor W[1] Weight
program all on all
  buffer x rows 2 row_bytes 8 bf16
  buffer w rows 1 row_bytes 8 bf16
  streams s
  given x[0 +1] = A[0] sample 0 +1
  given w = W[0]
  send x[0 +1] to pp+1 wrap
  receive x[1 +1] from pp-1 wrap
)" + last;
  };
  const std::string law = R"(  compute forward
    reads x[0 +1] = A[0] sample 0 +1
    reads w = W[0]
    writes x[1 +1] = A[1] sample 1 +1
)";
  EXPECT_EQ(check_summary(plan("  goal x[1 +1] = A[0] sample 0 +1\n")), "D721@0:0+D721+D721");
  EXPECT_EQ(check_summary(plan("  goal x[1 +1] = A[0] sample 1 +1\n")),
            "D721@0:0+D721+D721 D744@0:-1/1");
  EXPECT_EQ(check_summary(plan(law)), "D721@0:0+D721+D721 D755@0:2/1");
  EXPECT_EQ(check_summary(plan(law), {.sends = Sends::eager}), "D755@0:2/1");
  EXPECT_EQ(check_summary(plan("  @s copy x[0 +1] to x[1 +1]\n")), "D721@0:0+D721+D721 D731@0:2/1");
}

// ---- values

TEST(Unions, OfSeveralPiecesAreToldOnce) {
  EXPECT_EQ(check_summary(R"(mesh dp=1
tensor G Grad tok 4 sum sample 2
program all on all
  buffer x rows 4 row_bytes 8 f32
  buffer y rows 4 row_bytes 8 f32
  given x[0 +2] = G tok 0 +2 sum sample 0 +1
  given x[2 +2] = G tok 2 +2 sum sample 1 +1
  given y = G
  goal x[0 +2] = G tok 0 +2 sum sample 0 +1
  copy x to y add
)"),
            "D742@0:0");
}

// The watched rows are those of the statement that failed, not of the addition behind it.
TEST(Overwriting, IsFoundWhereTheReaderAlsoAdds) {
  EXPECT_EQ(check_summary(R"(mesh dp=1
tensor Q Query
tensor K Key
tensor G Grad sum sample 2
program all on all
  buffer x rows 1 row_bytes 8 f32
  buffer y rows 1 row_bytes 8 f32
  given x = Q
  given y = K
  copy y to x
  compute other
    reads x = Q
    adds x = G sum sample 0 +1
)"),
            "D735@0:0/1+D743");
}

TEST(Overwriting, HasTheReaderAsItsWitness) {
  const Finding finding = first(R"(mesh dp=1
tensor Q Query
tensor K Key
program all on all
  buffer x rows 1 row_bytes 8 f32
  buffer y rows 1 row_bytes 8 f32
  given y = K
  compute other
    writes x = Q
  copy y to x
  copy y to x
  compute other
    reads x = Q
)");
  EXPECT_EQ(finding.diagnostic.code, "D735");
  EXPECT_THAT(finding.witness,
              ElementsAre(OperationId{0, 1}, OperationId{0, 3}, OperationId{0, 2}));
}

TEST(Statements, ThatFailHaveTheWriterAsTheirWitness) {
  const Finding finding = first(R"(mesh dp=1
tensor Q Query tok 2
program all on all
  buffer x rows 1 row_bytes 8 f32
  compute other
    writes x = Q tok 0 +1
  compute other
    reads x = Q tok 1 +1
)");
  EXPECT_EQ(finding.diagnostic.code, "D744");
  EXPECT_THAT(finding.witness, ElementsAre(OperationId{0, 1}, OperationId{0, 0}));
}

std::string failing(int count, const std::string& last) {
  return R"(mesh dp=1
tensor Q Query tok 2
tensor G Grad sum sample 2
program all on all
  buffer x rows 1 row_bytes 8 f32
  buffer g rows 1 row_bytes 8 f32
  given x = Q tok 0 +1
  given g = G sum sample 0 +1
  repeat i )" +
         std::to_string(count) + R"(
    compute other
      reads x = Q tok 1 +1
  end
)" + last;
}

TEST(Statements, ThatFailAreWitnessesOfTheirCodeUpToSixteen) {
  const std::string other = "  compute other\n    reads g = G\n";
  EXPECT_EQ(first(failing(3, "")).witness.size(), 3U);
  EXPECT_EQ(first(failing(3, other)).witness.size(), 3U);
  EXPECT_EQ(first(failing(16, "")).witness.size(), 16U);
  EXPECT_EQ(first(failing(17, "")).witness.size(), 16U);
  EXPECT_EQ(check_summary(failing(31, other)), "D744@0:0/31+D741");
  EXPECT_EQ(check_summary(failing(32, other)), "D744@0:0/32");
}

TEST(Nothing, ThatWasGatheredIsToldAtTheRankWhereItWas) {
  for (const int empty : {0, 1, 2}) {
    const std::string rank = std::to_string(empty);
    const std::string plan = R"(mesh dp=3
tensor Q Query tok 6
program all on all
  buffer x rows 2 row_bytes 8 f32
  buffer y rows 8 row_bytes 8 f32
  when dp!=)" + rank + R"(
    given x = Q tok 2*dp +2
  end
  all_gather x to y[1 +6] over dp
  compute other
    reads y[2 +5] = Q tok 1 +5
)";
    EXPECT_EQ(check_summary(plan), "D732@" + rank + ":0/2") << plan;
  }
}

TEST(Nothing, ThatWasSentIsToldAtTheSend) {
  EXPECT_EQ(check_summary(R"(mesh pp=2
tensor Q Query
program first on pp=0
  buffer x rows 1 row_bytes 8 f32
  compute other
  send x to pp+1
program second on pp=1
  buffer x rows 1 row_bytes 8 f32
  receive x from pp-1
  compute other
    reads x = Q
)"),
            "D732@0:1");
}

// The sender computes some of the layer, but not this sample.
TEST(Nothing, OfASampleThatTheSenderLeavesOutIsToldThere) {
  const auto plan = [](const std::string& made) {
    return R"(mesh pp=2
tensor A[2] Activation sample 2
program first on pp=0
  buffer x rows 1 row_bytes 8 f32
  buffer y rows 1 row_bytes 8 f32
  compute other
    writes y = )" +
           made + R"(
  send x to pp+1
program second on pp=1
  buffer x rows 1 row_bytes 8 f32
  receive x from pp-1
  compute other
    reads x = A[1] sample 1 +1
)";
  };
  EXPECT_EQ(check_summary(plan("A[1] sample 0 +1")), "D753@0:1");
  EXPECT_EQ(check_summary(plan("A[0] sample 1 +1")), "D750@0:1");
}

std::string sent(const std::string& given, const std::string& sends, const std::string& receives) {
  return R"(mesh pp=2
tensor Q Query tok 4
program first on pp=0
  buffer x rows 3 row_bytes 8 f32
)" + given +
         sends + "program second on pp=1\n  buffer x rows 3 row_bytes 8 f32\n" + receives;
}

TEST(Messages, ThatCrossAreToldWhereAnotherCarriesWhatIsWanted) {
  const std::string given = "  given x = Q tok 0 +3\n";
  const std::string sends = "  send x[0 +1] to pp+1\n  send x[1 +1] to pp+1\n";
  const std::string receives = "  receive x[0 +1] from pp-1\n  receive x[1 +1] from pp-1\n";
  const auto goal = [&](const std::string& tok) {
    return check_summary(sent(given, sends, receives + "  goal x[0 +1] = Q tok " + tok + " +1\n"));
  };
  EXPECT_EQ(goal("0"), "");
  EXPECT_EQ(goal("1"), "D714@0:0");
  EXPECT_EQ(goal("2"), "D744@1:-1");
}

// The receives wait before the sends come.
TEST(Messages, ThatCrossAreToldToWhoeverWaits) {
  EXPECT_EQ(check_summary(R"(mesh pp=2
tensor Q Query tok 4
program first on pp=0
  buffer x rows 3 row_bytes 8 f32
  streams s
  goal x[0 +1] = Q tok 1 +1
  receive x[0 +1] from pp+1
  receive x[1 +1] from pp+1
program second on pp=1
  buffer x rows 3 row_bytes 8 f32
  given x = Q tok 0 +3
  send x[0 +1] to pp-1
  send x[1 +1] to pp-1
)"),
            "D714@1:0");
}

TEST(Messages, ToOneselfHaveTwoEndsThatNeedNoOrder) {
  expect_sound(R"(mesh pp=1
program all on all
  buffer x rows 2 row_bytes 8 f32
  streams s
  @s send x[0 +1] to pp+0
  receive x[1 +1] from pp+0
)",
               {.rules = Rules::mpi});
}

TEST(Messages, ThatTurnTheirRowsRoundDoNotCross) {
  EXPECT_EQ(check_summary(sent("  given x[0 +1] = Q tok 1 +1\n  given x[1 +1] = Q tok 3 +1\n",
                               "  send x[0 +2] to pp+1\n",
                               "  receive x[0 +2] from pp-1\n  goal x[0 +1] = Q tok 3 +1\n")),
            "D744@1:-1");
}

// Two cells in a row, each with its own contributions.
TEST(Sums, UnderAMaskAreLookedForElsewhere) {
  const Finding finding = first(R"(mesh cp=2
tensor O Output tok 4 sum key 4 mask key<=tok
program all on all
  buffer x rows 2 row_bytes 8 f32
  given x = O sum key 2*cp +2
  goal x = O
  compute other
)");
  EXPECT_EQ(finding.diagnostic.code, "D741");
  EXPECT_THAT(finding.diagnostic.help, HasSubstr("reduce it over the ranks"));
}

// ---- order

TEST(Idle, RanksAreFoldedUnderTheFirst) {
  const auto plan = [](const std::string& ranks) {
    return "mesh dp=4\nprogram idle on dp=" + ranks + "\n  buffer x rows 1 row_bytes 8 f32\n" +
           "program busy on dp=3\n  compute other\nspare on dp=" +
           (ranks == "0..2" ? "3"
            : ranks == "0"  ? "1..2"
                            : "2") +
           "\n";
  };
  EXPECT_EQ(check_summary(plan("0")), "D700@0:-1");
  EXPECT_EQ(check_summary(plan("0..1")), "D700@0:-1/1");
}

TEST(Shapes, ThatDoNotFitAreFoldedUnderTheFirst) {
  const std::string plan = R"(mesh dp=2
program all on all
  buffer x rows 3 row_bytes 8 f32
  copy x[0 +1] to x[1 +2]
  copy x[1 +2] to x[0 +1]
)";
  EXPECT_EQ(check_summary(plan), "D704@0:0/3");
  EXPECT_THAT(first(plan).witness, ElementsAre(OperationId{0, 0}));
}

TEST(Deadlock, IsToldWhereItIsNotWhereItIsWaitedFor) {
  EXPECT_EQ(check_summary(R"(mesh pp=3
program first on pp=0
  buffer x rows 1 row_bytes 8 f32
  receive x from pp+1
program rest on pp=1..2
  buffer x rows 1 row_bytes 8 f32
  when pp=1
    receive x from pp+1
    send x to pp+1
    send x to pp-1
  end
  when pp=2
    receive x from pp-1
    send x to pp-1
  end
)"),
            "D720@1:0/1+D720+D720");
}

// Rank 2 waits in the barrier for ranks 0 and 3. Rank 0 waits for it by way of rank 1, rank 3 at
// once: that is the shorter cycle.
TEST(Deadlock, IsReportedByTheShortestCycle) {
  const std::string plan = R"(mesh pp=4
program first on pp=0
  buffer x rows 1 row_bytes 8 f32
  receive x from pp+1
  barrier over ranks{0, 2, 3}
program second on pp=1
  buffer x rows 1 row_bytes 8 f32
  receive x from pp+1
  send x to pp-1
program third on pp=2
  buffer x rows 1 row_bytes 8 f32
  barrier over ranks{0, 2, 3}
  send x to pp-1
  send x to pp+1
program fourth on pp=3
  buffer x rows 1 row_bytes 8 f32
  receive x from pp-1
  barrier over ranks{0, 2, 3}
)";
  const Finding finding = first(plan);
  EXPECT_EQ(check_summary(plan), "D720@2:0/2+D720+D720");
  EXPECT_THAT(finding.witness, ElementsAre(OperationId{2, 0}, OperationId{3, 0}));
  EXPECT_THAT(finding.notes[0].what,
              HasSubstr("waits in `barrier` for `barrier` of rank 3, which comes after `receive`"));
  EXPECT_THAT(finding.notes[1].what,
              HasSubstr("waits in `receive` for `send` of rank 2, which comes after `barrier`"));
}

TEST(Deadlock, GoesThroughWhatIsAwaitedByName) {
  const std::string plan = R"(mesh pp=2
program first on pp=0
  buffer x rows 2 row_bytes 8 f32
  streams s
  r: @s receive x[0 +1] from pp+1
  send x[1 +1] to pp+1 after r
program second on pp=1
  buffer x rows 2 row_bytes 8 f32
  receive x[0 +1] from pp-1
  send x[1 +1] to pp-1
)";
  EXPECT_EQ(check_summary(plan), "D720@0:0+D720+D720");
  EXPECT_THAT(first(plan).witness, ElementsAre(OperationId{0, 0}, OperationId{1, 0}));
}

TEST(Deadlock, GoesThroughABatchAtTheEnd) {
  const std::string plan = R"(mesh pp=2
program all on all
  buffer x rows 2 row_bytes 8 f32
  receive x[0 +1] from pp+1 wrap
  batch
    send x[1 +1] to pp+1 wrap
  end
)";
  EXPECT_EQ(check_summary(plan), "D720@0:0+D720+D720");
  const std::string batches = R"(mesh pp=2
program all on all
  buffer x rows 2 row_bytes 8 f32
  batch
    receive x[0 +1] from pp+1 wrap
  end
  batch
    send x[1 +1] to pp+1 wrap
  end
)";
  EXPECT_EQ(check_summary(batches), "D720@0:1+D720+D720");
}

// The send waits for `r` alone: the receive before it has started, and that is enough.
TEST(Deadlock, DoesNotGoThroughAnAsyncOperation) {
  const std::string plan = R"(mesh pp=2
program first on pp=0
  buffer x rows 3 row_bytes 8 f32
  streams s
  a: receive x[0 +1] from pp+1 tag 1 async
  r: @s receive x[1 +1] from pp+1 tag 2
  send x[2 +1] to pp+1 after r
program second on pp=1
  buffer x rows 3 row_bytes 8 f32
  receive x[0 +1] from pp-1
  send x[1 +1] to pp-1 tag 1
  send x[2 +1] to pp-1 tag 2
)";
  EXPECT_THAT(first(plan).witness, ElementsAre(OperationId{0, 1}, OperationId{1, 0}));
}

// Rank 0 waits at the end of its program, in a batch.
TEST(Deadlock, IsFoundFromABatchThatWaitsForIt) {
  EXPECT_EQ(check_summary(R"(mesh pp=3
program first on pp=0
  buffer x rows 1 row_bytes 8 f32
  batch
    receive x from pp+1
  end
program rest on pp=1..2
  buffer x rows 1 row_bytes 8 f32
  when pp=1
    receive x from pp+1
    send x to pp+1
    send x to pp-1
  end
  when pp=2
    receive x from pp-1
    send x to pp-1
  end
)"),
            "D720@1:0/1+D720+D720");
}

// Ranks 1 and 2 wait for each other; rank 0 waits for rank 2. Each rank is counted once.
TEST(Deadlock, IsToldAtItsLowestRank) {
  EXPECT_EQ(check_summary(R"(mesh pp=3
program first on pp=0
  buffer x rows 2 row_bytes 8 f32
  streams s
  @s receive x[0 +1] from pp+2 tag 1
  receive x[1 +1] from pp+2 tag 2
program rest on pp=1..2
  buffer x rows 1 row_bytes 8 f32
  when pp=1
    receive x from pp+1
    send x to pp+1
  end
  when pp=2
    receive x from pp-1
    send x to pp-1
    send x to pp-2 tag 1
    send x to pp-2 tag 2
  end
)"),
            "D720@1:0/1+D720+D720");
}

TEST(Deadlock, OfTheFirstRanksIsToldFirst) {
  EXPECT_EQ(check_summary(R"(mesh dp=2 pp=2
program all on all
  buffer x rows 2 row_bytes 8 f32
  receive x[0 +1] from pp+1 wrap
  send x[1 +1] to pp+1 wrap
)"),
            "D720@0:0/2+D720+D720");
  EXPECT_EQ(check_summary(R"(mesh pp=3
program first on pp=0
  buffer x rows 2 row_bytes 8 f32
  receive x[0 +1] from pp+0
  send x[1 +1] to pp+0
program rest on pp=1..2
  buffer x rows 2 row_bytes 8 f32
  receive x[0 +1] from rank 3-rank
  send x[1 +1] to rank 3-rank
)"),
            "D720@0:0/2+D720");
}

TEST(Deadlock, OfEightRanksIsToldInFull) {
  const auto why = [](const std::string& ranks) {
    return first("mesh dp=" + ranks + R"(
program all on all
  buffer x rows 2 row_bytes 8 f32
  send x[0 +1] to dp+1 wrap
  receive x[1 +1] from dp-1 wrap
)")
        .diagnostic.why;
  };
  EXPECT_THAT(why("8"), testing::EndsWith("r7: send"));
  EXPECT_THAT(why("9"), testing::EndsWith("r7: send -> 1 more"));
}

TEST(Deadlock, KeepsRacesAndValuesForLater) {
  const std::string plan = R"(mesh pp=2
tensor Q Query tok 2
program all on all
  buffer x rows 2 row_bytes 8 f32
  streams s
  given x[0 +1] = Q tok 0 +1
  compute other
    reads x[0 +1] = Q tok 1 +1
  receive x[1 +1] from pp-1 wrap
  send x[0 +1] to pp+1 wrap
)";
  EXPECT_EQ(check_summary(plan), "D720@0:1+D720+D720");
  EXPECT_EQ(check_summary(plan + "  @s copy x[0 +1] to x[1 +1]\n"), "D720@0:1+D720+D720");
}

TEST(Races, ThatShareAnOperationAreOneCause) {
  EXPECT_EQ(check_summary(R"(mesh dp=1
program all on all
  buffer x rows 4 row_bytes 8 f32
  streams s, t
  @s copy x[0 +1] to x[1 +1]
  @t copy x[0 +1] to x[2 +1]
  copy x[3 +1] to x[0 +1]
)"),
            "D730@0:2/1");
}

}  // namespace
}  // namespace shiplap::check
