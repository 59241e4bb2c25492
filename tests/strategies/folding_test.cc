// Folded and unfolded replays of strategies agree.
#include <gtest/gtest.h>

#include <algorithm>

#include "cases.h"
#include "shiplap/hardware/system.h"
#include "shiplap/sim/folding_testing_internal.h"
#include "shiplap/strategy/to_plan.h"

namespace shiplap::strategy {
namespace {

class Folding : public testing::TestWithParam<int> {};

TEST_P(Folding, ChangesNoTimeOfStrategies) {
  const hardware::System system = hardware::find_system("h100_80g_nvl8");
  std::size_t folded = 0;
  for (const Case& c : all_cases(GetParam())) {
    SCOPED_TRACE(testing::Message() << c);
    const plan::Plan plan = to_plan(*trained(c, system));
    if (sim::compare_folded(plan, {.system = system}) > 0) ++folded;
    if (HasFailure()) return;
  }
  EXPECT_GT(folded, 5U);
}

INSTANTIATE_TEST_SUITE_P(Ranks, Folding, testing::Values(2, 4, 8));

}  // namespace
}  // namespace shiplap::strategy
