// Reference grouped GEMM in double, for tests of LinearKernel; independent of it.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <ostream>
#include <span>
#include <vector>

#include "shiplap/kernels/linear.h"
#include "shiplap/kernels/linear_testing_internal.h"

namespace shiplap::kernels {

// What a test asks of a kernel. Of `all`, rows is that of all runs.
struct GroupedGemmCase {
  GemmCase all;
  std::int64_t groups = 0;
  std::vector<GroupRows> runs;
  std::int64_t bias_gap = 0;
  Engine engine = Engine::best;
  std::int64_t typical_rows = 64;
  Packing packing = Packing::once;
};

inline std::ostream& operator<<(std::ostream& out, const GroupedGemmCase& q) {
  out << q.all << "; " << q.groups << " groups, typical " << q.typical_rows << ", runs";
  for (const GroupRows& run : q.runs) out << " " << run.group << ":" << run.rows;
  return out;
}

inline std::int64_t rows_of(std::span<const GroupRows> runs) {
  std::int64_t rows = 0;
  for (const GroupRows& run : runs) rows += run.rows;
  return rows;
}

// Runs of random groups, some empty, some long.
inline std::vector<GroupRows> random_runs(Random& random, std::int64_t groups, std::int64_t most) {
  std::vector<GroupRows> runs;
  const std::int64_t count = random.between(0, 2 * groups + 1);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t rows = random.chance(0.3) ? 0 : random.between(0, most + 1);
    runs.push_back({.group = random.between(0, groups), .rows = rows});
  }
  return runs;
}

// The arrays of a case.
struct GroupedArrays {
  GroupedGemmCase spec;
  TypedArray a;
  std::vector<TypedArray> weights;
  TypedArray bias;
  TypedArray c;
  TypedArray before;

  GroupedArrays(const GroupedGemmCase& q, Random& random, Fill fill)
      : spec(q),
        a(random_array(random, q.all.type, (q.all.a_is_transposed ? q.all.k : q.all.m) * a_stride(),
                       fill)),
        bias(random_array(random, q.all.bias, q.groups * bias_stride(), fill)),
        c(random_array(random, q.all.out, q.all.m * c_stride(), fill)),
        before(q.all.out, q.all.m * c_stride()) {
    for (std::int64_t i = 0; i < q.groups; ++i) {
      weights.push_back(random_array(
          random, q.all.type, (q.all.weights_are_transposed ? q.all.n : q.all.k) * weights_stride(),
          fill));
    }
  }

  [[nodiscard]] std::int64_t a_stride() const {
    const GemmCase& q = spec.all;
    return (q.a_is_transposed ? q.m : q.k) + q.gap;
  }
  [[nodiscard]] std::int64_t weights_stride() const {
    const GemmCase& q = spec.all;
    return (q.weights_are_transposed ? q.k : q.n) + q.gap;
  }
  [[nodiscard]] std::int64_t c_stride() const { return spec.all.n + spec.all.gap; }
  [[nodiscard]] std::int64_t bias_stride() const { return spec.all.n + spec.bias_gap; }

  [[nodiscard]] std::int64_t a_at(std::int64_t i, std::int64_t k) const {
    return spec.all.a_is_transposed ? k * a_stride() + i : i * a_stride() + k;
  }
  [[nodiscard]] std::int64_t weights_at(std::int64_t k, std::int64_t j) const {
    return spec.all.weights_are_transposed ? j * weights_stride() + k : k * weights_stride() + j;
  }

  [[nodiscard]] LinearShape shape() const {
    return {.groups = spec.groups,
            .n = spec.all.n,
            .k = spec.all.k,
            .type = spec.all.type,
            .packing = spec.packing,
            .typical_rows = spec.typical_rows,
            .engine = spec.engine};
  }
  void prepare(LinearKernel& kernel) {
    std::vector<MatrixView> all;
    for (TypedArray& one : weights) {
      all.push_back({.data = one.data(),
                     .type = one.type(),
                     .stride = weights_stride(),
                     .is_transposed = spec.all.weights_are_transposed});
    }
    kernel.prepare(all);
  }
  [[nodiscard]] Epilogue epilogue_from(std::int64_t first) {
    const GemmCase& q = spec.all;
    Epilogue epilogue{.alpha = q.alpha, .beta = q.beta, .activation = q.activation};
    if (q.has_bias) {
      epilogue.bias = {.data = bias.data(), .type = bias.type(), .stride = bias_stride()};
    }
    if (q.saves) {
      epilogue.pre_activation = {
          .data = before.data(first * c_stride()), .type = before.type(), .stride = c_stride()};
    }
    return epilogue;
  }
  // Some runs of rows, from a row on.
  void multiply(LinearKernel& kernel, std::int64_t first, std::span<const GroupRows> runs) {
    kernel.multiply({.data = a.data(a_at(first, 0)),
                     .type = a.type(),
                     .rows = rows_of(runs),
                     .stride = a_stride(),
                     .is_transposed = spec.all.a_is_transposed},
                    {.data = c.data(first * c_stride()), .type = c.type(), .stride = c_stride()},
                    epilogue_from(first), runs);
  }
  void multiply(LinearKernel& kernel) { multiply(kernel, 0, spec.runs); }
};

// The number in row i, which belongs to `group`, and column j.
inline Expected expected_at(const GroupedArrays& arrays, std::int64_t group, std::int64_t i,
                            std::int64_t j) {
  const GemmCase& q = arrays.spec.all;
  const TypedArray& weights = arrays.weights[group];
  Expected result;
  const auto add = [&](double term) {
    result.before += term;
    result.size += std::abs(term);
  };
  for (std::int64_t k = 0; k < q.k; ++k) {
    add(static_cast<double>(q.alpha) * arrays.a.get(arrays.a_at(i, k)) *
        weights.get(arrays.weights_at(k, j)));
  }
  if (q.beta != 0) add(static_cast<double>(q.beta) * arrays.c.get(i * arrays.c_stride() + j));
  if (q.has_bias) add(arrays.bias.get(group * arrays.bias_stride() + j));
  result.c = q.activation == Activation::none ? result.before : gelu(result.before);
  return result;
}

// One row against the reference, and what lies in the gap behind it against what was there.
inline void expect_right_row(const GroupedArrays& arrays, const GroupedArrays& given,
                             std::int64_t group, std::int64_t row) {
  const GemmCase& q = given.spec.all;
  for (std::int64_t j = 0; j < arrays.c_stride(); ++j) {
    const std::int64_t at = row * arrays.c_stride() + j;
    if (j >= q.n) {
      ASSERT_EQ(arrays.c.get(at), given.c.get(at)) << "in the gap, " << given.spec;
      continue;
    }
    const Expected expected = expected_at(given, group, row, j);
    ASSERT_NEAR(arrays.c.get(at), expected.c, bound(q, expected, expected.c))
        << row << ", " << j << " of " << given.spec;
    if (!q.saves) continue;
    ASSERT_NEAR(arrays.before.get(at), expected.before, bound(q, expected, expected.before))
        << row << ", " << j << " of " << given.spec;
  }
}

inline void expect_right(LinearKernel& kernel, const GroupedGemmCase& q, Random& random) {
  GroupedArrays arrays(q, random, Fill::fractions);
  const GroupedArrays given = arrays;
  arrays.prepare(kernel);
  arrays.multiply(kernel);
  std::int64_t row = 0;
  for (const GroupRows& run : q.runs) {
    for (std::int64_t i = 0; i < run.rows; ++i, ++row) {
      expect_right_row(arrays, given, run.group, row);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

}  // namespace shiplap::kernels
