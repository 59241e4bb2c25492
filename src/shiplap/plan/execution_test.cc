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
  EXPECT_THAT(execution.stuck(), ElementsAre(Place{0, 0}, Place{1, 0}));
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
  EXPECT_THAT(execution.stuck(), ElementsAre(Place{0, 0}, Place{1, 0}, Place{2, 0}));
  EXPECT_THAT(execution.wait_cycle(), IsEmpty());
}

// A rank that waits in vain stands before two that wait for each other: the cycle is found all the
// same, and it is the short one.
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

// Two collectives in different order, on streams of their own: sound, unless a library launches
// one after the other.
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

class Notes : public Observer {
 public:
  void perform(Place place) override { note("perform", place); }
  void post(Place send) override { note("post", send); }
  void deliver(Place send, Place receive) override {
    note("send", send);
    note("receive", receive);
  }
  void call(Match call) override { lines.push_back("call " + std::to_string(call.n)); }

  std::vector<std::string> lines;

 private:
  void note(const char* what, Place place) {
    lines.push_back(std::string(what) + ' ' + std::to_string(place.rank) + '.' +
                    std::to_string(place.operation));
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
  Notes notes;
  EXPECT_TRUE(Execution(linked, kAllRendezvous, &notes).run());
  EXPECT_THAT(notes.lines,
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
