#include "shiplap/plan/link.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "shiplap/base/error.h"
#include "shiplap/plan/text.h"

namespace shiplap::plan {
namespace {

// Rank 0 sends twice, rank 1 receives three times; both reduce twice in another order of streams.
constexpr const char* kText = R"(shiplap-plan 1
mesh dp=2

program left on dp=0
  streams net
  buffer x rows 4 row_bytes 4 f32
  send x[0 +1] to rank 1
  send x[1 +1] to rank 1
  @net all_reduce x over dp
  @net all_reduce x over dp

program right on dp=1
  streams side, net
  buffer x rows 4 row_bytes 4 f32
  receive x[0 +1] from rank 0
  receive x[1 +1] from rank 0
  receive x[2 +1] from rank 0
  @net all_reduce x over dp
  @side all_reduce x over dp
)";

TEST(Link, ConnectsTheEndsOfMessagesInTheirOrder) {
  const Plan plan = parse_text(kText, "link.plan");
  const LinkedProgram linked = link(plan, {});
  EXPECT_EQ(linked.other_end({0, 0}), (OperationId{1, 0}));
  EXPECT_EQ(linked.other_end({1, 0}), (OperationId{0, 0}));
  EXPECT_EQ(linked.other_end({0, 1}), (OperationId{1, 1}));
  EXPECT_FALSE(linked.other_end({1, 2}).exists());  // has no send
  const auto& receives = linked.trace.ranks[1].events;
  EXPECT_EQ(receives[0].match, linked.trace.ranks[0].events[0].match);
  EXPECT_EQ(receives[2].match, trace::Event().match);
}

TEST(Link, ConnectsTheCallsOfACollectiveInTheirOrder) {
  const Plan plan = parse_text(kText, "link.plan");
  const LinkedProgram linked = link(plan, {});
  ASSERT_EQ(linked.matching.calls, 2);
  const GroupCalls& group = linked.group({0, 2});
  EXPECT_EQ(group.callers, (std::vector<std::int32_t>{0, 1}));
  for (const std::int32_t n : {0, 1}) {
    EXPECT_EQ(&linked.group({1, 3 + n}), &group);
    EXPECT_EQ(linked.match({0, 2 + n}).n, n);
    EXPECT_EQ(linked.match({1, 3 + n}).n, n);
    EXPECT_EQ(group.calls(0)[n], 2 + n);
    EXPECT_EQ(group.calls(1)[n], 3 + n);
  }
}

TEST(Link, StreamsOfOneNameAreOneOfTheTrace) {
  const Plan plan = parse_text(kText, "link.plan");
  const LinkedProgram linked = link(plan, {});
  EXPECT_EQ(linked.trace.streams, (std::vector<std::string>{"main", "net", "side"}));
  EXPECT_EQ(linked.trace.ranks[0].events[2].stream, 1);
  EXPECT_EQ(linked.trace.ranks[1].events[3].stream, 1);
  EXPECT_EQ(linked.trace.ranks[1].events[4].stream, 2);
}

constexpr const char* kAlike = R"(shiplap-plan 1
mesh dp=64

program all on all
  buffer x rows 4 row_bytes 4 f32
  compute work
  all_reduce x over dp
)";

TEST(Link, RanksWithEqualOperationsAndCostsShareATemplate) {
  const Plan plan = parse_text(kAlike, "link.plan");
  EXPECT_EQ(link(plan, {}).templates.size(), 1U);
  const auto odd_is_slow = [](const RankProgram& program, const flat::Operation& /*op*/) {
    return static_cast<double>(program.rank.value % 2);
  };
  const LinkedProgram linked = link(plan, {.cost = odd_is_slow});
  EXPECT_EQ(linked.templates.size(), 2U);
  EXPECT_EQ(linked.step({6, 0}).cost, 0);
  EXPECT_EQ(linked.step({7, 0}).cost, 1);
  EXPECT_EQ(linked.step({7, 1}).cost, 0);  // collectives are not costed here
}

TEST(Link, MoreOperationsThanAllowedAreRefused) {
  const Plan plan = parse_text(kAlike, "link.plan");
  EXPECT_NO_THROW((void)link(plan, {.operations = 128}));
  try {
    (void)link(plan, {.operations = 127});
    FAIL();
  } catch (const InputError& error) {
    EXPECT_EQ(error.diagnostics().front().code, "D632");
  }
}

}  // namespace
}  // namespace shiplap::plan
