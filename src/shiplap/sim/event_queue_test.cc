#include "shiplap/sim/event_queue.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <utility>
#include <vector>

#include "shiplap/base/random.h"

namespace shiplap::sim {
namespace {

// A set of all events is the witness. Some delays recur, as the latencies of networks do.
TEST(EventQueue, ReturnsEventsInTheOrderOfTime) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    std::vector<double> delays(random.between(1, 12));
    for (double& delay : delays) delay = random.unit();
    EventQueue queue;
    std::multiset<double> times;
    double now = 0;
    for (int k = 0; k < 500; ++k) {
      if (times.empty() || random.chance(0.55)) {
        const double delay = random.chance(0.8) ? random.pick(delays) : random.unit();
        queue.schedule(now, delay, k, 1);
        times.insert(now + delay);
      } else {
        ASSERT_EQ(queue.time(), *times.begin());
        ASSERT_EQ(queue.next().time, queue.time());
        now = queue.time();
        queue.pop();
        times.erase(times.begin());
      }
    }
    for (; !times.empty(); times.erase(times.begin()), queue.pop()) {
      ASSERT_EQ(queue.time(), *times.begin());
    }
    EXPECT_TRUE(std::isinf(queue.time()));
  }
}

TEST(EventQueue, ReturnsEachEventOnce) {
  EventQueue queue;
  std::set<std::pair<std::int32_t, std::uint32_t>> left;
  for (std::int32_t k = 0; k < 1000; ++k) {
    queue.schedule(k, k % 13, k, static_cast<std::uint32_t>(k + 1));
    left.insert({k, k + 1});
  }
  while (!std::isinf(queue.time())) {
    EXPECT_EQ(left.erase({queue.next().subject, queue.next().version}), 1U);
    queue.pop();
  }
  EXPECT_TRUE(left.empty());
}

}  // namespace
}  // namespace shiplap::sim
