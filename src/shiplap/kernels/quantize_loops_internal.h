// The loops of quantize_internal.h, inlined into whoever includes them, so that they can be
// compiled for several processors.
//
// A product and a sum must not be contracted into one operation, or processors would differ.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "shiplap/kernels/lanes_internal.h"
#include "shiplap/kernels/quantize_internal.h"

namespace shiplap::kernels {

using Codes [[gnu::vector_size(kLanes)]] = std::uint8_t;

// What the bits of the two formats differ in. Sizes are those of floats.
template <DType kFormat>
struct Format {
  static constexpr bool kIsE4m3 = kFormat == DType::fp8_e4m3;
  static constexpr std::uint32_t kShift = kIsE4m3 ? 20 : 21;  // 23 without the bits of a mantissa
  static constexpr std::uint32_t kLargest = kIsE4m3 ? 0x43e00000 : 0x47600000;
  static constexpr std::uint32_t kSmallestNormal = kIsE4m3 ? 0x3c800000 : 0x38800000;
  static constexpr std::uint32_t kFromLargestToNan = kIsE4m3 ? 1 : 3;
  static constexpr std::uint32_t kFirstSpecial = kIsE4m3 ? 0x7f : 0x7c;
  static constexpr std::uint32_t kPowerOfLargest = kIsE4m3 ? 8 : 15;
};

// Codes of 16 numbers. 2^(23 - bits of mantissa) times the power of two of a number, added to it,
// leaves in the lowest bits how many steps of that power the number is, rounded; subnormal numbers
// take the steps of the smallest normal one. Only eight bits are of interest, of which that power
// has none.
template <DType kFormat>
[[gnu::always_inline]] inline void encode(const Lanes& x, std::byte* to) {
  using F = Format<kFormat>;
  const Words bits = reinterpret_cast<Words>(x);
  const Words given = bits & 0x7fffffffU;
  const Words size = given < F::kLargest ? given : Words{} + F::kLargest;
  const Words exponent = size & 0x7f800000U;
  const Words power = exponent > F::kSmallestNormal ? exponent : Words{} + F::kSmallestNormal;
  const Lanes steps =
      reinterpret_cast<Lanes>(size) + reinterpret_cast<Lanes>(power + (F::kShift << 23));
  Words code =
      reinterpret_cast<Words>(steps) + (power >> F::kShift) - (F::kSmallestNormal >> F::kShift);
  code = given > 0x7f800000U ? code + F::kFromLargestToNan : code;
  code |= (bits >> 24) & 0x80U;
  const Codes codes = __builtin_convertvector(code, Codes);
  std::memcpy(to, &codes, sizeof codes);
}

template <DType kFormat>
[[gnu::always_inline]] inline void encode_some(const Lanes& x, std::int64_t count, std::byte* to) {
  if (count >= kLanes) return encode<kFormat>(x, to);
  std::byte some[kLanes];
  encode<kFormat>(x, some);
  std::copy_n(some, count, to);
}

// Numbers of 16 codes. A subnormal is taken as if it had the exponent of the smallest normal
// number, which is then taken off.
template <DType kFormat>
[[gnu::always_inline]] inline void decode(const std::byte* from, Lanes& x) {
  using F = Format<kFormat>;
  Codes codes;
  std::memcpy(&codes, from, sizeof codes);
  const Words bits = __builtin_convertvector(codes, Words);
  const Words size = bits & 0x7fU;
  const Words usual = (size << F::kShift) + (F::kSmallestNormal - 0x800000U);
  const Lanes tiny = reinterpret_cast<Lanes>(usual + 0x800000U) -
                     reinterpret_cast<Lanes>(Words{} + F::kSmallestNormal);
  Words number = usual < F::kSmallestNormal ? reinterpret_cast<Words>(tiny) : usual;
  number = size >= F::kFirstSpecial ? number | 0x7f800000U : number;
  x = reinterpret_cast<Lanes>(number | (bits & 0x80U) << 24);
}

template <DType kFormat>
[[gnu::always_inline]] inline void decode_some(const std::byte* from, std::int64_t count,
                                               Lanes& x) {
  if (count >= kLanes) return decode<kFormat>(from, x);
  std::byte some[kLanes]{};
  std::copy_n(from, count, some);
  decode<kFormat>(some, x);
}

// The sizes of floats, as whole numbers; that of a NaN is 0.
[[gnu::always_inline]] inline void raise(const Lanes& x, Words& largest) {
  const Words size = reinterpret_cast<Words>(x) & 0x7fffffffU;
  const Words counted = size > 0x7f800000U ? Words{} : size;
  largest = largest > counted ? largest : counted;
}

[[gnu::always_inline]] inline std::uint32_t most(const Words& words) {
  std::uint32_t each[kLanes];
  std::memcpy(each, &words, sizeof each);
  std::uint32_t result = 0;
  for (const std::uint32_t one : each) result = std::max(result, one);
  return result;
}

template <class T>
[[gnu::always_inline]] inline float largest_of(const AmaxStep& step) {
  const T* const from = static_cast<const T*>(step.from);
  const std::int64_t count = step.count;
  Words largest{};
  Lanes x;
  std::int64_t j = 0;
  for (; j + kLanes <= count; j += kLanes) {
    load(from + j, x);
    raise(x, largest);
  }
  load_some(from + j, count - j, x);
  raise(x, largest);
  return std::bit_cast<float>(most(largest));
}

template <class T, DType kFormat>
[[gnu::always_inline]] inline void round_numbers(const RoundStep& step) {
  const T* const from = static_cast<const T*>(step.from);
  std::byte* const to = step.to;
  const std::int64_t count = step.count;
  const float scale = step.scale;
  Lanes x;
  std::int64_t j = 0;
  for (; j + kLanes <= count; j += kLanes) {
    load(from + j, x);
    x *= scale;
    encode<kFormat>(x, to + j);
  }
  load_some(from + j, count - j, x);
  x *= scale;
  encode_some<kFormat>(x, count - j, to + j);
}

// As mx_scale() of a size that is not NaN.
template <DType kFormat>
[[gnu::always_inline]] inline std::uint32_t scale_of_block(std::uint32_t size, MxRule rule) {
  const std::uint32_t up = rule == MxRule::round_up ? 0x1fffff : 0;
  const std::uint32_t exponent = (size + up) >> 23;
  const std::uint32_t power = Format<kFormat>::kPowerOfLargest;
  if (size >= 0x7f800000) return 254;
  return exponent < power ? 0 : exponent - power;
}

// What numbers are multiplied by if codes are to be multiplied by 2^(scale - 127).
[[gnu::always_inline]] inline float inverse_of(std::uint32_t scale) {
  return std::bit_cast<float>(scale == 254 ? 0x00400000U : (254 - scale) << 23);
}

template <class T, DType kFormat>
[[gnu::always_inline]] inline void round_block(const RoundBlocksStep& step, std::int64_t j) {
  static_assert(kMxBlock == 2 * kLanes);
  const T* const from = static_cast<const T*>(step.from) + j;
  const std::int64_t first = std::min(kLanes, step.count - j);
  const std::int64_t second = std::clamp<std::int64_t>(step.count - j - kLanes, 0, kLanes);
  Lanes a;
  Lanes b{};
  load_some(from, first, a);
  if (second > 0) load_some(from + kLanes, second, b);
  Words largest{};
  raise(a, largest);
  raise(b, largest);
  const std::uint32_t scale = scale_of_block<kFormat>(most(largest), step.rule);
  step.scales[j / kMxBlock] = static_cast<std::byte>(scale);
  const float factor = inverse_of(scale);
  a *= factor;
  b *= factor;
  encode_some<kFormat>(a, first, step.to + j);
  if (second > 0) encode_some<kFormat>(b, second, step.to + j + kLanes);
}

template <class T, DType kFormat>
[[gnu::always_inline]] inline void round_blocks(const RoundBlocksStep& step) {
  for (std::int64_t j = 0; j < step.count; j += kMxBlock) round_block<T, kFormat>(step, j);
}

// What the codes from one on are multiplied by.
[[gnu::always_inline]] inline float factor_at(const WidenCodesStep& step, std::int64_t j) {
  if (step.scales == nullptr) return step.factor;
  return to_float(E8m0{std::to_integer<std::uint8_t>(step.scales[j / kMxBlock])});
}

template <DType kFormat>
[[gnu::always_inline]] inline void widen_to_floats(const WidenCodesStep& step, float* to) {
  for (std::int64_t j = 0; j < step.count; j += kLanes) {
    Lanes x;
    decode_some<kFormat>(step.from + j, step.count - j, x);
    x *= factor_at(step, j);
    store_some(x, step.count - j, to + j);
  }
}

template <DType kFormat>
[[gnu::always_inline]] inline void add_to_floats(const WidenCodesStep& step, float* to) {
  for (std::int64_t j = 0; j < step.count; j += kLanes) {
    Lanes x;
    Lanes old;
    decode_some<kFormat>(step.from + j, step.count - j, x);
    load_some(to + j, step.count - j, old);
    x *= factor_at(step, j);
    x += old;
    store_some(x, step.count - j, to + j);
  }
}

// x * factor as a float that bf16 rounds as it would the product itself: where the float lies in
// the middle of two numbers of bf16 and the product does not, the float is moved by its last bit to
// where the product is. The product is the sum of two that are exact, since codes have at most four
// bits, and the factor is not so small that it is lost.
[[gnu::always_inline]] inline void multiply_for_bf16(Lanes& x, float factor) {
  const Lanes given = x;
  const auto upper = std::bit_cast<float>(std::bit_cast<std::uint32_t>(factor) & 0xfffffff0U);
  const Lanes most = x * upper;
  const Lanes least = x * (factor - upper);
  x = most + least;
  const Lanes beyond = least - (x - most);
  const Words bits = reinterpret_cast<Words>(x);
  const Words step = 1U - ((bits ^ reinterpret_cast<Words>(beyond)) >> 31) * 2U;
  const Words rest = beyond != 0.0F ? bits & 0xffffU : Words{};
  const Words moved = rest == 0x8000U ? bits + step : bits;
  const Words exponent = reinterpret_cast<Words>(given) & 0x7f800000U;
  x = exponent == 0x7f800000U ? given * factor : reinterpret_cast<Lanes>(moved);
}

// The same for any factor, one by one.
template <DType kFormat>
inline void widen_tiny(const WidenCodesStep& step, Bf16* to) {
  for (std::int64_t j = 0; j < step.count; ++j) {
    const auto bits = std::to_integer<std::uint8_t>(step.from[j]);
    const float code = kFormat == DType::fp8_e4m3 ? to_float(E4m3{bits}) : to_float(E5m2{bits});
    const double product = static_cast<double>(code) * static_cast<double>(step.factor);
    const auto nearest = static_cast<float>(product);
    const double beyond = std::abs(product) - std::abs(static_cast<double>(nearest));
    auto word = std::bit_cast<std::uint32_t>(nearest);
    if ((word & 0xffff) == 0x8000 && beyond != 0) word += beyond > 0 ? 1U : ~0U;
    to[j] = to_bf16(std::bit_cast<float>(word));
  }
}

// From here on, four bits of a factor times a code are a normal float.
inline constexpr float kTinyFactor = 0x1p-80F;

// A code times a power of two is a float, unless it is too large even for that.
[[nodiscard]] inline bool is_exact(const WidenCodesStep& step) {
  return step.scales != nullptr || (std::bit_cast<std::uint32_t>(step.factor) & 0x7fffff) == 0;
}

template <DType kFormat>
[[gnu::always_inline]] inline void widen_to_bf16(const WidenCodesStep& step, Bf16* to) {
  const bool rounds = !is_exact(step);
  if (rounds && std::abs(step.factor) < kTinyFactor) return widen_tiny<kFormat>(step, to);
  for (std::int64_t j = 0; j < step.count; j += kLanes) {
    Lanes x;
    decode_some<kFormat>(step.from + j, step.count - j, x);
    if (rounds) {
      multiply_for_bf16(x, step.factor);
    } else {
      x *= factor_at(step, j);
    }
    store_some(x, step.count - j, to + j);
  }
}

// By what a step says.
[[gnu::always_inline]] inline float largest_absolute_here(const AmaxStep& step) {
  if (step.type == DType::f32) return largest_of<float>(step);
  if (step.type == DType::bf16) return largest_of<Bf16>(step);
  return largest_of<F16>(step);
}

template <DType kFormat>
[[gnu::always_inline]] inline void round_to_codes_of(const RoundStep& step) {
  if (step.type == DType::f32) return round_numbers<float, kFormat>(step);
  if (step.type == DType::bf16) return round_numbers<Bf16, kFormat>(step);
  round_numbers<F16, kFormat>(step);
}

[[gnu::always_inline]] inline void round_to_codes_here(const RoundStep& step) {
  if (step.format == DType::fp8_e4m3) return round_to_codes_of<DType::fp8_e4m3>(step);
  round_to_codes_of<DType::fp8_e5m2>(step);
}

template <DType kFormat>
[[gnu::always_inline]] inline void round_to_blocks_of(const RoundBlocksStep& step) {
  if (step.type == DType::f32) return round_blocks<float, kFormat>(step);
  if (step.type == DType::bf16) return round_blocks<Bf16, kFormat>(step);
  round_blocks<F16, kFormat>(step);
}

[[gnu::always_inline]] inline void round_to_blocks_here(const RoundBlocksStep& step) {
  if (step.format == DType::fp8_e4m3) return round_to_blocks_of<DType::fp8_e4m3>(step);
  round_to_blocks_of<DType::fp8_e5m2>(step);
}

[[gnu::always_inline]] inline void widen_to_floats_here(const WidenCodesStep& step, float* to) {
  if (step.format == DType::fp8_e4m3) return widen_to_floats<DType::fp8_e4m3>(step, to);
  widen_to_floats<DType::fp8_e5m2>(step, to);
}

[[gnu::always_inline]] inline void widen_to_bf16_here(const WidenCodesStep& step, Bf16* to) {
  if (step.format == DType::fp8_e4m3) return widen_to_bf16<DType::fp8_e4m3>(step, to);
  widen_to_bf16<DType::fp8_e5m2>(step, to);
}

[[gnu::always_inline]] inline void add_codes_here(const WidenCodesStep& step, float* to) {
  if (step.format == DType::fp8_e4m3) return add_to_floats<DType::fp8_e4m3>(step, to);
  add_to_floats<DType::fp8_e5m2>(step, to);
}

}  // namespace shiplap::kernels
