// Each code about order: the smallest plan that has it, and a sound plan next to it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shiplap/check/testing_internal.h"

namespace shiplap::check {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr std::string_view kSpare = R"(mesh dp=3
program busy on dp=0
  compute other
spare on dp=1..2
)";

TEST(Idle, RanksAreNamedUnlessTheyAreSpare) {
  expect_finding({kSpare, "spare on dp=1..2", "program idle on dp=1\nspare on dp=2"},
                 {"D700", 1, -1, "rank 1 has nothing to do"});
  const Finding finding = expect_finding({kSpare, "spare", "program idle"},
                                         {"D700", 1, -1, "ranks 1 and 2 have nothing to do"});
  EXPECT_EQ(finding.folded, 1);
}

TEST(Idle, PlansProveNothing) {
  expect_finding({kSpare, "  compute other\n", ""}, {"D700", 0, -1, "this plan does nothing"});
  expect_finding("mesh dp=2\nspare on all\n", {"D700", -1, -1, "this plan does nothing"});
}

TEST(Deadlock, OfCallsIsACycle) {
  constexpr std::string_view kBarriers = R"(mesh dp=2
program zero on dp=0
  a: barrier over dp/a
  b: barrier over dp/b
program one on dp=1
  a: barrier over dp/a
  b: barrier over dp/b
)";
  const Mistake mistake{kBarriers, "a: barrier over dp/a\n  b: barrier over dp/b",
                        "b: barrier over dp/b\n  a: barrier over dp/a"};
  for (const Sends sends : {Sends::eager, Sends::rendezvous, Sends::both}) {
    const Finding finding =
        expect_finding(mistake, {"D720", 0, 0, "deadlock: 2 of 2 ranks hang"}, {.sends = sends});
    EXPECT_THAT(finding.witness, ElementsAre(OperationId{0, 0}, OperationId{1, 0}));
    EXPECT_FALSE(finding.only_rendezvous);
    EXPECT_EQ(finding.diagnostic.why, "wait cycle of length 2: r0: a: barrier -> r1: b: barrier");
    EXPECT_THAT(finding.notes, SizeIs(2));
  }
}

TEST(Deadlock, OfReceivesThatComeBeforeTheSendsIsACycle) {
  constexpr std::string_view kSwap = R"(mesh pp=2
program zero on pp=0
  buffer x rows 2 row_bytes 8 f32
  send x[0 +1] to rank 1
  receive x[1 +1] from rank 1
program one on pp=1
  buffer x rows 2 row_bytes 8 f32
  receive x[1 +1] from rank 0
  send x[0 +1] to rank 0
)";
  const std::string both = changed(kSwap, "send x[0 +1] to rank 1\n  receive x[1 +1] from rank 1",
                                   "receive x[1 +1] from rank 1\n  send x[0 +1] to rank 1");
  expect_sound(kSwap);
  expect_finding(both, {"D720", 0, 0, "deadlock"});
}

// An operation that all ranks wait for need not be part of the cycle.
TEST(Deadlock, FoldsThoseThatOnlyWait) {
  constexpr std::string_view kThird = R"(mesh dp=3
program zero on dp=0
  a: barrier over dp{0, 1}/a
  b: barrier over dp{0, 1}/b
  barrier over dp
program one on dp=1
  a: barrier over dp{0, 1}/a
  b: barrier over dp{0, 1}/b
  barrier over dp
program two on dp=2
  barrier over dp
)";
  const Finding finding =
      expect_finding({kThird, "a: barrier over dp{0, 1}/a\n  b: barrier over dp{0, 1}/b",
                      "b: barrier over dp{0, 1}/b\n  a: barrier over dp{0, 1}/a"},
                     {"D720", 0, 0, "3 of 3 ranks hang"});
  EXPECT_THAT(finding.witness, ElementsAre(OperationId{0, 0}, OperationId{1, 0}));
  EXPECT_EQ(finding.folded, 1);
}

// Every rank of a ring sends before it receives.
std::string ring(int ranks) {
  return "mesh pp=" + std::to_string(ranks) + R"(
program all on all
  buffer x rows 2 row_bytes 8 f32
  send x[0 +1] to pp+1 wrap
  receive x[1 +1] from pp-1 wrap
)";
}

TEST(Rendezvous, DeadlocksAreCyclesOfAsManyRanksAsTheRing) {
  for (const int ranks : {2, 3, 7}) {
    const std::string n = std::to_string(ranks);
    const Finding finding = expect_finding(
        ring(ranks), {"D721", 0, 0, "passes with eager sends): " + n + " of " + n + " ranks"});
    EXPECT_TRUE(finding.only_rendezvous);
    EXPECT_THAT(finding.witness, SizeIs(ranks));
    EXPECT_THAT(finding.notes, SizeIs(ranks));
    EXPECT_THAT(finding.diagnostic.why, AllOf(HasSubstr("wait cycle of length " + n),
                                              HasSubstr("r" + std::to_string(ranks - 1))));
    const std::string batched = changed(changed(ring(ranks), "send", "batch\n  send"),
                                        "from pp-1 wrap", "from pp-1 wrap\n  end");
    expect_sound(batched);
  }
}

TEST(Rendezvous, IsForgottenWithEagerSends) {
  expect_sound(ring(2), {.sends = Sends::eager});
  expect_finding(ring(2), {"D721", 0, 0, "with rendezvous sends"}, {.sends = Sends::rendezvous});
  expect_sound(ring(2), {.eager_limit = Bytes{8}});
  expect_finding(ring(2), {"D721", 0, 0, "with rendezvous sends"}, {.eager_limit = Bytes{7}});
  // The limit alone decides.
  expect_finding(ring(2), {"D721", 0, 0, "with rendezvous sends"},
                 {.sends = Sends::eager, .eager_limit = Bytes{7}});
}

// As in simulate: with a limit of 0, not even a message without rows is eager.
TEST(Rendezvous, IsEverySendIfTheLimitIsNothing) {
  const std::string empty = R"(mesh pp=2
program all on all
  buffer x rows 1 row_bytes 8 f32
  send x[0 +0] to pp+1 wrap
  receive x[0 +0] from pp-1 wrap
)";
  expect_sound(empty, {.eager_limit = Bytes{1}});
  expect_finding(empty, {"D721", 0, 0, "with rendezvous sends"}, {.eager_limit = Bytes{0}});
}

TEST(Rendezvous, OfOneRankThatReceivesFirstBreaksTheCycle) {
  const std::string fixed = R"(mesh pp=3
program zero on pp=0
  buffer x rows 2 row_bytes 8 f32
  receive x[1 +1] from pp-1 wrap
  send x[0 +1] to pp+1 wrap
program rest on pp=1..2
  buffer x rows 2 row_bytes 8 f32
  send x[0 +1] to pp+1 wrap
  receive x[1 +1] from pp-1 wrap
)";
  expect_sound(fixed);
}

constexpr std::string_view kStreams = R"(mesh pp=2
program first on pp=0
  buffer x rows 2 row_bytes 8 f32
  streams net
  a: send x[0 +1] to pp+1
  b: @net send x[1 +1] to pp+1 after a
program second on pp=1
  buffer x rows 2 row_bytes 8 f32
  streams net
  a: receive x[0 +1] from pp-1
  b: @net receive x[1 +1] from pp-1 after a
)";

TEST(Keys, OfMessagesNeedAnOrder) {
  const Finding finding =
      expect_finding({kStreams, "from pp-1 after a", "from pp-1"},
                     {"D722", 1, 1, "`a: receive` and `b: receive` may start in either order"});
  EXPECT_THAT(finding.witness, ElementsAre(OperationId{1, 0}, OperationId{1, 1}));
  expect_finding({kStreams, "to pp+1 after a", "to pp+1"},
                 {"D722", 0, 1, "`a: send` and `b: send` may start in either order"});
}

TEST(Keys, ThatDifferNeedNone) {
  const std::string sends = changed(kStreams, "to pp+1 after a", "to pp+1 tag 1");
  const std::string apart = changed(sends, "from pp-1 after a", "from pp-1 tag 1");
  expect_sound(apart);
}

TEST(Keys, OfCallsNeedAnOrder) {
  constexpr std::string_view kCalls = R"(mesh dp=2
program all on all
  streams net
  a: barrier over dp
  b: @net barrier over dp after a
)";
  const Finding finding =
      expect_finding({kCalls, "over dp after a", "over dp"},
                     {"D722", 0, 1, "`a: barrier` and `b: barrier` may start in either order"});
  EXPECT_EQ(finding.folded, 1);  // the same lines on the other rank
  expect_sound(changed(kCalls, "over dp after a", "over dp/b"));
}

// It need not be complete: only the order of starts matters.
TEST(Keys, OfAsyncOperationsAreOrderedByTheirStream) {
  expect_sound(R"(mesh dp=2
program all on all
  barrier over dp async
  barrier over dp async
)");
}

constexpr std::string_view kAsync = R"(mesh pp=2
tensor A Activation sample 1
program first on pp=0
  buffer x rows 1 row_bytes 8 f32
  given x = A
  s: send x to pp+1 async
  compute other after s
    writes x = A
program second on pp=1
  buffer x rows 1 row_bytes 8 f32
  r: receive x from pp-1 async
  compute other after r
    reads x = A
)";

TEST(Races, OfAWriteWhileItIsReadAreNamedAtTheWrite) {
  const Finding finding =
      expect_finding({kAsync, "compute other after s", "compute other"},
                     {"D730", 0, 1, "`s: send` and `compute other` may access x at once"});
  EXPECT_THAT(finding.witness, ElementsAre(OperationId{0, 0}, OperationId{0, 1}));
  EXPECT_THAT(finding.diagnostic.why, HasSubstr("which is async"));
}

TEST(Races, OfAReadWhileItIsWrittenAreNamedAtTheRead) {
  const Finding finding =
      expect_finding({kAsync, "compute other after r", "compute other"},
                     {"D730", 1, 1, "`r: receive` and `compute other` may access x at once"});
  EXPECT_THAT(finding.witness, ElementsAre(OperationId{1, 0}, OperationId{1, 1}));
}

TEST(Races, OfTwoWritersAreNamedAtTheSecond) {
  const std::string writes =
      changed(changed(kAsync, "compute other after r", "w: compute other after r"), "reads x = A",
              "writes x = A\n  goal x = A");
  expect_finding({writes, "w: compute other after r", "w: compute other"},
                 {"D731", 1, 1, "`r: receive` and `w: compute other` may both write x at once"});
}

TEST(Races, OfStreamsAreFoundWithoutAsync) {
  constexpr std::string_view kCopies = R"(mesh dp=1
program all on all
  buffer x rows 3 row_bytes 8 f32
  streams side
  a: copy x[0 +1] to x[1 +1]
  b: @side copy x[0 +1] to x[2 +1]
)";
  expect_finding({kCopies, "to x[2 +1]", "to x[1 +1]"},
                 {"D731", 0, 1, "`a: copy` and `b: copy` may both write x[1 +1] at once"});
  expect_finding({kCopies, "copy x[0 +1] to x[2 +1]", "copy x[1 +1] to x[2 +1]"},
                 {"D730", 0, 1, "may access x[1 +1] at once"});
  expect_finding({kCopies, "copy x[0 +1] to x[2 +1]", "copy x[2 +1] to x[0 +1]"},
                 {"D730", 0, 1, "may access x[0 +1] at once"});
}

TEST(Races, OfMembersOfABatchAreFound) {
  constexpr std::string_view kBatch = R"(mesh pp=2
program all on all
  buffer x rows 2 row_bytes 8 f32
  batch
    send x[0 +1] to pp+1 wrap
    receive x[1 +1] from pp-1 wrap
  end
)";
  expect_finding({kBatch, "receive x[1 +1]", "receive x[0 +1]"},
                 {"D730", 0, 2, "may access x[0 +1] at once"});
}

TEST(Races, WithMemoryThatIsGivenUpAreFound) {
  constexpr std::string_view kFree = R"(mesh pp=2
program first on pp=0
  buffer x rows 1 row_bytes 8 f32
  allocate x
  s: send x to pp+1 async
  free x after s
program second on pp=1
  buffer x rows 1 row_bytes 8 f32
  receive x from pp-1
)";
  expect_finding({kFree, " after s", ""}, {"D730", 0, 2, "`s: send` and `free` may access x"});
}

// Both receive into row 0 of rank 1, if the second does not go one row further.
TEST(Races, OfOneExchangeAreRowsWrittenTwice) {
  constexpr std::string_view kTable = R"(mesh ep=2
table t
  message 0 1 0 1 0
  message 1 1 0 1 1
program all on all
  buffer x rows 1 row_bytes 8 f32
  buffer y rows 2 row_bytes 8 f32
  exchange x to y by t over ep
)";
  expect_finding({kTable, "message 1 1 0 1 1", "message 1 1 0 1 0"},
                 {"D731", 1, 0, "two messages of one exchange write y[0 +1] of rank 1"});
}

TEST(Nothing, ExaminedIsAFinding) {
  constexpr std::string_view kUnread = R"(mesh dp=1
tensor A Activation sample 1
program all on all
  buffer x rows 1 row_bytes 8 f32
  compute other
    writes x = A
  goal x = A
)";
  expect_finding({kUnread, "  goal x = A\n", ""},
                 {"D760", -1, -1, "no declared value was checked"});
  // Without tensors there is nothing to state.
  EXPECT_THAT(checked("mesh dp=1\nprogram all on all\n  compute other\n").findings, IsEmpty());
}

}  // namespace
}  // namespace shiplap::check
