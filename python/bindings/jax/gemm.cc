#include "gemm.h"

#include <fmt/format.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <numeric>
#include <utility>

#include "parse.h"
#include "shiplap/base/error.h"
#include "shiplap/comm/failure.h"

namespace shiplap::python::jax {
namespace {

using overlap::Method;
using overlap::Type;

// An owner for memory that XLA owns. This is safe because the sockets transport releases all user
// memory before a call returns, even one that fails: it may write straight into an array of XLA,
// which is freed afterwards.
std::shared_ptr<void> non_owning() {
  // Never destroyed: calls may be under way when the process ends.
  static const auto* const kept = new std::shared_ptr<void>(
      std::make_shared<int>());  // NOLINT(cppcoreguidelines-owning-memory)
  return *kept;
}

std::int64_t product(const std::int64_t* first, const std::int64_t* last) {
  return std::accumulate(first, last, std::int64_t{1}, std::multiplies<>());
}

// ---- arrays as matrices

run::Matrix flat(const Array& array, std::int64_t boundary, std::string_view name) {
  if (!array.is_given()) return {};
  const std::int64_t dimensions = std::ssize(array.shape);
  if (boundary < 0) boundary = std::max<std::int64_t>(dimensions - 1, 0);
  if (boundary > dimensions) {
    throw InputError(Diagnostic{
        .code = "D805",
        .what = fmt::format("{}_axis_boundary = {}, but {} has {} dimensions", name, boundary, name,
                            dimensions),
        .help = fmt::format("choose 0 to {}, or -1 for the last dimension", dimensions)});
  }
  const std::int64_t* const begin = array.shape.data();
  return {.data = array.data,
          .rows = product(begin, begin + boundary),
          .columns = product(begin + boundary, begin + dimensions),
          .type = array.type,
          .owner = non_owning()};
}

[[noreturn]] void throw_bad_scalar(std::string_view name, const Array& array,
                                   std::string_view type) {
  throw InputError(Diagnostic{.code = "D817",
                              .what = fmt::format("{} has {} elements of {}", name, array.count(),
                                                  shiplap::name(array.type)),
                              .help = fmt::format("give one element of {}", type)});
}

run::ScaleInverse scale_of(const Array& array, const GemmAttributes& attributes, bool is_swizzled) {
  if (!array.is_given()) return {};
  if (attributes.scaling_mode != kernels::ScalingMode::mxfp8_1d_scaling) {
    if (array.count() != 1 || array.type != DType::f32) {
      throw_bad_scalar("a scale", array, "f32");
    }
  } else if (array.type != DType::u8) {
    throw InputError(
        Diagnostic{.code = "D817",
                   .what = fmt::format("MXFP8 scales have dtype {}", shiplap::name(array.type)),
                   .help = "give uint8 or float8_e8m0fnu, one for every 32 elements"});
  }
  const run::Matrix as = flat(array, -1, "scale_inv");
  return {.data = as.data,
          .rows = as.rows,
          .columns = as.columns,
          .order = is_swizzled ? kernels::ScaleOrder::swizzled : kernels::ScaleOrder::plain};
}

float scalar_in(const Array& array, float otherwise) {
  if (!array.is_given()) return otherwise;
  if (array.count() != 1 || array.type != DType::f32) {
    throw_bad_scalar("alpha or beta", array, "f32");
  }
  float number = 0;
  std::memcpy(&number, array.data, sizeof number);
  return number;
}

void check_axis_index(const Array& axis_index, const LocalRank& rank, int device) {
  if (!axis_index.is_given()) return;
  if (axis_index.count() != 1 || axis_index.type != DType::i32) {
    throw_bad_scalar("axis_index", axis_index, "i32");
  }
  std::int32_t number = 0;
  std::memcpy(&number, axis_index.data, sizeof number);
  if (number == rank.rank()) return;
  throw InputError(Diagnostic{
      .code = "D816",
      .what = fmt::format("device {} is rank {} of its group, but has index {} along the axis",
                          device, rank.rank(), number),
      .why = "device order mismatch: the mesh of the shard_map orders its devices differently",
      .help = "create the group with the mesh of the shard_map"});
}

template <class T>
void append(const Array& array, std::vector<std::int64_t>& to) {
  const auto* const first = static_cast<const T*>(array.data);
  to.insert(to.end(), first, first + array.count());
}

std::vector<std::int64_t> integers_in(const Array& array) {
  std::vector<std::int64_t> found;
  if (array.type == DType::i32) {
    append<std::int32_t>(array, found);
  } else {
    append<std::int64_t>(array, found);
  }
  return found;
}

// ---- the request

// The choice that is executed: a GEMM without communication runs as a collective of a single rank.
overlap::Choice effective_choice(const GemmAttributes& attributes, const GemmOperands& operands) {
  if (attributes.choice.type != Type::none) return attributes.choice;
  // all_reduce rounds its sums, so a bias or activation after it would round twice; all_gather
  // copies the rows once instead.
  const bool has_more =
      operands.bias.is_given() || attributes.activation != kernels::Activation::none;
  return {has_more ? Type::all_gather : Type::all_reduce, Method::none, false};
}

DType transfer_dtype(const GemmAttributes& attributes, const overlap::Choice& choice,
                     const run::OverlapCall& call) {
  if (attributes.comm_dtype.empty()) {
    if (choice.type == Type::all_gather) return call.x.type;
    return choice.method == Method::bulk ? call.scattered.type : call.result.type;
  }
  return parse_dtype(attributes.comm_dtype);
}

run::BufferRequest buffer_request(const GemmAttributes& attributes, const overlap::Choice& choice,
                                  const run::OverlapCall& call, int ranks) {
  run::BufferRequest request{.comm_type = choice.type,
                             .method = choice.method,
                             .buffer_dtype = transfer_dtype(attributes, choice, call),
                             .scaling_mode = attributes.scaling_mode,
                             .result_dtype = call.result.type,
                             .atomic_gemm = choice.atomic,
                             .chunks = attributes.chunks,
                             .cut = attributes.cut};
  const std::int64_t rows = call.x_is_transposed ? call.x.columns : call.x.rows;
  const std::int64_t depth = call.x_is_transposed ? call.x.rows : call.x.columns;
  if (choice.type == Type::all_gather) {
    const bool is_single_rank = attributes.choice.type == Type::none;
    request.buffer_shape = {
        attributes.rows != 0 && !is_single_rank ? attributes.rows : rows * ranks, depth};
  } else if (choice.method == Method::bulk) {
    request.buffer_shape = {call.to_scatter.rows, call.to_scatter.columns};
  } else {
    request.buffer_shape = {rows, call.result.columns};
  }
  return request;
}

run::OverlapCall make_call(const GemmAttributes& attributes, const GemmOperands& operands,
                           const GemmResults& results) {
  run::OverlapCall call{.x = flat(operands.lhs, attributes.lhs_axis_boundary, "lhs"),
                        .w = flat(operands.rhs, attributes.rhs_axis_boundary, "rhs"),
                        .x_is_transposed = attributes.lhs_transposed,
                        .w_is_transposed = attributes.rhs_transposed,
                        .global_size = attributes.global_size,
                        .result = flat(results.output, -1, "output"),
                        .alpha = scalar_in(operands.alpha, 1),
                        .beta = scalar_in(operands.beta, 0),
                        .bias = flat(operands.bias, -1, "bias"),
                        .activation = attributes.activation,
                        .pre_activation = flat(results.pre_activation, -1, "output"),
                        .gathered = flat(results.gathered, -1, "gathered"),
                        .to_scatter = flat(operands.to_scatter, -1, "to_scatter"),
                        .scattered = flat(results.scattered, -1, "scattered")};
  call.x.scale_inv = scale_of(operands.lhs_scale_inv, attributes, attributes.lhs_scale_swizzled);
  call.w.scale_inv = scale_of(operands.rhs_scale_inv, attributes, attributes.rhs_scale_swizzled);
  if (attributes.is_grouped) call.group_sizes = integers_in(operands.group_sizes);
  return call;
}

std::vector<std::uintptr_t> addresses_of(const run::OverlapCall& call) {
  std::vector<std::uintptr_t> found;
  for (const run::Matrix* const m : {&call.x, &call.w, &call.result}) {
    found.push_back(reinterpret_cast<std::uintptr_t>(m->data));
  }
  return found;
}

void multiply_on(LocalRank& rank, const Group* group, const GemmAttributes& attributes,
                 const GemmOperands& operands, const GemmResults& results) {
  const overlap::Choice choice = effective_choice(attributes, operands);
  const run::OverlapCall call = make_call(attributes, operands, results);
  const std::int64_t id = group == nullptr ? -1 : attributes.comm_overlap_id;
  run::BufferRequest request;
  if (id < 0) request = buffer_request(attributes, choice, call, rank.size());
  const auto object = rank.buffer(id, std::move(request));
  rank.record_addresses(addresses_of(call));
  run::StepResult step = object->multiply(call);
  if (group == nullptr || !group->request().traces) return;
  rank.record_events(std::move(step.trace.events), group->now() - step.duration);
}

DType weight_dtype(DType type) {
  if (type == DType::f32 || type == DType::f16 || type == DType::bf16) return type;
  throw InputError(Diagnostic{
      .code = "D817",
      .what = fmt::format("unsupported dtype {} for a gradient of weights", shiplap::name(type)),
      .help = "give f32, f16 or bf16"});
}

// Computes lhs^T rhs over the rows of each group.
void grouped_weight_gradient(const GemmOperands& operands, const GemmResults& results) {
  const run::Matrix a = flat(operands.lhs, 1, "lhs");
  const run::Matrix b = flat(operands.rhs, 1, "rhs");
  const Array& out = results.output;
  const std::int64_t bytes = bytes_of(a.type);
  const std::int64_t out_bytes = a.columns * b.columns * bytes_of(out.type);
  auto* from_a = static_cast<std::byte*>(a.data);
  auto* from_b = static_cast<std::byte*>(b.data);
  auto* to = static_cast<std::byte*>(out.data);
  std::int64_t left = a.rows;
  for (const std::int64_t rows : integers_in(operands.group_sizes)) {
    if (rows < 0 || rows > left) {
      throw InputError(Diagnostic{.code = "D814",
                                  .what = "group_sizes do not add up to the number of rows",
                                  .help = "give the number of rows of each group; it may be 0"});
    }
    if (rows == 0) {
      std::memset(to, 0, static_cast<std::size_t>(out_bytes));
    } else {
      kernels::LinearKernel kernel({.n = b.columns,
                                    .k = rows,
                                    .type = weight_dtype(a.type),
                                    .packing = kernels::Packing::every_call,
                                    .typical_rows = a.columns});
      kernel.prepare({.data = from_b, .type = weight_dtype(a.type)});
      kernel.multiply(
          {.data = from_a, .type = weight_dtype(a.type), .rows = a.columns, .is_transposed = true},
          {.data = to, .type = weight_dtype(out.type)});
    }
    left -= rows;
    from_a += rows * a.columns * bytes;
    from_b += rows * b.columns * bytes;
    to += out_bytes;
  }
}

Diagnostic with_rank_names(Diagnostic diagnostic, const std::string& names) {
  if (!diagnostic.why.empty()) diagnostic.why += "; ";
  diagnostic.why += names;
  return diagnostic;
}

}  // namespace

bool Array::is_given() const {
  return shape.empty() ? data != nullptr : shape != std::vector<std::int64_t>{0};
}

std::int64_t Array::count() const { return product(shape.data(), shape.data() + shape.size()); }

double time_directly(int device, const GemmAttributes& attributes, const GemmOperands& operands,
                     const GemmResults& results, int calls) {
  const bool is_single_rank = attributes.choice.type == Type::none;
  const std::shared_ptr<Group> group = is_single_rank ? nullptr : group_of(attributes.group);
  LocalRank& rank = is_single_rank ? single_rank_context(device) : group->rank_on(device);
  const run::OverlapCall call = make_call(attributes, operands, results);
  const auto object = rank.buffer(
      -1, buffer_request(attributes, effective_choice(attributes, operands), call, rank.size()));
  const auto begun = std::chrono::steady_clock::now();
  for (int k = 0; k < calls; ++k) object->multiply(call);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
  return took.count() / calls;
}

void multiply(int device, const GemmAttributes& attributes, const GemmOperands& operands,
              const GemmResults& results) {
  overlap::check_supported(attributes.choice);
  if (attributes.has_ragged_k) return grouped_weight_gradient(operands, results);
  if (attributes.choice.type == Type::none) {
    return multiply_on(single_rank_context(device), nullptr, attributes, operands, results);
  }
  const std::shared_ptr<Group> group = group_of(attributes.group);
  LocalRank& rank = group->rank_on(device);
  check_axis_index(operands.axis_index, rank, device);
  // Ranks are indices within a subgroup of the mesh; the user knows processes. Name both.
  try {
    multiply_on(rank, group.get(), attributes, operands, results);
  } catch (const comm::RankFailed& e) {
    throw comm::RankFailed(
        with_rank_names(e.diagnostic(), group->describe_ranks(device, {e.rank()})), e.rank());
  } catch (const comm::TimeoutError& e) {
    throw comm::TimeoutError(
        with_rank_names(e.diagnostic(), group->describe_ranks(device, e.missing())), e.missing(),
        e.culprit());
  }
}

}  // namespace shiplap::python::jax
