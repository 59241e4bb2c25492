#include "shiplap/plan/execution.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "shiplap/plan/text.h"

namespace shiplap::plan {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using Wait = Execution::Wait;

// Two ranks that send to each other first.
constexpr const char* kHeadToHead = R"(shiplap-plan 1
mesh dp=2
program both on all
  buffer x rows 2 row_bytes 4 f32
  send x[0 +1] to rank 1-dp
  receive x[1 +1] from rank 1-dp
)";

TEST(Execution, OfEagerSendsEndsWhereThatOfRendezvousSendsIsStuck) {
  const Plan plan = parse_text(kHeadToHead, "head.plan");
  const LinkedProgram linked = link(plan, {});
  EXPECT_TRUE(Execution(linked, kAllEager).run());
  EXPECT_TRUE(Execution(linked, 4).run());
  EXPECT_FALSE(Execution(linked, 3).run());
  Execution execution(linked, kAllRendezvous);
  ASSERT_FALSE(execution.run());
  EXPECT_THAT(execution.stuck(), ElementsAre(OperationId{0, 0}, OperationId{1, 0}));
  EXPECT_THAT(execution.wait_cycle(), ElementsAre(Wait{{0, 0}, {1, 1}}, Wait{{1, 0}, {0, 1}}));
}

TEST(Execution, HasNoWaitCycleWhereSomebodyWaitsForWhatNobodyDoes) {
  const Plan plan = parse_text(R"(shiplap-plan 1
mesh dp=3
program one on dp=0
  buffer x rows 1 row_bytes 4 f32
  receive x from rank 1
  all_reduce x over dp
program other on dp=1..2
  buffer x rows 1 row_bytes 4 f32
  all_reduce x over dp
)",
                               "missing.plan");
  const LinkedProgram linked = link(plan, {});
  Execution execution(linked, kAllEager);
  ASSERT_FALSE(execution.run());
  EXPECT_THAT(execution.stuck(),
              ElementsAre(OperationId{0, 0}, OperationId{1, 0}, OperationId{2, 0}));
  EXPECT_THAT(execution.wait_cycle(), IsEmpty());
}

// Rank 0 waits for an operation that never happens, and two others wait for each other: the cycle
// is found, and it is the short one.
TEST(Execution, FindsAWaitCycleBehindADeadEnd) {
  const Plan plan = parse_text(R"(shiplap-plan 1
mesh dp=3
program first on dp=0
  buffer x rows 1 row_bytes 4 f32
  receive x from rank 2 tag 7
program second on dp=1
  buffer x rows 1 row_bytes 4 f32
  receive x from rank 2
  send x to rank 2
program third on dp=2
  buffer x rows 1 row_bytes 4 f32
  receive x from rank 1
  send x to rank 1
)",
                               "behind.plan");
  const LinkedProgram linked = link(plan, {});
  Execution execution(linked, kAllEager);
  ASSERT_FALSE(execution.run());
  EXPECT_THAT(execution.wait_cycle(), ElementsAre(Wait{{1, 0}, {2, 1}}, Wait{{2, 0}, {1, 1}}));
}

// Two collectives in different order, on separate streams: no deadlock, unless the library
// serializes launches.
constexpr const char* kCrossed = R"(shiplap-plan 1
mesh dp=2
program left on dp=0
  streams a, b
  buffer x rows 1 row_bytes 4 f32
  buffer y rows 1 row_bytes 4 f32
  @a all_reduce x over dp/one
  @b all_reduce y over dp/two
program right on dp=1
  streams a, b
  buffer x rows 1 row_bytes 4 f32
  buffer y rows 1 row_bytes 4 f32
  @b all_reduce y over dp/two
  @a all_reduce x over dp/one
)";

TEST(Execution, InOneQueueIsStuckWhereCommunicatorsOfTheirOwnAreNot) {
  const Plan plan = parse_text(kCrossed, "crossed.plan");
  const LinkedProgram linked = link(plan, {});
  EXPECT_TRUE(Execution(linked, kAllRendezvous).run());
  EXPECT_TRUE(Execution(linked, kAllRendezvous, nullptr, LaunchOrder::by_communicator).run());
  Execution strict(linked, kAllRendezvous, nullptr, LaunchOrder::one_queue);
  ASSERT_FALSE(strict.run());
  EXPECT_THAT(strict.wait_cycle(), ElementsAre(Wait{{0, 0}, {1, 1}}, Wait{{1, 0}, {0, 1}}));
}

class RecordingObserver : public ExecutionObserver {
 public:
  void perform(OperationId id) override { record("perform", id); }
  void post(OperationId send) override { record("post", send); }
  void deliver(OperationId send, OperationId receive) override {
    record("send", send);
    record("receive", receive);
  }
  void call(Match call) override { lines.push_back("call " + std::to_string(call.n)); }

  std::vector<std::string> lines;

 private:
  void record(const char* what, OperationId id) {
    lines.push_back(std::string(what) + ' ' + std::to_string(id.rank) + '.' +
                    std::to_string(id.operation));
  }
};

TEST(Execution, TellsItsObserverOfEverythingOnce) {
  const Plan plan = parse_text(R"(shiplap-plan 1
mesh dp=2
program left on dp=0
  buffer x rows 1 row_bytes 4 f32
  send x to rank 1
  all_reduce x over dp
program right on dp=1
  buffer x rows 1 row_bytes 4 f32
  buffer y rows 1 row_bytes 4 f32
  batch
    receive x from rank 0
  end
  copy x to y
  all_reduce y over dp
)",
                               "notes.plan");
  const LinkedProgram linked = link(plan, {});
  RecordingObserver observer;
  EXPECT_TRUE(Execution(linked, kAllRendezvous, &observer).run());
  EXPECT_THAT(observer.lines,
              ElementsAre("post 0.0", "send 0.0", "receive 1.1", "perform 1.2", "call 0"));
}

// Ranks 0 and 1 of four pairs, each of which does the same.
TEST(Linker, LinksSomeRanksWithoutEvents) {
  const Plan plan = parse_text(R"(shiplap-plan 1
mesh dp=4, pp=2
program all on all
  buffer x rows 1 row_bytes 4 f32
  all_reduce x over pp
)",
                               "some.plan");
  Linker linker(plan, {.cost = {}, .events = false});
  for (const int rank : {0, 1}) linker.add(expand(plan, Rank(rank)));
  const LinkedProgram linked = std::move(linker).finish();
  EXPECT_TRUE(linked.is_linked(1));
  EXPECT_FALSE(linked.is_linked(2));
  EXPECT_EQ(linked.matches.size(), 2U);
  EXPECT_TRUE(linked.trace.ranks.empty());
  EXPECT_TRUE(Execution(linked, kAllEager).run());
}

}  // namespace
}  // namespace shiplap::plan
