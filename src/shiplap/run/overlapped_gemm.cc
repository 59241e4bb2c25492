// Executes the plans of overlap::make_plan() with real GEMM kernels.
//
// The plan names three kernels: "gemm" multiplies a tile, "cast" and "add" convert and accumulate
// partial sums. OverlappedGemm binds them to kernels::LinearKernel (TileGemm) and keeps the plan
// generic: it states neither an epilogue nor quantization of operands beyond row sizes.
//
// Where the epilogue (alpha, beta, bias, activation) is applied depends on the choice. It must be
// applied once, to complete sums, in f32, before the only rounding:
//   - all_gather, bulk: a tile of the GEMM is a complete result; the kernel applies the epilogue.
//   - reduce_scatter by point-to-point messages, or with quantized partial sums: the owner adds in
//     f32, and the last conversion to "out" applies it.
//   - otherwise a collective rounds the sums, and the caller applies it (no applies_epilogue()).
//
// With polled progress there is no progress thread: a GEMM of many rows is split, and the kernel
// polls between the pieces. The tiles of an atomic choice are one call (multiply_joined), which
// raises the counter of each chunk that messages wait for. Weights are packed when the first tile
// runs, after the first messages were posted, so that packing overlaps communication.
#include "shiplap/run/overlapped_gemm.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <exception>
#include <string>
#include <utility>

#include "shiplap/base/error.h"
#include "shiplap/kernels/quantize.h"
#include "shiplap/run/gemm_dtype_internal.h"
#include "shiplap/run/location_internal.h"
#include "shiplap/run/rounding_internal.h"
#include "shiplap/run/tile_gemm_internal.h"

namespace shiplap::run {

// Rows that are multiplied between two polls for progress. Fewer are slower, more are not faster
// (docs/overlap/gemm.md).
constexpr std::int64_t kRowsBetweenPolls = 128;

DType gemm_dtype(DType type) {
  if (type == DType::f32 || type == DType::bf16 || type == DType::f16) return type;
  throw InputError(Diagnostic{.code = "D802",
                              .what = fmt::format("GEMM of {} is unsupported", name(type)),
                              .help = "use f32, bf16 or f16"});
}

namespace {

void check_world_size(const overlap::Problem& problem, const comm::Communicator& world) {
  if (problem.ranks == world.size()) return;
  throw InputError(Diagnostic{
      .code = "D802",
      .what = fmt::format("rank count mismatch: the GEMM is for {} ranks, the communicator has {}",
                          problem.ranks, world.size()),
      .help = "set the number of ranks to the size of the communicator"});
}

// Calls `act` with the elements of a region, in their type.
template <class Act>
void with_elements(const KernelAccess& access, const Act& act) {
  switch (gemm_dtype(access.type)) {
    case DType::f32:
      return act(access.as<float>());
    case DType::bf16:
      return act(access.as<kernels::Bf16>());
    default:  // f16
      return act(access.as<kernels::F16>());
  }
}

// The region of an access of a computation.
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

// Converts the first access to the second, or adds it there, in f32.
void convert(const KernelCall& call) {
  const bool adds = call.accesses[1].kind == plan::Access::Kind::adds;
  with_elements(call.accesses[0], [&](auto from) {
    with_elements(call.accesses[1], [&](auto into) {
      for (std::size_t k = 0; k < from.size(); ++k) {
        store(widen(from[k]) + (adds ? widen(into[k]) : 0.0F), into[k]);
      }
    });
  });
}

}  // namespace

class OverlappedGemm::State {
 public:
  State(const overlap::Choice& choice, const overlap::Problem& problem, comm::Communicator& world,
        const ExecuteOptions& options)
      : name_(to_string(choice)),
        choice_(choice),
        problem_(problem),
        plan_(overlap::make_plan(choice, problem)),
        kernels_(table()),
        executor_(plan_, world, kernels_, options),
        tiles_(make_tile_gemm()) {}

  void prepare() { tiles_.prepare(executor_.rows("w")); }
  void prepare(std::span<const kernels::MatrixView> weights) { tiles_.prepare(weights); }
  StepResult run(const GemmArgs& args) {
    ensure(applies_epilogue() || kernels::is_identity(args.epilogue),
           "the plan applies the epilogue");
    ensure(!args.x_is_transposed || choice_.type != overlap::Type::all_gather,
           "gathered rows are row-major");
    ensure(
        !args.x_is_transposed || (overlap::is_high_precision(problem_.x) && problem_.groups == 0),
        "rows with scales or groups are row-major");
    args_ = args;
    try {
      StepResult result = executor_.step();
      pack_pending_weights();  // if this rank had nothing to multiply
      return result;
    } catch (const std::exception&) {
      rethrow_with_context(name_);
    }
  }
  [[nodiscard]] const plan::Plan& plan() const { return plan_; }
  [[nodiscard]] bool applies_epilogue() const { return makes_result() || sums_at_owner(); }
  [[nodiscard]] Executor& executor() { return executor_; }

 private:
  KernelTable table() {
    KernelTable table;
    table.bind("gemm", [this](const KernelCall& call) { multiply(call); });
    table.bind_joined("gemm", [this](const JoinedCall& call) { multiply_joined(call); });
    table.bind("cast", [this](const KernelCall& call) { reduce_sums(call); });
    table.bind("add", [this](const KernelCall& call) { reduce_sums(call); });
    return table;
  }

  // The GEMM writes the result, or partial sums are added in f32 and rounded at their owner.
  [[nodiscard]] bool makes_result() const {
    return choice_.type == overlap::Type::all_gather || choice_.type == overlap::Type::none ||
           choice_.method == overlap::Method::bulk;
  }
  [[nodiscard]] bool sums_at_owner() const {
    return choice_.type == overlap::Type::reduce_scatter &&
           (choice_.method == overlap::Method::ring_exchange ||
            (has_quantized_sums() && choice_.method != overlap::Method::bulk));
  }
  [[nodiscard]] bool has_quantized_sums() const {
    return !overlap::is_high_precision(problem_.sums);
  }

  void reduce_sums(const KernelCall& call) {
    if (args_.mode == GemmMode::comm_only) return;
    if (!sums_at_owner() || buffer_of(call, 1) != "out") {
      return has_quantized_sums() ? convert_quantized(call) : convert(call);
    }
    const KernelAccess& total = call.accesses[0];
    const KernelAccess& out = call.accesses[1];
    kernels::apply_epilogue({.data = total.bytes.data(), .rows = out.rows(), .columns = problem_.n},
                            {.data = out.bytes.data(), .type = gemm_dtype(out.type)},
                            epilogue_from(first_row(call, 1), problem_.n));
  }

  // Returns the epilogue for results from this row on.
  [[nodiscard]] kernels::Epilogue epilogue_from(std::int64_t row, std::int64_t columns) const {
    kernels::Epilogue epilogue = args_.epilogue;
    kernels::MatrixView& pre = epilogue.pre_activation;
    pre.stride = columns;
    if (pre.data != nullptr) pre.data = pre.at(row);
    pre.rows = 0;
    return epilogue;
  }

  // The same if one of the two is quantized.
  void convert_quantized(const KernelCall& call) {
    const KernelAccess& from = call.accesses[0];
    const KernelAccess& into = call.accesses[1];
    const std::int64_t columns = sum_columns();
    const std::int64_t rows = from.rows();
    if (is_quantized(into)) {
      return quantize_rows({.data = from.bytes.data(), .rows = rows, .columns = columns},
                           problem_.sums, into.bytes.data(), into.row_bytes, ScaleScope::per_row);
    }
    if (!is_quantized(from)) return convert(call);
    const kernels::MatrixView quantized =
        rows_of(problem_.sums, from.type, from.bytes.data(), {rows, columns}, from.row_bytes);
    const kernels::MatrixView to{.data = into.bytes.data(), .type = gemm_dtype(into.type)};
    if (into.kind == plan::Access::Kind::adds) return kernels::dequantize_add(quantized, to);
    kernels::dequantize(quantized, to);
  }
  [[nodiscard]] std::int64_t sum_columns() const {
    const bool is_bulk = choice_.method == overlap::Method::bulk && problem_.bulk_columns != 0;
    return is_bulk ? problem_.bulk_columns : problem_.n;
  }
  [[nodiscard]] static bool is_quantized(const KernelAccess& access) { return is_fp8(access.type); }

  [[nodiscard]] TileGemm make_tile_gemm() const {
    const plan::RankProgram& program = executor_.program();
    const plan::flat::Buffer& w = program.buffers[1];
    const std::int64_t chunks = std::int64_t{problem_.ranks} * problem_.chunks;
    const bool gathers = choice_.type == overlap::Type::all_gather;
    const std::int64_t rank = program.rank.value;
    const std::int64_t k =
        gathers ? problem_.k
                : problem_.k / problem_.ranks + (rank < problem_.k % problem_.ranks ? 1 : 0);
    return {problem_, w.rows / std::max(1, problem_.groups), k,
            std::max(kRowsBetweenPolls, problem_.m / chunks)};
  }

  // All GEMMs are on one stream, so no lock is needed.
  void pack_pending_weights() {
    if (args_.weights.empty()) return;
    tiles_.prepare(std::exchange(args_.weights, {}));
  }

  void multiply(const KernelCall& call) {
    if (args_.mode == GemmMode::comm_only) return;
    call.poll_progress();
    pack_pending_weights();
    const KernelAccess& y = call.accesses[2];
    const std::int64_t rows = y.rows();
    const bool is_cut = call.is_polled() || is_quantized(y);
    const std::int64_t step = is_cut ? kRowsBetweenPolls : std::max<std::int64_t>(1, rows);
    for (std::int64_t row = 0; row < rows; row += step) {
      call.poll_progress();
      multiply_rows(call, row, std::min(step, rows - row));
    }
  }

  // One call for all tiles. Neighbours that are ready are multiplied together, see joined_rows():
  // then small chunks cost little more than large ones.
  void multiply_joined(const JoinedCall& call) {
    std::size_t tile = 0;
    while (tile < call.tiles.size() && call.await(tile)) {
      KernelCall merged = call.tiles[tile];
      std::array<KernelAccess, 3> accesses{merged.accesses[0], merged.accesses[1],
                                           merged.accesses[2]};
      merged.accesses = accesses;
      std::size_t end = tile + 1;
      for (; end < call.tiles.size() && call.is_ready(end); ++end) {
        if (!extend(accesses, call.tiles[end].accesses)) break;
      }
      multiply(merged);
      for (; tile < end; ++tile) call.complete(tile);
    }
  }
  // Appends the rows of x and y of the next tile if they follow in memory and are not too many.
  [[nodiscard]] bool extend(std::array<KernelAccess, 3>& tile,
                            std::span<const KernelAccess> next) const {
    const auto follows = [&](std::size_t access) {
      const std::span<std::byte> bytes = tile[access].bytes;
      return bytes.data() + bytes.size() == next[access].bytes.data();
    };
    if (tile[2].rows() + next[2].rows() > overlap::joined_rows(problem_.m) || !follows(0) ||
        !follows(2))
      return false;
    for (const std::size_t access : {0, 2}) {
      std::span<std::byte>& bytes = tile[access].bytes;
      bytes = {bytes.data(), bytes.size() + next[access].bytes.size()};
    }
    return true;
  }

  // Multiplies `count` rows of a tile, from `row` on.
  void multiply_rows(const KernelCall& call, std::int64_t row, std::int64_t count) {
    const KernelAccess& y = call.accesses[2];
    std::byte* const into = y.bytes.data() + row * y.row_bytes;
    const kernels::MatrixView x = factor(call, row, count);
    std::optional<std::span<const kernels::GroupRows>> runs;
    if (problem_.groups > 0 && choice_.type != overlap::Type::all_gather) {
      const std::int64_t first = first_row(call, 0) + row;
      runs = runs_between(first, first + count);
    }
    if (is_quantized(y)) {
      sums_.resize(std::max(sums_.size(), static_cast<std::size_t>(count * problem_.n)));
      tiles_.multiply(x, {.data = sums_.data()}, {}, runs);
      return quantize_rows({.data = sums_.data(), .rows = count, .columns = problem_.n},
                           problem_.sums, into, y.row_bytes, ScaleScope::per_row);
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
    if (args_.x_is_transposed) {
      rows.stride = problem_.m;
      rows.is_transposed = true;
      rows.data = executor_.rows("x").data() + (first_row(call, 0) + row) * bytes_of(x.type);
    }
    return rows;
  }

  // Returns the runs of the rows in [begin, end).
  std::span<const kernels::GroupRows> runs_between(std::int64_t begin, std::int64_t end) {
    runs_.clear();
    std::int64_t at = 0;
    for (const kernels::GroupRows& run : args_.runs) {
      const std::int64_t rows = std::min(end, at + run.rows) - std::max(begin, at);
      if (rows > 0) runs_.push_back({.group = run.group, .rows = rows});
      at += run.rows;
    }
    ensure(at == problem_.m, "every row belongs to a group");
    return runs_;
  }

  std::string name_;
  overlap::Choice choice_;
  overlap::Problem problem_;
  plan::Plan plan_;
  KernelTable kernels_;
  Executor executor_;
  TileGemm tiles_;
  GemmArgs args_;
  // Reused, so that tiles do not allocate.
  std::vector<float> sums_;
  std::vector<kernels::GroupRows> runs_;
};

OverlappedGemm::OverlappedGemm(const overlap::Choice& choice, const overlap::Problem& problem,
                               comm::Communicator& world, const ExecuteOptions& options) {
  check_gemm_supported(problem);
  check_world_size(problem, world);
  state_ = std::make_unique<State>(choice, problem, world, options);
}
OverlappedGemm::OverlappedGemm(OverlappedGemm&&) noexcept = default;
OverlappedGemm& OverlappedGemm::operator=(OverlappedGemm&&) noexcept = default;
OverlappedGemm::~OverlappedGemm() = default;

const plan::Plan& OverlappedGemm::plan() const { return state_->plan(); }

std::span<std::byte> OverlappedGemm::buffer(std::string_view name) const {
  return state_->executor().rows(name);
}

void OverlappedGemm::bind(std::string_view buffer, std::span<std::byte> bytes,
                          std::shared_ptr<void> owner) {
  state_->executor().bind(buffer, bytes, std::move(owner));
}

void OverlappedGemm::skip_allocation(std::string_view buffer) {
  state_->executor().skip_allocation(buffer);
}

std::int64_t OverlappedGemm::buffer_bytes(std::string_view buffer) const {
  const auto& buffers = plan().programs.front().buffers;
  const auto found = std::ranges::find(buffers, buffer, &plan::Buffer::name);
  ensure(found != buffers.end(), "the plan has this buffer");
  const plan::flat::Buffer& here = state_->executor().program().buffers[found - buffers.begin()];
  return here.rows * here.row_bytes;
}

void OverlappedGemm::unbind() {
  for (const plan::Buffer& buffer : plan().programs.front().buffers) bind(buffer.name, {});
}

void OverlappedGemm::prepare() { state_->prepare(); }
void OverlappedGemm::prepare(const kernels::MatrixView& weights) {
  state_->prepare(std::span(&weights, 1));
}
void OverlappedGemm::prepare(std::span<const kernels::MatrixView> weights) {
  state_->prepare(weights);
}

StepResult OverlappedGemm::run(GemmMode mode) { return state_->run({.mode = mode}); }
StepResult OverlappedGemm::run(const GemmArgs& args) { return state_->run(args); }

bool OverlappedGemm::applies_epilogue() const { return state_->applies_epilogue(); }

}  // namespace shiplap::run
