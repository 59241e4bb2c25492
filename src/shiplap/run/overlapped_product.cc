#include "shiplap/run/overlapped_product.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include "shiplap/base/error.h"
#include "shiplap/kernels/quantize.h"
#include "shiplap/run/gemm_dtype_internal.h"
#include "shiplap/run/location_internal.h"
#include "shiplap/run/rounding_internal.h"
#include "shiplap/run/tile_product_internal.h"

namespace shiplap::run {

// Fewer at a time are slower, more are not faster (docs/overlap/gemm.md).
constexpr std::int64_t kRowsBetweenLooks = 128;

DType gemm_dtype(DType type) {
  if (type == DType::f32 || type == DType::bf16 || type == DType::f16) return type;
  throw InputError(Diagnostic{.code = "D802",
                              .what = fmt::format("products of {} are not built", name(type)),
                              .help = "use f32, bf16 or f16"});
}

namespace {

void demand_ranks(const overlap::Problem& problem, const comm::Communicator& world) {
  if (problem.ranks == world.size()) return;
  throw InputError(Diagnostic{
      .code = "D802",
      .what = fmt::format("a product over {} ranks, and {} of them", problem.ranks, world.size()),
      .help = "make the number of ranks that of the communicator"});
}

// Calls `act` with the numbers of a region, as what they are.
template <class Act>
void with_numbers(const KernelAccess& access, const Act& act) {
  switch (gemm_dtype(access.type)) {
    case DType::f32:
      return act(access.as<float>());
    case DType::bf16:
      return act(access.as<kernels::Bf16>());
    default:  // f16
      return act(access.as<kernels::F16>());
  }
}

// Of what a computation touches: where it lies.
const plan::flat::Region& region_of(const KernelCall& call, std::size_t access) {
  return call.program->accesses_of(*call.operation)[access].region;
}
std::int64_t first_row(const KernelCall& call, std::size_t access) {
  return region_of(call, access).begin;
}
std::string_view buffer_of(const KernelCall& call, std::size_t access) {
  const plan::RankProgram& program = *call.program;
  return program.plan->programs[program.program].buffers[region_of(call, access).buffer].name;
}

// The second becomes the first, rounded, or has it added, in float.
void convert(const KernelCall& call) {
  const bool adds = call.accesses[1].kind == plan::Access::Kind::adds;
  with_numbers(call.accesses[0], [&](auto from) {
    with_numbers(call.accesses[1], [&](auto into) {
      for (std::size_t k = 0; k < from.size(); ++k) {
        store(widen(from[k]) + (adds ? widen(into[k]) : 0.0F), into[k]);
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
        choice_(choice),
        problem_(problem),
        plan_(overlap::make_plan(choice, problem)),
        kernels_(table()),
        executor_(plan_, world, kernels_, options),
        tiles_(made_tiles()) {}

  void prepare() { tiles_.prepare(executor_.rows("w")); }
  void prepare(std::span<const kernels::MatrixView> weights) { tiles_.prepare(weights); }
  StepResult run(const ProductTerms& terms) {
    ensure(finishes() || kernels::is_identity(terms.epilogue), "an epilogue that can be done");
    ensure(!terms.x_is_transposed || choice_.type != overlap::Type::all_gather,
           "rows that are communicated lie by rows");
    ensure(!terms.x_is_transposed || (overlap::is_plain(problem_.x) && problem_.groups == 0),
           "rows with scales or groups lie by rows");
    terms_ = terms;
    try {
      StepResult result = executor_.step();
      prepare_late();  // a rank may have nothing to multiply
      return result;
    } catch (const std::exception&) {
      rethrow_within(name_);
    }
  }
  [[nodiscard]] const plan::Plan& plan() const { return plan_; }
  [[nodiscard]] bool finishes() const { return makes_result() || sums_at_owner(); }
  [[nodiscard]] Executor& executor() { return executor_; }

 private:
  KernelTable table() {
    KernelTable table;
    table.bind("gemm", [this](const KernelCall& call) { multiply(call); });
    table.bind("cast", [this](const KernelCall& call) { sum_up(call); });
    table.bind("add", [this](const KernelCall& call) { sum_up(call); });
    return table;
  }

  // The product is the result, or it is summed in float and rounded where it belongs.
  [[nodiscard]] bool makes_result() const {
    return choice_.type == overlap::Type::all_gather || choice_.type == overlap::Type::none ||
           choice_.method == overlap::Method::bulk;
  }
  [[nodiscard]] bool sums_at_owner() const {
    return choice_.type == overlap::Type::reduce_scatter &&
           (choice_.method == overlap::Method::ring_exchange ||
            (has_coded_sums() && choice_.method != overlap::Method::bulk));
  }
  [[nodiscard]] bool has_coded_sums() const { return !overlap::is_plain(problem_.sums); }

  void sum_up(const KernelCall& call) {
    if (terms_.work == Work::communication) return;
    if (!sums_at_owner() || buffer_of(call, 1) != "out") {
      return has_coded_sums() ? convert_coded(call) : convert(call);
    }
    const KernelAccess& total = call.accesses[0];
    const KernelAccess& out = call.accesses[1];
    kernels::finish({.data = total.bytes.data(),
                     .rows = std::ssize(out.bytes) / out.row_bytes,
                     .columns = problem_.columns},
                    {.data = out.bytes.data(), .type = gemm_dtype(out.type)},
                    epilogue_from(first_row(call, 1), problem_.columns));
  }

  // The epilogue of results that begin with this row.
  [[nodiscard]] kernels::Epilogue epilogue_from(std::int64_t row, std::int64_t columns) const {
    kernels::Epilogue epilogue = terms_.epilogue;
    kernels::MatrixView& before = epilogue.before_activation;
    before.stride = columns;
    if (before.data != nullptr) before.data = before.at(row);
    before.rows = 0;
    return epilogue;
  }

  // The same where one of the two has codes and scales.
  void convert_coded(const KernelCall& call) {
    const KernelAccess& from = call.accesses[0];
    const KernelAccess& into = call.accesses[1];
    const std::int64_t columns = sum_columns();
    const std::int64_t rows = std::ssize(from.bytes) / from.row_bytes;
    if (is_coded(into)) {
      return encode({.data = from.bytes.data(), .rows = rows, .columns = columns}, problem_.sums,
                    into.bytes.data(), into.row_bytes, ScaleOf::each_row);
    }
    if (!is_coded(from)) return convert(call);
    const kernels::MatrixView codes =
        rows_of(problem_.sums, from.type, from.bytes.data(), {rows, columns}, from.row_bytes);
    const kernels::MatrixView to{.data = into.bytes.data(), .type = gemm_dtype(into.type)};
    if (into.kind == plan::Access::Kind::adds) return kernels::dequantize_add(codes, to);
    kernels::dequantize(codes, to);
  }
  [[nodiscard]] std::int64_t sum_columns() const {
    const bool beside = choice_.method == overlap::Method::bulk && problem_.bulk_columns != 0;
    return beside ? problem_.bulk_columns : problem_.columns;
  }
  [[nodiscard]] static bool is_coded(const KernelAccess& access) { return is_fp8(access.type); }

  [[nodiscard]] TileProduct made_tiles() const {
    const plan::RankProgram& program = executor_.program();
    const plan::flat::Buffer& w = program.buffers[1];
    const std::int64_t chunks = std::int64_t{problem_.ranks} * problem_.chunks;
    const bool gathers = choice_.type == overlap::Type::all_gather;
    const std::int64_t rank = program.rank.value;
    const std::int64_t depth = gathers ? problem_.depth
                                       : problem_.depth / problem_.ranks +
                                             (rank < problem_.depth % problem_.ranks ? 1 : 0);
    return {problem_, w.rows / std::max(1, problem_.groups), depth,
            std::max(kRowsBetweenLooks, problem_.rows / chunks)};
  }

  // All products are in one stream.
  void prepare_late() {
    if (terms_.weights.empty()) return;
    tiles_.prepare(std::exchange(terms_.weights, {}));
  }

  void multiply(const KernelCall& call) {
    if (terms_.work == Work::communication) return;
    call.look_around();
    prepare_late();
    const KernelAccess& y = call.accesses[2];
    const std::int64_t rows = std::ssize(y.bytes) / y.row_bytes;
    const bool is_cut = call.is_polled() || is_coded(y);
    const std::int64_t step = is_cut ? kRowsBetweenLooks : std::max<std::int64_t>(1, rows);
    for (std::int64_t row = 0; row < rows; row += step) {
      call.look_around();
      multiply_rows(call, row, std::min(step, rows - row));
    }
  }

  // `count` rows of a tile, from `row` on.
  void multiply_rows(const KernelCall& call, std::int64_t row, std::int64_t count) {
    const KernelAccess& y = call.accesses[2];
    std::byte* const into = y.bytes.data() + row * y.row_bytes;
    const kernels::MatrixView x = factor(call, row, count);
    std::optional<std::span<const kernels::GroupRows>> runs;
    if (problem_.groups > 0 && choice_.type != overlap::Type::all_gather) {
      const std::int64_t first = first_row(call, 0) + row;
      runs = runs_between(first, first + count);
    }
    if (is_coded(y)) {
      sums_.resize(std::max(sums_.size(), static_cast<std::size_t>(count * problem_.columns)));
      tiles_.multiply(x, {.data = sums_.data()}, {}, runs);
      return encode({.data = sums_.data(), .rows = count, .columns = problem_.columns},
                    problem_.sums, into, y.row_bytes, ScaleOf::each_row);
    }
    kernels::Epilogue epilogue;
    if (makes_result()) {
      epilogue = epilogue_from(first_row(call, 2) + row, y.row_bytes / bytes_of(y.type));
    }
    tiles_.multiply(x, {.data = into, .type = gemm_dtype(y.type)}, epilogue, runs);
  }

  [[nodiscard]] kernels::MatrixView factor(const KernelCall& call, std::int64_t row,
                                           std::int64_t count) const {
    const KernelAccess& x = call.accesses[0];
    kernels::MatrixView rows =
        tiles_.rows_of_x(x.bytes.data() + row * x.row_bytes, count, x.row_bytes);
    if (terms_.x_is_transposed) {
      rows.stride = problem_.rows;
      rows.is_transposed = true;
      rows.data = executor_.rows("x").data() + (first_row(call, 0) + row) * bytes_of(x.type);
    }
    return rows;
  }

  // The runs of the rows from `begin` to `end`.
  std::span<const kernels::GroupRows> runs_between(std::int64_t begin, std::int64_t end) {
    runs_.clear();
    std::int64_t at = 0;
    for (const kernels::GroupRows& run : terms_.runs) {
      const std::int64_t rows = std::min(end, at + run.rows) - std::max(begin, at);
      if (rows > 0) runs_.push_back({.group = run.group, .rows = rows});
      at += run.rows;
    }
    ensure(at == problem_.rows, "every row belongs to a group");
    return runs_;
  }

  std::string name_;
  overlap::Choice choice_;
  overlap::Problem problem_;
  plan::Plan plan_;
  KernelTable kernels_;
  Executor executor_;
  TileProduct tiles_;
  ProductTerms terms_;
  // Kept, so that tiles do not allocate.
  std::vector<float> sums_;
  std::vector<kernels::GroupRows> runs_;
};

OverlappedProduct::OverlappedProduct(const overlap::Choice& choice, const overlap::Problem& problem,
                                     comm::Communicator& world, const ExecuteOptions& options) {
  demand_kernels(problem);
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

void OverlappedProduct::bind(std::string_view buffer, std::span<std::byte> bytes,
                             std::shared_ptr<void> owner) {
  state_->executor().bind(buffer, bytes, std::move(owner));
}

void OverlappedProduct::leave_out(std::string_view buffer) { state_->executor().leave_out(buffer); }

std::int64_t OverlappedProduct::buffer_bytes(std::string_view buffer) const {
  const auto& buffers = plan().programs.front().buffers;
  const auto found = std::ranges::find(buffers, buffer, &plan::Buffer::name);
  ensure(found != buffers.end(), "a buffer of the plan");
  const plan::flat::Buffer& here = state_->executor().program().buffers[found - buffers.begin()];
  return here.rows * here.row_bytes;
}

void OverlappedProduct::unbind() {
  for (const plan::Buffer& buffer : plan().programs.front().buffers) bind(buffer.name, {});
}

void OverlappedProduct::prepare() { state_->prepare(); }
void OverlappedProduct::prepare(const kernels::MatrixView& weights) {
  state_->prepare(std::span(&weights, 1));
}
void OverlappedProduct::prepare(std::span<const kernels::MatrixView> weights) {
  state_->prepare(weights);
}

StepResult OverlappedProduct::run(Work work) { return state_->run({.work = work}); }
StepResult OverlappedProduct::run(const ProductTerms& terms) { return state_->run(terms); }

bool OverlappedProduct::finishes() const { return state_->finishes(); }

}  // namespace shiplap::run
