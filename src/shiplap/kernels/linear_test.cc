#include "shiplap/kernels/linear.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "shiplap/base/error.h"
#include "shiplap/kernels/attention.h"
#include "shiplap/kernels/linear_testing_internal.h"

namespace shiplap::kernels {
namespace {

void expect_right(LinearKernel& kernel, const GemmCase& q, Random& random) {
  GemmArrays arrays(q, random, Fill::fractions);
  const GemmArrays given = arrays;
  arrays.prepare(kernel);
  arrays.multiply(kernel, 0, q.m);
  for (std::int64_t i = 0; i < q.m; ++i) {
    for (std::int64_t j = 0; j < arrays.c_stride(); ++j) {
      const std::int64_t at = i * arrays.c_stride() + j;
      if (j >= q.n) {
        ASSERT_EQ(arrays.c.get(at), given.c.get(at)) << "in the gap, " << q;
        continue;
      }
      const Expected expected = expected_at(given, i, j);
      ASSERT_NEAR(arrays.c.get(at), expected.c, bound(q, expected, expected.c))
          << i << ", " << j << " of " << q << " by " << kernel.backend_name();
      if (!q.saves) continue;
      ASSERT_NEAR(arrays.before.get(at), expected.before, bound(q, expected, expected.before))
          << i << ", " << j << " of " << q << " by " << kernel.backend_name();
    }
  }
}

void expect_right_for_small_shapes(const LinearShape& shape, Random& random) {
  LinearKernel kernel(shape);
  for (std::int64_t rows = 0; rows <= 5; ++rows) {
    for (int transposed = 0; transposed < 4; ++transposed) {
      GemmCase q{.m = rows,
                 .n = shape.n,
                 .k = shape.k,
                 .type = shape.type,
                 .a_is_transposed = transposed % 2 == 1,
                 .weights_are_transposed = transposed >= 2};
      randomize_rest(random, q);
      expect_right(kernel, q, random);
    }
  }
}

void expect_right_for_small_shapes(Engine engine) {
  Random random(1);
  for (const DType type : kFloatTypes) {
    for (std::int64_t columns = 1; columns <= 9; ++columns) {
      for (std::int64_t k = 0; k <= 9; ++k) {
        expect_right_for_small_shapes({.n = columns, .k = k, .type = type, .engine = engine},
                                      random);
      }
    }
  }
}

TEST(Linear, IsRightForAllSmallShapes) { expect_right_for_small_shapes(Engine::best); }
TEST(Linear, PlainLoopsAreRightForAllSmallShapes) {
  expect_right_for_small_shapes(Engine::reference);
}

GemmCase random_case(Random& random) {
  GemmCase q{.m = random.between(1, 90),
             .n = random.between(1, 150),
             .k = random.between(1, 150),
             .type = kFloatTypes[random.between(0, 3)],
             .a_is_transposed = random.chance(),
             .weights_are_transposed = random.chance()};
  randomize_rest(random, q);
  return q;
}

TEST(Linear, IsRightForRandomShapes) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    const GemmCase q = random_case(random);
    for (const Packing packing : {Packing::once, Packing::every_call}) {
      LinearKernel kernel({.n = q.n,
                           .k = q.k,
                           .type = q.type,
                           .packing = packing,
                           .typical_rows = random.between(1, 80)});
      expect_right(kernel, q, random);
    }
  }
}

// Sums of small whole numbers are exact, so there is one right answer.
TEST(Linear, RoundsOnceToNearestEven) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    Random random(seed);
    GemmCase q = random_case(random);
    q.activation = Activation::none;
    q.saves = false;
    GemmArrays arrays(q, random, Fill::whole_numbers);
    const GemmArrays given = arrays;
    LinearKernel kernel(arrays.shape());
    arrays.prepare(kernel);
    arrays.multiply(kernel, 0, q.m);
    TypedArray one(q.out, 1);
    for (std::int64_t i = 0; i < q.m; ++i) {
      for (std::int64_t j = 0; j < q.n; ++j) {
        one.put(0, expected_at(given, i, j).before);
        ASSERT_EQ(arrays.c.get(i * arrays.c_stride() + j), one.get(0)) << q << ", seed " << seed;
      }
    }
  }
}

TEST(Linear, WeightsCanBePreparedAgain) {
  Random random(3);
  LinearKernel kernel({.n = 40, .k = 30, .type = DType::bf16});
  for (int i = 0; i < 4; ++i) {
    expect_right(
        kernel,
        {.m = 7, .n = 40, .k = 30, .type = DType::bf16, .weights_are_transposed = i % 2 == 1},
        random);
  }
}

TEST(Linear, WithoutPackingWeightsAreReadByEveryCall) {
  for (const DType type : kFloatTypes) {
    TypedArray weights(type, 1);
    TypedArray a(type, 1);
    TypedArray c(type, 1);
    a.put(0, 1);
    LinearKernel kernel({.n = 1, .k = 1, .type = type, .packing = Packing::every_call});
    kernel.prepare({.data = weights.data(), .type = type});
    for (const double value : {2.0, 3.0}) {
      weights.put(0, value);
      kernel.multiply({.data = a.data(), .type = type, .rows = 1},
                      {.data = c.data(), .type = type});
      EXPECT_EQ(c.get(0), value);
    }
  }
}

TEST(Linear, TakesSomeColumnsOfWiderWeights) {
  Random random(4);
  TypedArray weights = random_array(random, DType::bf16, std::int64_t{20} * 50, Fill::fractions);
  TypedArray a = random_array(random, DType::bf16, std::int64_t{6} * 20, Fill::fractions);
  TypedArray whole(DType::f32, std::int64_t{6} * 50);
  TypedArray parts(DType::f32, std::int64_t{6} * 50);
  const auto multiply = [&](std::int64_t first, std::int64_t columns, TypedArray& c) {
    LinearKernel kernel({.n = columns, .k = 20, .type = DType::bf16});
    kernel.prepare({.data = weights.data(first), .type = DType::bf16, .stride = 50});
    kernel.multiply({.data = a.data(), .type = DType::bf16, .rows = 6},
                    {.data = c.data(first), .stride = 50});
  };
  multiply(0, 50, whole);
  multiply(0, 17, parts);
  multiply(17, 33, parts);
  for (std::int64_t i = 0; i < whole.count(); ++i) {
    EXPECT_NEAR(whole.get(i), parts.get(i), 1e-5) << i;
  }
}

// Every value of a type, as old content that is kept and as a bias.
TEST(Linear, EveryNumberPassesThroughUnchanged) {
  constexpr std::int64_t kCount = 0x10000;
  for (const DType type : {DType::bf16, DType::f16}) {
    TypedArray all(type, kCount);
    auto* const bits = static_cast<std::uint16_t*>(all.data());
    for (std::int64_t i = 0; i < kCount; ++i) bits[i] = static_cast<std::uint16_t>(i);
    TypedArray by_bias(type, kCount);
    TypedArray kept(type, kCount);
    std::memcpy(kept.data(), all.data(), static_cast<std::size_t>(kCount) * bytes_of(type));
    LinearKernel kernel({.n = kCount, .k = 0, .type = type});
    kernel.prepare({.type = type});
    kernel.multiply({.type = type, .rows = 1}, {.data = by_bias.data(), .type = type},
                    {.bias = {.data = all.data(), .type = type}});
    kernel.multiply({.type = type, .rows = 1}, {.data = kept.data(), .type = type}, {.beta = 1});
    for (std::int64_t i = 0; i < kCount; ++i) {
      if (std::isnan(all.get(i))) {
        ASSERT_TRUE(std::isnan(by_bias.get(i)) && std::isnan(kept.get(i))) << i;
      } else {
        ASSERT_EQ(by_bias.get(i), all.get(i)) << i;
        ASSERT_EQ(kept.get(i), all.get(i)) << i;
      }
    }
  }
}

TEST(Linear, GeluIsThatOfTheFormulaEverywhere) {
  constexpr std::int64_t kCount = 4001;
  TypedArray bias(DType::f32, kCount);
  TypedArray c(DType::f32, kCount);
  for (std::int64_t i = 0; i < kCount; ++i) bias.put(i, static_cast<double>(i - 2000) / 100);
  LinearKernel kernel({.n = kCount, .k = 0});
  kernel.prepare(MatrixView{});
  kernel.multiply({.rows = 1}, {.data = c.data()},
                  {.bias = {.data = bias.data()}, .activation = Activation::gelu_tanh});
  for (std::int64_t i = 0; i < kCount; ++i) {
    const double expected = gelu(bias.get(i));
    EXPECT_NEAR(c.get(i), expected, 1e-6 * std::abs(expected) + 1e-7) << bias.get(i);
  }
}

// A NaN or an infinity in one row of a, for every type; the other rows stay numbers.
TEST(Linear, NansAndInfinitiesReachTheirRowAndNoOther) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const DType type : kFloatTypes) {
    for (const double special : {std::nan(""), kInfinity, -kInfinity}) {
      for (const Activation activation : {Activation::none, Activation::gelu_tanh}) {
        Random random(5);
        GemmArrays arrays({.m = 5,
                           .n = 70,
                           .k = 40,
                           .type = type,
                           .out = type,
                           .has_bias = true,
                           .activation = activation},
                          random, Fill::fractions);
        arrays.a.put(arrays.a_at(2, 3), special);
        LinearKernel kernel(arrays.shape());
        arrays.prepare(kernel);
        arrays.multiply(kernel, 0, 5);
        for (std::int64_t i = 0; i < 5; ++i) {
          for (std::int64_t j = 0; j < 70; ++j) {
            const double found = arrays.c.get(i * 70 + j);
            const double expected = expected_at(arrays, i, j).c;
            ASSERT_EQ(std::isfinite(found), i != 2) << i << ", " << j;
            if (i != 2) continue;
            ASSERT_EQ(std::isnan(found), std::isnan(expected)) << j << ": " << found;
            if (!std::isnan(found)) {
              ASSERT_EQ(found, expected) << j;
            }
          }
        }
      }
    }
  }
}

// Nothing is read of c if it does not count.
TEST(Linear, WhatWasThereDoesNotMatterIfBetaIsZero) {
  for (const DType type : kFloatTypes) {
    for (const float alpha : {1.0F, 2.0F}) {
      Random random(6);
      GemmArrays arrays({.m = 3, .n = 20, .k = 10, .type = type, .alpha = alpha}, random,
                        Fill::fractions);
      for (std::int64_t i = 0; i < arrays.c.count(); ++i) arrays.c.put(i, std::nan(""));
      LinearKernel kernel(arrays.shape());
      arrays.prepare(kernel);
      arrays.multiply(kernel, 0, 3);
      for (std::int64_t i = 0; i < arrays.c.count(); ++i) {
        EXPECT_TRUE(std::isfinite(arrays.c.get(i)));
      }
    }
  }
}

TEST(Linear, OnednnAndPlainLoopsAgree) {
  if (gemm_backend_name() == "reference") GTEST_SKIP() << "there is no oneDNN";
  for (const DType type : kFloatTypes) {
    Random random(7);
    const GemmCase q{.m = 33, .n = 200, .k = 300, .type = type, .has_bias = true};
    GemmArrays left(q, random, Fill::fractions);
    GemmArrays right = left;
    LinearKernel fast(left.shape());
    LinearShape plain = right.shape();
    plain.engine = Engine::reference;
    LinearKernel slow(plain);
    EXPECT_EQ(slow.backend_name(), "reference");
    EXPECT_NE(fast.backend_name(), "reference");
    EXPECT_EQ(fast.backend_name().find("ref"), std::string_view::npos) << fast.backend_name();
    left.prepare(fast);
    right.prepare(slow);
    left.multiply(fast, 0, q.m);
    right.multiply(slow, 0, q.m);
    for (std::int64_t i = 0; i < left.c.count(); ++i) {
      ASSERT_NEAR(left.c.get(i), right.c.get(i), 1e-4) << i;
    }
  }
}

TEST(Linear, PromisesWhatItSays) {
  float x = 0;
  const auto act = [&](const LinearShape& shape, const MatrixView& rows, const Epilogue& epilogue) {
    LinearKernel kernel(shape);
    kernel.prepare({.data = &x});
    kernel.multiply(rows, {.data = &x}, epilogue);
  };
  const LinearShape one{.n = 1, .k = 1};
  const MatrixView row{.data = &x, .rows = 1};
  EXPECT_NO_THROW(act({.n = 0, .k = 0}, {}, {}));
  EXPECT_THROW(act({.n = -1, .k = 1}, row, {}), InternalError);
  EXPECT_THROW(act({.n = 1, .k = -1}, row, {}), InternalError);
  EXPECT_THROW(act({.n = 1, .k = 1, .typical_rows = 0}, row, {}), InternalError);
  EXPECT_THROW(act(one, {.data = &x, .rows = -1}, {}), InternalError);
  EXPECT_THROW(act(one, {.data = &x, .rows = 1, .stride = -1}, {}), InternalError);
  EXPECT_THROW(act(one, row, {.bias = {.data = &x, .type = DType::f16}}), InternalError);
  LinearKernel unprepared(one);
  EXPECT_THROW(unprepared.multiply(row, {.data = &x}), InternalError);
}

}  // namespace
}  // namespace shiplap::kernels
