// GEMM of rows in chunks: the same bits, from several threads, without allocations.
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "shiplap/kernels/allocations_testing_internal.h"
#include "shiplap/kernels/attention.h"
#include "shiplap/kernels/linear_testing_internal.h"

namespace shiplap::kernels {
namespace {

// All rows, in chunks of `rows`, the last one ragged.
void multiply_in_chunks(GemmArrays& arrays, LinearKernel& kernel, std::int64_t rows) {
  for (std::int64_t first = 0; first < arrays.spec.m; first += rows) {
    arrays.multiply(kernel, first, std::min(rows, arrays.spec.m - first));
  }
}

void expect_same_bits(const GemmCase& q, std::int64_t typical_rows, std::uint64_t seed) {
  Random random(seed);
  GemmArrays given(q, random, Fill::fractions);
  LinearShape shape = given.shape();
  shape.typical_rows = typical_rows;
  LinearKernel kernel(shape);
  given.prepare(kernel);
  GemmArrays whole = given;
  whole.multiply(kernel, 0, q.m);
  for (const std::int64_t rows : {1, 2, 3, 7, 16, 17, 33, 64, 100}) {
    GemmArrays chunks = given;
    multiply_in_chunks(chunks, kernel, rows);
    ASSERT_TRUE(chunks.c == whole.c) << "chunks of " << rows << ", typical " << typical_rows << ": "
                                     << q << ", seed " << seed << " by " << kernel.backend_name();
    ASSERT_TRUE(chunks.before == whole.before) << rows << ": " << q << ", seed " << seed;
  }
}

// Among them shapes for which oneDNN by itself would change from tiles to vectors when there are
// few rows: 64 x 64 and 4096 x 64.
TEST(LinearChunks, ARowHasTheSameBitsAloneInAChunkAndInTheWhole) {
  struct Size {
    std::int64_t n;
    std::int64_t k;
  };
  for (const Size size : {Size{64, 64}, Size{9, 7}, Size{100, 333}, Size{1, 40}, Size{1030, 31}}) {
    for (const DType type : kFloatTypes) {
      for (const DType out : {DType::f32, type}) {
        const GemmCase q{.m = 130, .n = size.n, .k = size.k, .type = type, .out = out};
        expect_same_bits(q, 64, 1);
        expect_same_bits(q, 4, 2);
      }
    }
  }
}

TEST(LinearChunks, EpiloguesAndTransposesKeepTheBits) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    Random random(seed);
    GemmCase q{.m = random.between(1, 120),
               .n = random.between(1, 200),
               .k = random.between(1, 200),
               .type = kFloatTypes[random.between(0, 3)],
               .a_is_transposed = random.chance(),
               .weights_are_transposed = random.chance()};
    randomize_rest(random, q);
    expect_same_bits(q, random.between(1, 130), seed);
  }
}

// Of the size that layers have, where the inner size is cut into pieces.
TEST(LinearChunks, LargeProductsKeepTheBits) {
  if (gemm_backend_name() == "reference") GTEST_SKIP() << "the reference takes too long";
  for (const DType type : kFloatTypes) {
    expect_same_bits({.m = 300, .n = 512, .k = 4096, .type = type, .out = type}, 256, 3);
    expect_same_bits({.m = 300, .n = 520, .k = 1500, .type = type, .beta = 1}, 256, 4);
  }
}

TEST(LinearChunks, TwoThreadsHaveOneEach) {
  for (const DType type : kFloatTypes) {
    Random random(5);
    GemmArrays given({.m = 60,
                      .n = 90,
                      .k = 70,
                      .type = type,
                      .out = type,
                      .has_bias = true,
                      .activation = Activation::gelu_tanh,
                      .saves = true},
                     random, Fill::fractions);
    GemmArrays expected = given;
    LinearKernel alone(given.shape());
    given.prepare(alone);
    expected.multiply(alone, 0, 60);
    std::vector<GemmArrays> results(2, given);
    std::vector<std::thread> threads;
    for (GemmArrays& result : results) {
      threads.emplace_back([&result] {
        LinearKernel kernel(result.shape());
        result.prepare(kernel);
        for (const std::int64_t rows : {7, 60, 16}) multiply_in_chunks(result, kernel, rows);
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const GemmArrays& result : results) {
      EXPECT_TRUE(result.c == expected.c);
      EXPECT_TRUE(result.before == expected.before);
    }
  }
}

// oneDNN itself takes less than a kilobyte in every call.
TEST(LinearChunks, ALaterCallOfTheSameSizesAllocatesNothing) {
  for (const DType type : kFloatTypes) {
    for (const Activation activation : {Activation::none, Activation::gelu_tanh}) {
      Random random(6);
      GemmArrays arrays({.m = 60,
                         .n = 90,
                         .k = 70,
                         .type = type,
                         .out = type,
                         .has_bias = activation != Activation::none,
                         .activation = activation},
                        random, Fill::fractions);
      LinearKernel kernel(arrays.shape());
      arrays.prepare(kernel);
      multiply_in_chunks(arrays, kernel, 16);
      allocations = 0;
      largest_allocation = 0;
      counting = true;
      multiply_in_chunks(arrays, kernel, 16);
      counting = false;
      if (gemm_backend_name() == "reference") {
        EXPECT_EQ(allocations, 0U);
      }
      EXPECT_LE(largest_allocation, 1024U) << static_cast<int>(type);
    }
  }
}

TEST(LinearChunks, AKernelCanBeMoved) {
  Random random(7);
  GemmArrays first({.m = 5, .n = 6, .k = 7}, random, Fill::fractions);
  GemmArrays second = first;
  LinearKernel kernel(first.shape());
  first.prepare(kernel);
  first.multiply(kernel, 0, 5);
  LinearKernel moved = std::move(kernel);
  second.multiply(moved, 0, 5);
  EXPECT_TRUE(first.c == second.c);
}

}  // namespace
}  // namespace shiplap::kernels
