#include "agreement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>
#include <vector>

namespace shiplap::strategy {
namespace {

bool close(Seconds a, Seconds b) {
  return std::abs(a.value - b.value) <= 1e-9 * std::max(std::abs(a.value), std::abs(b.value));
}

std::string text(const trace::Event& e) {
  return std::string(name(e.kind)) + " layer " + std::to_string(e.layer) + " samples " +
         to_string(e.samples) + " stream " + std::to_string(e.stream) + " peer " +
         std::to_string(e.peer) + " bytes " + std::to_string(e.bytes.count) + " memory " +
         std::to_string(e.memory.count) + " match " + std::to_string(e.match);
}

// The calls that a strategy logs: all events except sums and copies.
std::vector<trace::Event> logged(const trace::RankTrace& rank) {
  std::vector<trace::Event> events;
  std::ranges::copy_if(rank.events, std::back_inserter(events),
                       [](const trace::Event& e) { return e.kind != trace::EventKind::compute; });
  return events;
}

}  // namespace

void expect_agreement(const Trainer& trainer, const sim::Replay& replay) {
  ASSERT_TRUE(replay.problems.empty()) << render(replay.problems);
  ASSERT_EQ(replay.trace.ranks.size(), trainer.models().size());
  for (std::size_t r = 0; r < trainer.models().size(); ++r) {
    const std::vector<trace::Event> theirs = logged(replay.trace.ranks[r]);
    const std::vector<trace::Event>& ours = trainer.models()[r]->log();
    ASSERT_EQ(theirs.size(), ours.size()) << "rank " << r;
    for (std::size_t i = 0; i < ours.size(); ++i) {
      ASSERT_EQ(text(theirs[i]), text(ours[i])) << "rank " << r << ", event " << i;
      ASSERT_TRUE(close(theirs[i].time, ours[i].time))
          << "rank " << r << ", event " << i << " " << text(ours[i]) << ": " << theirs[i].time.value
          << " and " << ours[i].time.value;
      ASSERT_TRUE(close(theirs[i].duration, ours[i].duration)) << "rank " << r << ", event " << i;
    }
  }
  EXPECT_TRUE(close(replay.end, trainer.time()));
}

}  // namespace shiplap::strategy
