#include <algorithm>
#include <limits>
#include <thread>

#include "shiplap/base/error.h"
#include "shiplap/kernels/allocations_testing_internal.h"
#include "shiplap/kernels/attention.h"
#include "shiplap/kernels/linear.h"
#include "shiplap/kernels/scaled_testing_internal.h"

namespace shiplap::kernels {
namespace {

constexpr DType kFormats[] = {DType::fp8_e4m3, DType::fp8_e5m2};
constexpr Storage kRows[] = {Storage::one_scale, Storage::scale_per_row, Storage::blocks,
                             Storage::bf16};
constexpr Storage kWeights[] = {Storage::one_scale, Storage::blocks, Storage::bf16};

// Everything that the two factors can be; `act` sees each once.
void for_all_operands(const auto& act) {
  for (const Storage a : kRows) {
    for (const Storage weights : kWeights) {
      for (const DType a_format : kFormats) {
        for (const DType weights_format : kFormats) {
          for (const bool transposed : {false, true}) {
            act(ScaledGemmCase{.a = a,
                               .a_format = a_format,
                               .weights = weights,
                               .weights_format = weights_format,
                               .weights_are_transposed = transposed});
          }
        }
      }
    }
  }
}

void expect_right_for_small_shapes(Engine engine) {
  Random random(1);
  for_all_operands([&](ScaledGemmCase q) {
    for (const std::int64_t k : {0, 1, 31, 32, 33, 70}) {
      for (const std::int64_t columns : {1, 3, 17}) {
        LinearKernel linear({.n = columns, .k = k, .type = DType::bf16, .engine = engine});
        for (const std::int64_t rows : {0, 1, 2, 5}) {
          q.m = rows;
          q.n = columns;
          q.k = k;
          ScaledArrays arrays(q, random);
          expect_right(linear, arrays);
        }
      }
    }
  });
}

TEST(ScaledLinear, IsRightForAllSmallShapes) { expect_right_for_small_shapes(Engine::best); }
TEST(ScaledLinear, PlainLoopsAreRightForAllSmallShapes) {
  expect_right_for_small_shapes(Engine::reference);
}

ScaledGemmCase random_case(Random& random) {
  ScaledGemmCase q{.m = random.between(1, 90),
                   .n = random.between(1, 120),
                   .k = random.between(1, 200),
                   .a = kRows[random.between(0, 4)],
                   .a_format = kFormats[random.between(0, 2)],
                   .weights = kWeights[random.between(0, 3)],
                   .weights_format = kFormats[random.between(0, 2)],
                   .weights_are_transposed = random.chance()};
  randomize_rest(random, q);
  return q;
}

TEST(ScaledLinear, IsRightForRandomShapesAndEpilogues) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    ScaledArrays arrays(random_case(random), random);
    LinearShape shape = arrays.shape();
    shape.typical_rows = random.between(1, 80);
    LinearKernel linear(shape);
    expect_right(linear, arrays);
  }
}

// All rows, in chunks of `rows`, the last one ragged.
void multiply_in_chunks(ScaledArrays& arrays, LinearKernel& linear, std::int64_t rows) {
  for (std::int64_t first = 0; first < arrays.spec.m; first += rows) {
    arrays.multiply(linear, first, std::min(rows, arrays.spec.m - first));
  }
}

// Some blocks of both factors get scales that are very small or very large.
void spread_scales(ScaledArrays& arrays, Random& random) {
  for (ScaledMatrix* const factor : {&arrays.a, &arrays.weights}) {
    if (factor->stored != Storage::blocks) continue;
    for (std::int64_t line = 0; line < factor->lines; ++line) {
      if (!random.chance(0.3)) continue;
      const std::int64_t block = random.between(0, factor->blocks());
      factor->put_block_scale(
          line, block,
          static_cast<int>(random.chance() ? random.between(0, 20) : random.between(190, 255)));
    }
  }
}

void expect_same_bits(const ScaledGemmCase& q, std::int64_t typical_rows, Random& random) {
  ScaledArrays given(q, random);
  spread_scales(given, random);
  LinearShape shape = given.shape();
  shape.typical_rows = typical_rows;
  LinearKernel linear(shape);
  given.prepare(linear);
  ScaledArrays whole = given;
  whole.multiply(linear, 0, q.m);
  for (const std::int64_t rows : {1, 2, 3, 7, 16, 33, 64}) {
    ScaledArrays chunks = given;
    multiply_in_chunks(chunks, linear, rows);
    ASSERT_TRUE(chunks.c == whole.c)
        << "chunks of " << rows << ": " << q << " by " << linear.backend_name();
    ASSERT_TRUE(chunks.before == whole.before) << "chunks of " << rows << ": " << q;
  }
}

TEST(ScaledLinear, ARowHasTheSameBitsAloneInAChunkAndInTheWhole) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    const ScaledGemmCase q = random_case(random);
    expect_same_bits(q, random.between(1, 130), random);
  }
}

TEST(ScaledLinear, LargeProductsKeepTheBits) {
  if (gemm_backend_name() == "reference") GTEST_SKIP() << "the reference takes too long";
  Random random(2);
  for (const Storage stored : {Storage::scale_per_row, Storage::blocks}) {
    expect_same_bits({.m = 150,
                      .n = 520,
                      .k = 1500,
                      .a = stored,
                      .weights = Storage::blocks,
                      .out = DType::bf16},
                     64, random);
  }
}

// The same weights, by rows and transposed.
TEST(ScaledLinear, BlocksAreAlongTheDepthHoweverTheWeightsLie) {
  Random random(3);
  ScaledArrays left({.m = 5, .n = 40, .k = 70}, random);
  ScaledArrays right = left;
  right.weights.is_along = false;
  for (std::int64_t j = 0; j < 40; ++j) {
    for (std::int64_t k = 0; k < 70; ++k) {
      right.weights.codes[right.weights.at(j, k)] = left.weights.codes[left.weights.at(j, k)];
    }
    for (std::int64_t b = 0; b < 3; ++b) {
      right.weights.scales[right.weights.scale_at(j, b)] =
          left.weights.scales[left.weights.scale_at(j, b)];
    }
  }
  LinearKernel linear(left.shape());
  left.prepare(linear);
  left.multiply(linear, 0, 5);
  right.prepare(linear);
  right.multiply(linear, 0, 5);
  EXPECT_TRUE(left.c == right.c);
}

TEST(ScaledLinear, WeightsCanBePreparedAgain) {
  LinearKernel linear({.n = 40, .k = 70, .type = DType::bf16});
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    Random random(seed);
    ScaledArrays arrays({.m = 7,
                         .n = 40,
                         .k = 70,
                         .weights = kWeights[seed % 3],
                         .weights_are_transposed = random.chance()},
                        random);
    if (arrays.weights.stored == Storage::blocks) {
      arrays.weights.put_block_scale(static_cast<std::int64_t>(seed), 1, 3);
    }
    expect_right(linear, arrays);
  }
}

// The product of three scales may be none that a float can hold, although the result can.
TEST(ScaledLinear, ScalesOfRowsMayBeVerySmallOrVeryLarge) {
  for (const float scale : {0x1p-126F, 0x1p-100F, 0x1p60F, 0x1p100F, 0x1p126F}) {
    for (const float other : {0x1p-126F, 0x1p-60F, 1.0F, 0x1p60F, 0x1p126F}) {
      for (const float alpha : {1.0F, 0x1p-100F, 0x1p80F}) {
        Random random(4);
        ScaledArrays arrays({.m = 4,
                             .n = 20,
                             .k = 40,
                             .a = Storage::scale_per_row,
                             .weights = Storage::one_scale,
                             .alpha = alpha},
                            random);
        arrays.a.put_scale(1, scale);
        arrays.a.put_scale(2, scale);
        arrays.weights.put_scale(0, other);
        LinearKernel linear(arrays.shape());
        expect_right(linear, arrays);
      }
    }
  }
}

TEST(ScaledLinear, WhatWasThereDoesNotMatterIfBetaIsZero) {
  Random random(5);
  ScaledArrays arrays({.m = 3, .n = 20, .k = 40, .a = Storage::scale_per_row}, random);
  for (std::int64_t i = 0; i < arrays.c.count(); ++i) arrays.c.put(i, std::nan(""));
  LinearKernel linear(arrays.shape());
  expect_right(linear, arrays);
}

TEST(ScaledLinear, TakesTransposedRowsOfBf16) {
  Random random(6);
  ScaledArrays arrays({.m = 9, .n = 20, .k = 40, .a = Storage::bf16}, random);
  ScaledArrays transposed = arrays;
  for (std::int64_t i = 0; i < 9; ++i) {
    for (std::int64_t k = 0; k < 40; ++k) transposed.a.wide.put(k * 9 + i, arrays.a.get(i, k));
  }
  LinearShape shape = arrays.shape();
  shape.typical_rows = 4;
  LinearKernel linear(shape);
  expect_right(linear, arrays);
  linear.multiply(
      {.data = transposed.a.wide.data(), .type = DType::bf16, .rows = 9, .is_transposed = true},
      {.data = transposed.c.data()});
  for (std::int64_t i = 0; i < arrays.c.count(); ++i) {
    EXPECT_NEAR(transposed.c.get(i), arrays.c.get(i), 1e-3);
  }
}

// oneDNN itself takes less than a kilobyte in every call.
TEST(ScaledLinear, ALaterCallOfTheSameSizesAllocatesNothing) {
  for (const Storage stored : kRows) {
    for (const bool has_tails : {false, true}) {
      Random random(7);
      ScaledArrays arrays({.m = 60,
                           .n = 90,
                           .k = 70,
                           .a = stored,
                           .out = DType::bf16,
                           .has_bias = true,
                           .activation = Activation::gelu_tanh},
                          random);
      if (has_tails) spread_scales(arrays, random);
      LinearKernel linear(arrays.shape());
      arrays.prepare(linear);
      multiply_in_chunks(arrays, linear, 16);
      allocations = 0;
      largest_allocation = 0;
      counting = true;
      multiply_in_chunks(arrays, linear, 16);
      counting = false;
      if (gemm_backend_name() == "reference") {
        EXPECT_EQ(allocations, 0U);
      }
      EXPECT_LE(largest_allocation, 1024U) << static_cast<int>(stored);
    }
  }
}

TEST(ScaledLinear, TwoThreadsHaveOneEach) {
  Random random(8);
  ScaledArrays given({.m = 60, .n = 90, .k = 70}, random);
  spread_scales(given, random);
  std::vector<ScaledArrays> results(3, given);
  const auto compute = [](ScaledArrays& arrays) {
    LinearKernel linear(arrays.shape());
    arrays.prepare(linear);
    multiply_in_chunks(arrays, linear, 16);
  };
  std::thread one([&] { compute(results[0]); });
  std::thread two([&] { compute(results[1]); });
  one.join();
  two.join();
  compute(results[2]);
  EXPECT_TRUE(results[0].c == results[2].c);
  EXPECT_TRUE(results[1].c == results[2].c);
}

TEST(ScaledLinear, CanBeMoved) {
  Random random(9);
  ScaledArrays first({.m = 5, .n = 6, .k = 7}, random);
  ScaledArrays second = first;
  LinearKernel linear(first.shape());
  first.prepare(linear);
  first.multiply(linear, 0, 5);
  LinearKernel moved = std::move(linear);
  second.multiply(moved, 0, 5);
  EXPECT_TRUE(first.c == second.c);
}

TEST(ScaledLinear, PromisesWhatItSays) {
  Random random(10);
  ScaledArrays arrays({.m = 2, .n = 3, .k = 4, .a = Storage::scale_per_row}, random);
  LinearKernel unprepared(arrays.shape());
  EXPECT_THROW(arrays.multiply(unprepared, 0, 2), InternalError);
  LinearKernel shorter({.n = 3, .k = 3, .type = DType::bf16});
  EXPECT_THROW(arrays.prepare(shorter), InternalError);
  arrays.prepare(unprepared);
  EXPECT_NO_THROW(arrays.multiply(unprepared, 0, 2));
  MatrixView longer = arrays.a.view();
  longer.columns = longer.stride = 5;
  EXPECT_THROW(unprepared.multiply(longer, {.data = arrays.c.data()}), InternalError);
  LinearKernel narrow({.n = 2, .k = 4, .type = DType::bf16});
  EXPECT_THROW(narrow.prepare(transposed(arrays.a.view())), InternalError);
}

}  // namespace
}  // namespace shiplap::kernels
