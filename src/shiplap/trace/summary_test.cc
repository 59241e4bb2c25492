#include "shiplap/trace/summary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "shiplap/base/random.h"

namespace shiplap::trace {
namespace {

constexpr std::int64_t kMoments = 40;

Event event(EventKind kind, std::int64_t time, std::int64_t duration, std::int64_t bytes = 0) {
  return {.kind = kind,
          .time = {static_cast<double>(time)},
          .duration = {static_cast<double>(duration)},
          .bytes = {bytes}};
}

Event of_layer(std::int32_t layer, Event event) {
  event.layer = layer;
  return event;
}

// Integer times, so that sums are exact.
Trace random_trace(Random& random) {
  Trace trace{.ranks = std::vector<RankTrace>(random.between(1, 5))};
  for (RankTrace& rank : trace.ranks) {
    const std::int64_t events = random.between(0, 12);
    for (std::int64_t i = 0; i < events; ++i) {
      const EventKind kind =
          static_cast<EventKind>(random.between(0, 1 + static_cast<int>(EventKind::recv)));
      const std::int64_t time = random.between(0, kMoments);
      const std::int64_t duration = random.between(0, kMoments - time);
      rank.events.push_back(event(kind, time, duration, random.between(0, 100)));
      rank.events.back().memory = {random.between(0, 50)};
      rank.events.back().layer = static_cast<std::int32_t>(random.between(0, 3));
    }
    const std::int64_t points = random.between(0, 4);
    for (std::int64_t i = 0; i < points; ++i) {
      rank.memory.push_back(
          {.time = {static_cast<double>(10 * i)}, .bytes = {random.between(0, 9)}});
    }
  }
  return trace;
}

// The reference: for every unit of time, a linear search for the events that run.
class Grid {
 public:
  explicit Grid(const Trace& trace) : trace_(trace) {
    for (const RankTrace& rank : trace.ranks) {
      for (const Event& each : rank.events) {
        begin_ = std::min(begin_, start(each));
        end_ = std::max(end_, stop(each));
        if (each.kind != EventKind::load_weights) step_begin_ = std::min(step_begin_, start(each));
        if (is_forward(each.kind)) forward_ = std::min(forward_, start(each));
        if (is_backward(each.kind)) backward_ = std::max(backward_, stop(each));
      }
    }
    if (begin_ > end_) begin_ = end_ = 0;
    if (step_begin_ == kNever) step_begin_ = begin_;
  }

  [[nodiscard]] std::int64_t begin() const { return begin_; }
  [[nodiscard]] std::int64_t end() const { return end_; }
  [[nodiscard]] std::int64_t step_begin() const { return step_begin_; }

  // Units of time in which the rank computes, communicates, only communicates, is idle, is idle
  // between the first forward and the last backward.
  [[nodiscard]] std::array<std::int64_t, 5> times(std::size_t rank) const {
    std::array<std::int64_t, 5> result{};
    for (std::int64_t t = step_begin_; t < end_; ++t) {
      const bool computes = runs(rank, t, false);
      const bool communicates = runs(rank, t, true);
      result[0] += computes ? 1 : 0;
      result[1] += communicates ? 1 : 0;
      result[2] += communicates && !computes ? 1 : 0;
      result[3] += !communicates && !computes ? 1 : 0;
      result[4] += !communicates && !computes && forward_ <= t && t < backward_ ? 1 : 0;
    }
    return result;
  }

 private:
  static constexpr std::int64_t kNever = 1'000'000;
  static std::int64_t start(const Event& each) {
    return static_cast<std::int64_t>(each.time.value);
  }
  static std::int64_t stop(const Event& each) {
    return start(each) + static_cast<std::int64_t>(each.duration.value);
  }
  [[nodiscard]] bool runs(std::size_t rank, std::int64_t moment, bool communication) const {
    return std::ranges::any_of(trace_.ranks[rank].events, [&](const Event& each) {
      return is_communication(each.kind) == communication && start(each) <= moment &&
             moment < stop(each);
    });
  }

  const Trace& trace_;
  std::int64_t begin_ = kNever;
  std::int64_t end_ = -1;
  std::int64_t step_begin_ = kNever;
  std::int64_t forward_ = kNever;  // the first one
  std::int64_t backward_ = -1;     // the end of the last one
};

TEST(Summary, AgreesWithAskingEveryMoment) {
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const Trace trace = random_trace(random);
    const Summary summary = summarize(trace);
    const Grid grid(trace);
    if (summary.events > 0) {
      ASSERT_EQ(summary.total().value, static_cast<double>(grid.end() - grid.begin()));
      ASSERT_EQ(summary.step.begin.value, static_cast<double>(grid.step_begin()));
      ASSERT_EQ(summary.step.end.value, static_cast<double>(grid.end()));
    }
    double exposed = 0;
    for (std::size_t rank = 0; rank < trace.ranks.size(); ++rank) {
      const auto times = grid.times(rank);
      const RankSummary& found = summary.ranks[rank];
      ASSERT_EQ(found.computation.value, static_cast<double>(times[0]));
      ASSERT_EQ(found.communication.value, static_cast<double>(times[1]));
      ASSERT_EQ(found.exposed.value, static_cast<double>(times[2]));
      ASSERT_EQ(found.idle.value, static_cast<double>(times[3]));
      ASSERT_EQ(found.bubble.value, static_cast<double>(times[4]));
      exposed += found.exposed.value;
      const auto worst = static_cast<std::size_t>(summary.exposed_rank);
      ASSERT_LE(found.exposed, summary.ranks[worst].exposed);
      ASSERT_LE(found.peak, summary.all.peak);
    }
    ASSERT_EQ(summary.all.exposed.value, exposed);
    ASSERT_EQ(summary.all.peak, summary.ranks[summary.peak_rank].peak);
  }
}

TEST(Summary, CountsEveryEventInItsKind) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    Random random(seed);
    const Trace trace = random_trace(random);
    const Summary summary = summarize(trace);
    std::int64_t events = 0;
    Bytes bytes;
    for (const KindSummary& kind : summary.kinds) {
      events += kind.events;
      bytes += kind.bytes;
    }
    Bytes expected;
    for (const RankTrace& rank : trace.ranks) {
      events -= std::ssize(rank.events);
      for (const Event& each : rank.events) expected += each.bytes;
    }
    EXPECT_EQ(events, 0) << "seed " << seed;
    EXPECT_EQ(bytes, expected) << "seed " << seed;
  }
}

TEST(Summary, BubbleIsWhatThePassesLeaveOfTheirWindow) {
  // Two ranks, two forwards and two backwards of 1 each, shifted by one: as GPipe's
  // (p-1)/(m+p-1) = 1/3. Loading before and updating after do not count.
  Trace trace{.ranks = std::vector<RankTrace>(2)};
  for (const std::int64_t rank : {0, 1}) {
    auto& events = trace.ranks[rank].events;
    events.push_back(event(EventKind::load_weights, 0, 3));
    for (const std::int64_t sample : {0, 1}) {
      events.push_back(event(EventKind::forward, 3 + rank + sample, 1));
      events.push_back(event(EventKind::backward, 7 - rank + sample, 1));
      events[events.size() - 2].layer = static_cast<std::int32_t>(rank);
    }
    events.push_back(event(EventKind::update, 9, 5));
  }
  const Summary summary = summarize(trace);
  ASSERT_TRUE(summary.bubble.has_value());
  EXPECT_NEAR(summary.bubble.value(), 1.0 / 3, 1e-15);
  EXPECT_EQ(summary.passes, (Span{.begin = {3}, .end = {9}}));
  EXPECT_EQ(summary.total(), Seconds{14});
  EXPECT_EQ(summary.step_time(), Seconds{11});
}

// Concurrent on two streams, as in DualPipe: twice the work in the same time.
TEST(Summary, PassesAtOnceFillTheirWindowOnce) {
  const Trace trace{
      .ranks = {{.events = {event(EventKind::forward, 0, 4), event(EventKind::backward, 0, 4),
                            event(EventKind::backward, 6, 2)}},
                {.events = {of_layer(1, event(EventKind::forward, 0, 8))}}}};
  EXPECT_EQ(summarize(trace).bubble, 0.125);
  EXPECT_EQ(summarize(trace).ranks[0].bubble, Seconds{2});
}

// One device, data or tensor parallel ranks: they have the same layers.
TEST(Summary, WithoutAPipelineThereIsNoBubble) {
  Trace trace{.ranks = std::vector<RankTrace>(2)};
  for (RankTrace& rank : trace.ranks) {
    rank.events = {event(EventKind::forward, 0, 1), event(EventKind::backward, 3, 1)};
  }
  EXPECT_FALSE(summarize(trace).bubble.has_value());
  trace.ranks[1].events[0].layer = 1;
  EXPECT_EQ(summarize(trace).bubble, 0.5);
}

// What ranks wait for is communication while it is transferred, and the bubble before.
TEST(Summary, CommunicationIsNotTheBubble) {
  const Trace trace{
      .ranks = {
          {.events = {event(EventKind::forward, 0, 2), event(EventKind::send, 2, 2),
                      event(EventKind::backward, 6, 2)}},
          {.events = {event(EventKind::recv, 2, 2), of_layer(1, event(EventKind::forward, 4, 2)),
                      event(EventKind::backward, 6, 2)}}}};
  const Summary summary = summarize(trace);
  EXPECT_EQ(summary.ranks[0].bubble, Seconds{2});
  EXPECT_EQ(summary.ranks[1].bubble, Seconds{2});
  EXPECT_EQ(summary.bubble, 0.25);
}

TEST(Summary, CommunicationIsExposedByAxis) {
  Trace trace{
      .axes = {"tp", "dp"},
      .ranks = {{.events = {event(EventKind::forward, 0, 4), event(EventKind::all_reduce, 2, 4),
                            event(EventKind::all_gather, 5, 5)}}}};
  trace.ranks[0].events[1].axis = 0;
  trace.ranks[0].events[2].axis = 1;
  EXPECT_THAT(
      summarize(trace).axes,
      testing::ElementsAre(AxisSummary{.axes = "tp", .communication = {4}, .exposed = {2}},
                           AxisSummary{.axes = "dp", .communication = {5}, .exposed = {5}}));
}

TEST(Summary, WithoutPassesThereIsNoBubble) {
  Trace trace{.ranks = {{.events = {event(EventKind::all_gather, 0, 3)}}}};
  EXPECT_FALSE(summarize(trace).bubble.has_value());
  trace.ranks[0].events.push_back(event(EventKind::forward, 0, 3));
  EXPECT_FALSE(summarize(trace).bubble.has_value());
}

TEST(Summary, HiddenCommunicationIsNotExposed) {
  const Trace trace{
      .ranks = {{.events = {event(EventKind::forward, 0, 4), event(EventKind::send, 1, 2),
                            event(EventKind::all_reduce, 3, 4)}}}};
  const RankSummary rank = summarize(trace).ranks[0];
  EXPECT_EQ(rank.communication, Seconds{6});
  EXPECT_EQ(rank.exposed, Seconds{3});
  EXPECT_EQ(rank.idle, Seconds{0});
}

TEST(Summary, PeakIsTheFirstHighest) {
  Trace trace{.ranks = std::vector<RankTrace>(3)};
  trace.ranks[1].memory = {{.time = {1}, .bytes = {5}},
                           {.time = {2}, .bytes = {9}},
                           {.time = {3}, .bytes = {4}},
                           {.time = {4}, .bytes = {9}}};
  trace.ranks[2].memory = {{.time = {0}, .bytes = {9}}};
  const Summary summary = summarize(trace);
  EXPECT_EQ(summary.peak_rank, 1);
  EXPECT_EQ(summary.all.peak, Bytes{9});
  EXPECT_EQ(summary.all.peak_time, Seconds{2});
}

TEST(Summary, OfNothingIsZero) {
  EXPECT_EQ(summarize(Trace{}).total(), Seconds{0});
  EXPECT_EQ(summarize(Trace{.ranks = std::vector<RankTrace>(2)}).all, RankSummary{});
}

}  // namespace
}  // namespace shiplap::trace
