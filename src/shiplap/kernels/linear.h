// GEMMs with constant weights: rows of activations, all at once or in chunks, times the weights of
// a layer, or of each of many layers of the same shape (grouped GEMM).
//
//   LinearKernel linear({.n = n, .k = k, .type = DType::bf16});
//   linear.prepare({.data = w, .type = DType::bf16});
//   linear.multiply({.data = x, .type = DType::bf16, .rows = m}, {.data = y, .type = DType::bf16},
//                   {.bias = {b, DType::f32}, .activation = Activation::gelu_tanh});
//
// computes, for each row independently and with all sums in f32,
//
//   pre = alpha * a w + beta * c + bias;   c = activation(pre)
//
// and rounds once, to nearest even, when a value is stored. Sizes need not be divisible, and any
// may be zero. Sizes of matrices that follow from the shape may be omitted, except for the rows of
// `a`. Operands are only read; they are not const because oneDNN takes non-const pointers.
//
// The backend is oneDNN if it has a fast kernel for the dtype, otherwise reference loops; grouped
// bf16 uses AMX tiles if available. See backend_name(). A call uses only the calling thread.
//
// Reproducibility: a row has the same bits whether it is computed alone, in a chunk or in the
// whole, and whatever other groups there are, if the kernel (or another of the same shape and the
// same layout of weights, on the same kind of processor) computes it with the same layout of `a`
// and the same epilogue: the tests found no exception for oneDNN 3.2 in f32, bf16 and f16. Other
// layouts, packings, typical numbers of rows and engines, and groups instead of none, may differ in
// the last bits of the sum. For this, oneDNN writes f32 sums even if the result is narrower
// (gemm_onednn.cc), which costs about a tenth of the time. oneDNN and AMX flush subnormal bf16 to
// zero.
//
// Groups: rows are sorted by group, as the experts of an MoE layer get them.
//
//   LinearKernel experts({.groups = 64, .n = n, .k = k, .type = DType::bf16});
//   experts.prepare(weights);  // one per group
//   const GroupRows runs[] = {{.group = 5, .rows = 7}, {.group = 9, .rows = 130}};
//   experts.multiply({.data = x, .type = DType::bf16, .rows = 137}, y, {}, runs);
//
// With AMX tiles no number of rows needs compilation; oneDNN compiles a kernel for every multiple
// of 4 rows (bf16: 16) up to the typical number at its first use, a millisecond each.
//
// FP8 and MXFP8: a bf16 kernel also takes quantized operands, with their scales.
//
//   linear.prepare(transposed(MatrixView{.data = w, .type = DType::fp8_e4m3, .rows = n,
//                                             .columns = k, .scales = w_inverse}));
//
// FP8 values are converted to bf16, which holds all of them exactly. The power of two of an MXFP8
// block is multiplied into its values, exactly; the scales of rows and of weights are multiplied
// into alpha. So the result is that of the dequantized operands, without intermediate rounding.
// Blocks are along K: of row-major weights, a block is 32 rows of a column, the scales are ceil(k /
// 32) rows of n bytes, and scale_stride is the stride of these rows. With
// ScaleGranularity::per_row, all weights (of a group) have the same scale; rows of `a` may have
// different ones.
//
// If the power of two of a block is so small or so large that bf16 cannot hold every scaled value
// as a normal number, and the block is not all zeros, its part of the sum is computed from values
// times 2^32 or 2^-32, and the parts are added in double. That takes four times as long for such
// rows, and up to three times for such columns. An E8m0 of 0xff makes its block NaN. An infinity in
// the other operand may make such rows or columns NaN, since it is multiplied by zeros.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "shiplap/base/dtype.h"
#include "shiplap/kernels/matrix_view.h"

namespace shiplap::kernels {

// Whether prepare() packs the weights into the blocked layout of the engine, or every call does:
// for weights that are used once.
enum class Packing : std::uint8_t { once, every_call };

// The fastest; the fastest without AMX; or the reference loops.
enum class Engine : std::uint8_t { best, no_amx, reference };

struct LinearShape {
  std::int64_t groups = 0;  // 0: all rows have the same weights
  std::int64_t n = 0;       // columns of the weights and of the result
  std::int64_t k = 0;       // inner size
  DType type = DType::f32;  // of both operands, unless one is FP8
  Packing packing = Packing::once;
  // Block sizes are tuned for calls (groups: runs) of this many rows, and used for any number.
  // Calls with more rows are split, unless the result is an f32 GEMM without epilogue.
  std::int64_t typical_rows = 256;
  Engine engine = Engine::best;
};

// A run of rows of one group.
struct GroupRows {
  std::int64_t group = 0;
  std::int64_t rows = 0;
};

// gelu_tanh(x) = x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))): PyTorch's approximate="tanh"
// and the GELU of TransformerEngine and cuBLASLt.
enum class Activation : std::uint8_t { none, gelu_tanh };

struct Epilogue {
  float alpha = 1;
  float beta = 0;        // if 0, `c` is not read
  ConstMatrixView bias;  // one row, or one per group; f32 or the dtype of the shape
  Activation activation = Activation::none;
  MatrixView pre_activation;  // if not null, gets the input of the activation, for backward
};

// Not thread-safe: it caches kernels and workspace, so that later calls of the same sizes do not
// allocate (with FP8, once rows with out-of-range scales have occurred). Threads may have one each.
class LinearKernel {
 public:
  explicit LinearKernel(const LinearShape& shape);
  LinearKernel(LinearKernel&&) noexcept;
  LinearKernel& operator=(LinearKernel&&) noexcept;
  ~LinearKernel();

  // Packs the weights of a group: k x n (torch.nn.Linear has them transposed). May be called again
  // with new weights. With Packing::once, which FP8 requires, they are not used afterwards;
  // otherwise they must stay valid.
  void prepare(const MatrixView& weights, std::int64_t group = 0);
  // The same for all groups.
  void prepare(std::span<const MatrixView> weights);

  // The consecutive `runs` cover all rows of `a`. A group may occur several times, in any order, or
  // not at all. REQUIRES: `runs` is empty without groups; outputs overlap neither each other nor
  // the operands; the weights that are used are prepared.
  void multiply(const MatrixView& a, const MatrixView& c, const Epilogue& epilogue = {},
                std::span<const GroupRows> runs = {});

  // Returns "reference", "AMX tiles", or the name of oneDNN's implementation, such as
  // "brg:avx512_core_amx".
  [[nodiscard]] std::string_view backend_name() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Applies an epilogue to existing sums, such as sums over ranks: pre = alpha * sums + beta * c +
// bias; c = activation(pre), in f32, rounded when stored. `c` may be the sums themselves if they
// have the same dtype. REQUIRES: the sums are contiguous and row-major.
void apply_epilogue(const ConstMatrixView& sums, const MatrixView& c, const Epilogue& epilogue);

// Returns whether the epilogue leaves sums unchanged.
[[nodiscard]] bool is_identity(const Epilogue& epilogue);

}  // namespace shiplap::kernels
