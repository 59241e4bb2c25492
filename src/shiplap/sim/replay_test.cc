#include "shiplap/sim/replay.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "shiplap/base/error.h"
#include "shiplap/sim/testing_internal.h"

namespace shiplap::sim {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// ---- streams and `after`

TEST(Streams, AreInOrderAndDoNotWaitForEachOther) {
  const Replay r = replayed(R"(mesh dp=1
program all on all
  streams net
  compute a work 2 seconds
  @net compute b work 3 seconds
  compute c work 4 seconds
  @net compute d work 5 seconds)");
  EXPECT_EQ(span_of(r, 0, 0), (Span{0, 2}));
  EXPECT_EQ(span_of(r, 0, 1), (Span{0, 3}));
  EXPECT_EQ(span_of(r, 0, 2), (Span{2, 6}));
  EXPECT_EQ(span_of(r, 0, 3), (Span{3, 8}));
  EXPECT_EQ(r.end, Seconds{8});
  EXPECT_THAT(r.problems, IsEmpty());
  EXPECT_THAT(r.trace.streams, ElementsAre("main", "net"));
  EXPECT_EQ(event_of(r, 0, 3).stream, 1);
}

TEST(Streams, OfOneNameAreOneInTheTrace) {
  const Replay r = replayed(R"(mesh pp=2
program one on pp=0
  streams a, b
  @b compute x work 1 seconds
program two on pp=1
  streams b, c
  @b compute x work 1 seconds
  @c compute x work 1 seconds)");
  EXPECT_THAT(r.trace.streams, ElementsAre("main", "a", "b", "c"));
  EXPECT_EQ(event_of(r, 0, 0).stream, 2);
  EXPECT_EQ(event_of(r, 1, 0).stream, 2);
  EXPECT_EQ(event_of(r, 1, 1).stream, 3);
}

TEST(After, WaitsForTheLastOfSeveral) {
  const Replay r = replayed(R"(mesh dp=1
program all on all
  streams s, t
  a: @s compute a work 2 seconds
  b: @t compute b work 7 seconds
  compute c work 1 seconds
  compute d after a, b work 1 seconds)");
  EXPECT_EQ(span_of(r, 0, 3), (Span{7, 8}));
}

TEST(Async, LetsTheStreamGoOnOnceStarted) {
  // 500 bytes are read and written at 100 B/s: 10 s.
  const Replay r = replayed(R"(mesh dp=1
program all on all
  buffer x rows 1 row_bytes 500 u8
  buffer y rows 1 row_bytes 500 u8
  compute a work 3 seconds
  c: copy x to y async
  compute b work 1 seconds
  compute d after c work 1 seconds)");
  EXPECT_EQ(span_of(r, 0, 1), (Span{3, 13}));
  EXPECT_EQ(event_of(r, 0, 1).kind, trace::EventKind::copy);
  EXPECT_EQ(event_of(r, 0, 1).bytes, Bytes{0});
  EXPECT_EQ(span_of(r, 0, 2), (Span{3, 4}));
  EXPECT_EQ(span_of(r, 0, 3), (Span{13, 14}));
}

TEST(Async, ThatCannotStartHoldsItsStream) {
  const Replay r = replayed(R"(mesh dp=1
program all on all
  buffer x rows 1 row_bytes 500 u8
  streams s
  a: @s compute a work 3 seconds
  copy x to x after a async
  compute b work 1 seconds)");
  EXPECT_EQ(span_of(r, 0, 2), (Span{3, 4}));
}

// ---- durations of computations

TEST(Computations, TakeWhatTheirWorkSays) {
  const Replay r = replayed(R"(mesh dp=1
program all on all
  buffer x rows 3 row_bytes 100 f32
  compute a work gemm 5000 flop 300 bytes bf16
  compute b work gemm 50 flop 300 bytes bf16
  compute c work vector 5000 flop
  compute d work load 50 bytes
  compute e work 0.5 seconds times 6)");
  EXPECT_EQ(span_of(r, 0, 0), (Span{0, 5}));
  EXPECT_EQ(span_of(r, 0, 1), (Span{5, 8}));
  EXPECT_EQ(span_of(r, 0, 2), (Span{8, 58}));
  EXPECT_EQ(span_of(r, 0, 3), (Span{58, 63}));
  EXPECT_EQ(span_of(r, 0, 4), (Span{63, 66}));
}

TEST(Computations, AreLaunchedOnceIfTheyAreJoined) {
  hardware::System system = slow_system();
  system.launch = {10};
  const Replay r = replay(plan::parse_text(R"(shiplap-plan 1
mesh dp=1
program all on all
  buffer x rows 3 row_bytes 100 f32
  compute a work gemm 1000 flop
  compute a joined work gemm 1000 flop
  compute a joined work gemm 1000 flop
  compute b joined work gemm 1000 flop
  compute c work 1 seconds
  compute b joined work gemm 1000 flop
  copy x to x
  compute b joined work gemm 1000 flop)",
                                           "test.plan"),
                          {.system = system});
  EXPECT_EQ(span_of(r, 0, 0), (Span{0, 11}));
  EXPECT_EQ(span_of(r, 0, 1), (Span{11, 22})) << "the one before is not joined";
  EXPECT_EQ(span_of(r, 0, 2), (Span{22, 23}));
  EXPECT_EQ(span_of(r, 0, 3), (Span{23, 34})) << "another kernel";
  EXPECT_EQ(span_of(r, 0, 4), (Span{34, 35})) << "its time is stated";
  EXPECT_EQ(span_of(r, 0, 5), (Span{35, 46}));
  EXPECT_EQ(span_of(r, 0, 7).end - span_of(r, 0, 7).begin, 11) << "a copy between them";
}

TEST(Computations, WithoutWorkTakeAsLongAsTouchingTheirRegions) {
  const Replay r = replayed(R"(mesh dp=1
tensor A[2] Activation sample 4
program all on all
  buffer x rows 4 row_bytes 100 f32
  compute other
    reads x[0 +2] = A[0] sample 0 +2
    writes x[2 +1] = A[1] sample 0 +1)");
  EXPECT_EQ(span_of(r, 0, 0), (Span{0, 3}));
}

TEST(Computations, CountInTheTypeOfTheirWorkOrOfWhatTheyWrite) {
  hardware::System system = slow_system();
  system.vector.speed(DType::f32) = hardware::Processor::Speed{.peak = {1}};
  const plan::Plan plan = plan::parse_text(R"(shiplap-plan 1
mesh dp=1
tensor A[2] Activation sample 4
program all on all
  buffer x rows 4 row_bytes 100 bf16
  buffer y rows 4 row_bytes 100 f32
  compute a work vector 100 flop
    reads x = A[0]
    writes y = A[1]
  compute b work vector 100 flop bf16
    reads x = A[0]
    writes y = A[1])",
                                           "test.plan");
  const Replay r = replay(plan, {.system = system});
  EXPECT_EQ(span_of(r, 0, 0), (Span{0, 100}));
  EXPECT_EQ(span_of(r, 0, 1), (Span{100, 101}));
}

// ---- collectives

TEST(Collectives, BeginWhenTheLastMemberStartsAndEndForAllAtOnce) {
  // 40 bytes, 2 (1 - 1/2) of them at 10 B/s, after 1 s.
  const Replay r = replayed(R"(mesh dp=2
program all on all
  buffer g rows 1 row_bytes 40 f32
  compute a work 1 seconds times 1+2*dp
  all_reduce g over dp
  compute b work 1 seconds)");
  EXPECT_EQ(span_of(r, 0, 1), (Span{3, 8}));
  EXPECT_EQ(span_of(r, 1, 1), (Span{3, 8}));
  EXPECT_EQ(span_of(r, 0, 2), (Span{8, 9}));
  EXPECT_EQ(event_of(r, 0, 1).kind, trace::EventKind::all_reduce);
  EXPECT_EQ(event_of(r, 0, 1).bytes, Bytes{40});
}

TEST(Collectives, CountTheWholeBuffer) {
  const Replay r = replayed(R"(mesh dp=4
program all on all
  buffer x rows 4 row_bytes 10 u8
  buffer y rows 1 row_bytes 10 u8
  all_gather y to x over dp
  reduce_scatter x to y over dp
  all_gather x[dp +1] to x over dp
  all_to_all x over dp
  broadcast y over dp root 2
  reduce y over dp
  barrier over dp)");
  EXPECT_THAT(r.problems, IsEmpty());
  const std::vector<std::int64_t> bytes = {40, 40, 40, 40, 10, 10, 0};
  for (int k = 0; k < 7; ++k) {
    EXPECT_EQ(event_of(r, 3, k).bytes.count, bytes[k]) << k;
  }
  // Over the far network: 2 s and 3/4 of 40 bytes at 5 B/s.
  EXPECT_EQ(span_of(r, 0, 0), (Span{0, 8}));
  EXPECT_EQ(event_of(r, 0, 6).duration, Seconds{2});
}

TEST(Collectives, MeetByTheirNumberOnTheGroupAndItsChannel) {
  const Replay r = replayed(R"(mesh dp=2
program zero on dp=0
  streams s
  barrier over dp
  @s barrier over dp/b
program one on dp=1
  barrier over dp/b
  compute c work 5 seconds
  barrier over dp)");
  EXPECT_THAT(r.problems, IsEmpty());
  EXPECT_EQ(span_of(r, 0, 0), (Span{6, 7}));
  EXPECT_EQ(span_of(r, 0, 1), (Span{0, 1}));
}

TEST(Collectives, OfOneRankTakeNoTime) {
  const Replay r = replayed(R"(mesh dp=1
program all on all
  buffer g rows 1 row_bytes 40 f32
  all_reduce g over dp)");
  EXPECT_EQ(span_of(r, 0, 0), (Span{0, 0}));
}

// ---- messages

constexpr const char* kLateReceive = R"(mesh pp=2
program first on pp=0
  buffer x rows 1 row_bytes 20 u8
  compute a work 1 seconds
  send x to pp+1
  compute b work 1 seconds
program second on pp=1
  buffer x rows 1 row_bytes 20 u8
  compute a work 4 seconds
  receive x from pp-1
  compute b work 1 seconds)";

TEST(Messages, WaitForTheirReceive) {
  const Replay r = replayed(kLateReceive);
  EXPECT_EQ(span_of(r, 0, 1), (Span{4, 7}));
  EXPECT_EQ(span_of(r, 1, 1), (Span{4, 7}));
  EXPECT_EQ(span_of(r, 0, 2), (Span{7, 8}));
  EXPECT_EQ(event_of(r, 0, 1).peer, 1);
  EXPECT_EQ(event_of(r, 1, 1).peer, 0);
  EXPECT_EQ(event_of(r, 1, 1).kind, trace::EventKind::recv);
  EXPECT_EQ(event_of(r, 1, 1).bytes, Bytes{20});
}

TEST(Messages, UpToTheEagerLimitAreSentAtOnce) {
  for (const std::int64_t limit : {20, 21, 1000}) {
    const Replay r = replayed(kLateReceive, {limit});
    EXPECT_EQ(span_of(r, 0, 1), (Span{1, 1}));
    EXPECT_EQ(span_of(r, 0, 2), (Span{1, 2}));
    EXPECT_EQ(span_of(r, 1, 1), (Span{4, 7}));
  }
  EXPECT_EQ(span_of(replayed(kLateReceive, {19}), 0, 1), (Span{4, 7}));
}

TEST(Messages, ThatAreEmptyAreNotEagerWithoutALimit) {
  constexpr const char* kEmpty = R"(mesh pp=2
program first on pp=0
  buffer x rows 1 row_bytes 20 u8
  send x[0 +0] to pp+1
program second on pp=1
  buffer x rows 1 row_bytes 20 u8
  compute a work 4 seconds
  receive x[0 +0] from pp-1)";
  EXPECT_EQ(span_of(replayed(kEmpty), 0, 0), (Span{4, 5}));
  EXPECT_EQ(span_of(replayed(kEmpty, {1}), 0, 0), (Span{0, 0}));
}

TEST(Messages, TakeTheNetworkThatJoinsTheirRanks) {
  const Replay r = replayed(R"(mesh pp=4
program all on pp=0|3
  buffer x rows 1 row_bytes 20 u8
  when pp=0
    send x to pp+3
  end
  when pp=3
    receive x from pp-3
  end
spare on pp=1|2)");
  EXPECT_EQ(span_of(r, 3, 0), (Span{0, 6}));
  EXPECT_THAT(r.trace.ranks[1].events, IsEmpty());
}

TEST(Messages, MeetByChannelAndTagAndAmongTheseByNumber) {
  const Replay r = replayed(R"(mesh pp=2
program first on pp=0
  buffer x rows 4 row_bytes 10 u8
  send x[0 +1] to pp+1 async
  send x[0 +2] to pp+1 tag 7 async
  send x[0 +3] to pp+1 channel side async
  send x[0 +4] to pp+1 async
program second on pp=1
  buffer x rows 4 row_bytes 10 u8
  receive x[0 +3] from pp-1 channel side
  receive x[0 +2] from pp-1 tag 7
  receive x[0 +1] from pp-1
  receive x[0 +4] from pp-1)");
  EXPECT_THAT(r.problems, IsEmpty());
  EXPECT_EQ(span_of(r, 0, 2), (Span{0, 4}));
  EXPECT_EQ(span_of(r, 0, 1), (Span{4, 7}));
  EXPECT_EQ(span_of(r, 0, 0), (Span{7, 9}));
  EXPECT_EQ(span_of(r, 0, 3), (Span{9, 14}));
  for (int k = 0; k < 4; ++k) EXPECT_EQ(event_of(r, 0, k).match, k);
  EXPECT_EQ(event_of(r, 1, 0).match, 2);
  EXPECT_EQ(event_of(r, 1, 3).match, 3);
}

TEST(Messages, AreNumberedOverAllRanks) {
  const Replay r = replayed(R"(mesh pp=3
program all on all
  buffer x rows 2 row_bytes 10 u8
  batch
    send x[0 +1] to pp+1 wrap
    receive x[1 +1] from pp-1 wrap
  end)");
  EXPECT_EQ(event_of(r, 2, 1).match, std::int64_t{2} << 24);
  EXPECT_EQ(event_of(r, 0, 2).match, std::int64_t{2} << 24);
}

TEST(Messages, ToOneselfAreCopies) {
  const Replay r = replayed(R"(mesh pp=1
program all on all
  buffer x rows 2 row_bytes 100 u8
  send x[0 +1] to rank 0 async
  receive x[1 +1] from rank 0)");
  EXPECT_EQ(span_of(r, 0, 1), (Span{0, 2}));
}

// ---- batches

TEST(Batches, StartTogetherAndAreCompleteTogether) {
  const Replay r = replayed(R"(mesh pp=2
program all on all
  buffer x rows 4 row_bytes 10 u8
  compute a work 1 seconds times 1+pp
  b: batch
    send x[0 +1] to rank 1-pp
    receive x[1 +1] from rank 1-pp
    all_reduce x over pp
  end
  compute c work 1 seconds
  compute d after b work 1 seconds)");
  EXPECT_THAT(r.problems, IsEmpty());
  EXPECT_EQ(span_of(r, 0, 2), (Span{2, 4}));
  EXPECT_EQ(span_of(r, 0, 3), (Span{2, 4}));
  EXPECT_EQ(span_of(r, 0, 4), (Span{2, 7}));
  EXPECT_EQ(span_of(r, 0, 5), (Span{7, 8}));
  EXPECT_EQ(r.trace.ranks[0].events.size(), 6U);  // the batch itself has no event
}

TEST(Batches, ThatAreAsyncLetTheStreamGoOn) {
  const Replay r = replayed(R"(mesh pp=2
program all on all
  buffer x rows 4 row_bytes 10 u8
  streams net
  b: @net batch async
    send x[0 +1] to rank 1-pp
    receive x[1 +1] from rank 1-pp
  end
  @net compute c work 1 seconds
  compute d after b work 1 seconds)");
  EXPECT_EQ(event_of(r, 0, 1).stream, 1);
  EXPECT_EQ(span_of(r, 0, 3), (Span{0, 1}));
  EXPECT_EQ(span_of(r, 0, 4), (Span{2, 3}));
}

TEST(Batches, ThatAreEmptyAreCompleteAtOnce) {
  const Replay r = replayed(R"(mesh pp=1
program all on all
  compute a work 2 seconds
  batch
  end
  compute c work 1 seconds)");
  EXPECT_EQ(span_of(r, 0, 2), (Span{2, 3}));
  EXPECT_THAT(r.problems, IsEmpty());
}

// ---- exchanges

TEST(Exchanges, TakeWhatEachRankSendsOrReceivesByNetwork) {
  const Replay r = replayed(R"(mesh cp=4
table t
  message 0 0 0 9 0
  message 0 1 0 3 0
  message 0 2 0 1 0
  message 0 3 0 1 0
  message 1 0 0 8 0
program all on all
  buffer x rows 9 row_bytes 10 u8
  buffer y rows 9 row_bytes 10 u8
  compute a work 1 seconds times cp
  exchange x to y by t over cp
  exchange x to y by t reversed over cp)");
  EXPECT_THAT(r.problems, IsEmpty());
  // Rank 0: near, 80 bytes come in: 1 + 8; far, 20 bytes go out: 2 + 4.
  EXPECT_EQ(span_of(r, 0, 1), (Span{3, 12}));
  EXPECT_EQ(span_of(r, 1, 1), (Span{3, 12}));
  EXPECT_EQ(span_of(r, 2, 1), (Span{3, 7}));  // 10 bytes over the far network
  EXPECT_EQ(event_of(r, 0, 1).bytes, Bytes{50});
  EXPECT_EQ(event_of(r, 3, 1).bytes, Bytes{0});
  EXPECT_EQ(event_of(r, 3, 2).bytes, Bytes{10});
  EXPECT_EQ(span_of(r, 2, 2), (Span{12, 16}));
}

TEST(Exchanges, CountOnlyTheirGroup) {
  const Replay r = replayed(R"(mesh dp=2 cp=2
table t
  message 0 1 0 3 0
  message 0 2 0 1 0
  message 2 3 0 1 0
program all on all
  buffer x rows 9 row_bytes 10 u8
  buffer y rows 9 row_bytes 10 u8
  exchange x to y by t over cp)");
  EXPECT_EQ(event_of(r, 0, 0).bytes, Bytes{30});
  EXPECT_EQ(span_of(r, 0, 0), (Span{0, 4}));
  EXPECT_EQ(span_of(r, 3, 0), (Span{0, 2}));
}

// ---- memory

TEST(Memory, IsCountedByTimeAndByListedOrder) {
  const Replay r = replayed(R"(mesh dp=1
program all on all
  buffer w rows 2 row_bytes 100 u8
  buffer x rows 4 row_bytes 10 u8
  buffer h rows 4 row_bytes 1000 u8 host
  streams s
  allocate x[0 +2]
  allocate h[0 +1]
  compute a work 3 seconds
  allocate x[1 +2]
  free x[0 +2]
  @s compute b work 1 seconds
  f: @s free x[1 +2]
  compute c work 1 seconds)");
  // Rows 0 to 2 of x are allocated, row 3 lives throughout.
  EXPECT_EQ(event_of(r, 0, 2).memory, Bytes{230});
  EXPECT_EQ(event_of(r, 0, 5).memory, Bytes{230});
  EXPECT_EQ(event_of(r, 0, 7).memory, Bytes{210});
  using Point = trace::MemoryPoint;
  EXPECT_THAT(r.trace.ranks[0].memory,
              ElementsAre(Point{{0}, {210}}, Point{{0}, {230}}, Point{{1}, {210}},
                          Point{{3}, {230}}, Point{{3}, {210}}));
}

// ---- whole plans

std::vector<std::filesystem::path> plans_in(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".plan") files.push_back(entry.path());
  }
  return files;
}

std::string read(const std::filesystem::path& file) {
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), {}};
}

void replay_all(const std::filesystem::path& folder) {
  for (const std::filesystem::path& file : plans_in(folder)) {
    SCOPED_TRACE(file.string());
    const plan::Plan plan = plan::parse_plan(read(file), file.string());
    const std::string name = file.stem().string();
    const bool stuck = name == "j_172668" || name == "pytorch_172668";
    for (const hardware::System& system : {slow_system(), hardware::zero_cost_system()}) {
      const Replay r = replay(plan, {.system = system});
      EXPECT_EQ(r.problems.empty(), !stuck);
      for (const Diagnostic& problem : r.problems) EXPECT_EQ(problem.code, "D630");
      // With eager sends of one row there is no deadlock.
      const Replay eager = replay(plan, {.system = system, .eager_limit = {1 << 20}});
      EXPECT_THAT(eager.problems, IsEmpty());
    }
  }
}

TEST(WholePlans, OfTheExamplesAreReplayed) { replay_all("examples/plans"); }

TEST(WholePlans, WrittenWithTheDesignAreReplayed) {
  const std::filesystem::path folder = "../shared/plans";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "the folder " << folder << " is not there";
  replay_all(folder);
}

}  // namespace
}  // namespace shiplap::sim
