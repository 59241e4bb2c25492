#include "shiplap/plan/value.h"

#include <fmt/format.h>

#include <numeric>

#include "shiplap/base/error.h"

namespace shiplap::plan {

Ratio::Ratio(std::int64_t numerator, std::int64_t denominator) {
  ensure(numerator > 0 && denominator > 0, "a ratio is positive");
  const std::int64_t common = std::gcd(numerator, denominator);
  numerator_ = numerator / common;
  denominator_ = denominator / common;
}

std::string format_ratio(const Ratio& ratio) {
  if (ratio.denominator() == 1) return fmt::format("{}", ratio.numerator());
  return fmt::format("{}/{}", ratio.numerator(), ratio.denominator());
}

}  // namespace shiplap::plan
