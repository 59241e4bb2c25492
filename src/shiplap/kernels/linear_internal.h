// Who multiplies rows by weights for a LinearKernel: oneDNN, or plain loops.
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <string_view>

#include "shiplap/kernels/linear.h"
#include "shiplap/kernels/products_internal.h"

namespace shiplap::kernels {

// c = a w or c += a w, where c is float and lies by rows. No size is zero.
struct RowsProduct {
  std::int64_t rows = 0;
  Layout a;
  std::int64_t stride_c = 0;
  Into into = Into::overwrite;
  friend auto operator<=>(const RowsProduct&, const RowsProduct&) = default;
};

struct RowsOperands {
  void* a = nullptr;
  float* c = nullptr;
  std::int64_t group = 0;  // of the weights
};

// An engine keeps the weights of several groups, all of one shape.
struct GroupWeights {
  void* data = nullptr;
  Layout layout;
  std::int64_t group = 0;
};

// One thread at a time may use one. What a shape needs is made when it is first seen and kept.
class LinearEngine {
 public:
  virtual ~LinearEngine() = default;

  // Of both factors.
  [[nodiscard]] virtual DType type() const = 0;
  // With Packing::every_call, the weights stay where they are until the next call of this.
  virtual void prepare(const GroupWeights& weights) = 0;
  // Whether it multiplies so; a row then gets the same bits as in any other product of this engine
  // by this layout of weights. It can do `typical_rows` or fewer rows of a that lie without gaps,
  // at worst with rows added to them, into a c without gaps.
  [[nodiscard]] virtual bool can(const RowsProduct& product) = 0;
  virtual void multiply(const RowsProduct& product, const RowsOperands& operands) = 0;
  [[nodiscard]] virtual std::string_view name() const = 0;
};

// The best for the shape, which may be one for f32 whatever the shape asks for.
[[nodiscard]] std::unique_ptr<LinearEngine> make_linear_engine(const LinearShape& shape);
// For f32.
[[nodiscard]] std::unique_ptr<LinearEngine> make_plain_linear_engine(const LinearShape& shape);

}  // namespace shiplap::kernels
