// One clock for the events of all ranks.
//
// Ranks that share a clock (LocalClock::identity) need nothing. Between different clocks, what is
// known are difference constraints (trace/align_clocks.h):
//
// - The communication of the step itself: a receive cannot end before its send begins, nor an
//   all_reduce before its last rank has entered it. These hold exactly in the merged trace, so no
//   picture shows an effect before its cause.
// - Round trips between rank 0 and every other rank after the step. They connect all ranks, also
//   those that exchanged no message, and their short delays make the intervals small. They are
//   measured later, so they are relaxed by what clocks may drift apart in between.
//
// Drift within the step is not modelled: 100 us in each second would be much, and a step takes
// milliseconds to seconds. It is added to the uncertainty.
//
// Two virtual machines restored from one snapshot have the same boot id and different clocks. So
// ranks do not share clocks if precedences contradict each other, and less so without sharing.
#include <algorithm>
#include <cstddef>
#include <limits>
#include <map>
#include <utility>

#include "shiplap/base/error.h"
#include "shiplap/run/communication_partners_internal.h"
#include "shiplap/run/merge_traces_internal.h"
#include "shiplap/trace/align_clocks.h"

namespace shiplap::run {
namespace {

using plan::LinkedProgram;
using plan::OperationId;

// How far clocks drift apart in a second. Crystals differ by up to 50 ppm from the truth.
constexpr double kMaxDrift = 100e-6;

// A contradiction that rounding cannot cause.
constexpr Seconds kContradiction{1e-9};

// The clocks of a job. Times are from the first start of a step on each clock: so they are small,
// and exact.
struct Clocks {
  std::vector<std::size_t> of_rank;
  std::vector<Seconds> zero;  // by clock

  [[nodiscard]] trace::Moment moment(std::size_t rank, Seconds time) const {
    return {.clock = of_rank[rank], .time = time - zero[of_rank[rank]]};
  }
};

enum class Sharing { by_identity, none };

Clocks find_clocks(const std::vector<RankStep>& ranks, Sharing sharing) {
  Clocks clocks;
  std::map<std::uint64_t, std::size_t> known;
  for (const RankStep& rank : ranks) {
    std::size_t clock = clocks.zero.size();
    if (rank.clock != 0 && sharing == Sharing::by_identity) {
      clock = known.try_emplace(rank.clock, clock).first->second;
    }
    if (clock == clocks.zero.size()) clocks.zero.push_back(rank.result.start);
    clocks.zero[clock] = std::min(clocks.zero[clock], rank.result.start);
    clocks.of_rank.push_back(clock);
  }
  return clocks;
}

std::size_t rank_of(OperationId id) { return static_cast<std::size_t>(id.rank); }

const trace::Event& event_of(const LinkedProgram& linked, const std::vector<RankStep>& ranks,
                             OperationId id) {
  return ranks[rank_of(id)].result.trace.events[linked.step(id).event];
}

void add_communication(const LinkedProgram& linked, const std::vector<RankStep>& ranks,
                       const Clocks& clocks, trace::ClockBounds& bounds) {
  const auto moment = [&](OperationId id, Seconds since_start) {
    return clocks.moment(rank_of(id), ranks[rank_of(id)].result.start + since_start);
  };
  for_each_partner(linked, [&](const Partners& pair) {
    if (!pair.needs) return;
    bounds.add({.earlier = moment(pair.partner, event_of(linked, ranks, pair.partner).time),
                .later = moment(pair.own, event_of(linked, ranks, pair.own).end())});
  });
}

void add_round_trips(const std::vector<RankStep>& ranks, const Clocks& clocks,
                     trace::ClockBounds& bounds) {
  for (std::size_t rank = 1; rank < ranks.size(); ++rank) {
    for (const RoundTrip& trip : ranks[rank].round_trips) {
      const trace::Moment sent = clocks.moment(0, trip.sent);
      const trace::Moment replied = clocks.moment(rank, trip.replied);
      const trace::Moment received = clocks.moment(0, trip.received);
      const Seconds drift{kMaxDrift * received.time.value};
      bounds.add({.earlier = sent, .later = {replied.clock, replied.time + drift}});
      bounds.add({.earlier = replied, .later = {received.clock, received.time + drift}});
    }
  }
}

trace::ClockAlignment align(const LinkedProgram& linked, const std::vector<RankStep>& ranks,
                            const Clocks& clocks) {
  trace::ClockBounds bounds(clocks.zero.size());
  add_communication(linked, ranks, clocks, bounds);
  add_round_trips(ranks, clocks, bounds);
  return bounds.align();
}

Seconds uncertainty_of(const trace::ClockAlignment& alignment, const std::vector<RankStep>& ranks) {
  if (alignment.clocks.size() < 2) return {};
  Seconds widest;
  for (const trace::AlignedClock& clock : alignment.clocks) {
    widest = std::max(widest, clock.uncertainty);
  }
  Seconds step;
  for (const RankStep& rank : ranks) step = std::max(step, rank.result.duration);
  return widest + alignment.violation + Seconds{kMaxDrift * step.value};
}

void shift(trace::RankTrace& rank, Seconds by) {
  for (trace::Event& event : rank.events) event.time += by;
  for (trace::MemoryPoint& point : rank.memory) point.time += by;
}

}  // namespace

void remove_waiting(const LinkedProgram& linked, trace::Trace& trace) {
  struct Begin {
    Seconds entered;  // by the last partner before the end of the event
    Seconds needed_until{
        std::numeric_limits<double>::infinity()};  // first end of an event that needs it
  };
  std::vector<std::vector<Begin>> begins;
  for (const trace::RankTrace& rank : trace.ranks) {
    for (auto& made = begins.emplace_back(); const trace::Event& event : rank.events) {
      made.push_back({.entered = event.time});
    }
  }
  const auto event = [&](OperationId id) -> trace::Event& {
    return trace.ranks[rank_of(id)].events[linked.step(id).event];
  };
  const auto begin = [&](OperationId id) -> Begin& {
    return begins[rank_of(id)][linked.step(id).event];
  };
  for_each_partner(linked, [&](const Partners& pair) {
    const Seconds entered = event(pair.partner).time;
    const Seconds end = event(pair.own).end();
    Begin& own = begin(pair.own);
    if (entered <= end) own.entered = std::max(own.entered, entered);
    Begin& partner = begin(pair.partner);
    if (pair.needs) partner.needed_until = std::min(partner.needed_until, end);
  });
  for (std::size_t rank = 0; rank < begins.size(); ++rank) {
    for (std::size_t k = 0; k < begins[rank].size(); ++k) {
      trace::Event& moved = trace.ranks[rank].events[k];
      const Begin& at = begins[rank][k];
      const Seconds end = moved.end();
      moved.time = std::max(moved.time, std::min(at.entered, at.needed_until));
      moved.duration = end - moved.time;
    }
  }
}

trace::Trace merge_traces(const LinkedProgram& linked, std::vector<RankStep> ranks) {
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    ensure(std::cmp_equal(ranks[rank].result.trace.events.size(),
                          linked.template_of(static_cast<std::int32_t>(rank)).events),
           "every rank traced its step");
  }
  Clocks clocks = find_clocks(ranks, Sharing::by_identity);
  trace::ClockAlignment alignment = align(linked, ranks, clocks);
  if (alignment.violation > kContradiction && clocks.zero.size() < ranks.size()) {
    const Clocks separate = find_clocks(ranks, Sharing::none);
    const trace::ClockAlignment aligned = align(linked, ranks, separate);
    // Else the contradiction is between clocks that nobody takes for one.
    if (aligned.violation.value < alignment.violation.value / 2) {
      clocks = separate;
      alignment = aligned;
    }
  }
  std::vector<Seconds> starts;  // on the clock of rank 0
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const trace::Moment start = clocks.moment(rank, ranks[rank].result.start);
    starts.push_back(start.time + alignment.clocks[start.clock].offset);
  }
  const Seconds first = *std::ranges::min_element(starts);
  trace::Trace trace{.streams = plan::trace_streams(*linked.plan).names,
                     .axes = ranks.front().result.axes,
                     .clock_uncertainty = uncertainty_of(alignment, ranks)};
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    trace.ranks.push_back(std::move(ranks[rank].result.trace));
    shift(trace.ranks.back(), starts[rank] - first);
  }
  remove_waiting(linked, trace);
  return trace;
}

}  // namespace shiplap::run
