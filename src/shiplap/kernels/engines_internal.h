// Who multiplies: oneDNN, or plain loops where it is not there.
//
// Both add up in float in an order that depends on the shape alone, so the same operands give the
// same bits on the same machine.
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <string_view>

#include "shiplap/kernels/linear.h"

namespace shiplap::kernels {

enum class Into { overwrite, accumulate };

// How an operand lies in memory: by rows, or transposed, with `stride` elements from the beginning
// of one row (column) to that of the next.
struct Layout {
  bool is_transposed = false;
  std::int64_t stride = 0;
  friend auto operator<=>(const Layout&, const Layout&) = default;
};

// REQUIRES: the stride is set.
[[nodiscard]] inline Layout layout_of(const ConstMatrixView& matrix) {
  return {.is_transposed = matrix.is_transposed, .stride = matrix.stride};
}

// c = a b or c += a b, where a has `rows` x `depth` elements, b `depth` x `columns`, and c is float
// and lies by rows. No size is zero.
struct Product {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t depth = 0;
  DType type = DType::f32;  // of both factors
  Layout a;
  Layout b;  // where it is not prepared
  std::int64_t stride_c = 0;
  Into into = Into::overwrite;
  friend auto operator<=>(const Product&, const Product&) = default;
};

// `a` and `b` are only read. They are not const because oneDNN describes all its memory by pointers
// through which it could write.
struct Operands {
  void* a = nullptr;
  void* b = nullptr;
  float* c = nullptr;
};

// Products of any two matrices of f32 or bf16, such as those of which attention is made: small,
// many, and of few different shapes. One thread at a time may use one. What a shape needs is
// prepared when it is first seen and kept.
class Products {
 public:
  virtual ~Products() = default;
  virtual void multiply(const Product& product, const Operands& operands) = 0;
};

// By oneDNN if it is there, else by plain loops; products_by() in attention.h says which.
[[nodiscard]] std::unique_ptr<Products> make_products();
[[nodiscard]] std::unique_ptr<Products> make_plain_products();

// Products with second factors that were prepared: several, all of one shape. One thread at a time
// may use one. What a number of rows needs is made when it is first seen and kept.
class LinearEngine {
 public:
  virtual ~LinearEngine() = default;

  // Of both factors.
  [[nodiscard]] virtual DType type() const = 0;
  // The stride is set. With Packing::every_call, the weights stay where they are until the next
  // call of this.
  virtual void prepare(const MatrixView& weights, std::int64_t group) = 0;
  // Whether it multiplies so; a row then gets the same bits as in any other product of this engine
  // by this layout of weights. It can do `typical_rows` or fewer rows of a that lie without gaps,
  // at worst with rows added to them, into a c without gaps.
  [[nodiscard]] virtual bool can(const Product& product) = 0;
  // Of the operands, b is not needed.
  virtual void multiply(const Product& product, const Operands& operands, std::int64_t group) = 0;
  [[nodiscard]] virtual std::string_view name() const = 0;
};

// The best for the shape, which may be one for f32 whatever the shape asks for.
[[nodiscard]] std::unique_ptr<LinearEngine> make_linear_engine(const LinearShape& shape);
// For f32.
[[nodiscard]] std::unique_ptr<LinearEngine> make_plain_linear_engine();

// What the plugin shiplap_onednn.so offers, under the name `shiplap_products_plugin`. The caller
// owns what it makes.
inline constexpr int kProductsPluginVersion = 4;
struct ProductsPlugin {
  int version = kProductsPluginVersion;
  Products* (*make)() = nullptr;
  LinearEngine* (*make_linear)(const LinearShape&) = nullptr;  // null if it has no fast way
  const char* (*name)() = nullptr;
};

}  // namespace shiplap::kernels
