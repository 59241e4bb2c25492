#include "shiplap/base/random.h"

#include <bit>

#include "shiplap/base/error.h"

namespace shiplap {
namespace {

constexpr std::uint64_t kGoldenRatio = 0x9E3779B97F4A7C15;  // 2^64 divided by the golden ratio

// The output function of SplitMix64: a bijection in which every input bit affects all output bits.
std::uint64_t mix(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

}  // namespace

Random::Random(std::uint64_t seed) : state_(), seed_(seed) {
  for (std::uint64_t& word : state_) {
    seed += kGoldenRatio;
    word = mix(seed);
  }
}

std::uint64_t Random::next() {
  auto& s = state_;
  const std::uint64_t result = std::rotl(s[1] * 5, 7) * 9;
  const std::uint64_t t = s[1] << 17;
  s[2] ^= s[0];
  s[3] ^= s[1];
  s[1] ^= s[2];
  s[0] ^= s[3];
  s[2] ^= t;
  s[3] = std::rotl(s[3], 45);
  return result;
}

std::int64_t Random::between(std::int64_t begin, std::int64_t end) {
  ensure(begin < end, "the range is not empty");
  // Unsigned arithmetic, because the difference may not fit into 63 bits.
  const auto range = static_cast<std::uint64_t>(end) - static_cast<std::uint64_t>(begin);
  // 2^64 modulo the range. Without the numbers below it, the rest is a multiple of the range.
  const std::uint64_t surplus = (0 - range) % range;
  std::uint64_t number = next();
  while (number < surplus) number = next();
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(begin) + number % range);
}

double Random::unit() { return static_cast<double>(next() >> 11) * 0x1p-53; }

bool Random::chance(double probability) { return unit() < probability; }

// Mixing before and after adding the index keeps the parts of neighbouring seeds, and parts of
// parts, distinct.
Random Random::split(std::uint64_t index) const {
  return Random(mix(mix(seed_ ^ kGoldenRatio) + (index + 1) * kGoldenRatio));
}

}  // namespace shiplap
