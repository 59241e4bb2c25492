// What multiplies rows by the weights of a rank, whatever both are written as: numbers, FP8 with
// scales, one matrix of weights or one for each group.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "shiplap/kernels/grouped.h"
#include "shiplap/kernels/linear.h"
#include "shiplap/kernels/scaled_linear.h"
#include "shiplap/overlap/overlap.h"
#include "shiplap/run/overlapped_product.h"

namespace shiplap::run {

// Rows that lie as a form has them.
[[nodiscard]] kernels::Fp8Rows rows_of(const overlap::Form& form, std::byte* data,
                                       std::int64_t rows, std::int64_t columns,
                                       std::int64_t row_bytes);

// Some rows of X, as the plan has them.
struct TileRows {
  std::byte* data = nullptr;
  std::int64_t count = 0;
  std::int64_t row_bytes = 0;
  // Plain numbers only: `data` is depth x all rows, and a row of that has so many numbers.
  bool is_transposed = false;
  std::int64_t stride = 0;
  // The groups of these rows. Not given: each row says its own, behind its numbers.
  std::optional<std::span<const kernels::GroupRows>> runs;
};

class TileProduct {
 public:
  // Throws InputError D802 if there is no kernel for it.
  TileProduct(const overlap::Problem& problem, std::int64_t columns, std::int64_t depth,
              std::int64_t typical_rows);

  // Takes weights as the plan has them: a row for each column, of one group after another.
  void prepare(std::span<std::byte> rows);
  // One for each group, or one.
  void prepare(std::span<const ProductWeights> weights);

  void multiply(const TileRows& x, const kernels::Result& c, const kernels::Epilogue& epilogue,
                const kernels::GroupedBias& bias);
  [[nodiscard]] std::string_view by() const;

 private:
  [[nodiscard]] kernels::Rows plain_rows(const TileRows& x) const;
  [[nodiscard]] std::span<const kernels::GroupRows> runs_of(const TileRows& x);
  void multiply_coded(const TileRows& x, const kernels::Result& c,
                      const kernels::Epilogue& epilogue, const kernels::GroupedBias& bias);

  overlap::Problem problem_;
  std::int64_t columns_;
  std::int64_t depth_;
  DType type_;
  // One of these.
  std::optional<kernels::LinearKernel> linear_;
  std::optional<kernels::GroupedLinear> grouped_;
  std::vector<kernels::ScaledLinear> scaled_;  // one for each group
  std::vector<kernels::GroupRows> runs_;       // kept, so that calls do not allocate
};

}  // namespace shiplap::run
