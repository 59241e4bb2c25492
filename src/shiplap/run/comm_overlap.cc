// CommOverlapCore and what is behind it: one comm_buffer matrix, and the GEMMs that use it.
//
// A call runs an OverlappedGemm, that is, a plan. The problem is where the buffers of that plan
// are: the operands and results are the caller's memory, the comm_buffer matrix belongs to the
// registry, and scratch memory is needed only during the call. Nothing is copied that can be used
// in place.
//
//   - bind_buffers() assigns memory to each buffer of the plan: caller_memory() if the caller's
//     matrix has the layout of the plan; the persistent buffer; or one block that is leased from
//     the pool of the registry for this call, so that layers that run one after the other share it.
//   - fill_inputs() copies what is not used in place: local rows into the gathered matrix, FP8
//     values together with their scales.
//   - A transport may write directly into a result only if the result has an owner. If a rank
//     fails, the transport may still write there, so the owner is kept until the process ends.
//   - copy_out() applies the epilogue where no kernel could: sums that a collective has made.
//
// Plans and packed weights are cached per GEMM size (CachedGemm). Creating one is collective, so
// ranks first compare what they are about to create (check_agreement, D808): ranks that differ
// would hang.
//
// Lock order: mutex_ of the object, then the mutex of OverlapContext (the world communicator).
#include "shiplap/run/comm_overlap.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "shiplap/base/error.h"
#include "shiplap/kernels/linear.h"
#include "shiplap/run/comm_overlap_internal.h"
#include "shiplap/run/gemm_dtype_internal.h"
#include "shiplap/run/packing_internal.h"

namespace shiplap::run {

using overlap::Choice;
using overlap::Method;
using overlap::Type;

namespace {

// Formats the request that creates a buffer for `choice`: "comm_type = all_gather, method =
// ring_exchange".
std::string request_for(const Choice& choice) {
  return fmt::format("comm_type = {}, method = {}{}", name(choice.type), name(choice.method),
                     choice.atomic ? ", atomic_gemm = true" : "");
}

std::string buffers_for(std::string_view function) {
  std::string all;
  for (const overlap::SupportedChoice& supported : overlap::supported_choices()) {
    if (function_name(supported.choice) != function) continue;
    all += (all.empty() ? "" : " or ") + request_for(supported.choice);
  }
  return all;
}

std::span<std::byte> bytes_in(const Matrix& matrix) {
  return {static_cast<std::byte*>(matrix.data), static_cast<std::size_t>(bytes_of(matrix))};
}

void copy(std::span<const std::byte> from, std::span<std::byte> to) {
  ensure(from.size() == to.size(), "source and destination have the same size");
  if (from.empty() || from.data() == to.data()) return;
  std::memcpy(to.data(), from.data(), from.size());
}

// Copies a column-major matrix to row-major.
void copy_transposed(const Matrix& from, std::span<std::byte> to) {
  const auto element = static_cast<std::size_t>(bytes_of(from.type));
  const auto lines = static_cast<std::size_t>(from.rows);
  const auto length = static_cast<std::size_t>(from.columns);
  const auto* const begin = static_cast<const std::byte*>(from.data);
  for (std::size_t i = 0; i < length; ++i) {
    for (std::size_t j = 0; j < lines; ++j) {
      std::memcpy(to.data() + (i * lines + j) * element, begin + (j * length + i) * element,
                  element);
    }
  }
}

kernels::MatrixView view_of(const Matrix& matrix) {
  if (matrix.data == nullptr) return {};
  return {.data = matrix.data,
          .type = gemm_dtype(matrix.type),
          .rows = matrix.rows,
          .columns = matrix.columns};
}

kernels::Epilogue epilogue_of(const OverlapCall& call) {
  return {.alpha = call.alpha,
          .beta = call.beta,
          .bias = view_of(call.bias),
          .activation = call.activation,
          .pre_activation = view_of(call.pre_activation)};
}

// Returns the buffer of the plan that is communicated. Its memory belongs to the registry.
std::string_view comm_buffer(const overlap::Choice& choice) {
  if (choice.type == Type::all_gather) return "x";
  return choice.method == Method::bulk ? "z" : "y";
}

// Returns the buffer of the plan in which a collective, or the owner of the sums, leaves the
// result;
// "" if a kernel writes the result to its destination.
std::string_view result_buffer(const OverlapBuffer& buffer) {
  const overlap::Choice& choice = buffer.choice;
  const bool is_quantized = !is_high_precision(buffer.quant_format());
  if (choice.type == Type::all_gather) return "";
  if (choice.type == Type::all_reduce) return is_quantized ? "out" : "y";
  return is_quantized || choice.method == Method::ring_exchange ? "" : "out";
}

// Returns the matrix of the call that gets the contents of result_buffer().
const Matrix& destination(const overlap::Choice& choice, const OverlapCall& call) {
  return choice.method == Method::bulk ? call.scattered : call.result;
}

// Returns whether a transport may write directly into the destination: its old contents are not
// needed, and it has an owner that keeps it alive as long as the transport may write.
bool can_write_directly(const OverlapBuffer& buffer, const OverlapCall& call) {
  const Matrix& to = destination(buffer.choice, call);
  // Quantized sums are written by a kernel, not by a transport.
  if (!is_high_precision(buffer.quant_format())) return call.beta == 0 && to.data != nullptr;
  if (buffer.choice.type == Type::all_reduce && buffer.is_persistent()) return false;
  const bool adds = buffer.choice.method != Method::bulk && call.beta != 0;
  return !adds && to.owner != nullptr;
}

// Returns the caller's matrix that is used in place as buffer `name` of the plan; null if there is
// none.
const Matrix* caller_memory(const OverlapBuffer& buffer, std::string_view name,
                            const OverlapCall& call) {
  const overlap::Choice& choice = buffer.choice;
  if (name == result_buffer(buffer)) {
    return can_write_directly(buffer, call) ? &destination(choice, call) : nullptr;
  }
  if (name == comm_buffer(choice)) return nullptr;
  if (name == "x") return is_fp8(call.x.type) ? nullptr : &call.x;
  if (name == "out") return &destination(choice, call);
  return name == "y" ? &call.result : nullptr;
}

}  // namespace

std::int64_t bytes_of(const Matrix& matrix) {
  return matrix.rows * matrix.columns * bytes_of(matrix.type);
}

std::string function_name(const Choice& choice) {
  if (choice.method == Method::none) return "multiply";
  if (choice.method == Method::bulk) return "bulk_overlap";
  const std::string_view type = choice.type == Type::all_gather       ? "ag"
                                : choice.type == Type::reduce_scatter ? "rs"
                                                                      : "ar";
  return fmt::format("{}_{}", choice.atomic ? "atomic_gemm_overlap" : "split_overlap", type);
}

CommOverlapCore::CommOverlapCore(std::unique_ptr<OverlapObject> object)
    : object_(std::move(object)) {}
CommOverlapCore::~CommOverlapCore() = default;
CommOverlapBase::CommOverlapBase(std::unique_ptr<OverlapObject> object)
    : CommOverlapCore(std::move(object)) {}
CommOverlapP2PBase::CommOverlapP2PBase(std::unique_ptr<OverlapObject> object)
    : CommOverlapCore(std::move(object)) {}

std::int64_t CommOverlapCore::id() const { return object_->buffer().id; }
const BufferRequest& CommOverlapCore::request() const { return object_->buffer().request; }
Choice CommOverlapCore::choice() const { return object_->buffer().choice; }
Matrix CommOverlapCore::buffer(BufferRows rows) const { return object_->matrix(rows); }
void CommOverlapCore::copy_into_buffer(const Matrix& source, BufferRows rows) {
  object_->copy_in(source, rows);
}
std::int64_t CommOverlapCore::persistent_bytes() const { return object_->persistent_bytes(); }
std::int64_t CommOverlapCore::shared_bytes() const { return object_->shared_bytes(); }
void CommOverlapCore::connect() { object_->connect(); }
StepResult CommOverlapCore::multiply(const OverlapCall& call) { return object_->run(call); }

StepResult CommOverlapCore::multiply_as(std::string_view function, const OverlapCall& call) {
  if (function != function_name(choice())) throw_wrong_function(function);
  return object_->run(call);
}

void CommOverlapCore::throw_wrong_function(std::string_view function) const {
  throw InputError(
      Diagnostic{.code = "D803",
                 .where = {.rank = object_->buffer().rank},
                 .what = fmt::format("Invalid collective type: {}() of a buffer for {}", function,
                                     to_string(choice())),
                 .why = describe_with_id(object_->buffer()),
                 .help = fmt::format("call {}(), or create a buffer with {}",
                                     function_name(choice()), buffers_for(function))});
}

StepResult CommOverlapCore::bulk_overlap(const OverlapCall& call) {
  return multiply_as("bulk_overlap", call);
}
StepResult CommOverlapCore::split_overlap_ag(const OverlapCall& call) {
  return multiply_as("split_overlap_ag", call);
}
StepResult CommOverlapCore::split_overlap_rs(const OverlapCall& call) {
  return multiply_as("split_overlap_rs", call);
}
StepResult CommOverlapCore::split_overlap_ar(const OverlapCall& call) {
  return multiply_as("split_overlap_ar", call);
}
StepResult CommOverlapCore::atomic_gemm_overlap_ag(const OverlapCall& call) {
  return multiply_as("atomic_gemm_overlap_ag", call);
}
StepResult CommOverlapCore::atomic_gemm_overlap_rs(const OverlapCall& call) {
  return multiply_as("atomic_gemm_overlap_rs", call);
}
StepResult CommOverlapCore::atomic_gemm_overlap_ar(const OverlapCall& call) {
  return multiply_as("atomic_gemm_overlap_ar", call);
}

// ---- OverlapObject

OverlapContext::OverlapContext(comm::Communicator& all, BufferOptions given)
    : world(all), options(std::move(given)) {
  if (!options.allocate) options.allocate = ordinary_memory;
  pool = std::make_shared<BufferPool>(options.allocate);
}

OverlapObject::OverlapObject(OverlapBuffer buffer, std::shared_ptr<OverlapContext> context)
    : buffer_(std::move(buffer)), context_(std::move(context)) {
  if (buffer_.is_persistent()) memory_ = context_->pool->allocate_persistent(buffer_.bytes());
}

std::int64_t OverlapObject::persistent_bytes() const {
  return memory_ == nullptr ? 0 : aligned(buffer_.bytes());
}

Matrix OverlapObject::matrix(BufferRows rows) const {
  if (memory_ == nullptr) {
    throw InputError(
        Diagnostic{.code = "D807",
                   .where = {.rank = buffer_.rank},
                   .what = "this buffer is not persistent: it has memory only during a call",
                   .why = describe_with_id(buffer_),
                   .help = "create it with lifetime = persistent"});
  }
  const bool all = rows == BufferRows::all;
  return {.data = memory_.get() + (all ? 0 : buffer_.local_begin() * buffer_.row_bytes()),
          .rows = all ? buffer_.rows : buffer_.local_rows(),
          .columns = buffer_.columns,
          .type = buffer_.type(),
          .owner = memory_};
}

void OverlapObject::copy_in(const Matrix& source, BufferRows rows) {
  const Matrix to = matrix(rows);
  check_shape(buffer_, "source", source, {to.rows, to.columns});
  const std::lock_guard lock(mutex_);
  copy(bytes_in(source), bytes_in(to));
}

// ---- connecting

void OverlapObject::connect() {
  const std::lock_guard lock(mutex_);
  connect_locked();
}

void OverlapObject::connect_locked() {
  if (channel_ != nullptr) return;
  const std::string& name = buffer_.request.name;
  const std::string local =
      name.empty() ? describe_with_id(buffer_) : fmt::format("`{}` ({})", name, describe(buffer_));
  {
    const std::lock_guard lock(context_->mutex);
    channel_ = context_->world.channel(name.empty() ? fmt::format("buffer{}", buffer_.id) : name);
  }
  try {
    const kernels::ScalingMode mode = buffer_.request.scaling_mode;
    check_agreement(
        fmt::format("{} in {}{} chunks{}", local, buffer_.request.chunks,
                    buffer_.request.cut == overlap::Cut::tapered ? " tapered" : "",
                    mode == kernels::ScalingMode::no_scaling
                        ? ""
                        : fmt::format(", {}", kernels::name(mode))),
        "buffer mismatch between ranks",
        "create buffers, and call them for the first time, in the same order on all ranks; or "
        "connect() them in one order before threads call them in any order");
  } catch (const InputError&) {
    channel_ = nullptr;
    throw;
  }
}

void OverlapObject::check_agreement(const std::string& local, const std::string& what,
                                    const std::string& help) {
  Packer packer;
  packer.put(local);
  std::vector<std::string> descriptions;
  for (std::vector<std::byte>& bytes : gather_bytes(*channel_, packer.take())) {
    descriptions.push_back(Unpacker(std::move(bytes)).text());
  }
  const auto other =
      std::ranges::find_if(descriptions, [&](const auto& one) { return one != descriptions[0]; });
  if (other == descriptions.end()) return;
  throw InputError(Diagnostic{.code = "D808",
                              .where = {.rank = buffer_.rank},
                              .what = what,
                              .why = fmt::format("rank 0: {}; rank {}: {}", descriptions[0],
                                                 other - descriptions.begin(), *other),
                              .help = help});
}

OverlapObject::CachedGemm& OverlapObject::gemm_for(const overlap::Problem& problem) {
  const auto dtype = [&](const overlap::QuantFormat& of) {
    return is_high_precision(of) ? shiplap::name(problem.type) : shiplap::name(of.type);
  };
  const std::string sizes = fmt::format(
      "{} x {} {} by {} x {} {}{}", problem.m, problem.k, dtype(problem.x), problem.k, problem.n,
      dtype(problem.w), problem.groups == 0 ? "" : fmt::format(" of {} groups", problem.groups));
  if (const auto found = gemms_.find(sizes); found != gemms_.end()) return found->second;
  static_cast<void>(
      overlap::plan_text(buffer_.choice, problem));  // throws before any communication
  connect_locked();
  check_agreement(
      sizes, fmt::format("GEMM size mismatch between ranks with {}", describe_with_id(buffer_)),
      "pass global_size if the shares of ranks differ, and the same sizes on "
      "all ranks");
  OverlappedGemm made(buffer_.choice, problem, *channel_,
                      {.progress = context_->options.progress,
                       .traces = context_->options.traces,
                       .allocates = false});
  return gemms_.emplace(sizes, CachedGemm{.overlapped = std::move(made)}).first->second;
}

// ---- a call

StepResult OverlapObject::run(const OverlapCall& call) {
  const overlap::Problem problem = checked(buffer_, call);
  const std::lock_guard lock(mutex_);
  if (channel_ != nullptr && !channel_->alive())
    channel_->barrier();  // throws the original failure
  CachedGemm& gemm = gemm_for(problem);
  std::vector<std::byte> scales;
  std::vector<kernels::MatrixView> weights;
  if (call.weights_version == 0 || call.weights_version != gemm.weights_version) {
    weights = weights_of(buffer_, call, scales);
  }
  const Bindings bindings = bind_buffers(gemm.overlapped, call);
  fill_inputs(bindings, call);
  return run_bound(gemm, bindings, call, weights);
}

// All memory that is needed only during the call is one block.
OverlapObject::Bindings OverlapObject::bind_buffers(const OverlappedGemm& gemm,
                                                    const OverlapCall& call) {
  Bindings bindings;
  std::vector<std::size_t> borrowed;
  std::int64_t total = 0;
  for (const plan::Buffer& buffer : gemm.plan().programs.front().buffers) {
    BufferBinding& binding = bindings.emplace_back(BufferBinding{.name = buffer.name});
    if (buffer.name == "w") {
      binding.is_skipped = true;  // weights are packed separately
    } else if (const Matrix* const matrix = caller_memory(buffer_, buffer.name, call)) {
      binding.bytes = bytes_in(*matrix);
      binding.owner = matrix->owner;
    } else if (memory_ != nullptr && buffer.name == comm_buffer(buffer_.choice)) {
      binding.bytes = {memory_.get(), static_cast<std::size_t>(buffer_.bytes())};
      binding.owner = memory_;
    } else {
      borrowed.push_back(bindings.size() - 1);
      total += aligned(gemm.buffer_bytes(buffer.name));
    }
  }
  if (borrowed.empty()) return bindings;
  const std::shared_ptr<std::byte> block = context_->pool->lease(total);
  max_shared_ = std::max<std::int64_t>(max_shared_, total);
  if (context_->options.poison) std::memset(block.get(), 0xff, static_cast<std::size_t>(total));
  std::byte* next = block.get();
  for (const std::size_t k : borrowed) {
    const std::int64_t bytes = gemm.buffer_bytes(bindings[k].name);
    bindings[k].bytes = {next, static_cast<std::size_t>(bytes)};
    bindings[k].owner = block;
    next += aligned(bytes);
  }
  return bindings;
}

void OverlapObject::fill_inputs(const Bindings& bindings, const OverlapCall& call) const {
  const auto bytes_of_buffer = [&](std::string_view name) {
    return std::ranges::find(bindings, name, &BufferBinding::name)->bytes;
  };
  if (buffer_.choice.method == Method::bulk && call.to_scatter.data != nullptr) {
    write_rows(call.to_scatter, buffer_.quant_format(), {}, bytes_of_buffer("z"));
  }
  if (buffer_.choice.type != Type::all_gather) {
    if (!is_fp8(call.x.type)) return;
    return write_rows(call.x, quant_format_of(call.x.type, buffer_.request.scaling_mode), {},
                      bytes_of_buffer("x"));
  }
  if (call.x.data == nullptr) return;
  const std::span<std::byte> all = bytes_of_buffer("x");
  const std::int64_t row_bytes = std::ssize(all) / buffer_.rows;
  const std::span<std::byte> local =
      all.subspan(buffer_.local_begin() * row_bytes, buffer_.local_rows() * row_bytes);
  if (call.x_is_transposed) return copy_transposed(call.x, local);
  if (is_high_precision(buffer_.quant_format()) && call.group_sizes.empty())
    return copy(bytes_in(call.x), local);
  write_rows(call.x, buffer_.quant_format(), call.group_sizes, local);
}

StepResult OverlapObject::run_bound(CachedGemm& gemm, const Bindings& bindings,
                                    const OverlapCall& call,
                                    std::span<const kernels::MatrixView> weights) {
  OverlappedGemm& overlapped = gemm.overlapped;
  for (const BufferBinding& binding : bindings) {
    if (binding.is_skipped) {
      overlapped.skip_allocation(binding.name);
    } else {
      overlapped.bind(binding.name, binding.bytes, binding.owner);
    }
  }
  const bool applies_epilogue = overlapped.applies_epilogue();
  StepResult result;
  try {
    const bool gathers = buffer_.choice.type == Type::all_gather;
    GemmArgs args{.epilogue = applies_epilogue ? epilogue_of(call) : kernels::Epilogue{},
                  .x_is_transposed = call.x_is_transposed && !gathers};
    std::vector<kernels::GroupRows> runs;
    for (const std::int64_t rows : call.group_sizes) runs.push_back({std::ssize(runs), rows});
    args.runs = runs;
    args.weights = weights;
    gemm.weights_version = 0;
    result = overlapped.run(args);
    gemm.weights_version = call.weights_version;
  } catch (...) {
    gemms_.clear();  // the failed one has leaked the memory that a transport may still write
    throw;
  }
  overlapped.unbind();
  copy_out(bindings, call, applies_epilogue);
  return result;
}

// Copies all rows, without scales and group numbers, in high precision.
void OverlapObject::copy_out_gathered(const Bindings& bindings, const OverlapCall& call) const {
  const std::span<std::byte> rows = std::ranges::find(bindings, "x", &BufferBinding::name)->bytes;
  const std::int64_t row_bytes = std::ssize(rows) / buffer_.rows;
  const std::span<std::byte> to = bytes_in(call.gathered);
  if (!is_high_precision(buffer_.quant_format())) {
    return dequantize_rows(rows.data(), buffer_.quant_format(), row_bytes, view_of(call.gathered));
  }
  const std::size_t bytes = to.size() / static_cast<std::size_t>(buffer_.rows);
  for (std::size_t i = 0; i < static_cast<std::size_t>(buffer_.rows); ++i) {
    copy(rows.subspan(i * static_cast<std::size_t>(row_bytes), bytes),
         to.subspan(i * bytes, bytes));
  }
}

void OverlapObject::copy_out(const Bindings& bindings, const OverlapCall& call,
                             bool has_epilogue) const {
  const overlap::Choice& choice = buffer_.choice;
  if (call.gathered.data != nullptr) copy_out_gathered(bindings, call);
  const auto binding = std::ranges::find(bindings, result_buffer(buffer_), &BufferBinding::name);
  if (binding == bindings.end()) return;
  Matrix to = destination(choice, call);
  if (to.data == nullptr) to.data = binding->bytes.data();  // the result stays in the buffer
  const kernels::Epilogue epilogue = has_epilogue ? kernels::Epilogue{} : epilogue_of(call);
  if (kernels::is_identity(epilogue)) {
    return copy(binding->bytes, {static_cast<std::byte*>(to.data), binding->bytes.size()});
  }
  kernels::apply_epilogue(
      {.data = binding->bytes.data(),
       .type = gemm_dtype(buffer_.type()),
       .rows = std::ssize(binding->bytes) / buffer_.columns / bytes_of(buffer_.type()),
       .columns = buffer_.columns},
      {.data = to.data, .type = gemm_dtype(buffer_.type())}, epilogue);
}

}  // namespace shiplap::run
