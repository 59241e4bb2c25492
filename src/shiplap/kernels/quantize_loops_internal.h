// The loops of quantize_internal.h, inlined into the including file, so that they can be compiled
// for several instruction sets.
//
// A multiplication and an addition must not be contracted to an FMA, or processors would differ.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "shiplap/kernels/quantize_internal.h"
#include "shiplap/kernels/simd_internal.h"

namespace shiplap::kernels {

using U8x16 [[gnu::vector_size(kLanes)]] = std::uint8_t;

// Bit layout of the two FP8 formats. Magnitudes are bit patterns of f32.
template <DType kFormat>
struct Fp8Traits {
  static constexpr bool kIsE4m3 = kFormat == DType::fp8_e4m3;
  static constexpr std::uint32_t kShift = kIsE4m3 ? 20 : 21;  // 23 without the bits of a mantissa
  static constexpr std::uint32_t kLargest = kIsE4m3 ? 0x43e00000 : 0x47600000;
  static constexpr std::uint32_t kSmallestNormal = kIsE4m3 ? 0x3c800000 : 0x38800000;
  static constexpr std::uint32_t kFromLargestToNan = kIsE4m3 ? 1 : 3;
  static constexpr std::uint32_t kFirstSpecial = kIsE4m3 ? 0x7f : 0x7c;
  static constexpr std::uint32_t kPowerOfLargest = kIsE4m3 ? 8 : 15;
};

// Encodes 16 values. 2^(23 - bits of mantissa) times the power of two of a number, added to it,
// leaves in the lowest bits how many steps of that power the number is, rounded; subnormal numbers
// take the steps of the smallest normal one. Only eight bits are of interest, of which that power
// has none.
template <DType kFormat>
[[gnu::always_inline]] inline void encode(const F32x16& x, std::byte* to) {
  using F = Fp8Traits<kFormat>;
  const U32x16 bits = reinterpret_cast<U32x16>(x);
  const U32x16 given = bits & 0x7fffffffU;
  const U32x16 size = given < F::kLargest ? given : U32x16{} + F::kLargest;
  const U32x16 exponent = size & 0x7f800000U;
  const U32x16 power = exponent > F::kSmallestNormal ? exponent : U32x16{} + F::kSmallestNormal;
  const F32x16 steps =
      reinterpret_cast<F32x16>(size) + reinterpret_cast<F32x16>(power + (F::kShift << 23));
  U32x16 code =
      reinterpret_cast<U32x16>(steps) + (power >> F::kShift) - (F::kSmallestNormal >> F::kShift);
  code = given > 0x7f800000U ? code + F::kFromLargestToNan : code;
  code |= (bits >> 24) & 0x80U;
  const U8x16 codes = __builtin_convertvector(code, U8x16);
  std::memcpy(to, &codes, sizeof codes);
}

template <DType kFormat>
[[gnu::always_inline]] inline void encode_some(const F32x16& x, std::int64_t count, std::byte* to) {
  if (count >= kLanes) return encode<kFormat>(x, to);
  std::byte some[kLanes];
  encode<kFormat>(x, some);
  std::copy_n(some, count, to);
}

// Decodes 16 values. A subnormal is taken as if it had the exponent of the smallest normal
// number, which is then taken off.
template <DType kFormat>
[[gnu::always_inline]] inline void decode(const std::byte* from, F32x16& x) {
  using F = Fp8Traits<kFormat>;
  U8x16 codes;
  std::memcpy(&codes, from, sizeof codes);
  const U32x16 bits = __builtin_convertvector(codes, U32x16);
  const U32x16 size = bits & 0x7fU;
  const U32x16 usual = (size << F::kShift) + (F::kSmallestNormal - 0x800000U);
  const F32x16 tiny = reinterpret_cast<F32x16>(usual + 0x800000U) -
                      reinterpret_cast<F32x16>(U32x16{} + F::kSmallestNormal);
  U32x16 number = usual < F::kSmallestNormal ? reinterpret_cast<U32x16>(tiny) : usual;
  number = size >= F::kFirstSpecial ? number | 0x7f800000U : number;
  x = reinterpret_cast<F32x16>(number | (bits & 0x80U) << 24);
}

template <DType kFormat>
[[gnu::always_inline]] inline void decode_some(const std::byte* from, std::int64_t count,
                                               F32x16& x) {
  if (count >= kLanes) return decode<kFormat>(from, x);
  std::byte some[kLanes]{};
  std::copy_n(from, count, some);
  decode<kFormat>(some, x);
}

// Maximum of magnitudes as integers; a NaN counts as 0.
[[gnu::always_inline]] inline void update_max(const F32x16& x, U32x16& largest) {
  const U32x16 size = reinterpret_cast<U32x16>(x) & 0x7fffffffU;
  const U32x16 counted = size > 0x7f800000U ? U32x16{} : size;
  largest = largest > counted ? largest : counted;
}

[[gnu::always_inline]] inline std::uint32_t max_lane(const U32x16& words) {
  std::uint32_t each[kLanes];
  std::memcpy(each, &words, sizeof each);
  std::uint32_t result = 0;
  for (const std::uint32_t one : each) result = std::max(result, one);
  return result;
}

template <class T>
[[gnu::always_inline]] inline float amax_of_type(const AmaxStep& step) {
  const T* const from = static_cast<const T*>(step.from);
  const std::int64_t count = step.count;
  U32x16 largest{};
  F32x16 x;
  std::int64_t j = 0;
  for (; j + kLanes <= count; j += kLanes) {
    load(from + j, x);
    update_max(x, largest);
  }
  load_partial(from + j, count - j, x);
  update_max(x, largest);
  return std::bit_cast<float>(max_lane(largest));
}

template <class T, DType kFormat>
[[gnu::always_inline]] inline void quantize_elements(const QuantizeStep& step) {
  const T* const from = static_cast<const T*>(step.from);
  std::byte* const to = step.to;
  const std::int64_t count = step.count;
  const float scale = step.scale;
  F32x16 x;
  std::int64_t j = 0;
  for (; j + kLanes <= count; j += kLanes) {
    load(from + j, x);
    x *= scale;
    encode<kFormat>(x, to + j);
  }
  load_partial(from + j, count - j, x);
  x *= scale;
  encode_some<kFormat>(x, count - j, to + j);
}

// As mx_scale() of a size that is not NaN.
template <DType kFormat>
[[gnu::always_inline]] inline std::uint32_t scale_of_block(std::uint32_t size, MxRule rule) {
  const std::uint32_t up = rule == MxRule::round_up ? 0x1fffff : 0;
  const std::uint32_t exponent = (size + up) >> 23;
  const std::uint32_t power = Fp8Traits<kFormat>::kPowerOfLargest;
  if (size >= 0x7f800000) return 254;
  return exponent < power ? 0 : exponent - power;
}

// Returns the factor of values whose quantized values are scaled by 2^(scale - 127).
[[gnu::always_inline]] inline float inverse_of(std::uint32_t scale) {
  return std::bit_cast<float>(scale == 254 ? 0x00400000U : (254 - scale) << 23);
}

template <class T, DType kFormat>
[[gnu::always_inline]] inline void quantize_block(const QuantizeBlocksStep& step, std::int64_t j) {
  static_assert(kMxBlock == 2 * kLanes);
  const T* const from = static_cast<const T*>(step.from) + j;
  const std::int64_t first = std::min(kLanes, step.count - j);
  const std::int64_t second = std::clamp<std::int64_t>(step.count - j - kLanes, 0, kLanes);
  F32x16 a;
  F32x16 b{};
  load_partial(from, first, a);
  if (second > 0) load_partial(from + kLanes, second, b);
  U32x16 largest{};
  update_max(a, largest);
  update_max(b, largest);
  const std::uint32_t scale = scale_of_block<kFormat>(max_lane(largest), step.rule);
  step.scales[j / kMxBlock] = static_cast<std::byte>(scale);
  const float factor = inverse_of(scale);
  a *= factor;
  b *= factor;
  encode_some<kFormat>(a, first, step.to + j);
  if (second > 0) encode_some<kFormat>(b, second, step.to + j + kLanes);
}

template <class T, DType kFormat>
[[gnu::always_inline]] inline void quantize_blocks_from(const QuantizeBlocksStep& step) {
  for (std::int64_t j = 0; j < step.count; j += kMxBlock) quantize_block<T, kFormat>(step, j);
}

// Returns the factor of the values from j on.
[[gnu::always_inline]] inline float factor_at(const DequantizeStep& step, std::int64_t j) {
  if (step.scales == nullptr) return step.factor;
  return to_float(E8m0{std::to_integer<std::uint8_t>(step.scales[j / kMxBlock])});
}

template <DType kFormat>
[[gnu::always_inline]] inline void dequantize_to_f32(const DequantizeStep& step, float* to) {
  for (std::int64_t j = 0; j < step.count; j += kLanes) {
    F32x16 x;
    decode_some<kFormat>(step.from + j, step.count - j, x);
    x *= factor_at(step, j);
    store_partial(x, step.count - j, to + j);
  }
}

template <DType kFormat>
[[gnu::always_inline]] inline void dequantize_add_f32(const DequantizeStep& step, float* to) {
  for (std::int64_t j = 0; j < step.count; j += kLanes) {
    F32x16 x;
    F32x16 old;
    decode_some<kFormat>(step.from + j, step.count - j, x);
    load_partial(to + j, step.count - j, old);
    x *= factor_at(step, j);
    x += old;
    store_partial(x, step.count - j, to + j);
  }
}

// x * factor as an f32 that rounds to bf16 like the exact product (no double rounding): if the f32
// is halfway between two bf16 values and the product is not, the f32 is moved by one ulp toward the
// product. The product is the sum of two exact ones, since FP8 values have at most four significant
// bits, and the factor is not so small that the lower one is lost.
[[gnu::always_inline]] inline void multiply_for_bf16(F32x16& x, float factor) {
  const F32x16 given = x;
  const auto upper = std::bit_cast<float>(std::bit_cast<std::uint32_t>(factor) & 0xfffffff0U);
  const F32x16 most = x * upper;
  const F32x16 least = x * (factor - upper);
  x = most + least;
  const F32x16 beyond = least - (x - most);
  const U32x16 bits = reinterpret_cast<U32x16>(x);
  const U32x16 step = 1U - ((bits ^ reinterpret_cast<U32x16>(beyond)) >> 31) * 2U;
  const U32x16 rest = beyond != 0.0F ? bits & 0xffffU : U32x16{};
  const U32x16 moved = rest == 0x8000U ? bits + step : bits;
  const U32x16 exponent = reinterpret_cast<U32x16>(given) & 0x7f800000U;
  x = exponent == 0x7f800000U ? given * factor : reinterpret_cast<F32x16>(moved);
}

// The same for any factor, one value at a time.
template <DType kFormat>
inline void dequantize_tiny_factor(const DequantizeStep& step, Bf16* to) {
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

// From this factor on, a factor with four significant bits times an FP8 value is a normal f32.
inline constexpr float kTinyFactor = 0x1p-80F;

// An FP8 value times a power of two is exact in f32, unless it overflows.
[[nodiscard]] inline bool is_exact(const DequantizeStep& step) {
  return step.scales != nullptr || (std::bit_cast<std::uint32_t>(step.factor) & 0x7fffff) == 0;
}

template <DType kFormat>
[[gnu::always_inline]] inline void dequantize_to_bf16(const DequantizeStep& step, Bf16* to) {
  const bool rounds = !is_exact(step);
  if (rounds && std::abs(step.factor) < kTinyFactor)
    return dequantize_tiny_factor<kFormat>(step, to);
  for (std::int64_t j = 0; j < step.count; j += kLanes) {
    F32x16 x;
    decode_some<kFormat>(step.from + j, step.count - j, x);
    if (rounds) {
      multiply_for_bf16(x, step.factor);
    } else {
      x *= factor_at(step, j);
    }
    store_partial(x, step.count - j, to + j);
  }
}

// Dispatch by dtype.
[[gnu::always_inline]] inline float compute_amax_inline(const AmaxStep& step) {
  if (step.type == DType::f32) return amax_of_type<float>(step);
  if (step.type == DType::bf16) return amax_of_type<Bf16>(step);
  return amax_of_type<F16>(step);
}

template <DType kFormat>
[[gnu::always_inline]] inline void quantize_as(const QuantizeStep& step) {
  if (step.type == DType::f32) return quantize_elements<float, kFormat>(step);
  if (step.type == DType::bf16) return quantize_elements<Bf16, kFormat>(step);
  quantize_elements<F16, kFormat>(step);
}

[[gnu::always_inline]] inline void quantize_inline(const QuantizeStep& step) {
  if (step.format == DType::fp8_e4m3) return quantize_as<DType::fp8_e4m3>(step);
  quantize_as<DType::fp8_e5m2>(step);
}

template <DType kFormat>
[[gnu::always_inline]] inline void quantize_blocks_as(const QuantizeBlocksStep& step) {
  if (step.type == DType::f32) return quantize_blocks_from<float, kFormat>(step);
  if (step.type == DType::bf16) return quantize_blocks_from<Bf16, kFormat>(step);
  quantize_blocks_from<F16, kFormat>(step);
}

[[gnu::always_inline]] inline void quantize_blocks_inline(const QuantizeBlocksStep& step) {
  if (step.format == DType::fp8_e4m3) return quantize_blocks_as<DType::fp8_e4m3>(step);
  quantize_blocks_as<DType::fp8_e5m2>(step);
}

[[gnu::always_inline]] inline void dequantize_to_f32_inline(const DequantizeStep& step, float* to) {
  if (step.format == DType::fp8_e4m3) return dequantize_to_f32<DType::fp8_e4m3>(step, to);
  dequantize_to_f32<DType::fp8_e5m2>(step, to);
}

[[gnu::always_inline]] inline void dequantize_to_bf16_inline(const DequantizeStep& step, Bf16* to) {
  if (step.format == DType::fp8_e4m3) return dequantize_to_bf16<DType::fp8_e4m3>(step, to);
  dequantize_to_bf16<DType::fp8_e5m2>(step, to);
}

[[gnu::always_inline]] inline void dequantize_add_inline(const DequantizeStep& step, float* to) {
  if (step.format == DType::fp8_e4m3) return dequantize_add_f32<DType::fp8_e4m3>(step, to);
  dequantize_add_f32<DType::fp8_e5m2>(step, to);
}

}  // namespace shiplap::kernels
