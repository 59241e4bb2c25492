// Random numbers that are identical on every machine and with every compiler.
//
// The generator is xoshiro256**, seeded through SplitMix64 (Blackman and Vigna, "Scrambled linear
// pseudorandom number generators", 2021). The standard library's distributions differ between
// implementations, so ours are written out here.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace shiplap {

class Random {
 public:
  explicit Random(std::uint64_t seed);

  // Uniform over all 64-bit numbers.
  std::uint64_t next();

  // Uniform over begin .. end-1, without bias. REQUIRES: begin < end.
  std::int64_t between(std::int64_t begin, std::int64_t end);

  // Uniform over [0, 1), in steps of 2^-53.
  double unit();

  // True with `probability`.
  bool chance(double probability = 0.5);

  template <class T>
  const T& pick(const std::vector<T>& from) {
    return from[between(0, static_cast<std::int64_t>(from.size()))];
  }

  template <class T>
  void shuffle(std::vector<T>& values) {
    for (std::size_t i = values.size(); i > 1; --i) {
      using std::swap;
      swap(values[i - 1], values[between(0, static_cast<std::int64_t>(i))]);
    }
  }

  // An independent generator for part `index` of a task. It does not depend on how many numbers
  // this one has generated, so that parts can run in any order.
  [[nodiscard]] Random split(std::uint64_t index) const;

 private:
  std::array<std::uint64_t, 4> state_;
  std::uint64_t seed_;
};

}  // namespace shiplap
