// GEMM backends: oneDNN, or reference loops if it is missing.
//
// Both accumulate in f32 in an order that depends only on the shape, so results are bitwise
// reproducible on the same machine.
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <string_view>

#include "shiplap/kernels/linear.h"

namespace shiplap::kernels {

enum class WriteMode { overwrite, accumulate };

// The memory layout of an operand: row-major, or transposed, with `stride` elements between rows
// (columns).
struct Layout {
  bool is_transposed = false;
  std::int64_t stride = 0;
  friend auto operator<=>(const Layout&, const Layout&) = default;
};

// REQUIRES: the stride is set.
[[nodiscard]] inline Layout layout_of(const ConstMatrixView& matrix) {
  return {.is_transposed = matrix.is_transposed, .stride = matrix.stride};
}

// c = a b or c += a b, where a is m x k, b is k x n, and c is f32 and row-major. No size is zero.
struct GemmDesc {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  DType type = DType::f32;  // of a and b
  Layout a;
  Layout b;  // if it is not packed
  std::int64_t stride_c = 0;
  WriteMode write_mode = WriteMode::overwrite;
  friend auto operator<=>(const GemmDesc&, const GemmDesc&) = default;
};

// `a` and `b` are only read. They are not const because oneDNN takes non-const pointers.
struct Operands {
  void* a = nullptr;
  void* b = nullptr;
  float* c = nullptr;
};

// GEMMs of any two f32 or bf16 matrices, such as those of attention: small, many, of few different
// shapes. Not thread-safe. Kernels are compiled at the first use of a shape and cached.
class GemmEngine {
 public:
  virtual ~GemmEngine() = default;
  virtual void multiply(const GemmDesc& desc, const Operands& operands) = 0;
};

// oneDNN if available, otherwise the reference; see gemm_backend_name() in attention.h.
[[nodiscard]] std::unique_ptr<GemmEngine> make_gemm_engine();
[[nodiscard]] std::unique_ptr<GemmEngine> make_reference_gemm_engine();

// GEMMs with packed weights: several weight matrices, all of one shape. Not thread-safe. Kernels
// are compiled at the first use of a number of rows and cached.
class LinearEngine {
 public:
  virtual ~LinearEngine() = default;

  // The dtype of both operands.
  [[nodiscard]] virtual DType type() const = 0;
  // Packs weights. REQUIRES: the stride is set. With Packing::every_call, the weights stay valid
  // until the next call of this.
  virtual void prepare(const MatrixView& weights, std::int64_t group) = 0;
  // Returns whether it supports this GEMM; a row then has the same bits as in any other GEMM of
  // this engine with this layout of weights. `typical_rows` or fewer contiguous rows of a, possibly
  // padded, into a contiguous c are always supported.
  [[nodiscard]] virtual bool supports(const GemmDesc& desc) = 0;
  // Operand b is ignored.
  virtual void multiply(const GemmDesc& desc, const Operands& operands, std::int64_t group) = 0;
  [[nodiscard]] virtual std::string_view name() const = 0;
};

// Returns the best engine for the shape. It may be one for f32 even if the shape has another dtype.
[[nodiscard]] std::unique_ptr<LinearEngine> make_linear_engine(const LinearShape& shape);
// For f32.
[[nodiscard]] std::unique_ptr<LinearEngine> make_reference_linear_engine();

// The interface of the plugin shiplap_onednn.so, exported as `shiplap_gemm_plugin`. The caller owns
// the returned engines.
inline constexpr int kGemmPluginVersion = 4;
struct GemmPlugin {
  int version = kGemmPluginVersion;
  GemmEngine* (*make)() = nullptr;
  LinearEngine* (*make_linear)(const LinearShape&) = nullptr;  // null if it has no fast kernel
  const char* (*name)() = nullptr;
};

}  // namespace shiplap::kernels
