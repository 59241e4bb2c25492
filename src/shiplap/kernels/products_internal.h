// The matrix products of which attention is made: small, many, and of few different shapes.
//
// oneDNN does them where it is there, plain loops where it is not. Both add up in float in an order
// that depends on the shape alone, so the same operands give the same bits on the same machine.
#pragma once

#include <compare>
#include <cstdint>
#include <memory>

#include "shiplap/kernels/bf16.h"

namespace shiplap::kernels {

enum class Order { rows, columns };
enum class Into { overwrite, accumulate };

// How an operand lies in memory: by rows, or transposed, with `stride` elements from the beginning
// of one row (column) to that of the next.
struct Layout {
  Order order = Order::rows;
  std::int64_t stride = 0;
  friend auto operator<=>(const Layout&, const Layout&) = default;
};

// c = a b or c += a b, where a has `rows` x `depth` elements, b `depth` x `columns`, and c lies by
// rows. No size is zero.
struct Product {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t depth = 0;
  Layout a;
  Layout b;
  std::int64_t stride_c = 0;
  Into into = Into::overwrite;
  friend auto operator<=>(const Product&, const Product&) = default;
};

// `a` and `b` are only read. They are not const because oneDNN describes all its memory by pointers
// through which it could write.
template <class T>
struct Operands {
  T* a = nullptr;
  T* b = nullptr;
  float* c = nullptr;
};

// One thread at a time may use one. What a shape needs is prepared when it is first seen and kept.
class Products {
 public:
  virtual ~Products() = default;
  virtual void multiply(const Product& product, const Operands<float>& operands) = 0;
  virtual void multiply(const Product& product, const Operands<Bf16>& operands) = 0;
};

// By oneDNN if it is there, else by plain loops; products_by() in attention.h says which.
[[nodiscard]] std::unique_ptr<Products> make_products();
[[nodiscard]] std::unique_ptr<Products> make_plain_products();

// factors[0] rows[0] + factors[1] rows[1] + ..., `depth` rows that lie without gaps.
struct WeightedRows {
  const float* factors = nullptr;
  const float* rows = nullptr;
  std::int64_t depth = 0;
  std::int64_t columns = 0;
};
// c += the sum.
void add_rows(const WeightedRows& sum, float* c);

class LinearEngine;
struct LinearShape;

// What the plugin shiplap_onednn.so offers, under the name `shiplap_products_plugin`. The caller
// owns what it makes.
inline constexpr int kProductsPluginVersion = 3;
struct ProductsPlugin {
  int version = kProductsPluginVersion;
  Products* (*make)() = nullptr;
  LinearEngine* (*make_linear)(const LinearShape&) = nullptr;  // null if it has no fast way
  const char* (*name)() = nullptr;
};

}  // namespace shiplap::kernels
