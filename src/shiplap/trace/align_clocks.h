// Aligns clocks that nobody set together, by what is known to have happened in order: a receive
// does not end before its send began, a collective not before its last rank entered it.
//
//   ClockBounds bounds(2);
//   bounds.add({.earlier = {0, send.time}, .later = {1, recv.end()}});    // a message from 0 to 1
//   bounds.add({.earlier = {1, reply.time}, .later = {0, reply_end}});    // and one back
//   bounds.align().clocks[1].offset;       // add it to the times of clock 1
//
// Each such fact bounds the difference of two offsets from one side: a system of difference
// constraints, solved by shortest paths (Bellman-Ford; Cormen et al., Introduction to Algorithms,
// 24.4).
#pragma once

#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include "shiplap/base/units.h"

namespace shiplap::trace {

// What a clock showed.
struct Moment {
  std::size_t clock = 0;
  Seconds time;
};

// In truth, `earlier` was not after `later`.
struct Precedence {
  Moment earlier;
  Moment later;
};

struct AlignedClock {
  Seconds offset;       // to be added to its times; that of clock 0 is 0
  Seconds uncertainty;  // the true offset differs by at most this, if clocks run equally fast
};

struct ClockAlignment {
  std::vector<AlignedClock> clocks;
  // 0: every precedence holds after alignment. Otherwise they contradict each other, and some are
  // violated by up to this.
  Seconds violation;
};

class ClockBounds {
 public:
  explicit ClockBounds(std::size_t clocks) : clocks_(clocks) {}

  void add(const Precedence& known);

  // Offsets with which every precedence holds: of each clock, the middle of what it may have.
  // REQUIRES: precedences lead, directly or not, from clock 0 to every other one and back.
  [[nodiscard]] ClockAlignment align() const;

 private:
  std::size_t clocks_;
  // By the clocks of `earlier` and `later`: offset of the first - offset of the second <= bound.
  std::map<std::pair<std::size_t, std::size_t>, double> bounds_;
};

}  // namespace shiplap::trace
