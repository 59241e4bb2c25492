#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "shiplap/base/error.h"
#include "shiplap/kernels/grouped_testing_internal.h"
#include "shiplap/kernels/linear.h"

namespace shiplap::kernels {
namespace {

GroupedGemmCase case_for(const LinearShape& shape, Random& random, std::int64_t max_rows) {
  GroupedGemmCase q{.groups = shape.groups,
                    .runs = random_runs(random, shape.groups, max_rows),
                    .bias_gap = random.chance(0.3) ? random.between(1, 9) : 0,
                    .engine = shape.engine,
                    .typical_rows = shape.typical_rows,
                    .packing = shape.packing};
  q.all = {.m = rows_of(q.runs),
           .n = shape.n,
           .k = shape.k,
           .type = shape.type,
           .a_is_transposed = random.chance(0.3),
           .weights_are_transposed = random.chance()};
  randomize_rest(random, q.all);
  return q;
}

void expect_right_for_small_shapes(Engine engine) {
  Random random(1);
  for (const DType type : kFloatTypes) {
    for (std::int64_t columns = 1; columns <= 6; ++columns) {
      for (std::int64_t k = 0; k <= 6; ++k) {
        const LinearShape shape{.groups = 3, .n = columns, .k = k, .type = type, .engine = engine};
        LinearKernel kernel(shape);
        for (int i = 0; i < 4; ++i) expect_right(kernel, case_for(shape, random, 5), random);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

TEST(Grouped, IsRightForAllSmallShapes) { expect_right_for_small_shapes(Engine::best); }
TEST(Grouped, PlainLoopsAreRightForAllSmallShapes) {
  expect_right_for_small_shapes(Engine::reference);
}

TEST(Grouped, IsRightForRandomShapes) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    const LinearShape shape{.groups = random.between(1, 9),
                            .n = random.between(1, 71),
                            .k = random.between(1, 131),
                            .type = kFloatTypes[random.between(0, 3)],
                            .packing = random.chance() ? Packing::once : Packing::every_call,
                            .typical_rows = random.between(1, 100)};
    LinearKernel kernel(shape);
    for (int i = 0; i < 2; ++i) expect_right(kernel, case_for(shape, random, 40), random);
    if (HasFatalFailure()) return;
  }
}

// One run of every length, with depths and columns that are drawn.
TEST(Grouped, IsRightForEveryNumberOfRows) {
  Random random(2);
  for (const DType type : kFloatTypes) {
    for (std::int64_t rows = 0; rows <= 100; ++rows) {
      const LinearShape shape{
          .groups = 2, .n = random.between(1, 71), .k = random.between(1, 131), .type = type};
      LinearKernel kernel(shape);
      GroupedGemmCase q = case_for(shape, random, 1);
      q.runs = {{.group = 1, .rows = rows}, {.group = 0, .rows = 1}};
      q.all.m = rows + 1;
      expect_right(kernel, q, random);
      if (HasFatalFailure()) return;
    }
  }
}

// The tiles end at other places for each.
TEST(Grouped, IsRightForEveryDepthAndNumberOfColumns) {
  Random random(4);
  for (std::int64_t i = 1; i <= 130; ++i) {
    for (const bool is_depth : {true, false}) {
      const LinearShape shape{.groups = 2,
                              .n = is_depth ? random.between(1, 71) : i,
                              .k = is_depth ? i : random.between(1, 131),
                              .type = DType::bf16};
      LinearKernel kernel(shape);
      expect_right(kernel, case_for(shape, random, 12), random);
      if (HasFatalFailure()) return;
    }
  }
}

// Runs that are cut, depths that are multiplied in several pieces, strides for which rows are
// copied.
TEST(Grouped, SomeRowsOfLargeProductsAreRight) {
  Random random(9);
  for (const std::int64_t k : {520, 1024, 1100}) {
    for (const Packing packing : {Packing::once, Packing::every_call}) {
      GroupedGemmCase q{.groups = 2, .runs = {{1, 600}, {0, 17}, {1, 3}}, .packing = packing};
      q.all = {.m = 620, .n = 290, .k = k, .type = DType::bf16};
      GroupedArrays arrays(q, random, Fill::fractions);
      const GroupedArrays given = arrays;
      LinearKernel kernel(arrays.shape());
      arrays.prepare(kernel);
      arrays.multiply(kernel);
      for (const std::int64_t row : {0, 255, 256, 599}) expect_right_row(arrays, given, 1, row);
      for (const std::int64_t row : {600, 616}) expect_right_row(arrays, given, 0, row);
      expect_right_row(arrays, given, 1, 619);
      if (HasFatalFailure()) return;
    }
  }
}

// Sums of small whole numbers are exact, so there is one right answer.
TEST(Grouped, RoundsOnceToNearestEven) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    Random random(seed);
    const LinearShape shape{.groups = 4,
                            .n = random.between(1, 71),
                            .k = random.between(1, 131),
                            .type = kFloatTypes[random.between(0, 3)]};
    GroupedGemmCase q = case_for(shape, random, 40);
    q.all.activation = Activation::none;
    q.all.saves = false;
    GroupedArrays arrays(q, random, Fill::whole_numbers);
    const GroupedArrays given = arrays;
    LinearKernel kernel(shape);
    arrays.prepare(kernel);
    arrays.multiply(kernel);
    TypedArray one(q.all.out, 1);
    std::int64_t row = 0;
    for (const GroupRows& run : q.runs) {
      for (std::int64_t i = 0; i < run.rows; ++i, ++row) {
        for (std::int64_t j = 0; j < q.all.n; ++j) {
          one.put(0, expected_at(given, run.group, row, j).before);
          ASSERT_EQ(arrays.c.get(row * arrays.c_stride() + j), one.get(0))
              << q << ", seed " << seed;
        }
      }
    }
  }
}

TEST(Grouped, WeightsOfOneGroupCanBePreparedAgain) {
  for (const DType type : kFloatTypes) {
    Random random(3);
    GroupedGemmCase q{.groups = 2, .runs = {{.group = 0, .rows = 3}, {.group = 1, .rows = 4}}};
    q.all = {.m = 7, .n = 40, .k = 30, .type = type};
    GroupedArrays first(q, random, Fill::fractions);
    GroupedArrays second = first;
    second.weights[1] = random_array(random, type, second.weights[1].count(), Fill::fractions);
    GroupedArrays changed = second;
    LinearKernel kernel(first.shape());
    first.prepare(kernel);
    first.multiply(kernel);
    kernel.prepare({.data = changed.weights[1].data(), .type = type}, 1);
    changed.multiply(kernel);
    LinearKernel fresh(first.shape());
    second.prepare(fresh);
    second.multiply(fresh);
    EXPECT_TRUE(changed.c == second.c);
    EXPECT_FALSE(changed.c == first.c);
  }
}

TEST(Grouped, WithoutPackingWeightsAreReadByEveryCall) {
  for (const DType type : kFloatTypes) {
    TypedArray weights(type, 2);
    TypedArray a(type, 2);
    TypedArray c(type, 2);
    a.put(0, 1);
    a.put(1, 1);
    LinearKernel kernel(
        {.groups = 2, .n = 1, .k = 1, .type = type, .packing = Packing::every_call});
    kernel.prepare({.data = weights.data(0), .type = type}, 0);
    kernel.prepare({.data = weights.data(1), .type = type}, 1);
    for (const double value : {2.0, 3.0}) {
      weights.put(0, value);
      weights.put(1, -value);
      kernel.multiply({.data = a.data(), .type = type, .rows = 2}, {.data = c.data(), .type = type},
                      {}, std::vector<GroupRows>{{1, 1}, {0, 1}});
      EXPECT_EQ(c.get(0), -value);
      EXPECT_EQ(c.get(1), value);
    }
  }
}

// A NaN or an infinity in one row of a, for every type; the other rows stay numbers, also those of
// the same tile and behind a depth that is not whole tiles.
TEST(Grouped, NansAndInfinitiesReachTheirRowAndNoOther) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const DType type : kFloatTypes) {
    for (const double special : {std::nan(""), kInfinity, -kInfinity}) {
      for (const std::int64_t k : {1, 31, 40, 64}) {
        Random random(5);
        GroupedGemmCase q{.groups = 2, .runs = {{.group = 1, .rows = 5}, {.group = 0, .rows = 20}}};
        q.all = {.m = 25, .n = 70, .k = k, .type = type, .out = type};
        for (const std::int64_t bad : {0, 4, 5, 24}) {
          GroupedArrays arrays(q, random, Fill::fractions);
          arrays.a.put(arrays.a_at(bad, 0), special);
          LinearKernel kernel(arrays.shape());
          arrays.prepare(kernel);
          arrays.multiply(kernel);
          for (std::int64_t i = 0; i < arrays.c.count(); ++i) {
            ASSERT_EQ(std::isfinite(arrays.c.get(i)), i / 70 != bad) << bad << ", " << i;
          }
        }
      }
    }
  }
}

// Nothing is read of c if it does not count.
TEST(Grouped, WhatWasThereDoesNotMatterIfBetaIsZero) {
  for (const DType type : kFloatTypes) {
    for (const float alpha : {1.0F, 2.0F}) {
      Random random(6);
      GroupedGemmCase q{.groups = 1, .runs = {{.group = 0, .rows = 3}}};
      q.all = {.m = 3, .n = 20, .k = 10, .type = type, .alpha = alpha};
      GroupedArrays arrays(q, random, Fill::fractions);
      for (std::int64_t i = 0; i < arrays.c.count(); ++i) arrays.c.put(i, std::nan(""));
      LinearKernel kernel(arrays.shape());
      arrays.prepare(kernel);
      arrays.multiply(kernel);
      for (std::int64_t i = 0; i < arrays.c.count(); ++i) {
        EXPECT_TRUE(std::isfinite(arrays.c.get(i)));
      }
    }
  }
}

TEST(Grouped, PlainLoopsSaySo) {
  const LinearKernel kernel(
      {.groups = 1, .n = 8, .k = 8, .type = DType::bf16, .engine = Engine::reference});
  EXPECT_EQ(kernel.backend_name(), "reference");
}

TEST(Grouped, AnySizeMayBeZero) {
  const auto act = [](const LinearShape& shape, std::vector<GroupRows> runs) {
    Random random(8);
    GroupedGemmCase q{.groups = shape.groups, .runs = std::move(runs)};
    q.all = {
        .m = rows_of(q.runs), .n = shape.n, .k = shape.k, .type = shape.type, .has_bias = true};
    LinearKernel kernel(shape);
    expect_right(kernel, q, random);
  };
  for (const DType type : kFloatTypes) {
    act({.groups = 0, .n = 3, .k = 3, .type = type}, {});
    act({.groups = 2, .n = 0, .k = 3, .type = type}, {{.group = 1, .rows = 2}});
    act({.groups = 2, .n = 3, .k = 0, .type = type}, {{.group = 1, .rows = 2}});
    act({.groups = 2, .n = 0, .k = 0, .type = type}, {});
    act({.groups = 2, .n = 3, .k = 3, .type = type}, {});
    act({.groups = 2, .n = 3, .k = 3, .type = type}, {{}, {.group = 1}, {}});
  }
}

TEST(Grouped, PromisesWhatItSays) {
  float x = 0;
  const auto act = [&](const LinearShape& shape, const MatrixView& a, std::vector<GroupRows> runs,
                       const Epilogue& epilogue) {
    LinearKernel kernel(shape);
    kernel.prepare(std::vector<MatrixView>(shape.groups, {.data = &x}));
    kernel.multiply(a, {.data = &x}, epilogue, runs);
  };
  const LinearShape one{.groups = 1, .n = 1, .k = 1};
  const MatrixView row{.data = &x, .rows = 1};
  const GroupRows run{.group = 0, .rows = 1};
  EXPECT_NO_THROW(act(one, row, {run}, {}));
  EXPECT_THROW(act({.groups = -1}, {}, {}, {}), InternalError);
  EXPECT_THROW(act({.groups = 1, .n = -1}, {}, {}, {}), InternalError);
  EXPECT_THROW(act({.groups = 1, .n = 1, .k = -1}, {}, {}, {}), InternalError);
  EXPECT_THROW(act({.groups = 1, .n = 1, .typical_rows = 0}, {}, {}, {}), InternalError);
  EXPECT_THROW(act(one, row, {}, {}), InternalError);
  EXPECT_THROW(act(one, row, {run, run}, {}), InternalError);
  EXPECT_THROW(act(one, row, {{.group = 1, .rows = 1}}, {}), InternalError);
  EXPECT_THROW(act(one, row, {{.group = -1, .rows = 1}}, {}), InternalError);
  EXPECT_THROW(act(one, row, {run, run, {.group = 0, .rows = -1}}, {}), InternalError);
  EXPECT_THROW(act(one, {.data = &x, .rows = 1, .stride = -1}, {run}, {}), InternalError);
  EXPECT_THROW(act(one, row, {run}, {.bias = {.data = &x, .type = DType::f16}}), InternalError);
  EXPECT_THROW(act(one, row, {run}, {.bias = {.data = &x, .stride = -1}}), InternalError);
  LinearKernel kernel(one);
  EXPECT_THROW(kernel.multiply(row, {.data = &x}, {}, std::vector{run}), InternalError);
  EXPECT_THROW(kernel.prepare({.data = &x}, 1), InternalError);
  EXPECT_THROW(kernel.prepare(std::vector<MatrixView>{}), InternalError);
}

}  // namespace
}  // namespace shiplap::kernels
