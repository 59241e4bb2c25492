#include "shiplap/run/overlapped_product.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include "shiplap/base/error.h"
#include "shiplap/kernels/bf16.h"
#include "shiplap/kernels/f16.h"
#include "shiplap/kernels/linear.h"
#include "shiplap/run/location_internal.h"

namespace shiplap::run {
namespace {

using kernels::Number;

// More are not faster (docs/overlap.md).
constexpr std::int64_t kRowsBetweenLooks = 128;

Number number_of(plan::ElementType type) {
  switch (type) {
    case plan::ElementType::f32:
      return Number::f32;
    case plan::ElementType::bf16:
      return Number::bf16;
    case plan::ElementType::f16:
      return Number::f16;
    default:
      throw InputError(Diagnostic{.code = "D802",
                                  .what = fmt::format("products of {} are not built", name(type)),
                                  .help = "use f32, bf16 or f16"});
  }
}

void demand_ranks(const overlap::Problem& problem, const comm::Communicator& world) {
  if (problem.ranks == world.size()) return;
  throw InputError(Diagnostic{
      .code = "D802",
      .what = fmt::format("a product over {} ranks, and {} of them", problem.ranks, world.size()),
      .help = "make the number of ranks that of the communicator"});
}

float wide(float number) { return number; }
float wide(kernels::Bf16 number) { return kernels::to_float(number); }
float wide(kernels::F16 number) { return kernels::to_float(number); }
void put(float number, float& into) { into = number; }
void put(float number, kernels::Bf16& into) { into = kernels::to_bf16(number); }
void put(float number, kernels::F16& into) { into = kernels::to_f16(number); }

// Calls `act` with the numbers of a region, as what they are.
template <class Act>
void with_numbers(const KernelAccess& access, const Act& act) {
  switch (number_of(access.type)) {
    case Number::f32:
      return act(access.as<float>());
    case Number::bf16:
      return act(access.as<kernels::Bf16>());
    case Number::f16:
      return act(access.as<kernels::F16>());
  }
}

// The second becomes the first, rounded, or has it added, in float.
void convert(const KernelCall& call) {
  const bool adds = call.accesses[1].kind == plan::Access::Kind::adds;
  with_numbers(call.accesses[0], [&](auto from) {
    with_numbers(call.accesses[1], [&](auto into) {
      for (std::size_t k = 0; k < from.size(); ++k) {
        put(wide(from[k]) + (adds ? wide(into[k]) : 0.0F), into[k]);
      }
    });
  });
}

}  // namespace

class OverlappedProduct::State {
 public:
  State(const overlap::Choice& choice, const overlap::Problem& problem, comm::Communicator& world,
        const ExecuteOptions& options)
      : name_(to_string(choice)),
        problem_(problem),
        plan_(overlap::make_plan(choice, problem)),
        kernels_(table()),
        executor_(plan_, world, kernels_, options),
        linear_(shape()) {}

  void prepare() { linear_.prepare({.data = executor_.rows("w").data(), .is_transposed = true}); }
  StepResult run(Work work) {
    work_ = work;
    try {
      return executor_.step();
    } catch (const std::exception&) {
      rethrow_within(name_);
    }
  }
  [[nodiscard]] const plan::Plan& plan() const { return plan_; }
  [[nodiscard]] const Executor& executor() const { return executor_; }

 private:
  KernelTable table() {
    KernelTable table;
    table.bind("gemm", [this](const KernelCall& call) { multiply(call); });
    const auto sum_up = [this](const KernelCall& call) {
      if (work_ == Work::all) convert(call);
    };
    table.bind("cast", sum_up);
    table.bind("add", sum_up);
    return table;
  }

  [[nodiscard]] kernels::LinearShape shape() const {
    const plan::RankProgram& program = executor_.program();
    const plan::flat::Buffer& w = program.buffers[1];
    const std::int64_t chunks = std::int64_t{problem_.ranks} * problem_.chunks;
    return {.columns = w.rows,
            .depth = w.row_bytes / bytes_of(problem_.type),
            .type = number_of(problem_.type),
            .typical_rows = std::max<std::int64_t>(1, problem_.rows / chunks)};
  }

  void multiply(const KernelCall& call) {
    if (work_ == Work::communication) return;
    const KernelAccess& x = call.accesses[0];
    const KernelAccess& y = call.accesses[2];
    const std::int64_t rows = std::ssize(x.bytes) / x.row_bytes;
    const std::int64_t step = call.is_polled() ? kRowsBetweenLooks : rows;
    for (std::int64_t row = 0; row < rows; row += step) {
      call.look_around();
      linear_.multiply(
          {.data = x.bytes.data() + row * x.row_bytes, .count = std::min(step, rows - row)},
          {.data = y.bytes.data() + row * y.row_bytes, .type = number_of(y.type)});
    }
  }

  std::string name_;
  overlap::Problem problem_;
  plan::Plan plan_;
  KernelTable kernels_;
  Executor executor_;
  kernels::LinearKernel linear_;
  Work work_ = Work::all;
};

OverlappedProduct::OverlappedProduct(const overlap::Choice& choice, const overlap::Problem& problem,
                                     comm::Communicator& world, const ExecuteOptions& options) {
  static_cast<void>(number_of(problem.type));
  demand_ranks(problem, world);
  state_ = std::make_unique<State>(choice, problem, world, options);
}
OverlappedProduct::OverlappedProduct(OverlappedProduct&&) noexcept = default;
OverlappedProduct& OverlappedProduct::operator=(OverlappedProduct&&) noexcept = default;
OverlappedProduct::~OverlappedProduct() = default;

const plan::Plan& OverlappedProduct::plan() const { return state_->plan(); }

std::span<std::byte> OverlappedProduct::buffer(std::string_view name) const {
  return state_->executor().rows(name);
}

void OverlappedProduct::prepare() { state_->prepare(); }

StepResult OverlappedProduct::run(Work work) { return state_->run(work); }

}  // namespace shiplap::run
