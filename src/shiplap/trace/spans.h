// Sets of times as disjoint intervals: union, difference, intersection and length.
#pragma once

#include <vector>

#include "shiplap/base/units.h"

namespace shiplap::trace {

// The half-open interval [begin, end).
struct Span {
  Seconds begin;
  Seconds end;
  [[nodiscard]] Seconds length() const { return end - begin; }
  friend bool operator==(const Span&, const Span&) = default;
};

// Sorted, not empty, and with a gap between any two.
using Spans = std::vector<Span>;

// The union. The spans may be empty and in any order.
[[nodiscard]] Spans united(std::vector<Span> spans);

// The difference: `spans` without `others`.
[[nodiscard]] Spans without(const Spans& spans, const Spans& others);

// The intersection with `window`.
[[nodiscard]] Spans within(const Spans& spans, const Span& window);

[[nodiscard]] Seconds length(const Spans& spans);

}  // namespace shiplap::trace
