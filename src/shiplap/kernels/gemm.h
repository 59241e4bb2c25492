// GEMMs of f32 matrices.
//
//   Gemm gemm;
//   gemm.multiply(row_major(x, tokens, in), transposed(row_major(w, out, in)), {.data = y});
//
// The backend is oneDNN, or reference loops if it is missing (gemm_backend_name() in attention.h).
// A call uses only the calling thread; results are bitwise reproducible on the same kind of
// processor.
#pragma once

#include <cstdint>
#include <memory>

#include "shiplap/kernels/matrix_view.h"

namespace shiplap::kernels {

// Returns a view of a contiguous row-major matrix.
[[nodiscard]] inline MatrixView row_major(float* data, std::int64_t rows, std::int64_t columns) {
  return {.data = data, .rows = rows, .columns = columns, .stride = columns};
}

class GemmEngine;

// Not thread-safe: it caches a kernel per shape. Threads may have one each.
class Gemm {
 public:
  Gemm();
  Gemm(Gemm&&) noexcept;
  Gemm& operator=(Gemm&&) noexcept;
  ~Gemm();

  // c = a b; the sizes of c need not be given. REQUIRES: the inner sizes agree; `c` overlaps
  // neither operand.
  void multiply(const MatrixView& a, const MatrixView& b, const MatrixView& c);
  // c += a b
  void multiply_add(const MatrixView& a, const MatrixView& b, const MatrixView& c);

 private:
  std::unique_ptr<GemmEngine> gemm_;
};

}  // namespace shiplap::kernels
