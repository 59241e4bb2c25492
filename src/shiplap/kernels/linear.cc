#include "shiplap/kernels/linear.h"

#include <algorithm>
#include <cstddef>

#include "shiplap/base/error.h"
#include "shiplap/kernels/epilogue_internal.h"
#include "shiplap/kernels/linear_internal.h"
#include "shiplap/kernels/rows_internal.h"
#include "shiplap/kernels/workspace_internal.h"

namespace shiplap::kernels {
namespace {

// Whether the result is the product itself, or what was there plus the product, in float.
bool is_plain(const Epilogue& epilogue, const Result& c) {
  return c.type == DType::f32 && epilogue.alpha == 1 &&
         (epilogue.beta == 0 || epilogue.beta == 1) && epilogue.bias.data == nullptr &&
         epilogue.activation == Activation::none && epilogue.before_activation.data == nullptr;
}

}  // namespace

// A call that is more than a product of floats goes a block of `typical_rows` at a time, so that
// the sums stay in the cache.
struct LinearKernel::State {
  LinearShape shape;
  std::unique_ptr<LinearEngine> engine;  // null if there is nothing to multiply
  Weights weights;
  bool is_prepared = false;
  Buffer<float> weights_as_floats;  // where the engine takes only these
  Buffer<float> bias;
  Buffer<float> sums;
  Buffer<std::byte> gathered;
  Buffer<std::byte> straightened;

  explicit State(const LinearShape& given) : shape(given) {
    ensure(shape.columns >= 0 && shape.depth >= 0, "no size is negative");
    ensure(shape.typical_rows > 0, "the typical number of rows is at least 1");
    if (shape.columns > 0 && shape.depth > 0) engine = make_linear_engine(shape);
  }

  [[nodiscard]] bool takes_type() const { return engine->type() == shape.type; }

  void prepare_engine() {
    const Layout layout = layout_of(weights.is_transposed, weights.stride);
    if (takes_type()) return engine->prepare({.data = weights.data, .layout = layout});
    const std::int64_t lines = weights.is_transposed ? shape.columns : shape.depth;
    const std::int64_t length = weights.is_transposed ? shape.depth : shape.columns;
    grow(weights_as_floats, lines * length);
    widen_lines({.from = weights.data,
                 .type = shape.type,
                 .layout = layout,
                 .rows = lines,
                 .columns = length},
                weights_as_floats.data());
    engine->prepare(
        {.data = weights_as_floats.data(), .layout = {.order = layout.order, .stride = length}});
    if (shape.packing == Packing::once) weights_as_floats = {};
  }

  void multiply(const Rows& a, const Result& c, const Epilogue& epilogue) {
    if (engine != nullptr && shape.packing == Packing::every_call) prepare_engine();
    if (is_plain(epilogue, c) && multiply_directly(a, c, epilogue)) return;
    EpilogueStep step = step_of(epilogue, shape.columns, bias);
    for (std::int64_t first = 0; first < a.count; first += shape.typical_rows) {
      step.rows = std::min(shape.typical_rows, a.count - first);
      step.c = advance(c, first);
      step.before_activation = advance(epilogue.before_activation, first);
      sum_up(a, first, step.rows);
      step.sums = sums.data();
      apply_epilogue(step);
    }
  }

  // False if the engine does not do this.
  bool multiply_directly(const Rows& a, const Result& c, const Epilogue& epilogue) {
    if (engine == nullptr || !takes_type()) return false;
    const RowsProduct product{.rows = a.count,
                              .a = layout_of(a.is_transposed, a.stride),
                              .stride_c = c.stride,
                              .into = epilogue.beta == 0 ? Into::overwrite : Into::accumulate};
    if (!engine->can(product)) return false;
    engine->multiply(product, {.a = a.data, .c = static_cast<float*>(c.data)});
    return true;
  }

  // sums = some rows of a, times the weights.
  void sum_up(const Rows& a, std::int64_t first, std::int64_t count) {
    RowsProduct product{
        .rows = count, .a = layout_of(a.is_transposed, a.stride), .stride_c = shape.columns};
    if (engine == nullptr) {
      grow(sums, product.rows * product.stride_c);
      std::ranges::fill(sums, 0.0F);
      return;
    }
    void* rows = advance(a.data, shape.type, first * (a.is_transposed ? 1 : a.stride));
    if (!takes_type() || !engine->can(product)) {
      gather({.from = rows,
              .type = shape.type,
              .layout = product.a,
              .rows = count,
              .columns = shape.depth});
      pad(product);
      rows = gathered.data();
    }
    grow(sums, product.rows * product.stride_c);
    engine->multiply(product, {.a = rows, .c = sums.data()});
  }

  void gather(const Copy& copy) {
    const std::int64_t count = copy.rows * copy.columns;
    const auto bytes = bytes_of(engine->type());
    grow(gathered, count * bytes);
    if (takes_type()) return copy_as_it_is(copy, gathered.data());
    auto* const floats = reinterpret_cast<float*>(gathered.data());
    if (copy.layout.order == Order::rows) return widen_lines(copy, floats);
    grow(straightened, count * bytes_of(copy.type));
    copy_as_it_is(copy, straightened.data());
    widen({.from = straightened.data(), .type = copy.type, .count = count, .to = floats});
  }

  // Makes a product of gathered rows one that the engine can do, with rows of zeros if need be.
  void pad(RowsProduct& product) {
    const std::int64_t count = product.rows;
    product.a = {.stride = shape.depth};
    while (!engine->can(product) && product.rows < shape.typical_rows) {
      product.rows = std::min(2 * product.rows, shape.typical_rows);
    }
    const auto bytes = shape.depth * bytes_of(engine->type());
    grow(gathered, product.rows * bytes);
    std::fill_n(gathered.begin() + count * bytes, (product.rows - count) * bytes, std::byte{});
  }
};

LinearKernel::LinearKernel(const LinearShape& shape) : state_(std::make_unique<State>(shape)) {}
LinearKernel::LinearKernel(LinearKernel&&) noexcept = default;
LinearKernel& LinearKernel::operator=(LinearKernel&&) noexcept = default;
LinearKernel::~LinearKernel() = default;

void LinearKernel::prepare(const Weights& weights) {
  const LinearShape& shape = state_->shape;
  const std::int64_t length = weights.is_transposed ? shape.depth : shape.columns;
  state_->weights = weights;
  state_->weights.stride = stride_or(weights.stride, length);
  state_->is_prepared = true;
  if (state_->engine != nullptr) state_->prepare_engine();
}

void LinearKernel::multiply(const Rows& a, const Result& c, const Epilogue& epilogue) {
  const LinearShape& shape = state_->shape;
  ensure(state_->is_prepared, "weights are prepared before they are multiplied by");
  ensure(a.count >= 0, "no number of rows is negative");
  const DType bias = epilogue.bias.type;
  ensure(bias == DType::f32 || bias == shape.type, "a bias is f32 or of the type of the factors");
  if (a.count == 0 || shape.columns == 0) return;
  Rows rows = a;
  rows.stride = stride_or(a.stride, a.is_transposed ? a.count : shape.depth);
  Result result = c;
  result.stride = stride_or(c.stride, shape.columns);
  Epilogue rest = epilogue;
  rest.before_activation.stride = stride_or(rest.before_activation.stride, shape.columns);
  state_->multiply(rows, result, rest);
}

std::string_view LinearKernel::by() const {
  return state_->engine == nullptr ? "plain loops" : state_->engine->name();
}

}  // namespace shiplap::kernels
