// Rows times weights by plain loops.
#include <algorithm>
#include <cstddef>
#include <vector>

#include "shiplap/base/error.h"
#include "shiplap/kernels/linear_internal.h"

namespace shiplap::kernels {
namespace {

class PlainLinear final : public LinearEngine {
 public:
  explicit PlainLinear(const LinearShape& shape) : depth_(shape.depth), columns_(shape.columns) {}

  [[nodiscard]] DType type() const override { return DType::f32; }
  [[nodiscard]] std::string_view name() const override { return "plain loops"; }

  void prepare(const GroupWeights& weights) override {
    const auto* const from = static_cast<const float*>(weights.data);
    const Layout& layout = weights.layout;
    const bool by_rows = layout.order == Order::rows;
    const std::int64_t down = by_rows ? layout.stride : 1;
    const std::int64_t right = by_rows ? 1 : layout.stride;
    const auto group = static_cast<std::size_t>(weights.group);
    if (group >= weights_.size()) weights_.resize(group + 1);
    weights_[group].resize(depth_ * columns_);
    float* to = weights_[group].data();
    for (std::int64_t k = 0; k < depth_; ++k) {
      for (std::int64_t j = 0; j < columns_; ++j) *to++ = from[k * down + j * right];
    }
  }

  [[nodiscard]] bool can(const RowsProduct& product) override {
    return product.a.order == Order::rows;
  }

  void multiply(const RowsProduct& product, const RowsOperands& operands) override {
    ensure(can(product), "plain loops multiply rows that lie as such");
    const float* const weights = weights_[operands.group].data();
    for (std::int64_t i = 0; i < product.rows; ++i) {
      const float* const a = static_cast<const float*>(operands.a) + i * product.a.stride;
      float* const c = operands.c + i * product.stride_c;
      if (product.into == Into::overwrite) std::fill_n(c, columns_, 0.0F);
      add_rows({.factors = a, .rows = weights, .depth = depth_, .columns = columns_}, c);
    }
  }

 private:
  std::int64_t depth_;
  std::int64_t columns_;
  std::vector<std::vector<float>> weights_;  // by group
};

}  // namespace

std::unique_ptr<LinearEngine> make_plain_linear_engine(const LinearShape& shape) {
  return std::make_unique<PlainLinear>(shape);
}

}  // namespace shiplap::kernels
