// Sets of moments: which times are covered by some events, which by others but not by those, and
// how long that is together.
#pragma once

#include <vector>

#include "shiplap/base/units.h"

namespace shiplap::trace {

// From `begin` until before `end`.
struct Span {
  Seconds begin;
  Seconds end;
  [[nodiscard]] Seconds length() const { return end - begin; }
  friend bool operator==(const Span&, const Span&) = default;
};

// In order; none is empty, and between any two there is a gap.
using Spans = std::vector<Span>;

// What any of them covers. They come in any order and may be empty.
[[nodiscard]] Spans united(std::vector<Span> spans);

// What `spans` covers and `others` does not.
[[nodiscard]] Spans without(const Spans& spans, const Spans& others);

// What lies in `window`.
[[nodiscard]] Spans within(const Spans& spans, const Span& window);

[[nodiscard]] Seconds length(const Spans& spans);

}  // namespace shiplap::trace
