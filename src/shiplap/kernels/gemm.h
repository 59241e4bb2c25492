// Products of f32 matrices, as layers of a network are made of them.
//
//   Gemm gemm;
//   gemm.multiply(by_rows(x, tokens, in), transposed(by_rows(w, out, in)), {y, out});
//
// oneDNN does them where it is there, plain loops where it is not (products_by() in attention.h
// says which). A call uses only the thread that makes it, and the same operands give the same bits
// every time on the same kind of processor.
#pragma once

#include <cstdint>
#include <memory>

namespace shiplap::kernels {

// A matrix that is only read. Row i begins at data + i * stride; of a transposed one, column i
// does. It is not const because oneDNN describes all its memory by pointers through which it could
// write.
struct Matrix {
  float* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t stride = 0;
  bool is_transposed = false;
};

// Rows one after another, without gaps.
[[nodiscard]] inline Matrix by_rows(float* data, std::int64_t rows, std::int64_t columns) {
  return {.data = data, .rows = rows, .columns = columns, .stride = columns};
}

[[nodiscard]] inline Matrix transposed(Matrix matrix) {
  return {.data = matrix.data,
          .rows = matrix.columns,
          .columns = matrix.rows,
          .stride = matrix.stride,
          .is_transposed = !matrix.is_transposed};
}

// Where a product goes: as many rows as the first factor has, columns as the second.
struct ProductAt {
  float* data = nullptr;
  std::int64_t stride = 0;
};

// Not const: it keeps what each shape needs from call to call. One thread at a time may use one;
// several may have one each.
class Gemm {
 public:
  Gemm();
  Gemm(Gemm&&) noexcept;
  Gemm& operator=(Gemm&&) noexcept;
  ~Gemm();

  // c = a b. Promises that the inner sizes agree; `c` overlaps neither factor.
  void multiply(const Matrix& a, const Matrix& b, const ProductAt& c);
  // c += a b
  void multiply_add(const Matrix& a, const Matrix& b, const ProductAt& c);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace shiplap::kernels
