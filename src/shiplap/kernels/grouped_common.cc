// Grouped products by a LinearKernel for each group.
#include <cstddef>
#include <vector>

#include "shiplap/kernels/finish.h"
#include "shiplap/kernels/grouped_internal.h"
#include "shiplap/kernels/rows_internal.h"

namespace shiplap::kernels {
namespace {

class CommonEngine final : public GroupedEngine {
 public:
  explicit CommonEngine(const GroupedShape& shape) : shape_(shape) {
    for (std::int64_t i = 0; i < shape.groups; ++i) {
      kernels_.emplace_back(LinearShape{.columns = shape.columns,
                                        .depth = shape.depth,
                                        .type = shape.type,
                                        .typical_rows = shape.typical_rows,
                                        .engine = shape.engine});
    }
  }

  [[nodiscard]] std::string_view name() const override {
    return kernels_.empty() ? "plain loops" : kernels_.front().by();
  }

  void prepare(std::int64_t group, const Weights& weights) override {
    kernels_[static_cast<std::size_t>(group)].prepare(weights);
  }

  void multiply(const GroupedCall& call) override {
    std::int64_t first = 0;
    const Rows& a = call.a;
    for (const GroupRows& run : call.runs) {
      if (run.rows == 0) continue;
      const GroupedBias& bias = call.epilogue.bias;
      kernels_[static_cast<std::size_t>(run.group)].multiply(
          {.data = advance(a.data, shape_.type, first * (a.is_transposed ? 1 : a.stride)),
           .count = run.rows,
           .stride = a.stride,
           .is_transposed = a.is_transposed},
          advance(call.c, first),
          {.alpha = call.epilogue.alpha,
           .beta = call.epilogue.beta,
           .bias = {.data = bias.data == nullptr
                                ? nullptr
                                : advance(bias.data, bias.type, run.group * bias.stride),
                    .type = bias.type},
           .activation = call.epilogue.activation,
           .before_activation = advance(call.epilogue.before_activation, first)});
      first += run.rows;
    }
  }

 private:
  GroupedShape shape_;
  std::vector<LinearKernel> kernels_;
};

}  // namespace

std::unique_ptr<GroupedEngine> make_common_engine(const GroupedShape& shape) {
  return std::make_unique<CommonEngine>(shape);
}

}  // namespace shiplap::kernels
