#include "shiplap/kernels/gemm.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

#include "shiplap/base/error.h"
#include "shiplap/base/random.h"

namespace shiplap::kernels {
namespace {

float at(const ConstMatrixView& matrix, std::int64_t row, std::int64_t column) {
  const auto* const data = static_cast<const float*>(matrix.data);
  return matrix.is_transposed ? data[column * matrix.stride + row]
                              : data[row * matrix.stride + column];
}

// Small whole numbers, so that every product and sum is exact.
std::vector<float> whole_numbers(Random& random, std::int64_t count) {
  std::vector<float> numbers(count);
  for (float& number : numbers) number = static_cast<float>(random.between(-8, 9));
  return numbers;
}

TEST(Gemm, IsExactForWholeNumbersHoweverFactorsLie) {
  Gemm gemm;
  Random random(1);
  for (int round = 0; round < 60; ++round) {
    const std::int64_t m = random.between(1, 40);
    const std::int64_t n = random.between(1, 40);
    const std::int64_t k = random.between(1, 40);
    std::vector<float> left = whole_numbers(random, m * k);
    std::vector<float> right = whole_numbers(random, k * n);
    const MatrixView a =
        random.chance() ? row_major(left.data(), m, k) : transposed(row_major(left.data(), k, m));
    const MatrixView b =
        random.chance() ? row_major(right.data(), k, n) : transposed(row_major(right.data(), n, k));
    std::vector<float> c = whole_numbers(random, m * n);
    std::vector<float> expected = c;
    const bool adds = random.chance();
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        float& here = expected[i * n + j];
        if (!adds) here = 0;
        for (std::int64_t l = 0; l < k; ++l) here += at(a, i, l) * at(b, l, j);
      }
    }
    const MatrixView into{.data = c.data(), .stride = n};
    adds ? gemm.multiply_add(a, b, into) : gemm.multiply(a, b, into);
    EXPECT_EQ(c, expected) << "round " << round;
  }
}

TEST(Gemm, TakesColumnsOutOfAWiderMatrix) {
  Gemm gemm;
  std::vector<float> wide = {1, 2, 3, 4, 5, 6, 7, 8};  // 2 x 4
  std::vector<float> one = {1, 1};
  const MatrixView columns{.data = wide.data() + 2, .rows = 2, .columns = 2, .stride = 4};
  std::vector<float> sums(2);
  gemm.multiply(columns, row_major(one.data(), 2, 1), {.data = sums.data(), .stride = 1});
  EXPECT_EQ(sums, (std::vector<float>{7, 15}));
}

TEST(Gemm, AProductOverNothingIsZero) {
  Gemm gemm;
  std::vector<float> c = {5, 5};
  gemm.multiply_add(row_major(nullptr, 2, 0), row_major(nullptr, 0, 1),
                    {.data = c.data(), .stride = 1});
  EXPECT_EQ(c, (std::vector<float>{5, 5}));
  gemm.multiply(row_major(nullptr, 2, 0), row_major(nullptr, 0, 1),
                {.data = c.data(), .stride = 1});
  EXPECT_EQ(c, (std::vector<float>{0, 0}));
}

TEST(Gemm, SameOperandsGiveTheSameBits) {
  Random random(2);
  std::vector<float> a(std::size_t{64} * 48);
  std::vector<float> b(std::size_t{48} * 80);
  for (float& number : a) number = static_cast<float>(random.unit());
  for (float& number : b) number = static_cast<float>(random.unit());
  std::vector<std::vector<float>> results(3, std::vector<float>(std::size_t{64} * 80));
  for (std::vector<float>& c : results) {
    Gemm().multiply(row_major(a.data(), 64, 48), row_major(b.data(), 48, 80),
                    {.data = c.data(), .stride = 80});
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

TEST(Gemm, PromisesThatInnerSizesAgree) {
  std::vector<float> x(4);
  EXPECT_THROW(Gemm().multiply(row_major(x.data(), 2, 2), row_major(x.data(), 1, 4),
                               {.data = x.data(), .stride = 4}),
               InternalError);
}

}  // namespace
}  // namespace shiplap::kernels
