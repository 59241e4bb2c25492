// Products with a second factor that stays: rows of activations, all at once or as they arrive,
// times the weights of a layer, or of each of many layers of the same shape.
//
//   LinearKernel linear({.columns = n, .depth = k, .type = DType::bf16});
//   linear.prepare({.data = w, .type = DType::bf16});
//   linear.multiply({.data = x, .type = DType::bf16, .rows = m}, {.data = y, .type = DType::bf16},
//                   {.bias = {b, DType::f32}, .activation = Activation::gelu_tanh});
//
// computes, for each row on its own and with all sums in float,
//
//   before = alpha * a w + beta * c + bias;   c = activation(before)
//
// and rounds once, to nearest even, when a number is stored. A row may come alone or with any
// number of others; no size need divide another, and any may be zero. Of matrices but for the rows
// of `a`, sizes that follow from the shape need not be given. Factors are only read; they are not
// const because oneDNN describes all its memory by pointers through which it could write.
//
// oneDNN does it where it is there and has a fast way for the type, plain loops where not; groups
// of bf16 go through the tiles of AMX where there are any. by() says which. A call uses only the
// thread that makes it.
//
// A row has the same bits whether it comes alone, in a chunk or in the whole, and whatever other
// groups there are, as long as the kernel (or another of the same shape and the same layout of
// weights, on the same kind of processor) computes it in the same layout of `a` and with the same
// epilogue: the tests found no exception for oneDNN 3.2 in f32, bf16 and f16. Other layouts,
// packings, typical numbers of rows and engines, and groups instead of none, may differ in the last
// bits of the sum. For this, sums come out of oneDNN as floats even if the result is narrower
// (gemm_onednn.cc), which costs about a tenth of the time. oneDNN and AMX take subnormal bf16 as
// zero.
//
// Groups: rows come sorted by group, as the experts of a mixture get them.
//
//   LinearKernel experts({.groups = 64, .columns = n, .depth = k, .type = DType::bf16});
//   experts.prepare(weights);  // one for each group
//   const GroupRows runs[] = {{.group = 5, .rows = 7}, {.group = 9, .rows = 130}};
//   experts.multiply({.data = x, .type = DType::bf16, .rows = 137}, y, {}, runs);
//
// On tiles of AMX no number of rows is new; oneDNN compiles something for every multiple of 4 rows
// (bf16: 16) up to the typical number when it is first needed, a millisecond each.
//
// FP8 and MXFP8: a kernel of bf16 also takes factors of these, with their scales.
//
//   linear.prepare(transposed(MatrixView{.data = w, .type = DType::fp8_e4m3, .rows = n,
//                                             .columns = k, .scales = w_inverse}));
//
// Codes are widened to bf16, which holds all of them exactly. The power of two of an MXFP8 block is
// multiplied into its codes, exactly; the scales of rows and of weights are multiplied into alpha.
// So the result is that of the dequantised factors, except that nothing is rounded on the way into
// it. Blocks are along the depth: of weights that lie by rows, a block is of 32 rows of a column,
// the scales are ceil(depth / 32) rows of `columns` bytes, and scale_stride leads from one of these
// rows to the next. With Scales::rows, all weights (of a group) have the same scale; rows of `a`
// may have different ones.
//
// Where the power of two is so small or so large that bf16 could not hold every code times it as a
// normal number, and the block is not all zeros, its part of the sum is made from codes times
// 2^32 or 2^-32 of it, and the parts are added in double. That takes four times as long for such
// rows, and up to three times for such columns. An E8m0 of 0xff makes its block NaN. An
// infinity of the other factor may make such rows or columns NaN, since it meets zeros of parts.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "shiplap/base/dtype.h"
#include "shiplap/kernels/matrix_view.h"

namespace shiplap::kernels {

// Whether prepare() copies the weights into the blocks that the engine wants, or every call does,
// from where they lie: for a second factor that is used once.
enum class Packing : std::uint8_t { once, every_call };

// What is fastest; what that is on processors without AMX; or plain loops wherever this runs.
enum class Engine : std::uint8_t { best, no_tiles, plain_loops };

struct LinearShape {
  std::int64_t groups = 0;   // 0: all rows have the same weights
  std::int64_t columns = 0;  // of the weights and of the result
  std::int64_t depth = 0;    // the inner size
  DType type = DType::f32;   // of both factors, unless one is FP8
  Packing packing = Packing::once;
  // The blocks are chosen for calls (groups: runs) of this many rows, and then used for calls of
  // any number. Calls with more rows are cut, unless the result is a product in float.
  std::int64_t typical_rows = 256;
  Engine engine = Engine::best;
};

// Some rows that belong to one group.
struct GroupRows {
  std::int64_t group = 0;
  std::int64_t rows = 0;
};

// gelu_tanh(x) = x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))): PyTorch's approximate="tanh"
// and the GELU of TransformerEngine and cuBLASLt.
enum class Activation : std::uint8_t { none, gelu_tanh };

struct Epilogue {
  float alpha = 1;
  float beta = 0;        // if 0, what was in `c` is not read
  ConstMatrixView bias;  // a row of `columns`, or one for each group; f32 or of the shape's type
  Activation activation = Activation::none;
  MatrixView before_activation;  // if not null, what the activation was taken of, for the way back
};

// Not const: it keeps what each number of rows needs from call to call, so that a later call of the
// same sizes allocates nothing (of FP8, once rows have been met whose scales need the longer way).
// One thread at a time may use one; several may have one each.
class LinearKernel {
 public:
  explicit LinearKernel(const LinearShape& shape);
  LinearKernel(LinearKernel&&) noexcept;
  LinearKernel& operator=(LinearKernel&&) noexcept;
  ~LinearKernel();

  // The weights of a group: depth x columns (a Linear of PyTorch has them transposed). May be
  // called again, with new weights. With Packing::once, which FP8 needs, they are not used after
  // it; else they have to stay where they are.
  void prepare(const MatrixView& weights, std::int64_t group = 0);
  // Those of each group.
  void prepare(std::span<const MatrixView> weights);

  // `a` is cut into `runs`, one after the other, which together have as many rows as it. A group
  // may occur several times, in any order, or not at all. Without groups there are no runs. Results
  // overlap neither each other nor the factors. REQUIRES: the weights that are used are prepared.
  void multiply(const MatrixView& a, const MatrixView& c, const Epilogue& epilogue = {},
                std::span<const GroupRows> runs = {});

  // "plain loops", "tiles of AMX", or what oneDNN calls its way, such as "brg:avx512_core_amx".
  [[nodiscard]] std::string_view by() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The epilogue of sums that were made elsewhere, such as of a product whose parts were added up
// over ranks: before = alpha * sums + beta * c + bias; c = activation(before), in float, rounded
// when stored. `c` may be the sums themselves if their types are the same. The sums lie by rows,
// without gaps.
void finish(const ConstMatrixView& sums, const MatrixView& c, const Epilogue& epilogue);

// Whether it leaves sums as they are.
[[nodiscard]] bool is_identity(const Epilogue& epilogue);

}  // namespace shiplap::kernels
