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
namespace {

using overlap::Method;
using overlap::Type;

std::span<std::byte> bytes_in(const Matrix& matrix) {
  return {static_cast<std::byte*>(matrix.data), static_cast<std::size_t>(bytes_of(matrix))};
}

void copy(std::span<const std::byte> from, std::span<std::byte> to) {
  ensure(from.size() == to.size(), "copies are as large as what they are of");
  if (from.empty() || from.data() == to.data()) return;
  std::memcpy(to.data(), from.data(), from.size());
}

// `from` lies by columns.
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
          .before_activation = view_of(call.before_activation)};
}

// The buffer of the plan that is communicated, and lies in memory of the registry.
std::string_view communicated(const overlap::Choice& choice) {
  if (choice.type == Type::all_gather) return "x";
  return choice.method == Method::bulk ? "z" : "y";
}

// The buffer of the plan in which a collective or the owners of sums leave the result; "" where a
// kernel writes it to its place.
std::string_view received(const OverlapBuffer& buffer) {
  const overlap::Choice& choice = buffer.choice;
  const bool is_coded = !is_plain(buffer.form());
  if (choice.type == Type::all_gather) return "";
  if (choice.type == Type::all_reduce) return is_coded ? "out" : "y";
  return is_coded || choice.method == Method::ring_exchange ? "" : "out";
}

// The part of a call where what is received goes in the end.
const Matrix& destination(const overlap::Choice& choice, const OverlapCall& call) {
  return choice.method == Method::bulk ? call.scattered : call.result;
}

// Whether a transport may write there at once: then nothing else may need what was there, and it
// must stay as long as the transport lives.
bool is_direct(const OverlapBuffer& buffer, const OverlapCall& call) {
  const Matrix& to = destination(buffer.choice, call);
  // Coded sums are written by who adds them up.
  if (!is_plain(buffer.form())) return call.beta == 0 && to.data != nullptr;
  if (buffer.choice.type == Type::all_reduce && buffer.lasts()) return false;
  const bool adds = buffer.choice.method != Method::bulk && call.beta != 0;
  return !adds && to.owner != nullptr;
}

// Memory of the caller's for a buffer of the plan; null if it is ours.
const Matrix* callers(const OverlapBuffer& buffer, std::string_view name, const OverlapCall& call) {
  const overlap::Choice& choice = buffer.choice;
  if (name == received(buffer)) {
    return is_direct(buffer, call) ? &destination(choice, call) : nullptr;
  }
  if (name == communicated(choice)) return nullptr;
  if (name == "x") return is_fp8(call.x.type) ? nullptr : &call.x;
  if (name == "out") return &destination(choice, call);
  return name == "y" ? &call.result : nullptr;
}

}  // namespace

OverlapShared::OverlapShared(comm::Communicator& all, BufferOptions given)
    : world(all), options(std::move(given)) {
  if (!options.allocate) options.allocate = ordinary_memory;
  pool = std::make_shared<BufferPool>(options.allocate);
}

OverlapObject::OverlapObject(OverlapBuffer buffer, std::shared_ptr<OverlapShared> shared)
    : buffer_(std::move(buffer)), shared_(std::move(shared)) {
  if (buffer_.lasts()) memory_ = shared_->pool->own(buffer_.bytes());
}

std::int64_t OverlapObject::own_bytes() const {
  return memory_ == nullptr ? 0 : aligned(buffer_.bytes());
}

Matrix OverlapObject::matrix(Part part) const {
  if (memory_ == nullptr) {
    throw InputError(Diagnostic{.code = "D807",
                                .where = {.rank = buffer_.rank},
                                .what = "this buffer has memory only during a call",
                                .why = describe_with_id(buffer_),
                                .help = "create it with contents = between_calls"});
  }
  const bool all = part == Part::all;
  return {.data = memory_.get() + (all ? 0 : buffer_.own_begin() * buffer_.row_bytes()),
          .rows = all ? buffer_.rows : buffer_.own_rows(),
          .columns = buffer_.columns,
          .type = buffer_.type(),
          .owner = memory_};
}

void OverlapObject::copy_in(const Matrix& source, Part part) {
  const Matrix to = matrix(part);
  demand_shape(buffer_, "source", source, {to.rows, to.columns});
  const std::lock_guard lock(mutex_);
  copy(bytes_in(source), bytes_in(to));
}

// ---- meeting the other ranks

void OverlapObject::connect() {
  const std::lock_guard lock(mutex_);
  connect_here();
}

void OverlapObject::connect_here() {
  if (channel_ != nullptr) return;
  const std::string& name = buffer_.request.name;
  const std::string own =
      name.empty() ? describe_with_id(buffer_) : fmt::format("`{}` ({})", name, describe(buffer_));
  {
    const std::lock_guard lock(shared_->mutex);
    channel_ = shared_->world.channel(name.empty() ? fmt::format("buffer{}", buffer_.id) : name);
  }
  try {
    const kernels::ScalingMode mode = buffer_.request.scaling_mode;
    agree(fmt::format("{} in {}{} chunks{}", own, buffer_.request.chunks,
                      buffer_.request.cut == overlap::Cut::tapered ? " tapered" : "",
                      mode == kernels::ScalingMode::no_scaling
                          ? ""
                          : fmt::format(", {}", kernels::name(mode))),
          "ranks meet with different buffers",
          "let all ranks create buffers, and call them for the first time, in the same order; or "
          "connect() them in one order before threads call them in any");
  } catch (const InputError&) {
    channel_ = nullptr;
    throw;
  }
}

void OverlapObject::agree(const std::string& own, const std::string& what,
                          const std::string& help) {
  Packer packer;
  packer.put(own);
  std::vector<std::string> said;
  for (std::vector<std::byte>& bytes : gather_bytes(*channel_, packer.take())) {
    said.push_back(Unpacker(std::move(bytes)).text());
  }
  const auto odd = std::ranges::find_if(said, [&](const auto& one) { return one != said[0]; });
  if (odd == said.end()) return;
  throw InputError(
      Diagnostic{.code = "D808",
                 .where = {.rank = buffer_.rank},
                 .what = what,
                 .why = fmt::format("rank 0: {}; rank {}: {}", said[0], odd - said.begin(), *odd),
                 .help = help});
}

OverlapObject::Product& OverlapObject::product_for(const overlap::Problem& problem) {
  const auto form = [&](const overlap::Form& of) {
    return is_plain(of) ? shiplap::name(problem.type) : shiplap::name(of.type);
  };
  const std::string sizes =
      fmt::format("{} x {} {} by {} x {} {}{}", problem.rows, problem.depth, form(problem.x),
                  problem.depth, problem.columns, form(problem.w),
                  problem.groups == 0 ? "" : fmt::format(" of {} groups", problem.groups));
  if (const auto found = products_.find(sizes); found != products_.end()) return found->second;
  static_cast<void>(overlap::plan_text(buffer_.choice, problem));  // refused before ranks meet
  connect_here();
  agree(sizes, fmt::format("ranks multiply different sizes with {}", describe_with_id(buffer_)),
        "give size_of_all where ranks do not all have as much, and the same sizes on all ranks");
  OverlappedProduct made(buffer_.choice, problem, *channel_,
                         {.progress = shared_->options.progress,
                          .traces = shared_->options.traces,
                          .allocates = false});
  return products_.emplace(sizes, Product{.overlapped = std::move(made)}).first->second;
}

// ---- a call

StepResult OverlapObject::run(const OverlapCall& call) {
  const overlap::Problem problem = checked(buffer_, call);
  const std::lock_guard lock(mutex_);
  if (channel_ != nullptr && !channel_->alive()) channel_->barrier();  // says why it is dead
  Product& product = product_for(problem);
  std::vector<std::byte> scales;
  std::vector<kernels::MatrixView> weights;
  if (call.weights_version == 0 || call.weights_version != product.weights_version) {
    weights = weights_of(buffer_, call, scales);
  }
  const Places places = places_of(product.overlapped, call);
  fill(places, call);
  return run_at(product, places, call, weights);
}

// All that is ours and does not last lies in one block.
OverlapObject::Places OverlapObject::places_of(const OverlappedProduct& product,
                                               const OverlapCall& call) {
  Places places;
  std::vector<std::size_t> borrowed;
  std::int64_t total = 0;
  for (const plan::Buffer& buffer : product.plan().programs.front().buffers) {
    Place& place = places.emplace_back(Place{.name = buffer.name});
    if (buffer.name == "w") {
      place.is_left_out = true;  // weights are prepared apart
    } else if (const Matrix* const matrix = callers(buffer_, buffer.name, call)) {
      place.bytes = bytes_in(*matrix);
      place.owner = matrix->owner;
    } else if (memory_ != nullptr && buffer.name == communicated(buffer_.choice)) {
      place.bytes = {memory_.get(), static_cast<std::size_t>(buffer_.bytes())};
      place.owner = memory_;
    } else {
      borrowed.push_back(places.size() - 1);
      total += aligned(product.buffer_bytes(buffer.name));
    }
  }
  if (borrowed.empty()) return places;
  const std::shared_ptr<std::byte> block = shared_->pool->lease(total);
  most_shared_ = std::max<std::int64_t>(most_shared_, total);
  if (shared_->options.poison) std::memset(block.get(), 0xff, static_cast<std::size_t>(total));
  std::byte* next = block.get();
  for (const std::size_t k : borrowed) {
    const std::int64_t bytes = product.buffer_bytes(places[k].name);
    places[k].bytes = {next, static_cast<std::size_t>(bytes)};
    places[k].owner = block;
    next += aligned(bytes);
  }
  return places;
}

void OverlapObject::fill(const Places& places, const OverlapCall& call) const {
  const auto place_of = [&](std::string_view name) {
    return std::ranges::find(places, name, &Place::name)->bytes;
  };
  if (buffer_.choice.method == Method::bulk && call.to_scatter.data != nullptr) {
    write_rows(call.to_scatter, buffer_.form(), {}, place_of("z"));
  }
  if (buffer_.choice.type != Type::all_gather) {
    if (!is_fp8(call.x.type)) return;
    return write_rows(call.x, form_of(call.x.type, buffer_.request.scaling_mode), {},
                      place_of("x"));
  }
  if (call.x.data == nullptr) return;
  const std::span<std::byte> all = place_of("x");
  const std::int64_t row_bytes = std::ssize(all) / buffer_.rows;
  const std::span<std::byte> own =
      all.subspan(buffer_.own_begin() * row_bytes, buffer_.own_rows() * row_bytes);
  if (call.x_is_transposed) return copy_transposed(call.x, own);
  if (is_plain(buffer_.form()) && call.group_sizes.empty()) return copy(bytes_in(call.x), own);
  write_rows(call.x, buffer_.form(), call.group_sizes, own);
}

StepResult OverlapObject::run_at(Product& product, const Places& places, const OverlapCall& call,
                                 std::span<const kernels::MatrixView> weights) {
  OverlappedProduct& overlapped = product.overlapped;
  for (const Place& place : places) {
    if (place.is_left_out) {
      overlapped.leave_out(place.name);
    } else {
      overlapped.bind(place.name, place.bytes, place.owner);
    }
  }
  const bool finishes = overlapped.finishes();
  StepResult result;
  try {
    const bool gathers = buffer_.choice.type == Type::all_gather;
    ProductTerms terms{.epilogue = finishes ? epilogue_of(call) : kernels::Epilogue{},
                       .x_is_transposed = call.x_is_transposed && !gathers};
    std::vector<kernels::GroupRows> runs;
    for (const std::int64_t rows : call.group_sizes) runs.push_back({std::ssize(runs), rows});
    terms.runs = runs;
    terms.weights = weights;
    product.weights_version = 0;
    result = overlapped.run(terms);
    product.weights_version = call.weights_version;
  } catch (...) {
    products_.clear();  // the one that failed keeps its memory for ever
    throw;
  }
  overlapped.unbind();
  deliver(places, call, finishes);
  return result;
}

// All rows without what lies behind them, and wide.
void OverlapObject::deliver_gathered(const Places& places, const OverlapCall& call) const {
  const std::span<std::byte> rows = std::ranges::find(places, "x", &Place::name)->bytes;
  const std::int64_t row_bytes = std::ssize(rows) / buffer_.rows;
  const std::span<std::byte> to = bytes_in(call.gathered);
  if (!is_plain(buffer_.form())) {
    return decode(rows.data(), buffer_.form(), row_bytes, view_of(call.gathered));
  }
  const std::size_t bytes = to.size() / static_cast<std::size_t>(buffer_.rows);
  for (std::size_t i = 0; i < static_cast<std::size_t>(buffer_.rows); ++i) {
    copy(rows.subspan(i * static_cast<std::size_t>(row_bytes), bytes),
         to.subspan(i * bytes, bytes));
  }
}

void OverlapObject::deliver(const Places& places, const OverlapCall& call, bool is_finished) const {
  const overlap::Choice& choice = buffer_.choice;
  if (call.gathered.data != nullptr) deliver_gathered(places, call);
  const auto place = std::ranges::find(places, received(buffer_), &Place::name);
  if (place == places.end()) return;
  Matrix to = destination(choice, call);
  if (to.data == nullptr) to.data = place->bytes.data();  // it stays where it is
  const kernels::Epilogue epilogue = is_finished ? kernels::Epilogue{} : epilogue_of(call);
  if (kernels::is_identity(epilogue)) {
    return copy(place->bytes, {static_cast<std::byte*>(to.data), place->bytes.size()});
  }
  kernels::finish({.data = place->bytes.data(),
                   .type = gemm_dtype(buffer_.type()),
                   .rows = std::ssize(place->bytes) / buffer_.columns / bytes_of(buffer_.type()),
                   .columns = buffer_.columns},
                  {.data = to.data, .type = gemm_dtype(buffer_.type())}, epilogue);
}

}  // namespace shiplap::run
