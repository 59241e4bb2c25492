// Traces of ranks whose clocks differ.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "shiplap/run/merge_traces_internal.h"
#include "shiplap/run/testing_internal.h"

namespace shiplap::run {
namespace {

using trace::Event;
using trace::EventKind;

// A pipeline there and back, then every kind of collective. Ranks compute for different times.
const std::string kEveryKind = R"(shiplap-plan 1
mesh dp=4
list cut = 0 1 3 3 4
table rows
  message 0 1 0 2 1
  message 3 1 0 1 0
program all on all
  buffer x rows 4 row_bytes 64 f32
  buffer y rows 4 row_bytes 64 f32
  repeat i 2
    when dp>0
      receive y from dp-1
    end
    compute work
    when dp<3
      send x to dp+1
      receive y from dp+1 tag 1
    end
    when dp>0
      send x to dp-1 tag 1
    end
    all_reduce x over dp
    compute work
    all_gather y over dp
    compute work
    all_gather x[dp of cut] to y over dp split cut
    compute work
    reduce_scatter y over dp
    compute work
    all_to_all x to y over dp
    compute work
    broadcast x to y over dp root 2
    compute work
    reduce x to y over dp root 1
    compute work
    exchange x to y by rows over dp
    compute work
    barrier over dp
  end
)";

const std::vector<double> kSkews{0, 3.5, -2, 1000};

KernelTable sleeping_kernels() {
  KernelTable kernels;
  kernels.bind("work", [](const KernelCall& call) {
    std::this_thread::sleep_for(std::chrono::microseconds(150 * (3 - call.program->rank.value)));
  });
  return kernels;
}

// Which events of a kind need those of another rank, known from the text above.
bool needs_rank(const Event& event, int number, int partner) {
  switch (event.kind) {
    case EventKind::broadcast:
      return partner == 2;
    case EventKind::reduce:
      return event.rank == 1;
    case EventKind::exchange:
      return event.rank == 1 && (partner == 0 || partner == 3);
    case EventKind::all_gather:
      return number % 2 == 0 || partner != 2;
    default:
      return true;
  }
}

std::vector<const Event*> of_kind(const trace::RankTrace& rank, EventKind kind) {
  std::vector<const Event*> found;
  for (const Event& event : rank.events) {
    if (event.kind == kind) found.push_back(&event);
  }
  return found;
}

// Every event that ends before one that it needs begins.
std::vector<std::string> acausal_events(const trace::Trace& trace) {
  std::vector<std::string> found;
  const auto compare = [&](const Event& event, const Event& needed) {
    const double early = (needed.time - event.end()).value;
    if (early <= 1e-9) return;
    found.push_back(fmt::format("{} on rank {} ends {} s before that of rank {} begins",
                                name(event.kind), event.rank, early, needed.rank));
  };
  for (const trace::RankTrace& rank : trace.ranks) {
    for (const Event* const recv : of_kind(rank, EventKind::recv)) {
      const trace::RankTrace& sender = trace.ranks.at(recv->peer);
      const auto sent = std::ranges::find_if(sender.events, [&](const Event& event) {
        return event.kind == EventKind::send && event.match == recv->match;
      });
      if (sent != sender.events.end()) compare(*recv, *sent);
    }
  }
  for (auto k = static_cast<int>(EventKind::all_reduce); k <= static_cast<int>(EventKind::exchange);
       ++k) {
    for (std::size_t a = 0; a < trace.ranks.size(); ++a) {
      for (std::size_t b = 0; b < trace.ranks.size(); ++b) {
        if (a == b) continue;
        const auto own = of_kind(trace.ranks[a], static_cast<EventKind>(k));
        const auto others = of_kind(trace.ranks[b], static_cast<EventKind>(k));
        for (std::size_t n = 0; n < std::min(own.size(), others.size()); ++n) {
          if (needs_rank(*own[n], static_cast<int>(n), static_cast<int>(b))) {
            compare(*own[n], *others[n]);
          }
        }
      }
    }
  }
  return found;
}

StepResult skewed(StepResult result, double skew) {
  result.start += Seconds{skew};
  return result;
}

// What happens without alignment.
trace::Trace unaligned(std::vector<StepResult> steps) {
  trace::Trace trace;
  for (StepResult& step : steps) {
    for (Event& event : step.trace.events) event.time += step.start;
    trace.ranks.push_back(std::move(step.trace));
  }
  return trace;
}

struct Traces {
  trace::Trace shared;        // the threads share a clock
  trace::Trace skewed;        // each has its own, off by seconds
  trace::Trace contradicted;  // the same, but they claim to share it
  trace::Trace unaligned;
};

Traces traces_of(const plan::Plan& plan) {
  const KernelTable kernels = sleeping_kernels();
  Traces traces;
  on_ranks(plan, [&](comm::Communicator& world) {
    Executor executor(plan, world, kernels, {.traces = true});
    executor.step();
    const StepResult result = executor.step();
    const Seconds skew{kSkews.at(static_cast<std::size_t>(world.rank()))};
    const StepResult off = skewed(result, skew.value);
    const auto own = static_cast<std::uint64_t>(world.rank()) + 1;
    Traces made{.shared = gather_trace(world, plan, result),
                .skewed = gather_trace(world, plan, off, {.identity = own, .skew = skew}),
                .contradicted = gather_trace(world, plan, off, {.identity = 1, .skew = skew}),
                .unaligned = unaligned(gather_steps(world, off))};
    if (world.rank() == 0) traces = std::move(made);
  });
  return traces;
}

// How far the ends of events are apart, if those of rank 0 are the same.
double largest_difference(const trace::Trace& a, const trace::Trace& b) {
  const double zero = (b.ranks[0].events[0].end() - a.ranks[0].events[0].end()).value;
  double largest = 0;
  for (std::size_t rank = 0; rank < a.ranks.size(); ++rank) {
    for (std::size_t k = 0; k < a.ranks[rank].events.size(); ++k) {
      const Seconds apart = b.ranks[rank].events[k].end() - a.ranks[rank].events[k].end();
      largest = std::max(largest, std::abs(apart.value - zero));
    }
  }
  return largest;
}

TEST(MergeTraces, ClocksThatAreSecondsApartAreAligned) {
  const plan::Plan plan = plan::parse_text(kEveryKind, "test");
  const Traces traces = traces_of(plan);
  EXPECT_EQ(traces.shared.clock_uncertainty, Seconds{0});
  EXPECT_THAT(acausal_events(traces.shared), testing::IsEmpty());
  for (const trace::Trace* const aligned : {&traces.skewed, &traces.contradicted}) {
    EXPECT_GT(aligned->clock_uncertainty, Seconds{0});
    EXPECT_LT(aligned->clock_uncertainty, Seconds{0.1});
    EXPECT_THAT(acausal_events(*aligned), testing::IsEmpty());
    EXPECT_LE(largest_difference(traces.shared, *aligned), aligned->clock_uncertainty.value + 1e-9);
  }
  // So that the silence above means something.
  EXPECT_GT(acausal_events(traces.unaligned).size(), 10U);
}

TEST(MergeTraces, RoundTripsAlignRanksThatDoNotCommunicate) {
  const plan::Plan plan =
      plan::parse_text("shiplap-plan 1\nmesh dp=4\nprogram all on all\n  compute work\n", "test");
  const Traces traces = traces_of(plan);
  for (const trace::Trace* const aligned : {&traces.skewed, &traces.contradicted}) {
    EXPECT_GT(aligned->clock_uncertainty, Seconds{0});
    EXPECT_LT(aligned->clock_uncertainty, Seconds{0.1});
    EXPECT_LE(largest_difference(traces.shared, *aligned), aligned->clock_uncertainty.value + 1e-9);
  }
}

TEST(MergeTraces, ACollectiveBeginsOnAllRanksAtOnce) {
  const plan::Plan plan = plan::parse_text(kEveryKind, "test");
  const Traces traces = traces_of(plan);
  for (const EventKind kind :
       {EventKind::all_reduce, EventKind::reduce_scatter, EventKind::all_to_all}) {
    for (std::size_t rank = 1; rank < 4; ++rank) {
      const auto first = of_kind(traces.shared.ranks[0], kind);
      const auto other = of_kind(traces.shared.ranks[rank], kind);
      ASSERT_EQ(first.size(), other.size());
      for (std::size_t n = 0; n < first.size(); ++n) {
        EXPECT_NEAR(first[n]->time.value, other[n]->time.value, 1e-9);
      }
    }
  }
}

// Two hosts with two ranks each, the second with a clock that runs 30 ppm fast: over 20 s they
// contradict any one offset.
TEST(MergeTraces, HostsWhoseClocksDriftKeepTheClocksOfTheirRanks) {
  const plan::Plan plan = plan::parse_text(
      "shiplap-plan 1\nmesh dp=4\nprogram all on all\n  buffer x rows 1 row_bytes 4 f32\n"
      "  repeat i 200\n    all_reduce x over dp\n  end\n",
      "test");
  const plan::LinkedProgram linked = plan::link(plan, {});
  std::vector<RankStep> steps(4);
  for (int rank = 0; rank < 4; ++rank) {
    const double pace = rank < 2 ? 1 : 1 + 30e-6;
    RankStep& step = steps[static_cast<std::size_t>(rank)];
    step.clock = rank < 2 ? 1 : 2;
    step.result.duration = {20 * pace};
    step.result.trace = linked.trace.ranks[static_cast<std::size_t>(rank)];
    for (std::size_t k = 0; k < step.result.trace.events.size(); ++k) {
      const auto begin = 0.1 * static_cast<double>(k);
      step.result.trace.events[k].time = {begin * pace};
      step.result.trace.events[k].duration = {1e-4 * pace};
    }
    step.round_trips = {{.sent = {20.1}, .replied = {20.10005 * pace}, .received = {20.1001}}};
  }
  const trace::Trace merged = merge_traces(linked, steps);
  EXPECT_GT(merged.clock_uncertainty, Seconds{100e-6});
  for (const std::size_t first : {0U, 2U}) {
    for (std::size_t k = 0; k < merged.ranks[first].events.size(); ++k) {
      EXPECT_EQ(merged.ranks[first].events[k].end(), merged.ranks[first + 1].events[k].end());
    }
  }
}

// ---- waiting, in times that are given

// The events of a plan at the given times, [rank][event] = {begin, end}.
trace::Trace without_waiting(const std::string& text,
                             const std::vector<std::vector<std::pair<double, double>>>& times) {
  const plan::Plan plan = plan::parse_text("shiplap-plan 1\n" + text, "test");
  const plan::LinkedProgram linked = plan::link(plan, {});
  trace::Trace trace = linked.trace;
  for (std::size_t rank = 0; rank < times.size(); ++rank) {
    EXPECT_EQ(trace.ranks[rank].events.size(), times[rank].size());
    for (std::size_t k = 0; k < times[rank].size(); ++k) {
      const auto [begin, end] = times[rank][k];
      trace.ranks[rank].events[k].time = {begin};
      trace.ranks[rank].events[k].duration = {end - begin};
    }
  }
  remove_waiting(linked, trace);
  return trace;
}

std::vector<double> begins_of(const trace::Trace& trace, std::size_t event) {
  std::vector<double> begins;
  for (const trace::RankTrace& rank : trace.ranks) begins.push_back(rank.events[event].time.value);
  return begins;
}

const std::string kTwo = "mesh dp=2\nprogram all on all\n  buffer x rows 1 row_bytes 4 f32\n";
const std::string kThree = "mesh dp=3\nprogram all on all\n  buffer x rows 1 row_bytes 4 f32\n";
const std::string kMessage =
    kTwo + "  when dp=0\n    send x to dp+1\n  end\n  when dp=1\n    receive x from dp-1\n  end\n";

TEST(RemoveWaiting, AReceiveBeginsWithItsSend) {
  EXPECT_THAT(begins_of(without_waiting(kMessage, {{{5, 7}}, {{1, 8}}}), 0),
              testing::ElementsAre(5, 5));
}

TEST(RemoveWaiting, ASendThatBlocksBeginsWithItsReceive) {
  EXPECT_THAT(begins_of(without_waiting(kMessage, {{{1, 8}}, {{5, 7}}}), 0),
              testing::ElementsAre(5, 5));
}

TEST(RemoveWaiting, ASendThatWasBufferedDidNotWait) {
  EXPECT_THAT(begins_of(without_waiting(kMessage, {{{1, 2}}, {{5, 7}}}), 0),
              testing::ElementsAre(1, 5));
}

TEST(RemoveWaiting, EndsStay) {
  const trace::Trace trace = without_waiting(kMessage, {{{5, 7}}, {{1, 8}}});
  EXPECT_EQ(trace.ranks[0].events[0].end(), Seconds{7});
  EXPECT_EQ(trace.ranks[1].events[0].end(), Seconds{8});
}

TEST(RemoveWaiting, AnAllReduceBeginsWithItsLastRank) {
  EXPECT_THAT(
      begins_of(
          without_waiting(kThree + "  all_reduce x over dp", {{{1, 9}}, {{4, 9.5}}, {{2, 10}}}), 0),
      testing::ElementsAre(4, 4, 4));
}

// The root of a broadcast has left before rank 2 enters. Rank 1 has too.
TEST(RemoveWaiting, ABroadcastDoesNotWaitForLateRanks) {
  EXPECT_THAT(begins_of(without_waiting(kThree + "  broadcast x over dp root 0",
                                        {{{3, 4}}, {{1, 5}}, {{6, 7}}}),
                        0),
              testing::ElementsAre(3, 3, 6));
}

// Nor does its root seem to begin after a rank has its data.
TEST(RemoveWaiting, NothingMovesBehindWhatItCauses) {
  EXPECT_THAT(begins_of(without_waiting(kThree + "  broadcast x over dp root 0",
                                        {{{3, 8}}, {{1, 5}}, {{6, 7}}}),
                        0),
              testing::ElementsAre(5, 3, 6));
}

TEST(RemoveWaiting, ComputationsStay) {
  EXPECT_THAT(begins_of(without_waiting(kTwo + "  compute a\n  barrier over dp",
                                        {{{0, 1}, {1, 6}}, {{0, 5}, {5, 6}}}),
                        0),
              testing::ElementsAre(0, 0));
}

}  // namespace
}  // namespace shiplap::run
