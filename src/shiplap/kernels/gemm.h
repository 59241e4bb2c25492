// Products of f32 matrices, as layers of a network are made of them.
//
//   Gemm gemm;
//   gemm.multiply(by_rows(x, tokens, in), transposed(by_rows(w, out, in)), {.data = y});
//
// oneDNN does them where it is there, plain loops where it is not (products_by() in attention.h
// says which). A call uses only the thread that makes it, and the same operands give the same bits
// every time on the same kind of processor.
#pragma once

#include <cstdint>
#include <memory>

#include "shiplap/kernels/matrix_view.h"

namespace shiplap::kernels {

// Rows one after another, without gaps.
[[nodiscard]] inline MatrixView by_rows(float* data, std::int64_t rows, std::int64_t columns) {
  return {.data = data, .rows = rows, .columns = columns, .stride = columns};
}

class Products;

// Not const: it keeps what each shape needs from call to call. One thread at a time may use one;
// several may have one each.
class Gemm {
 public:
  Gemm();
  Gemm(Gemm&&) noexcept;
  Gemm& operator=(Gemm&&) noexcept;
  ~Gemm();

  // c = a b; the sizes of c need not be given. REQUIRES: the inner sizes agree; `c` overlaps
  // neither factor.
  void multiply(const MatrixView& a, const MatrixView& b, const MatrixView& c);
  // c += a b
  void multiply_add(const MatrixView& a, const MatrixView& b, const MatrixView& c);

 private:
  std::unique_ptr<Products> products_;
};

}  // namespace shiplap::kernels
