// Strongly typed quantities. Meaningless arithmetic does not compile.
#pragma once

#include <compare>
#include <cstdint>
#include <string>

namespace shiplap {

struct Bytes {
  std::int64_t count = 0;
  friend constexpr auto operator<=>(Bytes, Bytes) = default;
  friend constexpr Bytes operator+(Bytes a, Bytes b) { return {a.count + b.count}; }
  friend constexpr Bytes operator-(Bytes a, Bytes b) { return {a.count - b.count}; }
  friend constexpr Bytes operator*(std::int64_t n, Bytes b) { return {n * b.count}; }
  constexpr Bytes& operator+=(Bytes b) { return *this = *this + b; }
};

struct Seconds {
  double value = 0;
  friend constexpr auto operator<=>(Seconds, Seconds) = default;
  friend constexpr Seconds operator+(Seconds a, Seconds b) { return {a.value + b.value}; }
  friend constexpr Seconds operator-(Seconds a, Seconds b) { return {a.value - b.value}; }
  friend constexpr Seconds operator*(std::int64_t n, Seconds s) {
    return {static_cast<double>(n) * s.value};
  }
  friend constexpr double operator/(Seconds a, Seconds b) { return a.value / b.value; }
  constexpr Seconds& operator+=(Seconds s) { return *this = *this + s; }
};

struct Flops {
  double count = 0;  // operations, not a rate
  friend constexpr auto operator<=>(Flops, Flops) = default;
  friend constexpr Flops operator+(Flops a, Flops b) { return {a.count + b.count}; }
};

struct Bandwidth {
  double bytes_per_second = 0;
  friend constexpr auto operator<=>(Bandwidth, Bandwidth) = default;
};

struct FlopRate {
  double flops_per_second = 0;
  friend constexpr auto operator<=>(FlopRate, FlopRate) = default;
};

constexpr Seconds operator/(Bytes b, Bandwidth w) {
  return {static_cast<double>(b.count) / w.bytes_per_second};
}
constexpr Bandwidth operator/(Bytes b, Seconds s) {
  return {static_cast<double>(b.count) / s.value};
}
constexpr Seconds operator/(Flops f, FlopRate r) { return {f.count / r.flops_per_second}; }
constexpr FlopRate operator/(Flops f, Seconds s) { return {f.count / s.value}; }

// Human-readable, three significant digits: "512 B", "1.50 KiB", "31.2 GiB"; "12.4 ms", "1.02 s",
// "3.50 us"; "4.00 Gflop"; "398 GB/s" (decimal units); "989 Tflop/s".
[[nodiscard]] std::string to_string(Bytes bytes);
[[nodiscard]] std::string to_string(Seconds seconds);
[[nodiscard]] std::string to_string(Flops flops);
[[nodiscard]] std::string to_string(Bandwidth bandwidth);
[[nodiscard]] std::string to_string(FlopRate rate);

// 131072 as "131,072".
[[nodiscard]] std::string with_separators(std::int64_t number);

}  // namespace shiplap
