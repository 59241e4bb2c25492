// Reference GEMM of FP8 matrices in double, for tests of LinearKernel; it shares only the FP8
// decoding.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ostream>
#include <vector>

#include "shiplap/base/random.h"
#include "shiplap/kernels/fp8.h"
#include "shiplap/kernels/linear_testing_internal.h"

namespace shiplap::kernels {

// How a factor is stored. Blocks are along the inner size.
enum class Storage { one_scale, scale_per_row, blocks, bf16 };

// An operand: lines of `inner_size` values, or transposed.
struct ScaledMatrix {
  Storage stored = Storage::blocks;
  DType format = DType::fp8_e4m3;
  std::int64_t lines = 0;
  std::int64_t inner_size = 0;
  bool is_along = true;  // whether lines lie as rows
  std::int64_t gap = 0;

  std::vector<std::byte> codes;
  std::vector<std::byte> scales;
  TypedArray wide;

  [[nodiscard]] std::int64_t rows() const { return is_along ? lines : inner_size; }
  [[nodiscard]] std::int64_t columns() const { return is_along ? inner_size : lines; }
  [[nodiscard]] std::int64_t stride() const { return columns() + gap; }
  [[nodiscard]] std::int64_t blocks() const { return (inner_size + 31) / 32; }
  [[nodiscard]] std::int64_t scale_stride() const {
    if (stored == Storage::one_scale) return 0;
    if (stored == Storage::scale_per_row) return 4 + gap;
    return (is_along ? blocks() : lines) + gap;
  }

  [[nodiscard]] std::size_t at(std::int64_t line, std::int64_t k) const {
    return static_cast<std::size_t>(is_along ? line * stride() + k : k * stride() + line);
  }
  [[nodiscard]] std::size_t scale_at(std::int64_t line, std::int64_t block) const {
    if (stored != Storage::blocks) return static_cast<std::size_t>(line * scale_stride());
    return static_cast<std::size_t>(is_along ? line * scale_stride() + block
                                             : block * scale_stride() + line);
  }

  void fill(Random& random) {
    const auto count = static_cast<std::size_t>(rows() * stride());
    if (stored == Storage::bf16) {
      wide = random_array(random, DType::bf16, static_cast<std::int64_t>(count), Fill::fractions);
      return;
    }
    codes.resize(count);
    for (std::byte& code : codes) code = any_code(random);
    scales.resize(std::max<std::int64_t>(4, scale_stride() * std::max(lines, blocks()) + 4));
    for (std::int64_t line = 0; line < lines; ++line) {
      if (stored == Storage::scale_per_row)
        put_scale(line, static_cast<float>(random.unit() + 0.1));
      for (std::int64_t block = 0; stored == Storage::blocks && block < blocks(); ++block) {
        put_block_scale(line, block, static_cast<int>(random.between(118, 130)));
      }
    }
    if (stored == Storage::one_scale) put_scale(0, static_cast<float>(random.unit() + 0.1));
  }

  // Any that is finite, zeros more often than others.
  [[nodiscard]] std::byte any_code(Random& random) const {
    const int size =
        random.chance(0.1)
            ? 0
            : static_cast<int>(random.between(0, format == DType::fp8_e4m3 ? 0x7f : 0x7c));
    return static_cast<std::byte>(size + (random.chance() ? 0x80 : 0));
  }

  void put_scale(std::int64_t line, float scale) {
    std::memcpy(&scales[scale_at(line, 0)], &scale, sizeof scale);
  }
  void put_block_scale(std::int64_t line, std::int64_t block, int scale) {
    scales[scale_at(line, block)] = static_cast<std::byte>(scale);
  }
  void put_block_codes(std::int64_t line, std::int64_t block, std::byte code) {
    for (std::int64_t k = block * 32; k < std::min(inner_size, block * 32 + 32); ++k) {
      codes[at(line, k)] = code;
    }
  }

  [[nodiscard]] double get(std::int64_t line, std::int64_t k) const {
    if (stored == Storage::bf16) return wide.get(static_cast<std::int64_t>(at(line, k)));
    const auto bits = std::to_integer<std::uint8_t>(codes[at(line, k)]);
    const auto number = static_cast<double>(format == DType::fp8_e4m3 ? to_float(E4m3{bits})
                                                                      : to_float(E5m2{bits}));
    if (stored == Storage::blocks) {
      const int scale = std::to_integer<int>(scales[scale_at(line, k / 32)]);
      return scale == 0xff ? std::nan("") : std::ldexp(number, scale - 127);
    }
    float scale = 0;
    std::memcpy(&scale, &scales[scale_at(line, 0)], sizeof scale);
    return number * static_cast<double>(scale);
  }

  [[nodiscard]] MatrixView view() {
    if (stored == Storage::bf16) {
      return {.data = wide.data(),
              .type = DType::bf16,
              .rows = rows(),
              .columns = columns(),
              .stride = stride()};
    }
    return {.data = codes.data(),
            .type = format,
            .rows = rows(),
            .columns = columns(),
            .stride = stride(),
            .scaling =
                stored == Storage::blocks ? ScaleGranularity::per_block : ScaleGranularity::per_row,
            .scales = scales.data(),
            .scale_stride = scale_stride()};
  }
};

struct ScaledGemmCase {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  Storage a = Storage::blocks;
  DType a_format = DType::fp8_e4m3;
  Storage weights = Storage::blocks;
  DType weights_format = DType::fp8_e4m3;
  bool weights_are_transposed = true;
  DType out = DType::f32;
  std::int64_t gap = 0;
  float alpha = 1;
  float beta = 0;
  bool has_bias = false;
  Activation activation = Activation::none;
  bool saves = false;
};

inline std::ostream& operator<<(std::ostream& out, const ScaledGemmCase& q) {
  return out << q.m << " x " << q.n << " x " << q.k << ", " << static_cast<int>(q.a)
             << name(q.a_format) << " by " << static_cast<int>(q.weights) << name(q.weights_format)
             << ", transposed " << q.weights_are_transposed << ", to " << static_cast<int>(q.out)
             << ", gap " << q.gap << ", alpha " << q.alpha << ", beta " << q.beta << ", bias "
             << q.has_bias << ", activation " << static_cast<int>(q.activation) << ", saves "
             << q.saves;
}

// Draws dtypes, gaps and epilogue.
inline void randomize_rest(Random& random, ScaledGemmCase& spec) {
  spec.out = kFloatTypes[random.between(0, 3)];
  spec.gap = random.chance(0.3) ? random.between(1, 20) : 0;
  spec.alpha = random.chance() ? 1 : -0.5F;
  spec.beta = static_cast<float>(random.between(0, 3));
  spec.has_bias = random.chance();
  spec.activation = random.chance() ? Activation::gelu_tanh : Activation::none;
  spec.saves = random.chance();
}

struct ScaledArrays {
  ScaledGemmCase spec;
  ScaledMatrix a;
  ScaledMatrix weights;
  TypedArray bias;
  TypedArray c;
  TypedArray before;

  ScaledArrays(const ScaledGemmCase& q, Random& random)
      : spec(q),
        a{.stored = q.a, .format = q.a_format, .lines = q.m, .inner_size = q.k, .gap = q.gap},
        weights{.stored = q.weights,
                .format = q.weights_format,
                .lines = q.n,
                .inner_size = q.k,
                .is_along = q.weights_are_transposed,
                .gap = q.gap},
        bias(random_array(random, DType::f32, q.n, Fill::fractions)),
        c(random_array(random, q.out, q.m * c_stride(), Fill::fractions)),
        before(q.out, q.m * c_stride()) {
    a.fill(random);
    weights.fill(random);
  }

  [[nodiscard]] std::int64_t c_stride() const { return spec.n + spec.gap; }
  [[nodiscard]] LinearShape shape() const {
    return {.n = spec.n, .k = spec.k, .type = DType::bf16};
  }

  void prepare(LinearKernel& linear) {
    linear.prepare(weights.is_along ? transposed(weights.view()) : weights.view());
  }

  // Some of the rows.
  void multiply(LinearKernel& linear, std::int64_t first, std::int64_t count) {
    Epilogue epilogue{.alpha = spec.alpha, .beta = spec.beta, .activation = spec.activation};
    const std::int64_t from = first * c_stride();
    if (spec.has_bias) epilogue.bias = {.data = bias.data(), .type = bias.type()};
    if (spec.saves) {
      epilogue.pre_activation = {
          .data = before.data(from), .type = before.type(), .stride = c_stride()};
    }
    linear.multiply(a.view().slice_rows(first, count),
                    {.data = c.data(from), .type = c.type(), .stride = c_stride()}, epilogue);
  }
};

struct ScaledExpected {
  double before = 0;
  double c = 0;
  double size = 0;  // of all that was added up
};

inline ScaledExpected expected_at(const ScaledArrays& given, std::int64_t i, std::int64_t j) {
  const ScaledGemmCase& q = given.spec;
  ScaledExpected result;
  const auto add = [&](double value) {
    result.before += value;
    result.size += std::abs(value);
  };
  for (std::int64_t k = 0; k < q.k; ++k) {
    add(double{q.alpha} * given.a.get(i, k) * given.weights.get(j, k));
  }
  if (q.beta != 0) add(double{q.beta} * given.c.get(i * given.c_stride() + j));
  if (q.has_bias) add(given.bias.get(j));
  result.c = q.activation == Activation::none ? result.before : gelu(result.before);
  return result;
}

// A sum of n terms in float is off by at most n units of their sizes, plus what products and sums
// that are too small for a normal float lose; then come the rounding of alpha, three operations of
// the epilogue, the sums of parts, and what is stored is rounded to its own type, of which f16 has
// numbers 2^-24 apart. The activation is a little steeper than 1, and good to a few units.
inline double bound(const ScaledGemmCase& q, const ScaledExpected& expected, double value) {
  const auto terms = static_cast<double>(q.k + 8);
  const double alpha = std::abs(static_cast<double>(q.alpha));
  const double smallest = q.out == DType::f16 ? 0x1p-25 : 0x1p-134;
  const double steep = q.activation == Activation::none ? 1 : 1.2;
  const double inexact = q.activation == Activation::none ? 0 : 1e-6 * std::abs(expected.before);
  return steep * terms * (0x1p-24 * expected.size + 0x1p-126 * (alpha + 1)) +
         1.01 * unit(q.out) * std::abs(value) + smallest + inexact;
}

// Numbers that are too large for the result are not finite: infinite, or NaN if terms of both signs
// are. Where terms are too large but their sum is not, anything may come out.
inline void expect_number(const ScaledGemmCase& q, const ScaledExpected& expected, double value,
                          double found) {
  const double largest = q.out == DType::f16 ? 65504 : 0x1.fep127;
  if (std::isnan(value)) {
    ASSERT_TRUE(std::isnan(found)) << found;
  } else if (expected.size < largest) {
    ASSERT_NEAR(found, value, bound(q, expected, value));
  } else if (std::abs(value) > 1.01 * largest + bound(q, expected, value)) {
    ASSERT_FALSE(std::isfinite(found)) << found << ", should be " << value;
  }
}

inline void expect_right(LinearKernel& linear, ScaledArrays& arrays) {
  const ScaledArrays given = arrays;
  const ScaledGemmCase& q = given.spec;
  arrays.prepare(linear);
  arrays.multiply(linear, 0, q.m);
  for (std::int64_t i = 0; i < q.m; ++i) {
    for (std::int64_t j = 0; j < arrays.c_stride(); ++j) {
      SCOPED_TRACE(testing::Message()
                   << i << ", " << j << " of " << q << " by " << linear.backend_name());
      const std::int64_t at = i * arrays.c_stride() + j;
      if (j >= q.n) {
        ASSERT_EQ(arrays.c.get(at), given.c.get(at)) << "in the gap";
        continue;
      }
      const ScaledExpected expected = expected_at(given, i, j);
      expect_number(q, expected, expected.c, arrays.c.get(at));
      if (q.saves) expect_number(q, expected, expected.before, arrays.before.get(at));
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

}  // namespace shiplap::kernels
