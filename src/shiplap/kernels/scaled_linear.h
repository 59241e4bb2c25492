// Products of FP8 and MXFP8 factors, with a second factor that stays: LinearKernel (linear.h) for
// rows that come with their scales.
//
//   ScaledLinear linear({.columns = n, .depth = k});
//   linear.prepare({.factor = {.codes = w, .rows = n, .columns = k, .scales = w_inverse}});
//   linear.multiply({.codes = x, .rows = m, .columns = k, .scales = x_inverse},
//                   {.data = y, .type = DType::bf16}, {.bias = {b, DType::f32}});
//
// Codes are widened to bf16, which holds all of them exactly, and multiplied with all sums in
// float. The power of two of an MXFP8 block is multiplied into its codes, exactly; the scales of
// rows and of weights are multiplied into alpha. So the result is that of LinearKernel on the
// dequantised factors, except that nothing is rounded on the way into it.
//
// Where the power of two is so small or so large that bf16 could not hold every code times it as a
// normal number, and the block is not all zeros, its part of the sum is made from codes times
// 2^32 or 2^-32 of it, and the parts are added in double. That takes four times as long for such
// rows, and up to three times for such columns. An E8m0 of 0xff makes its block NaN. An
// infinity of the other factor may make such rows or columns NaN, since it meets zeros of parts.
//
// A row has the same bits alone, in a chunk and in the whole, as with LinearKernel. What
// LinearKernel says of subnormal bf16 holds for rows and weights that are given as bf16, and for
// products of two numbers that are subnormal floats.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "shiplap/kernels/linear.h"
#include "shiplap/kernels/quantize.h"

namespace shiplap::kernels {

struct ScaledShape {
  std::int64_t columns = 0;         // of the weights and of the result
  std::int64_t depth = 0;           // the inner size
  std::int64_t typical_rows = 256;  // see LinearShape; calls with more rows are cut
  Engine engine = Engine::best;
};

// The second factor: depth x columns. Transposed, `factor` has `columns` rows of `depth` numbers.
// Otherwise it has `depth` rows of `columns` numbers, and MXFP8 blocks are of 32 rows of a column:
// the scales then are ceil(depth / 32) rows of `columns` bytes, and scale_stride leads from one of
// these rows to the next. With Scales::rows, all rows have the same scale.
struct ScaledWeights {
  Fp8Rows factor;
  bool is_transposed = true;
};

// Not const: it keeps what each number of rows needs from call to call, so that a later call of the
// same sizes allocates nothing, once rows have been met whose scales need the longer way. One
// thread at a time may use one; several may have one each.
class ScaledLinear {
 public:
  explicit ScaledLinear(const ScaledShape& shape);
  ScaledLinear(ScaledLinear&&) noexcept;
  ScaledLinear& operator=(ScaledLinear&&) noexcept;
  ~ScaledLinear();

  // May be called again, with new weights. They are not used after it. Two bytes for each are kept
  // besides those of the kernel, since making room for them would take as long as all the rest.
  void prepare(const ScaledWeights& weights);
  // Of bf16.
  void prepare(const Weights& weights);

  // Promises that prepare() was called and that rows of `a` are as long as the weights are deep.
  // Rows may have different scales. Results overlap neither each other nor the factors. A bias may
  // be of any type.
  void multiply(const Fp8Rows& a, const Result& c, const Epilogue& epilogue = {});
  // Rows of bf16.
  void multiply(const Rows& a, const Result& c, const Epilogue& epilogue = {});

  // As LinearKernel::by().
  [[nodiscard]] std::string_view by() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace shiplap::kernels
