#include "shiplap/kernels/grouped.h"

#include <cstddef>
#include <numeric>
#include <vector>

#include "shiplap/base/error.h"
#include "shiplap/kernels/finish.h"

namespace shiplap::kernels {
namespace {

std::int64_t stride_or(std::int64_t stride, std::int64_t without_gaps) {
  ensure(stride == 0 || stride >= without_gaps, "a stride is at least as long as what it skips");
  return stride == 0 ? without_gaps : stride;
}

void check(const GroupedShape& shape) {
  ensure(shape.groups >= 0 && shape.columns >= 0 && shape.depth >= 0, "no size is negative");
  ensure(shape.typical_rows > 0, "the typical number of rows is at least 1");
}

}  // namespace

struct GroupedLinear::State {
  GroupedShape shape;
  std::vector<LinearKernel> kernels;
  std::vector<bool> is_prepared;

  explicit State(const GroupedShape& given) : shape(given) {
    check(shape);
    for (std::int64_t i = 0; i < shape.groups; ++i) {
      kernels.emplace_back(LinearShape{.columns = shape.columns,
                                       .depth = shape.depth,
                                       .type = shape.type,
                                       .typical_rows = shape.typical_rows,
                                       .engine = shape.engine});
    }
    is_prepared.resize(kernels.size());
  }

  void check_runs(const Rows& a, std::span<const GroupRows> runs) const {
    std::int64_t rows = 0;
    for (const GroupRows& run : runs) {
      ensure(run.group >= 0 && run.group < shape.groups, "a run belongs to one of the groups");
      ensure(run.rows >= 0, "no number of rows is negative");
      ensure(run.rows == 0 || is_prepared[static_cast<std::size_t>(run.group)],
             "weights are prepared before they are multiplied by");
      rows += run.rows;
    }
    ensure(rows == a.count, "the runs have as many rows as there are");
  }

  [[nodiscard]] Bias bias_of(const GroupedBias& bias, std::int64_t group) const {
    if (bias.data == nullptr) return {};
    const std::int64_t at = group * stride_or(bias.stride, shape.columns) *
                            static_cast<std::int64_t>(bytes_of(bias.type));
    return {.data = static_cast<const std::byte*>(bias.data) + at, .type = bias.type};
  }

  void multiply(const Rows& a, std::span<const GroupRows> runs, const Result& c,
                const GroupedEpilogue& epilogue) {
    const std::int64_t stride = stride_or(a.stride, a.is_transposed ? a.count : shape.depth);
    const std::int64_t row_bytes =
        (a.is_transposed ? 1 : stride) * static_cast<std::int64_t>(bytes_of(shape.type));
    std::int64_t first = 0;
    for (const GroupRows& run : runs) {
      if (run.rows == 0) continue;
      kernels[static_cast<std::size_t>(run.group)].multiply(
          {.data = static_cast<std::byte*>(a.data) + first * row_bytes,
           .count = run.rows,
           .stride = stride,
           .is_transposed = a.is_transposed},
          from_row(c, first, shape.columns),
          {.alpha = epilogue.alpha,
           .beta = epilogue.beta,
           .bias = bias_of(epilogue.bias, run.group),
           .activation = epilogue.activation,
           .before_activation = from_row(epilogue.before_activation, first, shape.columns)});
      first += run.rows;
    }
  }
};

GroupedLinear::GroupedLinear(const GroupedShape& shape) : state_(std::make_unique<State>(shape)) {}
GroupedLinear::GroupedLinear(GroupedLinear&&) noexcept = default;
GroupedLinear& GroupedLinear::operator=(GroupedLinear&&) noexcept = default;
GroupedLinear::~GroupedLinear() = default;

void GroupedLinear::prepare(std::span<const Weights> weights) {
  ensure(std::ssize(weights) == state_->shape.groups, "there are weights for each group");
  for (std::size_t i = 0; i < weights.size(); ++i) {
    prepare(static_cast<std::int64_t>(i), weights[i]);
  }
}

void GroupedLinear::prepare(std::int64_t group, const Weights& weights) {
  ensure(group >= 0 && group < state_->shape.groups, "weights belong to one of the groups");
  const auto index = static_cast<std::size_t>(group);
  state_->kernels[index].prepare(weights);
  state_->is_prepared[index] = true;
}

void GroupedLinear::multiply(const Rows& a, std::span<const GroupRows> runs, const Result& c,
                             const GroupedEpilogue& epilogue) {
  const Number bias = epilogue.bias.type;
  ensure(bias == Number::f32 || bias == state_->shape.type,
         "a bias is f32 or of the type of the factors");
  state_->check_runs(a, runs);
  if (a.count == 0 || state_->shape.columns == 0) return;
  state_->multiply(a, runs, c, epilogue);
}

std::string_view GroupedLinear::by() const {
  return state_->kernels.empty() ? "plain loops" : state_->kernels.front().by();
}

}  // namespace shiplap::kernels
