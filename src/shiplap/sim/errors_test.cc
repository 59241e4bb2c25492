// Diagnostics of the replay: deadlocks, mismatches, invalid input.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shiplap/base/error.h"
#include "shiplap/sim/replay.h"
#include "shiplap/sim/testing_internal.h"

namespace shiplap::sim {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

TEST(Deadlock, ThatIsACycleIsReportedAsAChain) {
  const Replay r = replayed(R"(mesh pp=2
program all on all
  buffer x rows 2 row_bytes 8 bf16
  compute a work 2 seconds
  s: send x[0 +1] to rank 1-pp
  r: receive x[1 +1] from rank 1-pp
  compute b work 2 seconds)");
  ASSERT_THAT(r.problems, SizeIs(3));
  EXPECT_EQ(r.problems[0].code, "D630");
  EXPECT_EQ(r.problems[0].severity, Severity::error);
  EXPECT_EQ(r.problems[0].what, "deadlock: 2 of 2 ranks hang");
  EXPECT_EQ(r.problems[0].why,
            "wait cycle: rank 0 waits in `s: send` for `r: receive` of rank 1, which comes after "
            "`s: send`, rank 1 waits in `s: send` for `r: receive` of rank 0, which comes after "
            "`s: send`");
  EXPECT_EQ(r.problems[1].severity, Severity::note);
  EXPECT_EQ(r.problems[1].what,
            "rank 0 waits in `s: send` for `r: receive` of rank 1, which waits in `s: send`");
  EXPECT_EQ(r.problems[2].where.rank, 1);
  EXPECT_EQ(r.problems[2].where.operation, "s: send");
  EXPECT_EQ(r.problems[2].where.line, 6);
  // What happened before is in the trace.
  EXPECT_THAT(r.trace.ranks[0].events, SizeIs(1));
  EXPECT_EQ(r.end, Seconds{2});
}

TEST(Deadlock, ByARankThatHasFinishedIsNoCycle) {
  const Replay r = replayed(R"(mesh dp=2 tp=2
program short on dp=0
  buffer x rows 4 row_bytes 8 bf16
  repeat l 2
    g[l]: all_gather x over dp/net
  end
program long on dp=1
  buffer x rows 4 row_bytes 8 bf16
  repeat l 3
    g[l]: all_gather x over dp/net
  end)");
  ASSERT_THAT(r.problems, SizeIs(3));
  EXPECT_EQ(r.problems[0].why,
            "rank 2 waits in `g[2]: all_gather` over dp/net for rank 0, which has finished its "
            "program");
  EXPECT_EQ(r.problems[2].what,
            "rank 3 waits in `g[2]: all_gather` over dp/net for rank 1, which has finished its "
            "program");
  EXPECT_THAT(r.trace.ranks[2].events, SizeIs(2));
}

TEST(Deadlock, WithoutTheOtherEndSaysWhatIsMissing) {
  const Replay r = replayed(R"(mesh pp=2
program first on pp=0
  buffer x rows 1 row_bytes 8 bf16
  send x to pp+1 tag 3
program second on pp=1
  buffer x rows 1 row_bytes 8 bf16
  receive x from pp-1 tag 4)");
  ASSERT_THAT(r.problems, SizeIs(3));
  EXPECT_EQ(r.problems[1].what,
            "rank 0 waits in `send` for a receive of rank 1, which has no matching one and "
            "waits too");
  EXPECT_EQ(r.problems[2].what,
            "rank 1 waits in `receive` for a send of rank 0, which has no matching one and "
            "waits too");
}

TEST(Deadlock, OfAnEagerSendIsItsReceiversOnly) {
  constexpr const char* kUnheard = R"(mesh pp=2
program first on pp=0
  buffer x rows 1 row_bytes 8 bf16
  send x to pp+1
program second on pp=1
  compute a work 1 seconds)";
  EXPECT_THAT(replayed(kUnheard, {8}).problems, IsEmpty());
  EXPECT_THAT(replayed(kUnheard).problems, SizeIs(2));
}

TEST(Deadlock, OfManyRanksIsFolded) {
  const Replay r = replayed(R"(mesh dp=1000
program lazy on dp=7|8
  compute a work 1 seconds
program all on dp=0..6|9..999
  barrier over dp)");
  ASSERT_THAT(r.problems, SizeIs(10));
  EXPECT_EQ(r.problems[0].what, "deadlock: 998 of 1,000 ranks hang");
  EXPECT_EQ(r.problems[1].what,
            "rank 0 waits in `barrier` over dp for rank 7 and 1 more; rank 7 has finished its "
            "program");
  EXPECT_EQ(r.problems[9].what, "990 more ranks hang");
}

// Two groups that share two ranks, called in different order, and a batch and `after` on the way.
TEST(Deadlock, IsFoundThroughGroupsBatchesAndAfter) {
  const Replay r = replayed(R"(mesh dp=3
program zero on dp=0
  streams s
  a: @s batch
    barrier over dp/a
  end
  b: barrier over dp/b after a
program one on dp=1
  b: barrier over dp/b
  a: barrier over dp/a
program two on dp=2
  streams s
  a: barrier over dp/a
  b: @s barrier over dp/b)");
  ASSERT_FALSE(r.problems.empty());
  EXPECT_EQ(r.problems[0].why,
            "wait cycle: rank 0 waits in `barrier` for `a: barrier` of rank 1, which comes after "
            "`b: barrier`, rank 1 waits in `b: barrier` for `b: barrier` of rank 0, which comes "
            "after `barrier`");
}

TEST(Deadlock, LongCyclesAreCutShort) {
  const Replay r = replayed(R"(mesh pp=50
program all on all
  buffer x rows 2 row_bytes 8 bf16
  send x[0 +1] to pp+1 wrap
  receive x[1 +1] from pp-1 wrap)");
  EXPECT_THAT(r.problems[0].why, HasSubstr("; the cycle has 50 operations"));
}

TEST(Mismatch, IsAskedOfEverythingThatMustAgree) {
  struct Case {
    const char* first;
    const char* second;
    const char* why;
  };
  const std::vector<Case> cases = {
      {"all_reduce x over dp", "all_gather x over dp", "all_reduce against all_gather"},
      {"all_reduce x over dp operator max", "all_reduce x over dp",
       "operator max against operator sum"},
      {"all_reduce x over dp scale 1/8", "all_reduce x over dp", "scale 1/8 against scale 1"},
      {"broadcast x over dp root 1", "broadcast x over dp", "root 1 against root 0"},
      {"all_reduce x over dp", "all_reduce x[0 +2] over dp", "32 bytes against 16 bytes"},
      {"all_reduce x over dp", "all_reduce f over dp", "bf16 against f32"},
      {"reduce_scatter x to x[0 +2] over dp split a", "reduce_scatter x to x[0 +2] over dp split b",
       "they split their buffers differently"},
      {"reduce_scatter x to x[0 +2] over dp split a", "reduce_scatter x to x[2 +2] over dp",
       "they split their buffers differently"},
      {"exchange x to x by t over dp", "exchange x to x by u over dp", "by `t` against by `u`"},
      {"exchange x to x by t over dp", "exchange x to x by t reversed over dp",
       "by `t` against by `t` reversed"},
      {"exchange x to x by t over dp", "exchange y to y by t over dp",
       "rows of 8 bytes against rows of 16 bytes"},
      {"exchange x to x by t over dp", "barrier over dp", "exchange against barrier"},
      {"send x to rank 1", "receive x[0 +2] from rank 0", "32 bytes against 16 bytes"},
      {"send x to rank 1", "receive f from rank 0", "bf16 against f32"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(std::string(c.first) + " / " + c.second);
    const std::string head =
        "mesh dp=2\nlist a = 0 2 4\nlist b = 0 1 4\nlist c = 0 2 4\n"
        "table t\n  message 0 1 0 1 0\ntable u\n  message 1 0 0 1 0\n";
    const std::string buffers =
        "  buffer x rows 4 row_bytes 8 bf16\n  buffer f rows 4 row_bytes 8 f32\n"
        "  buffer y rows 2 row_bytes 16 bf16\n";
    const Replay r = replayed(head + "program one on dp=0\n" + buffers + "  p: " + c.first +
                              "\nprogram two on dp=1\n" + buffers + "  q: " + c.second + "\n");
    ASSERT_THAT(r.problems, SizeIs(1));
    EXPECT_EQ(r.problems[0].code, "D631");
    EXPECT_EQ(r.problems[0].why, c.why);
    EXPECT_THAT(r.problems[0].what, HasSubstr("of rank 0 is matched with `q: "));
    EXPECT_EQ(r.problems[0].where.rank, 1);
    EXPECT_THAT(r.trace.ranks[0].events, SizeIs(1));  // and the replay continues
  }
}

TEST(Mismatch, OfEqualListsIsGood) {
  const Replay r = replayed(R"(mesh dp=2
list a = 0 2 4
list b = 0 2 4
program one on dp=0
  buffer x rows 4 row_bytes 8 bf16
  reduce_scatter x to x[0 +2] over dp split a
program two on dp=1
  buffer x rows 4 row_bytes 8 bf16
  reduce_scatter x to x[0 +2] over dp split b)");
  EXPECT_THAT(r.problems, IsEmpty());
}

TEST(Mismatch, OfManyIsFolded) {
  const Replay r = replayed(R"(mesh dp=5
program all on all
  buffer x rows 5 row_bytes 8 bf16
  repeat k 30
    all_reduce x[0 +1+(dp+3) div 4] over dp
  end)");
  ASSERT_THAT(r.problems, SizeIs(21));
  EXPECT_EQ(r.problems[0].why,
            "8 bytes against 16 bytes; 3 more members of the group do not match the first");
  EXPECT_EQ(r.problems[20].what, "10 more mismatches");
}

TEST(Mismatch, MismatchesTakeWhatEachTakesAlone) {
  const Replay r = replayed(R"(mesh dp=2
program one on dp=0
  buffer x rows 4 row_bytes 10 u8
  all_reduce x over dp
program two on dp=1
  buffer x rows 4 row_bytes 10 u8
  all_reduce x[0 +2] over dp)");
  EXPECT_EQ(span_of(r, 0, 0), (Span{0, 5}));
  EXPECT_EQ(span_of(r, 1, 0), (Span{0, 3}));
}

// ---- invalid input

std::vector<Diagnostic> diagnostics_of(const char* text, const ReplayOptions& options) {
  try {
    (void)replay(plan::parse_text(std::string("shiplap-plan 1\n") + text, "t.plan"), options);
  } catch (const InputError& error) {
    return error.diagnostics();
  }
  return {};
}

TEST(Refusals, OfPlansThatAreTooLarge) {
  constexpr const char* kHundred = R"(mesh dp=10
program all on all
  repeat k 10
    barrier over dp
  end)";
  const ReplayOptions options{.system = slow_system(), .operations = 99};
  const auto thrown = diagnostics_of(kHundred, options);
  ASSERT_THAT(thrown, SizeIs(1));
  EXPECT_EQ(thrown[0].code, "D632");
  EXPECT_THAT(diagnostics_of(kHundred, {.system = slow_system(), .operations = 100}), IsEmpty());
  EXPECT_THAT(diagnostics_of(kHundred, {.system = slow_system(), .iterations = 100}), IsEmpty());
  const auto endless = diagnostics_of(kHundred, {.system = slow_system(), .iterations = 99});
  ASSERT_THAT(endless, SizeIs(1));
  EXPECT_EQ(endless[0].code, "D632");
  EXPECT_EQ(endless[0].what,
            "this plan has more than 99 iterations of loops on all ranks together");
}

TEST(Refusals, OfWorkThatTheSystemDoesNotKnow) {
  ReplayOptions options{.system = slow_system()};
  options.system.matrix.speeds = {};
  const auto thrown = diagnostics_of(
      "mesh dp=2\nprogram all on all\n  f: compute forward work gemm 9 flop", options);
  ASSERT_THAT(thrown, SizeIs(1));
  EXPECT_EQ(thrown[0].code, "D602");
  EXPECT_EQ(thrown[0].where.rank, 0);
  EXPECT_EQ(thrown[0].where.operation, "f: compute forward");
}

TEST(Refusals, OfMoreBytesThanCanBeCounted) {
  const auto buffers = diagnostics_of(
      "mesh dp=1\nprogram all on all\n  buffer x rows 4e18 row_bytes 2 bf16\n"
      "  buffer y rows 4e18 row_bytes 2 bf16",
      {.system = slow_system()});
  ASSERT_THAT(buffers, SizeIs(1));
  EXPECT_EQ(buffers[0].code, "D633");
  const auto table = diagnostics_of(
      "mesh dp=2\ntable t\n  message 0 1 0 9000000000000000000 0\nprogram all on all\n"
      "  buffer x rows 4 row_bytes 2 bf16\n  exchange x to x by t over dp",
      {.system = slow_system()});
  ASSERT_THAT(table, SizeIs(1));
  EXPECT_EQ(table[0].code, "D633");
  EXPECT_EQ(table[0].where.operation, "exchange");
}

TEST(Refusals, OfRanksThatAreOutsideTheirBuffers) {
  const auto thrown = diagnostics_of(
      "mesh dp=2\nprogram all on all\n  buffer x rows 1 row_bytes 2 bf16\n"
      "  all_reduce x[dp +1] over dp",
      {.system = slow_system()});
  ASSERT_THAT(thrown, SizeIs(1));
  EXPECT_EQ(thrown[0].code, "D201");
}

}  // namespace
}  // namespace shiplap::sim
