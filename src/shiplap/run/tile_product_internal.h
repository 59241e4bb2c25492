// What multiplies rows by the weights of a rank, whatever both are written as: numbers, FP8 with
// scales, one matrix of weights or one for each group.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "shiplap/kernels/linear.h"
#include "shiplap/overlap/overlap.h"
#include "shiplap/run/overlapped_product.h"

namespace shiplap::run {

// Rows that lie as a form has them, each `row_bytes` after the one before; plain ones are of
// `type`.
[[nodiscard]] kernels::MatrixView rows_of(const overlap::Form& form, DType type, std::byte* data,
                                          const kernels::MatrixShape& shape,
                                          std::int64_t row_bytes);

class TileProduct {
 public:
  // Throws InputError D802 if there is no kernel for it.
  TileProduct(const overlap::Problem& problem, std::int64_t columns, std::int64_t depth,
              std::int64_t typical_rows);

  // Takes weights as the plan has them: a row for each column, of one group after another.
  void prepare(std::span<std::byte> rows);
  // One for each group, or one.
  void prepare(std::span<const kernels::MatrixView> weights);

  // Some rows of X, of which each begins `row_bytes` after the one before unless it is transposed.
  [[nodiscard]] kernels::MatrixView rows_of_x(std::byte* data, std::int64_t rows,
                                              std::int64_t row_bytes) const;

  // Rows of X by the groups of `runs`. Not given: each row says its own, behind its numbers.
  void multiply(const kernels::MatrixView& x, const kernels::MatrixView& c,
                const kernels::Epilogue& epilogue = {},
                std::optional<std::span<const kernels::GroupRows>> runs = {});
  [[nodiscard]] std::string_view by() const { return linear_.by(); }

 private:
  [[nodiscard]] std::span<const kernels::GroupRows> runs_in(const kernels::MatrixView& x);

  overlap::Problem problem_;
  std::int64_t columns_;
  std::int64_t depth_;
  kernels::LinearKernel linear_;
  std::vector<kernels::GroupRows> runs_;  // kept, so that calls do not allocate
};

}  // namespace shiplap::run
