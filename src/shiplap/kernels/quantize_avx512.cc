// The loops of quantize_internal.h for AVX-512, for bf16 input and for FP8 input. Bitwise identical
// to the generic ones.
#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "shiplap/kernels/quantize_avx512_internal.h"
#include "shiplap/kernels/quantize_loops_internal.h"
#include "shiplap/kernels/scale_range_internal.h"

namespace shiplap::kernels {
namespace {

[[gnu::target("avx512f,avx512vl,avx512bw,avx512dq"), gnu::always_inline]] inline __m512i u32x16(
    std::uint32_t value) {
  return _mm512_set1_epi32(static_cast<int>(value));
}

[[gnu::target("avx512f,avx512vl,avx512bw,avx512dq"), gnu::always_inline]] inline __m512i u16x32(
    std::uint32_t value) {
  return _mm512_set1_epi16(static_cast<short>(value));
}

// The lowest `count` bits; all if there are fewer.
std::uint64_t lowest(std::int64_t count) {
  return count >= 64 ? ~std::uint64_t{0}
                     : (std::uint64_t{1} << std::max<std::int64_t>(count, 0)) - 1;
}

std::uint32_t lowest_32(std::int64_t count) {
  return static_cast<std::uint32_t>(lowest(std::min<std::int64_t>(count, 32)));
}

// Prefetches ahead. The address may be past the end.
[[gnu::target("avx512f,avx512vl,avx512bw,avx512dq"), gnu::always_inline]] inline void prefetch(
    const std::uint16_t* from, const std::byte* to) {
  constexpr std::int64_t kPrefetchBytes = 2048;  // in bytes
  const char* const read = reinterpret_cast<const char*>(from) + kPrefetchBytes;
  _mm_prefetch(read, _MM_HINT_T0);
  _mm_prefetch(read + 64, _MM_HINT_T0);
  _mm_prefetch(reinterpret_cast<const char*>(to) + kPrefetchBytes / 2, _MM_HINT_T0);
}

// 32 bf16 values, split into magnitudes, signs and NaNs.
struct SplitBf16 {
  __m512i sizes;
  __mmask32 negative;
  __mmask32 nan;
};

[[gnu::target("avx512f,avx512vl,avx512bw,avx512dq"), gnu::always_inline]] inline SplitBf16 split(
    __m512i bits) {
  const __m512i sizes = _mm512_and_si512(bits, u16x32(0x7fff));
  return {.sizes = sizes,
          .negative = _mm512_movepi16_mask(bits),
          .nan = _mm512_cmpgt_epu16_mask(sizes, u16x32(0x7f80))};
}

[[gnu::target("avx512f,avx512vl,avx512bw,avx512dq"), gnu::always_inline]] inline SplitBf16 load_32(
    const std::uint16_t* from) {
  return split(_mm512_loadu_si512(from));
}

// Zero-padded.
[[gnu::target("avx512f,avx512vl,avx512bw,avx512dq"), gnu::always_inline]] inline SplitBf16 load_few(
    const std::uint16_t* from, std::int64_t count) {
  return split(_mm512_maskz_loadu_epi16(lowest_32(count), from));
}

// As encode() of 16 floats that have no sign. The number that is taken off there is added to the
// power here, of which it is a few of the lowest bits; it is even, so that ties stay as they are.
template <DType kFormat>
[[gnu::target("avx512f,avx512vl,avx512bw,avx512dq"), gnu::always_inline]] inline __m512i encode_16(
    __m512i floats, __m512 factor) {
  using F = Fp8Traits<kFormat>;
  constexpr std::uint32_t kExponentOffset = (0 - (F::kSmallestNormal >> F::kShift)) & 0xff;
  static_assert(kExponentOffset % 2 == 0);
  const __m512i scaled = _mm512_castps_si512(_mm512_mul_ps(_mm512_castsi512_ps(floats), factor));
  const __m512i size = _mm512_min_epu32(scaled, u32x16(F::kLargest));
  const __m512i power =
      _mm512_max_epu32(_mm512_and_si512(size, u32x16(0x7f800000)), u32x16(F::kSmallestNormal));
  const __m512i above = _mm512_add_epi32(power, u32x16((F::kShift << 23) + kExponentOffset));
  const __m512 steps = _mm512_add_ps(_mm512_castsi512_ps(size), _mm512_castsi512_ps(above));
  const __m512i code =
      _mm512_add_epi32(_mm512_castps_si512(steps), _mm512_srli_epi32(power, F::kShift));
  return _mm512_and_si512(code, u32x16(0xff));
}

// Returns FP8 magnitudes, 16 bits each. A bf16 after 16 zero bits is an f32.
template <DType kFormat>
[[gnu::target("avx512f,avx512vl,avx512bw,avx512dq"), gnu::always_inline]] inline __m512i encode_32(
    __m512i sizes, __m512 factor) {
  const __m512i zero = _mm512_setzero_si512();
  return _mm512_packus_epi32(encode_16<kFormat>(_mm512_unpacklo_epi16(zero, sizes), factor),
                             encode_16<kFormat>(_mm512_unpackhi_epi16(zero, sizes), factor));
}

// Joins two vectors of 32 magnitudes to 64 FP8 values, with signs.
template <DType kFormat>
[[gnu::target("avx512f,avx512vl,avx512bw,avx512dq"), gnu::always_inline]] inline __m512i join(
    const SplitBf16& a, const SplitBf16& b, __m512i codes_a, __m512i codes_b) {
  constexpr char kNan = kFormat == DType::fp8_e4m3 ? 0x7f : 0x7e;
  const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
  __m512i codes = _mm512_permutexvar_epi64(order, _mm512_packus_epi16(codes_a, codes_b));
  const __mmask64 nan = _mm512_kunpackd(b.nan, a.nan);
  const __mmask64 negative = _mm512_kunpackd(b.negative, a.negative);
  codes = _mm512_mask_mov_epi8(codes, nan, _mm512_set1_epi8(kNan));
  return _mm512_mask_add_epi8(codes, negative, codes, _mm512_set1_epi8(-128));
}

template <DType kFormat>
[[gnu::target("avx512f,avx512vl,avx512bw,avx512dq"), gnu::always_inline]] inline __m512i encode_64(
    SplitBf16 a, SplitBf16 b, __m512 factor, __mmask32 flips) {
  a.negative ^= flips & ~a.nan;
  b.negative ^= flips & ~b.nan;
  return join<kFormat>(a, b, encode_32<kFormat>(a.sizes, factor),
                       encode_32<kFormat>(b.sizes, factor));
}

template <DType kFormat>
[[gnu::target("avx512f,avx512vl,avx512bw,avx512dq")]] void quantize_bf16(const QuantizeStep& step) {
  const auto* from = static_cast<const std::uint16_t*>(step.from);
  std::byte* to = step.to;
  std::int64_t left = step.count;
  const __m512 factor = _mm512_set1_ps(std::abs(step.scale));
  const __mmask32 flips = std::signbit(step.scale) ? ~__mmask32{0} : 0;
  for (; left >= 64; left -= 64, from += 64, to += 64) {
    prefetch(from, to);
    _mm512_storeu_si512(to, encode_64<kFormat>(load_32(from), load_32(from + 32), factor, flips));
  }
  const SplitBf16 rest = load_few(from + 32, left - 32);
  _mm512_mask_storeu_epi8(to, lowest(left),
                          encode_64<kFormat>(load_few(from, left), rest, factor, flips));
}

// Returns the largest magnitude as f32 bits.
[[gnu::target("avx512f,avx512vl,avx512bw,avx512dq"), gnu::always_inline]] inline std::uint32_t
horizontal_max(__m512i sizes) {
  const __m256i some =
      _mm256_max_epu16(_mm512_castsi512_si256(sizes), _mm512_extracti64x4_epi64(sizes, 1));
  const __m128i few =
      _mm_max_epu16(_mm256_castsi256_si128(some), _mm256_extracti128_si256(some, 1));
  const __m128i least = _mm_minpos_epu16(_mm_xor_si128(few, _mm_set1_epi32(-1)));
  return ~static_cast<std::uint32_t>(_mm_cvtsi128_si32(least)) << 16;
}

[[gnu::target("avx512f,avx512vl,avx512bw,avx512dq"), gnu::always_inline]] inline __m512i
without_nans(__m512i sizes) {
  return _mm512_maskz_mov_epi16(_mm512_cmple_epu16_mask(sizes, u16x32(0x7f80)), sizes);
}

// As encode_32() of numbers that are multiplied by 2^(127 - scale), in whole numbers of 16 bits.
// The mantissa is shifted right, to nearest even, by as many bits as the format has fewer; by more
// where the result is subnormal. Numbers that are subnormal themselves would be taken for others,
// but of the scales from kMinShiftedScale on all of them become zero.
constexpr std::uint32_t kMinShiftedScale = 18;

template <DType kFormat>
[[gnu::target("avx512f,avx512vl,avx512bw,avx512dq"), gnu::always_inline]] inline __m512i
encode_shifted(__m512i sizes, std::uint32_t scale) {
  using F = Fp8Traits<kFormat>;
  constexpr std::uint32_t kFewer = F::kShift - 16;
  constexpr std::uint32_t kBias = kFormat == DType::fp8_e4m3 ? 7 : 15;
  constexpr std::uint32_t kLargestCode = kFormat == DType::fp8_e4m3 ? 0x7e : 0x7b;
  const __m512i mantissa = _mm512_or_si512(_mm512_and_si512(sizes, u16x32(0x7f)), u16x32(0x80));
  const __m512i exponent =
      _mm512_add_epi16(_mm512_srli_epi16(sizes, 7), u16x32(15 - kFewer + kBias - scale));
  const __m512i kept = _mm512_min_epi16(exponent, u16x32(16 - kFewer));
  const __m512i shift = _mm512_sub_epi16(u16x32(16), kept);
  const __m512i below_half = _mm512_srlv_epi16(u16x32(0x7fff), kept);
  const __m512i odd = _mm512_and_si512(_mm512_srlv_epi16(mantissa, shift), u16x32(1));
  const __m512i rounded =
      _mm512_srlv_epi16(_mm512_add_epi16(_mm512_add_epi16(mantissa, below_half), odd), shift);
  const __m512i above = _mm512_slli_epi16(_mm512_sub_epi16(exponent, kept), 7 - kFewer);
  return _mm512_min_epu16(_mm512_add_epi16(rounded, above), u16x32(kLargestCode));
}

// The largest magnitude tells whether there are NaNs, which is rare.
template <DType kFormat>
[[gnu::target("avx512f,avx512vl,avx512bw,avx512dq"), gnu::always_inline]] inline __m512i
encode_block(__m512i sizes, MxRule rule, std::byte* scale) {
  std::uint32_t most = horizontal_max(sizes);
  if (most > 0x7f800000) [[unlikely]] {
    most = horizontal_max(without_nans(sizes));
  }
  const std::uint32_t code = scale_of_block<kFormat>(most, rule);
  *scale = static_cast<std::byte>(code);
  if (code >= kMinShiftedScale && code < 254) [[likely]] {
    return encode_shifted<kFormat>(sizes, code);
  }
  return encode_32<kFormat>(sizes, _mm512_set1_ps(inverse_of(code)));
}

template <DType kFormat>
[[gnu::target("avx512f,avx512vl,avx512bw,avx512dq")]] void quantize_bf16_blocks(
    const QuantizeBlocksStep& step) {
  const auto* from = static_cast<const std::uint16_t*>(step.from);
  std::byte* to = step.to;
  std::byte* scales = step.scales;
  std::int64_t left = step.count;
  const MxRule rule = step.rule;
  for (; left >= 64; left -= 64, from += 64, to += 64, scales += 2) {
    prefetch(from, to);
    const SplitBf16 a = load_32(from);
    const SplitBf16 b = load_32(from + 32);
    const __m512i codes_a = encode_block<kFormat>(a.sizes, rule, scales);
    const __m512i codes_b = encode_block<kFormat>(b.sizes, rule, scales + 1);
    _mm512_storeu_si512(to, join<kFormat>(a, b, codes_a, codes_b));
  }
  if (left == 0) return;
  std::byte none{};  // scale of a missing block
  const SplitBf16 a = load_few(from, left);
  const SplitBf16 b = load_few(from + 32, left - 32);
  const __m512i codes_a = encode_block<kFormat>(a.sizes, rule, scales);
  const __m512i codes_b = encode_block<kFormat>(b.sizes, rule, left > 32 ? scales + 1 : &none);
  _mm512_mask_storeu_epi8(to, lowest(left), join<kFormat>(a, b, codes_a, codes_b));
}

[[gnu::target("avx512f,avx512vl,avx512bw,avx512dq")]] float amax_bf16(const AmaxStep& step) {
  const auto* from = static_cast<const std::uint16_t*>(step.from);
  std::int64_t left = step.count;
  __m512i largest = _mm512_setzero_si512();
  for (; left >= 32; left -= 32, from += 32) {
    largest = _mm512_max_epu16(largest, without_nans(load_32(from).sizes));
  }
  largest = _mm512_max_epu16(largest, without_nans(load_few(from, left).sizes));
  return std::bit_cast<float>(horizontal_max(largest));
}

// Converts 32 FP8 values to bf16, times 2^power. REQUIRES: the results are normal in bf16.
template <DType kFormat>
[[gnu::target("avx512f,avx512vl,avx512bw,avx512dq"), gnu::always_inline]] inline __m512i bf16_of(
    __m256i codes, int power) {
  using F = Fp8Traits<kFormat>;
  constexpr std::uint32_t kTiny = 1U << (23 - F::kShift);
  const __m512i bits = _mm512_cvtepu8_epi16(codes);
  const __m512i size = _mm512_and_si512(bits, u16x32(0x7f));
  // Of the subnormal numbers, by their bits: 0 to 7 steps of 2^-9, or 0 to 3 of 2^-16.
  const __m512i tiny =
      kFormat == DType::fp8_e4m3
          ? _mm512_castsi128_si512(
                _mm_setr_epi16(0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60))
          : _mm512_castsi128_si512(_mm_setr_epi16(0, 0x3780, 0x3800, 0x3840, 0, 0, 0, 0));
  __m512i number = _mm512_add_epi16(_mm512_slli_epi16(size, F::kShift - 16),
                                    u16x32((F::kSmallestNormal - 0x800000) >> 16));
  number = _mm512_mask_permutexvar_epi16(number, _mm512_cmplt_epu16_mask(size, u16x32(kTiny)), size,
                                         tiny);
  number = _mm512_mask_add_epi16(number, _mm512_test_epi16_mask(size, size), number,
                                 _mm512_set1_epi16(static_cast<short>(power * 128)));
  number = _mm512_mask_mov_epi16(number, _mm512_cmpge_epu16_mask(size, u16x32(F::kFirstSpecial)),
                                 u16x32(0x7f80));
  number = _mm512_mask_mov_epi16(
      number, _mm512_cmpgt_epu16_mask(size, u16x32(kFormat == DType::fp8_e4m3 ? 0x7e : 0x7c)),
      u16x32(0x7fc0));
  return _mm512_or_si512(number, _mm512_slli_epi16(_mm512_and_si512(bits, u16x32(0x80)), 8));
}

// At most 32.
template <DType kFormat>
[[gnu::target("avx512f,avx512vl,avx512bw,avx512dq"), gnu::always_inline]] inline void
dequantize_partial(const std::byte* from, std::int64_t count, int power, Bf16* to) {
  if (count >= 32) {
    const auto codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return _mm512_storeu_si512(to, bf16_of<kFormat>(codes, power));
  }
  const __mmask32 some = lowest_32(count);
  _mm512_mask_storeu_epi16(to, some, bf16_of<kFormat>(_mm256_maskz_loadu_epi8(some, from), power));
}

// Blocks that are not normal in bf16 use the generic loop.
template <DType kFormat>
[[gnu::target("avx512f,avx512vl,avx512bw,avx512dq")]] void dequantize_block_scaled(
    const DequantizeStep& step, Bf16* to) {
  for (std::int64_t j = 0; j < step.count; j += kMxBlock) {
    const std::byte* const scale = step.scales + j / kMxBlock;
    if (scale_range_of(kFormat, *scale) == ScaleRange::normal && *scale != std::byte{0xff}) {
      dequantize_partial<kFormat>(step.from + j, step.count - j, std::to_integer<int>(*scale) - 127,
                                  to + j);
    } else {
      dequantize_to_bf16<kFormat>({.from = step.from + j,
                                   .format = kFormat,
                                   .count = std::min(kMxBlock, step.count - j),
                                   .scales = scale},
                                  to + j);
    }
  }
}

template <DType kFormat>
[[gnu::target("avx512f,avx512vl,avx512bw,avx512dq")]] void dequantize_unscaled(
    const DequantizeStep& step, Bf16* to) {
  for (std::int64_t j = 0; j < step.count; j += 32) {
    dequantize_partial<kFormat>(step.from + j, step.count - j, 0, to + j);
  }
}

// As decode().
template <DType kFormat>
[[gnu::target("avx512f,avx512vl,avx512bw,avx512dq"), gnu::always_inline]] inline __m512 decode_16(
    __m128i codes) {
  using F = Fp8Traits<kFormat>;
  constexpr std::uint32_t kTiny = 1U << (23 - F::kShift);
  constexpr auto kStep = static_cast<float>(min_subnormal(kFormat));
  const __m512i bits = _mm512_cvtepu8_epi32(codes);
  const __m512i size = _mm512_and_si512(bits, u32x16(0x7f));
  const __m512 steps = _mm512_mul_ps(_mm512_cvtepi32_ps(size), _mm512_set1_ps(kStep));
  __m512i number =
      _mm512_add_epi32(_mm512_slli_epi32(size, F::kShift), u32x16(F::kSmallestNormal - 0x800000));
  number = _mm512_mask_mov_epi32(number, _mm512_cmplt_epu32_mask(size, u32x16(kTiny)),
                                 _mm512_castps_si512(steps));
  number = _mm512_mask_or_epi32(number, _mm512_cmpge_epu32_mask(size, u32x16(F::kFirstSpecial)),
                                number, u32x16(0x7f800000));
  const __m512i sign = _mm512_slli_epi32(_mm512_and_si512(bits, u32x16(0x80)), 24);
  return _mm512_castsi512_ps(_mm512_or_si512(number, sign));
}

// Up to 16 FP8 values.
struct MaskedBytes {
  const std::byte* from = nullptr;
  __mmask16 which = 0;
};

[[gnu::target("avx512f,avx512vl,avx512bw,avx512dq"), gnu::always_inline]] inline MaskedBytes
masked_bytes(const DequantizeStep& step, std::int64_t j) {
  return {.from = step.from + j, .which = static_cast<__mmask16>(lowest_32(step.count - j))};
}

template <DType kFormat>
[[gnu::target("avx512f,avx512vl,avx512bw,avx512dq"), gnu::always_inline]] inline __m512 decode_some(
    const MaskedBytes& some) {
  return decode_16<kFormat>(_mm_maskz_loadu_epi8(some.which, some.from));
}

template <DType kFormat>
[[gnu::target("avx512f,avx512vl,avx512bw,avx512dq")]] void dequantize_floats(
    const DequantizeStep& step, float* to) {
  for (std::int64_t j = 0; j < step.count; j += kLanes) {
    const MaskedBytes some = masked_bytes(step, j);
    const __m512 numbers =
        _mm512_mul_ps(decode_some<kFormat>(some), _mm512_set1_ps(factor_at(step, j)));
    _mm512_mask_storeu_ps(to + j, some.which, numbers);
  }
}

template <DType kFormat>
[[gnu::target("avx512f,avx512vl,avx512bw,avx512dq")]] void add_floats(const DequantizeStep& step,
                                                                      float* to) {
  for (std::int64_t j = 0; j < step.count; j += kLanes) {
    const MaskedBytes some = masked_bytes(step, j);
    const __m512 numbers =
        _mm512_mul_ps(decode_some<kFormat>(some), _mm512_set1_ps(factor_at(step, j)));
    const __m512 old = _mm512_maskz_loadu_ps(some.which, to + j);
    _mm512_mask_storeu_ps(to + j, some.which, _mm512_add_ps(old, numbers));
  }
}

// As multiply_for_bf16(), and rounded.
[[gnu::target("avx512f,avx512vl,avx512bw,avx512dq"), gnu::always_inline]] inline __m256i
multiply_to_bf16(__m512 codes, __m512 factor) {
  const __m512 product = _mm512_mul_ps(codes, factor);
  const __m512 beyond = _mm512_fmsub_ps(codes, factor, product);
  const __m512i bits = _mm512_castps_si512(product);
  const __mmask16 is_middle =
      _mm512_cmpeq_epi32_mask(_mm512_and_si512(bits, u32x16(0xffff)), u32x16(0x8000));
  const __mmask16 moves =
      _mm512_mask_cmp_ps_mask(is_middle, beyond, _mm512_setzero_ps(), _CMP_NEQ_OQ);
  const __m512i opposite =
      _mm512_srai_epi32(_mm512_xor_si512(bits, _mm512_castps_si512(beyond)), 31);
  const __m512i step = _mm512_or_si512(opposite, u32x16(1));  // 1 or -1
  const __m512i moved = _mm512_mask_add_epi32(bits, moves, bits, step);
  const __m512i last = _mm512_and_si512(_mm512_srli_epi32(moved, 16), u32x16(1));
  __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(moved, u32x16(0x7fff)), last);
  const __mmask16 nan = _mm512_cmp_ps_mask(product, product, _CMP_UNORD_Q);
  rounded = _mm512_mask_or_epi32(rounded, nan, bits, u32x16(0x400000));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
}

template <DType kFormat>
[[gnu::target("avx512f,avx512vl,avx512bw,avx512dq")]] void dequantize_row_scaled(
    const DequantizeStep& step, Bf16* to) {
  const __m512 factor = _mm512_set1_ps(step.factor);
  for (std::int64_t j = 0; j < step.count; j += kLanes) {
    const MaskedBytes some = masked_bytes(step, j);
    _mm256_mask_storeu_epi16(to + j, some.which,
                             multiply_to_bf16(decode_some<kFormat>(some), factor));
  }
}

// Dispatch by scale.
template <DType kFormat>
void dequantize_bf16(const DequantizeStep& step, Bf16* to) {
  if (step.scales != nullptr) return dequantize_block_scaled<kFormat>(step, to);
  if (step.factor == 1) return dequantize_unscaled<kFormat>(step, to);
  if (std::abs(step.factor) < kTinyFactor) return dequantize_tiny_factor<kFormat>(step, to);
  dequantize_row_scaled<kFormat>(step, to);
}

}  // namespace

float compute_amax_avx512(const AmaxStep& step) { return amax_bf16(step); }

void quantize_avx512(const QuantizeStep& step) {
  if (step.format == DType::fp8_e4m3) return quantize_bf16<DType::fp8_e4m3>(step);
  quantize_bf16<DType::fp8_e5m2>(step);
}

void quantize_blocks_avx512(const QuantizeBlocksStep& step) {
  if (step.format == DType::fp8_e4m3) return quantize_bf16_blocks<DType::fp8_e4m3>(step);
  quantize_bf16_blocks<DType::fp8_e5m2>(step);
}

void dequantize_to_f32_avx512(const DequantizeStep& step, float* to) {
  if (step.format == DType::fp8_e4m3) return dequantize_floats<DType::fp8_e4m3>(step, to);
  dequantize_floats<DType::fp8_e5m2>(step, to);
}

void dequantize_to_bf16_avx512(const DequantizeStep& step, Bf16* to) {
  if (step.format == DType::fp8_e4m3) return dequantize_bf16<DType::fp8_e4m3>(step, to);
  dequantize_bf16<DType::fp8_e5m2>(step, to);
}

void dequantize_add_avx512(const DequantizeStep& step, float* to) {
  if (step.format == DType::fp8_e4m3) return add_floats<DType::fp8_e4m3>(step, to);
  add_floats<DType::fp8_e5m2>(step, to);
}

}  // namespace shiplap::kernels
