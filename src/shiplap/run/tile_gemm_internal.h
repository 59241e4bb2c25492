// The GEMM of one tile: rows of X times the local weights, in any combination of high precision and
// FP8, with one weight matrix or one per group.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "shiplap/kernels/linear.h"
#include "shiplap/overlap/overlap.h"
#include "shiplap/run/overlapped_gemm.h"

namespace shiplap::run {

// Returns a view of rows in `format` that are `row_bytes` apart; high-precision rows have dtype
// `type`.
[[nodiscard]] kernels::MatrixView rows_of(const overlap::QuantFormat& format, DType type,
                                          std::byte* data, const kernels::MatrixShape& shape,
                                          std::int64_t row_bytes);

class TileGemm {
 public:
  // `n` and `k` are the local sizes. Throws InputError D802 if there is no kernel.
  TileGemm(const overlap::Problem& problem, std::int64_t n, std::int64_t k,
           std::int64_t typical_rows);

  // Packs weights in the layout of the plan: transposed (N x K), one group after another.
  void prepare(std::span<std::byte> rows);
  // Packs one matrix per group, or one.
  void prepare(std::span<const kernels::MatrixView> weights);

  // Returns a view of rows of X that are `row_bytes` apart.
  [[nodiscard]] kernels::MatrixView rows_of_x(std::byte* data, std::int64_t rows,
                                              std::int64_t row_bytes) const;

  // Multiplies rows of X by the weights of the groups in `runs`. Missing: each row ends with its
  // group number.
  void multiply(const kernels::MatrixView& x, const kernels::MatrixView& c,
                const kernels::Epilogue& epilogue = {},
                std::optional<std::span<const kernels::GroupRows>> runs = {});
  [[nodiscard]] std::string_view backend_name() const { return linear_.backend_name(); }

 private:
  [[nodiscard]] std::span<const kernels::GroupRows> runs_in(const kernels::MatrixView& x);

  overlap::Problem problem_;
  std::int64_t n_;
  std::int64_t k_;
  kernels::LinearKernel linear_;
  std::vector<kernels::GroupRows> runs_;  // reused, so that calls do not allocate
};

}  // namespace shiplap::run
