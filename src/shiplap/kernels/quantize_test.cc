// The second witness is one number at a time, by fp8.h and in double.
#include "shiplap/kernels/quantize.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "shiplap/base/error.h"
#include "shiplap/base/random.h"
#include "shiplap/kernels/linear_testing_internal.h"
#include "shiplap/kernels/quantize_internal.h"

namespace shiplap::kernels {
namespace {

constexpr DType kFormats[] = {DType::fp8_e4m3, DType::fp8_e5m2};
constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::byte code_of(DType format, float value) {
  return std::byte{format == DType::fp8_e4m3 ? to_e4m3(value).bits : to_e5m2(value).bits};
}

float value_of(DType format, std::byte code) {
  const auto bits = std::to_integer<std::uint8_t>(code);
  return format == DType::fp8_e4m3 ? to_float(E4m3{bits}) : to_float(E5m2{bits});
}

bool are_same(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) ||
         std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}

// Mostly usual numbers, of very different sizes; some special ones.
TypedArray any_numbers(Random& random, DType type, std::int64_t count) {
  constexpr double kSpecial[] = {
      0,   -0.0,  HUGE_VAL, -HUGE_VAL, std::numeric_limits<double>::quiet_NaN(),
      448, 57344, 0x1p-133, 0x1p-24};
  TypedArray numbers(type, count);
  for (std::int64_t i = 0; i < count; ++i) {
    const int exponent = static_cast<int>(random.between(-24, 18));
    const double usual = std::ldexp(2 * random.unit() - 1, exponent);
    numbers.put(i, random.chance(0.05) ? kSpecial[random.between(0, std::size(kSpecial))] : usual);
  }
  return numbers;
}

// All numbers of a type of 16 bits.
TypedArray all_numbers(DType type) {
  TypedArray all(type, 0x10000);
  auto* const bits = static_cast<std::uint16_t*>(all.data());
  for (std::int64_t i = 0; i < all.count(); ++i) bits[i] = static_cast<std::uint16_t>(i);
  return all;
}

// What is written behind the end shows.
constexpr std::byte kUntouched{0x55};

void expect_codes(const QuantizeLoops& loops, const TypedArray& from, float scale, DType format) {
  const std::int64_t count = from.count();
  std::vector<std::byte> codes(static_cast<std::size_t>(count) + 1, kUntouched);
  loops.quantize({.from = from.data(),
                  .type = from.type(),
                  .count = count,
                  .scale = scale,
                  .format = format,
                  .to = codes.data()});
  for (std::int64_t i = 0; i < count; ++i) {
    const float scaled = static_cast<float>(from.get(i)) * scale;
    ASSERT_EQ(codes[i], code_of(format, scaled))
        << name(format) << " of " << from.get(i) << " * " << scale << ", " << i << " of " << count;
  }
  ASSERT_EQ(codes.back(), kUntouched);
}

TEST(QuantizeLoops, RoundEveryNumberOf16BitsAsFp8Does) {
  for (const QuantizeLoops& loops : quantize_loops()) {
    for (const DType type : {DType::bf16, DType::f16}) {
      for (const DType format : kFormats) {
        for (const float scale : {1.0F, 0.37F, -300.0F, 0x1p-126F, 0x1p126F}) {
          expect_codes(loops, all_numbers(type), scale, format);
        }
      }
    }
  }
}

TEST(QuantizeLoops, RoundAnyCountOfNumbers) {
  for (const QuantizeLoops& loops : quantize_loops()) {
    for (const DType type : kFloatTypes) {
      for (const DType format : kFormats) {
        for (std::int64_t count = 0; count < 70; ++count) {
          Random random(static_cast<std::uint64_t>(count));
          expect_codes(loops, any_numbers(random, type, count), 0.37F, format);
        }
      }
    }
  }
}

// All ties of a format, and the floats next to them.
TEST(QuantizeLoops, RoundTiesOfFloatsAsFp8Does) {
  for (const DType format : kFormats) {
    std::vector<float> near;
    for (int code = 0; code < 0x7b; ++code) {
      const float low = value_of(format, static_cast<std::byte>(code));
      const float high = value_of(format, static_cast<std::byte>(code + 1));
      const float middle = (low + high) / 2;
      for (const float value : {low, middle}) {
        for (const float sign : {1.0F, -1.0F}) {
          near.push_back(sign * value);
          near.push_back(sign * std::nextafter(value, -1.0F));
          near.push_back(sign * std::nextafter(value, kInfinity));
        }
      }
    }
    TypedArray numbers(DType::f32, static_cast<std::int64_t>(near.size()));
    std::memcpy(numbers.data(), near.data(), near.size() * sizeof(float));
    for (const QuantizeLoops& loops : quantize_loops()) expect_codes(loops, numbers, 1, format);
  }
}

float amax_one_by_one(const TypedArray& numbers, std::int64_t first, std::int64_t count) {
  float amax = 0;
  for (std::int64_t i = first; i < first + count; ++i) {
    const auto size = static_cast<float>(std::abs(numbers.get(i)));
    if (size > amax) amax = size;
  }
  return amax;
}

TEST(QuantizeLoops, FindTheLargestAndPassOverNans) {
  for (const QuantizeLoops& loops : quantize_loops()) {
    for (const DType type : kFloatTypes) {
      for (std::int64_t count = 0; count < 70; ++count) {
        Random random(static_cast<std::uint64_t>(count));
        const TypedArray numbers = any_numbers(random, type, count);
        ASSERT_EQ(loops.compute_amax({.from = numbers.data(), .type = type, .count = count}),
                  amax_one_by_one(numbers, 0, count))
            << count;
      }
    }
  }
}

struct Blocks {
  DType format;
  MxRule rule;
};

void expect_blocks(const QuantizeLoops& loops, const TypedArray& from, const Blocks& how) {
  const std::int64_t count = from.count();
  std::vector<std::byte> codes(static_cast<std::size_t>(count) + 1, kUntouched);
  std::vector<std::byte> scales(static_cast<std::size_t>((count + 31) / 32) + 1, kUntouched);
  loops.quantize_blocks({.from = from.data(),
                         .type = from.type(),
                         .count = count,
                         .rule = how.rule,
                         .format = how.format,
                         .to = codes.data(),
                         .scales = scales.data()});
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t block = i / 32;
    const float amax =
        amax_one_by_one(from, block * 32, std::min<std::int64_t>(32, count - block * 32));
    const E8m0 scale = mx_scale(amax, how.format, how.rule);
    ASSERT_EQ(scales[block], std::byte{scale.bits}) << amax;
    const double scaled = std::ldexp(from.get(i), 127 - scale.bits);
    const auto exact = static_cast<float>(std::clamp(scaled, -1e30, 1e30));
    ASSERT_EQ(codes[i], code_of(how.format, exact))
        << from.get(i) << ", amax " << amax << ", " << i << " of " << count;
  }
  ASSERT_EQ(codes.back(), kUntouched);
  ASSERT_EQ(scales.back(), kUntouched);
}

void expect_blocks_by_both_rules(const TypedArray& from) {
  for (const QuantizeLoops& loops : quantize_loops()) {
    for (const DType format : kFormats) {
      for (const MxRule rule : {MxRule::round_up, MxRule::ocp_floor}) {
        expect_blocks(loops, from, {format, rule});
      }
    }
  }
}

// Neighbours in a block of all numbers have about the same size, special ones and subnormals among
// them.
TEST(QuantizeLoops, RoundBlocksOfEverySize) {
  for (const DType type : {DType::bf16, DType::f16}) {
    expect_blocks_by_both_rules(all_numbers(type));
  }
}

TEST(QuantizeLoops, RoundBlocksOfAnyCount) {
  for (const DType type : kFloatTypes) {
    for (std::int64_t count = 0; count < 100; ++count) {
      Random random(static_cast<std::uint64_t>(count));
      expect_blocks_by_both_rules(any_numbers(random, type, count));
    }
  }
}

TEST(QuantizeLoops, RoundBlocksOfTinyAndHugeFloats) {
  Random random(3);
  for (int exponent = -149; exponent < 128; ++exponent) {
    TypedArray numbers(DType::f32, 64);
    for (std::int64_t i = 0; i < 64; ++i) {
      numbers.put(i, std::ldexp(2 * random.unit() - 1, exponent));
    }
    expect_blocks_by_both_rules(numbers);
  }
}

// The bf16 nearest to a double, ties to even, by looking at the neighbours.
Bf16 nearest_bf16(double value) {
  const Bf16 about = to_bf16(static_cast<float>(value));
  if (std::isnan(value) || !std::isfinite(to_float(about))) return about;
  Bf16 best = about;
  for (const int step : {-1, 1}) {
    const Bf16 other{static_cast<std::uint16_t>(about.bits + step)};
    if (!std::isfinite(to_float(other)) || (other.bits ^ about.bits) >> 15 != 0) continue;
    const double here = std::abs(double{to_float(best)} - value);
    const double there = std::abs(double{to_float(other)} - value);
    if (there < here || (there == here && other.bits % 2 == 0)) best = other;
  }
  return best;
}

void expect_numbers(const QuantizeLoops& loops, const DequantizeStep& step) {
  const auto count = static_cast<std::size_t>(step.count);
  std::vector<float> floats(count + 1, 5.0F);
  std::vector<Bf16> narrow(count + 1, Bf16{0x5555});
  std::vector<float> sums(count + 1, 0.3F);
  loops.dequantize_to_f32(step, floats.data());
  loops.dequantize_to_bf16(step, narrow.data());
  loops.dequantize_add(step, sums.data());
  for (std::size_t i = 0; i < count; ++i) {
    const float factor = step.scales == nullptr
                             ? step.factor
                             : to_float(E8m0{std::to_integer<std::uint8_t>(step.scales[i / 32])});
    const double exact =
        static_cast<double>(value_of(step.format, step.from[i])) * static_cast<double>(factor);
    const auto once = static_cast<float>(exact);
    ASSERT_TRUE(are_same(floats[i], once)) << exact << " became " << floats[i];
    ASSERT_TRUE(are_same(to_float(narrow[i]), to_float(nearest_bf16(exact))))
        << exact << " became " << to_float(narrow[i]);
    ASSERT_TRUE(are_same(sums[i], once + 0.3F)) << exact << " became " << sums[i];
  }
  ASSERT_EQ(floats.back(), 5.0F);
  ASSERT_EQ(narrow.back(), Bf16{0x5555});
  ASSERT_EQ(sums.back(), 0.3F);
}

std::vector<std::byte> all_codes() {
  std::vector<std::byte> codes;
  for (int i = 0; i < 256; ++i) codes.push_back(static_cast<std::byte>(i));
  return codes;
}

// Among the factors many that put some code next to the middle of two numbers of bf16.
TEST(QuantizeLoops, WidenEveryCodeWithOneRounding) {
  const std::vector<std::byte> codes = all_codes();
  std::vector<float> factors = {1, 0.37F, 0x1p-126F, 0x1p127F, 3e-39F, -3e38F, kInfinity, 0};
  for (std::uint32_t i = 0; i < 300; ++i) {
    factors.push_back(std::bit_cast<float>(0x3f808000U + 0x1000U * i + i % 3 - 1));
    factors.push_back(std::bit_cast<float>(0x00808000U + 0x1000U * i + i % 3 - 1));
  }
  for (const QuantizeLoops& loops : quantize_loops()) {
    for (const DType format : kFormats) {
      for (const float factor : factors) {
        expect_numbers(loops,
                       {.from = codes.data(), .format = format, .count = 256, .factor = factor});
      }
    }
  }
}

TEST(QuantizeLoops, WidenEveryCodeInBlocksOfEveryScale) {
  const std::vector<std::byte> codes = all_codes();
  for (const QuantizeLoops& loops : quantize_loops()) {
    for (const DType format : kFormats) {
      for (int scale = 0; scale < 256; ++scale) {
        const std::vector<std::byte> scales(8, static_cast<std::byte>(scale));
        expect_numbers(
            loops, {.from = codes.data(), .format = format, .count = 256, .scales = scales.data()});
      }
    }
  }
}

TEST(QuantizeLoops, WidenAnyCountOfCodes) {
  const std::vector<std::byte> codes = all_codes();
  const std::vector<std::byte> scales = {std::byte{130}, std::byte{1}, std::byte{100}};
  for (const QuantizeLoops& loops : quantize_loops()) {
    for (const DType format : kFormats) {
      for (std::int64_t count = 0; count < 70; ++count) {
        expect_numbers(loops,
                       {.from = &codes[40], .format = format, .count = count, .factor = 0.37F});
        expect_numbers(
            loops, {.from = &codes[40], .format = format, .count = count, .scales = scales.data()});
      }
    }
  }
}

// Rows of codes with their scales behind them, and gaps: how they lie in one buffer.
struct Mixed {
  Mixed(std::int64_t rows, std::int64_t columns, ScaleGranularity kind, DType format)
      : stride(columns + scale_bytes(kind, columns) + 3),
        bytes(static_cast<std::size_t>(rows * stride), kUntouched),
        view{.data = bytes.data(),
             .type = format,
             .rows = rows,
             .columns = columns,
             .stride = stride,
             .scaling = kind,
             .scales = bytes.data() + columns,
             .scale_stride = stride} {}

  std::int64_t stride;
  std::vector<std::byte> bytes;
  MatrixView view;
};

struct Case {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t gap = 0;
  DType type = DType::f32;
  DType format = DType::fp8_e4m3;
};

// What comes back differs by no more than the format explains, and by a rounding of the result.
void expect_near(const Case& which, const TypedArray& from, const Mixed& to) {
  const std::int64_t stride = which.columns + which.gap;
  TypedArray back(DType::f32, which.rows * stride);
  for (std::int64_t i = 0; i < back.count(); ++i) back.put(i, 77);
  TypedArray narrow(DType::bf16, which.rows * which.columns);
  TypedArray sums(DType::f32, which.rows * which.columns);
  for (std::int64_t i = 0; i < sums.count(); ++i) sums.put(i, 1);
  dequantize(to.view, {.data = back.data(), .stride = stride});
  dequantize(to.view, {.data = narrow.data(), .type = DType::bf16});
  dequantize_add(to.view, {.data = sums.data()});
  for (std::int64_t i = 0; i < which.rows; ++i) {
    const float amax = amax_one_by_one(from, i * stride, which.columns);
    const double step = min_subnormal(which.format) * double{amax} / double{fp8_max(which.format)};
    for (std::int64_t j = 0; j < stride; ++j) {
      const double found = back.get(i * stride + j);
      if (j >= which.columns) {
        ASSERT_EQ(found, 77) << "in the gap";
        continue;
      }
      const double given = from.get(i * stride + j);
      const double bound = std::max(unit_roundoff(which.format) * std::abs(given), step);
      ASSERT_NEAR(found, given, bound * 1.001) << i << ", " << j;
      ASSERT_NEAR(narrow.get(i * which.columns + j), found, std::abs(found) * 0x1p-8);
      ASSERT_EQ(sums.get(i * which.columns + j), double{static_cast<float>(found) + 1.0F});
    }
  }
}

void expect_there_and_back(const Case& which, Random& random) {
  const std::int64_t stride = which.columns + which.gap;
  const TypedArray from = random_array(random, which.type, which.rows * stride, Fill::fractions);
  const ConstMatrixView wide{.data = from.data(),
                             .type = which.type,
                             .rows = which.rows,
                             .columns = which.columns,
                             .stride = stride};
  Mixed blocks(which.rows, which.columns, ScaleGranularity::per_block, which.format);
  quantize_blocks(wide, blocks.view);
  expect_near(which, from, blocks);
  Mixed rows(which.rows, which.columns, ScaleGranularity::per_row, which.format);
  quantize_by_row(wide, rows.view);
  expect_near(which, from, rows);
  for (std::int64_t i = 0; i < which.rows; ++i) {
    for (std::int64_t k = 1; k <= 3; ++k) {
      ASSERT_EQ(rows.bytes[(i + 1) * rows.stride - k], kUntouched);
      ASSERT_EQ(blocks.bytes[(i + 1) * blocks.stride - k], kUntouched);
    }
  }
}

TEST(Quantize, ThereAndBackIsWithinWhatTheFormatExplains) {
  Random random(4);
  for (const DType type : kFloatTypes) {
    for (const DType format : kFormats) {
      for (const std::int64_t rows : {0, 1, 2, 5}) {
        for (const std::int64_t columns : {1, 15, 16, 31, 32, 33, 64, 100}) {
          for (const std::int64_t gap : {0, 3}) {
            expect_there_and_back({rows, columns, gap, type, format}, random);
          }
        }
      }
    }
  }
}

float float_at(const std::byte* at) {
  float value = 0;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// With gaps or without, with one slot or one for each row: the same codes, and the inverse in every
// slot.
TEST(Quantize, OneScaleForAllRowsGivesTheSameCodesHoweverTheyLie) {
  Random random(5);
  const TypedArray from = random_array(random, DType::bf16, std::int64_t{7} * 45, Fill::fractions);
  const ConstMatrixView wide{.data = from.data(), .type = DType::bf16, .rows = 7, .columns = 45};
  const float scale = current_scale(compute_amax(wide), DType::fp8_e4m3);
  std::vector<std::byte> codes(std::size_t{7} * 45);
  std::vector<std::byte> inverse(4);
  quantize(wide, scale,
           {.data = codes.data(),
            .type = DType::fp8_e4m3,
            .rows = 7,
            .columns = 45,
            .scales = inverse.data()});
  Mixed mixed(7, 45, ScaleGranularity::per_row, DType::fp8_e4m3);
  quantize(wide, scale, mixed.view);
  const float expected = 1 / scale;
  EXPECT_EQ(float_at(inverse.data()), expected);
  for (std::int64_t i = 0; i < 7; ++i) {
    const MatrixView row = mixed.view.slice_rows(i, 1);
    EXPECT_EQ(std::memcmp(row.data, &codes[static_cast<std::size_t>(i) * 45], 45), 0) << i;
    EXPECT_EQ(float_at(row.scales), expected) << i;
    for (std::int64_t j = 0; j < 45; ++j) {
      EXPECT_EQ(static_cast<const std::byte*>(row.data)[j],
                code_of(DType::fp8_e4m3, static_cast<float>(from.get(i * 45 + j)) * scale));
    }
  }
}

TEST(Quantize, TheLargestIsThatOfAllRowsAndNotOfTheGaps) {
  std::vector<float> numbers = {1, -3, 100, 2, 0, -100};
  EXPECT_EQ(compute_amax({.data = numbers.data(), .rows = 2, .columns = 2, .stride = 3}), 3);
  EXPECT_EQ(compute_amax({.data = numbers.data(), .rows = 2, .columns = 3}), 100);
  EXPECT_EQ(compute_amax({.data = numbers.data(), .rows = 0, .columns = 3}), 0);
  numbers[1] = -kInfinity;
  numbers[0] = std::nanf("");
  EXPECT_EQ(compute_amax({.data = numbers.data(), .rows = 2, .columns = 2, .stride = 3}),
            kInfinity);
}

TEST(Quantize, ANanInABlockLeavesTheOthersAlone) {
  std::vector<float> numbers(32, 1.0F);
  numbers[5] = std::nanf("");
  std::vector<std::byte> codes(32);
  std::byte scale{};
  const MatrixView to{.data = codes.data(),
                      .type = DType::fp8_e4m3,
                      .rows = 1,
                      .columns = 32,
                      .scaling = ScaleGranularity::per_block,
                      .scales = &scale};
  quantize_blocks({.data = numbers.data(), .rows = 1, .columns = 32}, to);
  std::vector<float> back(32);
  dequantize(to, {.data = back.data()});
  for (std::size_t i = 0; i < 32; ++i) {
    EXPECT_TRUE(i == 5 ? std::isnan(back[i]) : back[i] == 1.0F) << i;
  }
}

TEST(Quantize, PromisesWhatItSays) {
  float x = 1;
  std::byte code{};
  std::vector<std::byte> scales(8);
  const ConstMatrixView from{.data = &x, .rows = 1, .columns = 1};
  const MatrixView to{
      .data = &code, .type = DType::fp8_e4m3, .rows = 1, .columns = 1, .scales = scales.data()};
  EXPECT_NO_THROW(quantize(from, 1, to));
  EXPECT_THROW(quantize(from, 0, to), InternalError);
  EXPECT_THROW(quantize(from, kInfinity, to), InternalError);
  EXPECT_THROW(quantize({.data = &x, .rows = 1, .columns = 2}, 1, to), InternalError);
  EXPECT_THROW(quantize_blocks(from, to), InternalError);
  EXPECT_THROW(quantize_by_row({.data = &x, .rows = 2, .columns = 1}, {.data = &code,
                                                                       .type = DType::fp8_e4m3,
                                                                       .rows = 2,
                                                                       .columns = 1,
                                                                       .scales = scales.data()}),
               InternalError);
  EXPECT_THROW(dequantize(to, {.data = &x, .type = DType::f16}), InternalError);
  EXPECT_THROW(static_cast<void>(to.slice_rows(1, 1)), InternalError);
  EXPECT_THROW(static_cast<void>(compute_amax({.rows = -1})), InternalError);
}

}  // namespace
}  // namespace shiplap::kernels
