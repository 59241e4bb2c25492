// Compares a folded replay with the replay of every rank.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>

#include "shiplap/sim/replay.h"
#include "shiplap/trace/summary.h"

namespace shiplap::sim {

inline bool is_same(double a, double b) {
  return std::abs(a - b) <= 1e-12 * std::max(std::abs(a), std::abs(b));
}
inline bool is_same(Seconds a, Seconds b) { return is_same(a.value, b.value); }

// Everything but peers, matches and samples.
inline bool is_same(const trace::Event& a, const trace::Event& b) {
  return a.kind == b.kind && a.layer == b.layer && a.stream == b.stream && a.axis == b.axis &&
         a.operation == b.operation && a.bytes == b.bytes && a.memory == b.memory &&
         is_same(a.time, b.time) && is_same(a.duration, b.duration);
}

inline bool is_same(const trace::RankTrace& a, const trace::RankTrace& b) {
  const auto same_event = [](const trace::Event& x, const trace::Event& y) {
    return is_same(x, y);
  };
  const auto same_point = [](const trace::MemoryPoint& x, const trace::MemoryPoint& y) {
    return x.bytes == y.bytes && is_same(x.time, y.time);
  };
  return std::ranges::equal(a.events, b.events, same_event) &&
         std::ranges::equal(a.memory, b.memory, same_point);
}

inline void expect_same(const trace::RankSummary& a, const trace::RankSummary& b) {
  for (const auto field : {&trace::RankSummary::computation, &trace::RankSummary::communication,
                           &trace::RankSummary::exposed, &trace::RankSummary::idle,
                           &trace::RankSummary::bubble, &trace::RankSummary::peak_time}) {
    EXPECT_NEAR((a.*field).value, (b.*field).value, 1e-12 * (1 + std::abs((b.*field).value)));
  }
  EXPECT_EQ(a.peak, b.peak);
}

inline void expect_same(const trace::Summary& a, const trace::Summary& b) {
  ASSERT_EQ(a.ranks.size(), b.ranks.size());
  for (std::size_t r = 0; r < a.ranks.size(); ++r) expect_same(a.ranks[r], b.ranks[r]);
  expect_same(a.all, b.all);
  EXPECT_EQ(a.peak_rank, b.peak_rank);
  EXPECT_EQ(a.events, b.events);
  ASSERT_EQ(a.bubble.has_value(), b.bubble.has_value());
  EXPECT_NEAR(a.bubble.value_or(0), b.bubble.value_or(0), 1e-12);
  ASSERT_EQ(a.kinds.size(), b.kinds.size());
  for (std::size_t k = 0; k < a.kinds.size(); ++k) {
    EXPECT_EQ(a.kinds[k].events, b.kinds[k].events);
    EXPECT_EQ(a.kinds[k].bytes, b.kinds[k].bytes);
    EXPECT_NEAR(a.kinds[k].time.value, b.kinds[k].time.value, 1e-12 * b.kinds[k].time.value);
  }
  ASSERT_EQ(a.axes.size(), b.axes.size());
  for (std::size_t k = 0; k < a.axes.size(); ++k) {
    EXPECT_EQ(a.axes[k].axes, b.axes[k].axes);
    EXPECT_NEAR(a.axes[k].exposed.value, b.axes[k].exposed.value,
                1e-12 * (1 + b.axes[k].communication.value));
  }
}

// Returns how many ranks were not replayed.
inline std::size_t compare_folded(const plan::Plan& plan, ReplayOptions options) {
  options.fold = false;
  const Replay all = replay(plan, options);
  options.fold = true;
  const Replay folded = replay(plan, options);
  EXPECT_EQ(all.end.value, folded.end.value);
  EXPECT_EQ(all.problems.size(), folded.problems.size());
  std::size_t spared = 0;
  for (std::size_t rank = 0; rank < all.trace.ranks.size(); ++rank) {
    EXPECT_TRUE(is_same(all.trace.ranks[rank], folded.trace.of(rank))) << "rank " << rank;
    EXPECT_LE(folded.trace.representative(rank), rank);
    if (!folded.trace.is_representative(rank)) ++spared;
  }
  expect_same(trace::summarize(folded.trace), trace::summarize(all.trace));
  return spared;
}

}  // namespace shiplap::sim
