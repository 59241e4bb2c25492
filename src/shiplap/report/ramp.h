// The colours of things in an order, such as documents: from dark indigo to light green, in steps
// that look equal.
//
// The ramp is a straight line in lightness and an arc of hue at constant chroma in OKLCH (Ottosson
// 2020), so equal steps are equal distances. Lightness alone tells the order, which serves readers
// who do not see the hues, and paper.
#pragma once

#include <cstdint>
#include <string>

namespace shiplap::report {

inline constexpr int kRampSteps = 64;

// The step of thing `index` of `count`.
[[nodiscard]] int ramp_step(std::int64_t index, std::int64_t count);

// "#5b4f9c". `step` is in [0, kRampSteps).
[[nodiscard]] std::string ramp_colour(int step);

// Whether white text is read better on it than black.
[[nodiscard]] bool ramp_is_dark(int step);

// Rules .r0, .r1, ... that fill with the colours, and the variable --ramp, a gradient of them all.
[[nodiscard]] std::string ramp_style();

}  // namespace shiplap::report
