#include "shiplap/kernels/grouped.h"

#include <cstddef>
#include <vector>

#include "shiplap/base/error.h"
#include "shiplap/kernels/grouped_internal.h"
#include "shiplap/kernels/rows_internal.h"

namespace shiplap::kernels {
namespace {

GroupedShape checked(const GroupedShape& shape) {
  ensure(shape.groups >= 0 && shape.columns >= 0 && shape.depth >= 0, "no size is negative");
  ensure(shape.typical_rows > 0, "the typical number of rows is at least 1");
  return shape;
}

std::unique_ptr<GroupedEngine> best_engine(const GroupedShape& shape) {
  if (shape.engine == Engine::best) {
    if (std::unique_ptr<GroupedEngine> tiles = make_tiles_engine(shape)) return tiles;
  }
  return make_common_engine(shape);
}

}  // namespace

struct GroupedLinear::State {
  GroupedShape shape;
  std::unique_ptr<GroupedEngine> engine;
  std::vector<bool> is_prepared;

  explicit State(const GroupedShape& given)
      : shape(checked(given)),
        engine(best_engine(shape)),
        is_prepared(static_cast<std::size_t>(shape.groups)) {}

  void check_runs(const Rows& a, std::span<const GroupRows> runs) const {
    std::int64_t rows = 0;
    for (const GroupRows& run : runs) {
      ensure(run.group >= 0 && run.group < shape.groups, "a run belongs to one of the groups");
      ensure(run.rows >= 0, "no number of rows is negative");
      ensure(run.rows == 0 || is_prepared[run.group],
             "weights are prepared before they are multiplied by");
      rows += run.rows;
    }
    ensure(rows == a.count, "the runs have as many rows as there are");
  }

  [[nodiscard]] GroupedCall call_of(const Rows& a, const Result& c,
                                    const GroupedEpilogue& epilogue) const {
    GroupedCall call{.a = a, .runs = {}, .c = c, .epilogue = epilogue};
    call.a.stride = stride_or(a.stride, a.is_transposed ? a.count : shape.depth);
    call.c.stride = stride_or(c.stride, shape.columns);
    Result& before = call.epilogue.before_activation;
    before.stride = stride_or(before.stride, shape.columns);
    GroupedBias& bias = call.epilogue.bias;
    bias.stride = stride_or(bias.stride, shape.columns);
    return call;
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
  const GroupedShape& shape = state_->shape;
  ensure(group >= 0 && group < shape.groups, "weights belong to one of the groups");
  Weights given = weights;
  given.stride = stride_or(weights.stride, weights.is_transposed ? shape.depth : shape.columns);
  state_->engine->prepare(group, given);
  state_->is_prepared[group] = true;
}

void GroupedLinear::multiply(const Rows& a, std::span<const GroupRows> runs, const Result& c,
                             const GroupedEpilogue& epilogue) {
  const DType bias = epilogue.bias.type;
  ensure(bias == DType::f32 || bias == state_->shape.type,
         "a bias is f32 or of the type of the factors");
  state_->check_runs(a, runs);
  if (a.count == 0 || state_->shape.columns == 0) return;
  GroupedCall call = state_->call_of(a, c, epilogue);
  call.runs = runs;
  state_->engine->multiply(call);
}

std::string_view GroupedLinear::by() const { return state_->engine->name(); }

}  // namespace shiplap::kernels
