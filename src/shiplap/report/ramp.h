// A sequential colour ramp for ordered items, such as documents: from dark indigo to light green,
// in perceptually equal steps.
//
// The ramp is a straight line in lightness and an arc of hue at constant chroma in OKLCH (Ottosson
// 2020), so equal steps are equal distances. Lightness alone encodes the order, for colour-blind
// readers and for print.
#pragma once

#include <cstdint>
#include <string>

namespace shiplap::report {

inline constexpr int kRampSteps = 64;

// The step of item `index` of `count`.
[[nodiscard]] int ramp_step(std::int64_t index, std::int64_t count);

// "#5b4f9c". `step` is in [0, kRampSteps).
[[nodiscard]] std::string ramp_colour(int step);

// Whether white text is more readable on it than black text.
[[nodiscard]] bool ramp_is_dark(int step);

// CSS rules .r0, .r1, ... that fill with the colours, and the variable --ramp, their gradient.
[[nodiscard]] std::string ramp_style();

}  // namespace shiplap::report
