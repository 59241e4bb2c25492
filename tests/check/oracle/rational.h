// Exact fractions: what the arithmetic of the oracle counts in.
#pragma once

#include <cstdint>
#include <limits>
#include <numeric>

#include "shiplap/base/error.h"
#include "shiplap/plan/value.h"

namespace shiplap::oracle {

// In lowest terms, with a positive denominator. Throws InternalError where 64 bits do not suffice.
class Rational {
 public:
  Rational() = default;
  Rational(std::int64_t numerator, std::int64_t denominator)
      : Rational(reduced(numerator, denominator)) {}
  explicit Rational(const plan::Ratio& ratio) : Rational(ratio.numerator(), ratio.denominator()) {}

  [[nodiscard]] std::int64_t numerator() const { return numerator_; }
  [[nodiscard]] std::int64_t denominator() const { return denominator_; }
  [[nodiscard]] bool is_zero() const { return numerator_ == 0; }

  friend Rational operator+(const Rational& a, const Rational& b) {
    return reduced(Wide{a.numerator_} * b.denominator_ + Wide{b.numerator_} * a.denominator_,
                   Wide{a.denominator_} * b.denominator_);
  }
  friend Rational operator*(const Rational& a, const Rational& b) {
    return reduced(Wide{a.numerator_} * b.numerator_, Wide{a.denominator_} * b.denominator_);
  }
  // REQUIRES: b is positive.
  friend Rational operator/(const Rational& a, const Rational& b) {
    return reduced(Wide{a.numerator_} * b.denominator_, Wide{a.denominator_} * b.numerator_);
  }
  friend bool operator==(const Rational&, const Rational&) = default;

 private:
  __extension__ using Wide = __int128;

  static Rational reduced(Wide numerator, Wide denominator) {
    Wide a = numerator < 0 ? -numerator : numerator;
    for (Wide b = denominator; b != 0;) {
      const Wide rest = a % b;
      a = b;
      b = rest;
    }
    const Wide common = a == 0 ? 1 : a;
    Rational result;
    result.numerator_ = narrow(numerator / common);
    result.denominator_ = narrow(denominator / common);
    return result;
  }

  static std::int64_t narrow(Wide number) {
    if (number > std::numeric_limits<std::int64_t>::max() ||
        number < std::numeric_limits<std::int64_t>::min()) {
      throw InternalError("a coefficient of the oracle needs more than 64 bits");
    }
    return static_cast<std::int64_t>(number);
  }

  std::int64_t numerator_ = 0;
  std::int64_t denominator_ = 1;
};

}  // namespace shiplap::oracle
