// Products with a second factor that stays: rows of activations, all at once or as they arrive,
// times the weights of a layer.
//
//   LinearKernel linear({.columns = n, .depth = k, .type = DType::bf16, .typical_rows = 256});
//   linear.prepare({.data = w});
//   linear.multiply({.data = x, .count = rows}, {.data = y, .type = DType::bf16},
//                   {.bias = {b, DType::f32}, .activation = Activation::gelu_tanh});
//
// computes, for each row on its own and with all sums in float,
//
//   before = alpha * a w + beta * c + bias;   c = activation(before)
//
// and rounds once, to nearest even, when a number is stored. A row may come alone or with any
// number of others; no size need divide another, and any may be zero.
//
// oneDNN does it where it is there and has a fast way for the type, plain loops where not; by()
// says which. A call uses only the thread that makes it.
//
// A row has the same bits whether it comes alone, in a chunk or in the whole, as long as the kernel
// (or another of the same shape and the same layout of weights, on the same kind of processor)
// computes it in the same layout of `a` and with the same epilogue: the tests found no exception
// for oneDNN 3.2 in f32, bf16 and f16. Other layouts, packings, typical numbers of rows and engines
// may differ in the last bits of the sum. For this, sums come out of oneDNN as floats even if the
// result is narrower (linear_onednn.cc), which costs about a tenth of the time. oneDNN takes
// subnormal bf16 as zero.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "shiplap/base/dtype.h"

namespace shiplap::kernels {

// Whether prepare() copies the weights into the blocks that the engine wants, or every call does,
// from where they lie: for a second factor that is used once.
enum class Packing : std::uint8_t { once, every_call };

// oneDNN where it is faster than plain loops, or plain loops wherever this runs.
enum class Engine : std::uint8_t { best, plain_loops };

struct LinearShape {
  std::int64_t columns = 0;  // of the weights and of the result
  std::int64_t depth = 0;    // the inner size
  DType type = DType::f32;   // of both factors
  Packing packing = Packing::once;
  // The blocks are chosen for calls of this many rows, and then used for calls of any number. Calls
  // with more rows are cut, unless the result is a product in float.
  std::int64_t typical_rows = 256;
  Engine engine = Engine::best;
};

// The second factor: depth x columns. By rows, row i begins at data + i * stride; transposed (a
// Linear of PyTorch has its weights so), column i does. Stride counts elements; 0 means that there
// are no gaps. For some of the columns of a wider matrix, point to the first and give its stride.
//
// Factors are only read. They are not const because oneDNN describes all its memory by pointers
// through which it could write.
struct Weights {
  void* data = nullptr;
  std::int64_t stride = 0;
  bool is_transposed = false;
};

// The first factor: count x depth.
struct Rows {
  void* data = nullptr;
  std::int64_t count = 0;
  std::int64_t stride = 0;
  bool is_transposed = false;
};

// Where a result of count x columns goes, by rows.
struct Result {
  void* data = nullptr;
  DType type = DType::f32;
  std::int64_t stride = 0;
};

struct Bias {
  const void* data = nullptr;  // `columns` numbers; null: none
  DType type = DType::f32;     // or that of the factors
};

// gelu_tanh(x) = x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))): PyTorch's approximate="tanh"
// and the GELU of TransformerEngine and cuBLASLt.
enum class Activation : std::uint8_t { none, gelu_tanh };

struct Epilogue {
  float alpha = 1;
  float beta = 0;  // if 0, what was in `c` is not read
  Bias bias;
  Activation activation = Activation::none;
  Result before_activation;  // if not null, what the activation was taken of, for the way back
};

// Not const: it keeps what each number of rows needs from call to call, so that a later call of the
// same sizes allocates nothing. One thread at a time may use one; several may have one each.
class LinearKernel {
 public:
  explicit LinearKernel(const LinearShape& shape);
  LinearKernel(LinearKernel&&) noexcept;
  LinearKernel& operator=(LinearKernel&&) noexcept;
  ~LinearKernel();

  // May be called again, with new weights. With Packing::once they are not used after it; else they
  // have to stay where they are.
  void prepare(const Weights& weights);

  // Results overlap neither each other nor the factors. Promises that prepare() was called.
  void multiply(const Rows& a, const Result& c, const Epilogue& epilogue = {});

  // "plain loops", or what oneDNN calls its way, such as "brg:avx512_core_amx".
  [[nodiscard]] std::string_view by() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace shiplap::kernels
