// Checks of buffer requests and calls, and the layout of FP8 operands.
//
// All checks of a call run before anything is sent, on each rank for itself: a rank that throws
// here leaves the others waiting only for a call that it can still make correctly.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "shiplap/base/error.h"
#include "shiplap/run/comm_overlap_internal.h"
#include "shiplap/run/gemm_dtype_internal.h"

namespace shiplap::run {
namespace {

using kernels::MatrixShape;
using kernels::ScaleOrder;
using kernels::ScalingMode;
using overlap::Choice;
using overlap::Method;
using overlap::QuantFormat;
using overlap::Scaling;
using overlap::Type;

// ---- requests

// Returns the product, or nothing on overflow. REQUIRES: neither is negative.
std::optional<std::int64_t> times(std::optional<std::int64_t> a, std::int64_t b) {
  if (!a || (b != 0 && *a > std::numeric_limits<std::int64_t>::max() / b)) return std::nullopt;
  return *a * b;
}

[[noreturn]] void throw_bad_shape(const BufferRequest& request, std::string what,
                                  std::string help) {
  throw InputError(
      Diagnostic{.code = "D805",
                 .what = std::move(what),
                 .why = fmt::format("buffer_shape = ({}), axis_boundary = {}",
                                    fmt::join(request.buffer_shape, ", "), request.axis_boundary),
                 .help = std::move(help)});
}

Shape flat_shape(const BufferRequest& request) {
  const std::vector<std::int64_t>& shape = request.buffer_shape;
  const std::int64_t last = std::ssize(shape) - 1;
  if (last < 1) {
    throw_bad_shape(request, "a buffer needs at least one dimension of rows and one of columns",
                    "pass the global shape, such as (rows, columns)");
  }
  const std::int64_t boundary = request.axis_boundary == -1 ? last : request.axis_boundary;
  if (boundary < 1 || boundary > last) {
    throw_bad_shape(request, fmt::format("axis_boundary = {} is out of range", boundary),
                    fmt::format("choose 1 to {}, or -1 for the last dimension", last));
  }
  std::optional<std::int64_t> rows = 1;
  std::optional<std::int64_t> columns = 1;
  for (std::int64_t k = 0; k <= last; ++k) {
    const std::int64_t size = shape[k];
    if (size < 1) {
      throw_bad_shape(request, fmt::format("dimension {} has size {}", k, size),
                      "an empty matrix needs no buffer");
    }
    std::optional<std::int64_t>& side = k < boundary ? rows : columns;
    side = times(side, size);
  }
  const std::int64_t element = bytes_of(request.buffer_dtype);
  if (!rows || !columns || !times(times(rows, *columns), element)) {
    throw_bad_shape(request, "the size of the buffer in bytes overflows 64 bits",
                    "check the sizes of its dimensions");
  }
  return {*rows, *columns};
}

void check_comm_type(const BufferRequest& request) {
  if (request.comm_type != Type::none) return;
  throw InputError(
      Diagnostic{.code = "D803",
                 .what = "Invalid collective type: a buffer without communication",
                 .why = "comm_type = none: a GEMM without communication needs no buffer",
                 .help = "use all_gather, reduce_scatter or all_reduce, or no buffer"});
}

void check_tp_size(const BufferRequest& request, int ranks) {
  if (request.tp_size == 0 || request.tp_size == ranks) return;
  throw InputError(Diagnostic{
      .code = "D802",
      .what = fmt::format("tp_size mismatch: tp_size = {}, but the communicator has {} ranks",
                          request.tp_size, ranks),
      .help = fmt::format(
          "set tp_size to {} or 0, or create the registry on a communicator of {} ranks", ranks,
          request.tp_size)});
}

// ---- calls

std::string format_matrix(const Matrix& matrix) {
  return fmt::format("{} x {} {}", matrix.rows, matrix.columns, name(matrix.type));
}

[[noreturn]] void throw_bad_call(const OverlapBuffer& buffer, std::string what, std::string help) {
  throw InputError(Diagnostic{.code = "D807",
                              .where = {.rank = buffer.rank},
                              .what = std::move(what),
                              .why = describe_with_id(buffer),
                              .help = std::move(help)});
}

void check_given(const OverlapBuffer& buffer, std::string_view name, const Matrix& matrix) {
  // An empty matrix needs no memory.
  const bool is_empty = (matrix.rows == 0) != (matrix.columns == 0);
  if (matrix.data != nullptr || is_empty) return;
  throw_bad_call(buffer, fmt::format("`{}` is missing", name), "pass its data and shape");
}

void check_absent(const OverlapBuffer& buffer, std::string_view name, const Matrix& matrix,
                  std::string_view where) {
  if (matrix.data == nullptr) return;
  throw_bad_call(buffer, fmt::format("`{}` is unsupported here", name),
                 fmt::format("omit it; it is only for {}", where));
}

bool is_given(const Matrix& matrix) { return matrix.data != nullptr; }

// The shapes of the operands, not transposed: x is M x K, w is K x N.
struct OperandShapes {
  Shape x;
  Shape w;
};
OperandShapes operand_shapes(const OverlapCall& call) {
  OperandShapes sizes{{call.x.rows, call.x.columns}, {call.w.rows, call.w.columns}};
  if (call.x_is_transposed) std::swap(sizes.x.rows, sizes.x.columns);
  if (call.w_is_transposed) std::swap(sizes.w.rows, sizes.w.columns);
  return sizes;
}
Shape as_given(const Shape& shape, bool is_transposed) {
  return is_transposed ? Shape{shape.columns, shape.rows} : shape;
}

// Checks x, whose columns are K unless it is transposed.
void check_x(const OverlapBuffer& buffer, const OverlapCall& call, const Shape& shape) {
  if (is_fp8(call.x.type) && call.x_is_transposed) {
    throw_bad_call(buffer, "transposed FP8 `x` is unsupported",
                   "pass it row-major, with blocks along the rows");
  }
  check_operand(buffer, "x", call.x, as_given(shape, call.x_is_transposed), Inner::columns);
}

std::int64_t groups_of(const OverlapCall& call) {
  return std::max<std::int64_t>(1, std::ssize(call.group_sizes));
}

// Checks w: K x N for each group.
void check_w(const OverlapBuffer& buffer, const OverlapCall& call, Shape shape) {
  shape = as_given(shape, call.w_is_transposed);
  shape.rows *= groups_of(call);
  const bool has_blocks =
      is_fp8(call.w.type) && buffer.request.scaling_mode == kernels::ScalingMode::mxfp8_1d_scaling;
  const std::int64_t k = shape.rows / groups_of(call);
  if (has_blocks && !call.w_is_transposed && groups_of(call) > 1 && k % kernels::kMxBlock != 0) {
    throw_bad_call(
        buffer, fmt::format("row-major grouped `w` with K = {} is unsupported", k),
        "pass transposed weights (w_is_transposed), or a K that is a multiple of 32: blocks "
        "must not cross groups");
  }
  if (has_blocks && groups_of(call) > 1 &&
      call.w.scale_inv.order == kernels::ScaleOrder::swizzled) {
    throw_bad_call(buffer, "swizzled scales of grouped weights are unsupported",
                   "pass them in plain order");
  }
  check_operand(buffer, "w", call.w, shape, call.w_is_transposed ? Inner::columns : Inner::rows);
}

// Returns the local N.
std::int64_t columns_of_w(const OverlapCall& call) {
  return call.w_is_transposed ? call.w.rows / groups_of(call) : call.w.columns;
}

void check_groups(const OverlapBuffer& buffer, const OverlapCall& call, std::int64_t rows) {
  if (call.group_sizes.empty()) return;
  const auto throw_bad_groups = [&](std::string what) {
    throw InputError(
        Diagnostic{.code = "D814",
                   .where = {.rank = buffer.rank},
                   .what = std::move(what),
                   .why = describe_with_id(buffer),
                   .help = "pass the number of rows of each group, 0 for an empty group"});
  };
  double all = 0;  // cannot overflow
  for (std::size_t k = 0; k < call.group_sizes.size(); ++k) {
    const std::int64_t size = call.group_sizes[k];
    if (size < 0) throw_bad_groups(fmt::format("group_sizes[{}] is negative: {}", k, size));
    all += static_cast<double>(size);
  }
  if (all != static_cast<double>(rows)) {
    throw_bad_groups(
        fmt::format("group_sizes mismatch: they sum to {:.0f}, but `x` has {} rows", all, rows));
  }
  if (call.x_is_transposed || buffer.is_persistent()) {
    throw_bad_call(buffer,
                   "`group_sizes` with transposed rows or a persistent buffer is unsupported",
                   "pass x row-major, to a buffer with lifetime = per_call");
  }
}

// Returns the global size of the split dimension, of which this rank has `local`. Throws D804 if
// that is not its share.
std::int64_t global_size_of(const OverlapBuffer& buffer, const OverlapCall& call,
                            std::string_view what, std::int64_t local) {
  const auto even = times(local, buffer.ranks);
  const std::int64_t all = call.global_size != 0 ? call.global_size : even.value_or(-1);
  if (all >= 0 && local_share(all, buffer.rank, buffer.ranks) == local) return all;
  throw InputError(Diagnostic{
      .code = "D804",
      .where = {.rank = buffer.rank},
      .what = fmt::format("Buffer size is incorrect: of {} {}, rank {} of {} has {}, not {}", all,
                          what, buffer.rank, buffer.ranks,
                          all < 0 ? 0 : local_share(all, buffer.rank, buffer.ranks), local),
      .why = describe_with_id(buffer),
      .help = "split evenly, remainders go to the lowest ranks; global_size is "
              "the total"});
}

void check_dtype(const OverlapBuffer& buffer, std::string_view name, const Matrix& matrix) {
  if (matrix.type == buffer.type() || matrix.type == DType::f32) return;
  throw InputError(
      Diagnostic{.code = "D804",
                 .where = {.rank = buffer.rank},
                 .what = fmt::format("Buffer size is incorrect: `{}` has dtype {}", name,
                                     shiplap::name(matrix.type)),
                 .why = describe_with_id(buffer),
                 .help = buffer.type() == DType::f32
                             ? "use f32"
                             : fmt::format("use f32 or {}", shiplap::name(buffer.type()))});
}

// Checks the bias and the pre-activation output of a result of this shape.
void check_epilogue(const OverlapBuffer& buffer, const OverlapCall& call, const Shape& result) {
  const auto check = [&](std::string_view name, Matrix matrix, const Shape& shape) {
    if (!is_given(matrix)) return;
    check_dtype(buffer, name, matrix);
    matrix.type = buffer.type();
    check_shape(buffer, name, matrix, shape);
  };
  const bool makes_result =
      buffer.choice.type == Type::all_gather || buffer.choice.method == Method::bulk;
  if (is_given(call.bias) && !call.group_sizes.empty() && !makes_result) {
    throw_bad_call(buffer, "a bias with groups is unsupported for reduce_scatter and all_reduce",
                   "add it to the result; the rows of a group are contiguous there");
  }
  check("bias", call.bias, {groups_of(call), result.columns});
  check("pre_activation", call.pre_activation, result);
}

void check_result(const OverlapBuffer& buffer, const OverlapCall& call, const Shape& shape) {
  const bool stays = buffer.choice.type == Type::all_reduce && buffer.is_persistent();
  if (!is_given(call.result) && stays) {
    if (call.beta != 0) {
      throw_bad_call(buffer, "`beta` without `result`: nothing to accumulate into",
                     "pass `result`");
    }
    return;
  }
  check_given(buffer, "result", call.result);
  check_shape(buffer, "result", call.result, shape);
}

// Checks x of an all_gather. Rows that are sent as FP8 may be passed in high precision.
void check_gather_input(const OverlapBuffer& buffer, const OverlapCall& call, const Shape& local) {
  const bool is_quantized = !is_high_precision(buffer.quant_format());
  const DType travels = buffer.request.buffer_dtype;
  if (is_fp8(call.x.type) && call.x.type != travels) {
    throw InputError(Diagnostic{
        .code = "D804",
        .where = {.rank = buffer.rank},
        .what = fmt::format("Buffer size is incorrect: `x` has dtype {}, but the buffer has {}",
                            shiplap::name(call.x.type), shiplap::name(travels)),
        .why = describe_with_id(buffer),
        .help = is_quantized ? "pass x in the dtype of the buffer, or in high precision"
                             : "create an FP8 buffer for FP8 rows"});
  }
  if (is_quantized && !is_fp8(call.x.type) && call.x_is_transposed) {
    throw_bad_call(buffer, "transposed `x` cannot be quantized to FP8", "pass it row-major");
  }
  const bool is_delayed =
      buffer.request.scaling_mode == kernels::ScalingMode::delayed_tensor_scaling;
  if (is_quantized && !is_fp8(call.x.type) && is_delayed) {
    throw_bad_call(
        buffer, "`x` is in high precision, but delayed scaling needs a scale from earlier steps",
        "quantize it with the scale of a kernels::AmaxHistory and pass scale_inv, or use "
        "current_tensor_scaling");
  }
  check_x(buffer, call, local);
}

overlap::Problem check_gathered(const OverlapBuffer& buffer, const OverlapCall& call) {
  const Shape local{buffer.local_rows(), buffer.columns};
  if (is_given(call.x) || !buffer.is_persistent()) {
    check_given(buffer, "x", call.x);
    check_gather_input(buffer, call, local);
  }
  check_groups(buffer, call, local.rows);
  check_w(buffer, call, {buffer.columns, columns_of_w(call)});
  const Shape result{buffer.rows, columns_of_w(call)};
  check_result(buffer, call, result);
  check_epilogue(buffer, call, result);
  if (is_given(call.gathered)) {
    check_shape(buffer, "gathered", call.gathered, {buffer.rows, buffer.columns});
  }
  return {.m = buffer.rows,
          .n = global_size_of(buffer, call, "columns of w", columns_of_w(call)),
          .k = buffer.columns};
}

overlap::Problem check_summed(const OverlapBuffer& buffer, const OverlapCall& call) {
  const std::int64_t k = operand_shapes(call).x.columns;
  check_given(buffer, "x", call.x);
  check_x(buffer, call, {buffer.rows, k});
  check_groups(buffer, call, buffer.rows);
  check_w(buffer, call, {k, buffer.columns});
  const bool scatters = buffer.choice.type == Type::reduce_scatter;
  const Shape result{scatters ? buffer.local_rows() : buffer.rows, buffer.columns};
  check_result(buffer, call, result);
  check_epilogue(buffer, call, result);
  return {
      .m = buffer.rows, .n = buffer.columns, .k = global_size_of(buffer, call, "columns of x", k)};
}

overlap::Problem check_bulk(const OverlapBuffer& buffer, const OverlapCall& call) {
  const OperandShapes sizes = operand_shapes(call);
  check_given(buffer, "x", call.x);
  check_x(buffer, call, sizes.x);
  check_groups(buffer, call, sizes.x.rows);
  check_w(buffer, call, {sizes.x.columns, columns_of_w(call)});
  const Shape result{sizes.x.rows, columns_of_w(call)};
  check_result(buffer, call, result);
  check_epilogue(buffer, call, result);
  if (is_given(call.to_scatter) || !buffer.is_persistent()) {
    check_given(buffer, "to_scatter", call.to_scatter);
    check_shape(buffer, "to_scatter", call.to_scatter, {buffer.rows, buffer.columns});
  }
  check_given(buffer, "scattered", call.scattered);
  check_shape(buffer, "scattered", call.scattered, {buffer.local_rows(), buffer.columns});
  if (call.global_size != 0) {
    throw_bad_call(buffer, "`global_size` is unsupported here",
                   "omit it; the GEMM of a bulk overlap is not split over ranks");
  }
  return {.m = sizes.x.rows,
          .n = columns_of_w(call),
          .k = times(sizes.x.columns, buffer.ranks).value_or(-1),
          .bulk_rows = buffer.rows,
          .bulk_columns = buffer.columns};
}

// The mismatch may be the dtype only, or a missing transposition.
std::string help_for(std::string_view name, const Matrix& given, const Matrix& right) {
  const bool is_alike = given.rows == right.rows && given.columns == right.columns;
  if (is_alike) {
    return fmt::format("the shape matches: set the dtype of `{}` to {}", name,
                       shiplap::name(right.type));
  }
  if (name == "x" || name == "w") {
    return fmt::format(
        "pass `{0}` in that shape, or set {0}_is_transposed if it is transposed, or create a "
        "buffer for your shapes",
        name);
  }
  return fmt::format("pass `{}` in that shape, or create a buffer for your shapes", name);
}

// ---- FP8

[[noreturn]] void throw_bad_scaling(std::string what, std::string help) {
  throw InputError(Diagnostic{.code = "D813", .what = std::move(what), .help = std::move(help)});
}

constexpr const char* kScalingModeHelp =
    "use current_tensor_scaling, delayed_tensor_scaling or mxfp8_1d_scaling";

std::string format_shape(const MatrixShape& shape) {
  return fmt::format("{} x {}", shape.rows, shape.columns);
}

// Returns the shape of the scales of an MXFP8 matrix with blocks along K.
MatrixShape scale_shape(const Shape& matrix, Inner inner, ScaleOrder order) {
  if (inner == Inner::columns) return kernels::mx_scale_shape(matrix.rows, matrix.columns, order);
  const MatrixShape transposed_shape = kernels::mx_scale_shape(matrix.columns, matrix.rows, order);
  return {transposed_shape.columns, transposed_shape.rows};
}

void check_scales(const OverlapBuffer& buffer, std::string_view name, const Matrix& matrix,
                  Inner inner) {
  const ScaleInverse& given = matrix.scale_inv;
  if (matrix.rows == 0 || matrix.columns == 0) return;  // nothing to scale
  if (given.data == nullptr) {
    throw InputError(Diagnostic{
        .code = "D811",
        .where = {.rank = buffer.rank},
        .what = fmt::format("Missing inverse scaling factor: `{}` is {} and has no scale_inv", name,
                            shiplap::name(matrix.type)),
        .why = describe_with_id(buffer),
        .help = fmt::format(
            "pass the inverse scale of its quantized values: kernels::{}() writes both",
            buffer.request.scaling_mode == ScalingMode::mxfp8_1d_scaling ? "quantize_blocks"
                                                                         : "quantize")});
  }
  const bool has_blocks = buffer.request.scaling_mode == ScalingMode::mxfp8_1d_scaling;
  const Shape shape{matrix.rows, matrix.columns};
  const MatrixShape right = has_blocks ? scale_shape(shape, inner, given.order) : MatrixShape{1, 1};
  const bool can_be_swizzled = has_blocks && inner == Inner::columns;
  const bool is_right = given.rows == right.rows && given.columns == right.columns;
  if (is_right && (given.order == ScaleOrder::plain || can_be_swizzled)) return;
  throw InputError(Diagnostic{
      .code = "D812",
      .where = {.rank = buffer.rank},
      .what =
          fmt::format("the scales of `{}` are {}{}, and should be {}", name,
                      format_shape(MatrixShape{given.rows, given.columns}),
                      given.order == ScaleOrder::swizzled ? " swizzled" : "", format_shape(right)),
      .why = fmt::format("{} with {}: `{}` is {} x {}", describe_with_id(buffer),
                         kernels::name(buffer.request.scaling_mode), name, matrix.rows,
                         matrix.columns),
      .help = has_blocks ? "one byte per 32 values along K; swizzled: in tiles of 128 x 4 "
                           "(kernels::mx_scale_shape)"
                         : "a tensor has one scale; for MXFP8 use mxfp8_1d_scaling"});
}

// Returns the scales of an MXFP8 matrix with blocks along its rows, in plain order.
std::vector<std::byte> plain_scales(const Matrix& matrix) {
  const MatrixShape plain = kernels::mx_scale_shape(matrix.rows, matrix.columns, ScaleOrder::plain);
  const MatrixShape there =
      kernels::mx_scale_shape(matrix.rows, matrix.columns, matrix.scale_inv.order);
  const std::span given(static_cast<const std::byte*>(matrix.scale_inv.data),
                        static_cast<std::size_t>(there.count()));
  if (matrix.scale_inv.order == ScaleOrder::plain) return {given.begin(), given.end()};
  std::vector<std::byte> scales(plain.count());
  kernels::unswizzle(plain, given, scales);
  return scales;
}

void write_quantized(const Matrix& matrix, const QuantFormat& format, std::byte* to,
                     std::int64_t row_bytes) {
  const auto* const quantized = static_cast<const std::byte*>(matrix.data);
  const auto columns = static_cast<std::size_t>(matrix.columns);
  std::vector<std::byte> scales;
  if (format.scaling == Scaling::blocks) scales = plain_scales(matrix);
  const std::size_t scale_bytes = format.scaling == Scaling::blocks
                                      ? static_cast<std::size_t>(kernels::scale_bytes(
                                            kernels::ScaleGranularity::per_block, matrix.columns))
                                      : sizeof(float);
  for (std::int64_t i = 0; i < matrix.rows; ++i) {
    std::byte* const row = to + i * row_bytes;
    std::memcpy(row, quantized + i * matrix.columns, columns);
    const void* const row_scales = format.scaling == Scaling::blocks
                                       ? scales.data() + static_cast<std::size_t>(i) * scale_bytes
                                       : matrix.scale_inv.data;
    std::memcpy(row + columns, row_scales, scale_bytes);
  }
}

void write_groups(std::span<const std::int64_t> sizes, std::byte* to, std::int64_t row_bytes) {
  std::int32_t group = 0;
  for (const std::int64_t rows : sizes) {
    for (std::int64_t i = 0; i < rows; ++i) {
      to += row_bytes;
      std::memcpy(to - overlap::kGroupBytes, &group, overlap::kGroupBytes);
    }
    ++group;
  }
}

}  // namespace

std::int64_t local_share(std::int64_t count, int rank, int ranks) {
  return count / ranks + (rank < count % ranks ? 1 : 0);
}

std::int64_t OverlapBuffer::local_rows() const { return local_share(rows, rank, ranks); }
std::int64_t OverlapBuffer::local_begin() const {
  return rank * (rows / ranks) + std::min<std::int64_t>(rank, rows % ranks);
}

std::string describe(const OverlapBuffer& buffer) {
  return fmt::format("{}: {} x {} {}", to_string(buffer.choice), buffer.rows, buffer.columns,
                     shiplap::name(buffer.request.buffer_dtype));
}

std::string describe_with_id(const OverlapBuffer& buffer) {
  const std::string& name = buffer.request.name;
  return fmt::format("buffer {}{} ({})", buffer.id, name.empty() ? "" : " `" + name + "`",
                     describe(buffer));
}

OverlapBuffer checked(const BufferRequest& request, const comm::Communicator& world) {
  check_comm_type(request);
  const Choice choice{request.comm_type, request.method, request.atomic_gemm};
  overlap::check_supported(choice);
  check_tp_size(request, world.size());
  check_scaling(request);
  if (!is_fp8(request.buffer_dtype)) static_cast<void>(gemm_dtype(request.buffer_dtype));
  const auto [rows, columns] = flat_shape(request);
  const bool gathers = choice.type == Type::all_gather;
  // Other errors show when a plan for any GEMM with this buffer is built.
  static_cast<void>(overlap::plan_text(choice, {.m = rows,
                                                .n = gathers ? world.size() : columns,
                                                .k = gathers ? columns : world.size(),
                                                .ranks = world.size(),
                                                .chunks = request.chunks}));
  return {.request = request,
          .choice = choice,
          .rows = rows,
          .columns = columns,
          .rank = world.rank(),
          .ranks = world.size()};
}

void check_shape(const OverlapBuffer& buffer, std::string_view name, const Matrix& matrix,
                 const Shape& shape, std::optional<DType> type) {
  const Matrix right{.rows = shape.rows,
                     .columns = shape.columns,
                     .type = type.value_or(buffer.type()),
                     .owner = nullptr};
  const bool is_right = matrix.rows == shape.rows && matrix.columns == shape.columns &&
                        matrix.rows >= 0 && matrix.columns >= 0 && matrix.type == right.type;
  if (is_right) return check_given(buffer, name, matrix);
  throw InputError(Diagnostic{
      .code = "D804",
      .where = {.rank = buffer.rank},
      .what = fmt::format("Buffer size is incorrect: `{}` is {}, and should be {}", name,
                          format_matrix(matrix), format_matrix(right)),
      .why = fmt::format("{}; rank {} of {} has {} of its rows", describe_with_id(buffer),
                         buffer.rank, buffer.ranks, buffer.local_rows()),
      .help = help_for(name, matrix, right)});
}

overlap::Problem checked(const OverlapBuffer& buffer, const OverlapCall& call) {
  const bool is_bulk = buffer.choice.method == Method::bulk;
  if (buffer.choice.type != Type::all_gather) {
    check_absent(buffer, "gathered", call.gathered, "all_gather");
  }
  if (!is_bulk) {
    check_absent(buffer, "to_scatter", call.to_scatter, "bulk_overlap");
    check_absent(buffer, "scattered", call.scattered, "bulk_overlap");
  }
  overlap::Problem problem = buffer.choice.type == Type::all_gather ? check_gathered(buffer, call)
                             : is_bulk                              ? check_bulk(buffer, call)
                                                                    : check_summed(buffer, call);
  problem.type = buffer.type();
  problem.groups = static_cast<int>(std::ssize(call.group_sizes));
  problem.w = quant_format_of(call.w.type, buffer.request.scaling_mode);
  problem.x = quant_format_of(call.x.type, buffer.request.scaling_mode);
  if (buffer.choice.type == Type::all_gather) {
    problem.x = buffer.quant_format();
  } else {
    problem.sums = buffer.quant_format();
  }
  check_gemm_supported(problem);
  problem.ranks = buffer.ranks;
  problem.chunks = buffer.request.chunks;
  problem.cut = buffer.request.cut;
  return problem;
}

// ---- FP8

QuantFormat quant_format_of(DType type, ScalingMode mode) {
  if (!is_fp8(type)) return {};
  return {.scaling = mode == ScalingMode::mxfp8_1d_scaling ? Scaling::blocks : Scaling::row,
          .type = type};
}

overlap::QuantFormat OverlapBuffer::quant_format() const {
  return quant_format_of(request.buffer_dtype, request.scaling_mode);
}

DType OverlapBuffer::type() const {
  return is_fp8(request.buffer_dtype) ? request.result_dtype : request.buffer_dtype;
}

void check_scaling(const BufferRequest& request) {
  if (!is_fp8(request.buffer_dtype)) return;
  if (request.scaling_mode == ScalingMode::no_scaling) {
    throw_bad_scaling(fmt::format("no_scaling is unsupported for a buffer of {}",
                                  shiplap::name(request.buffer_dtype)),
                      kScalingModeHelp);
  }
  if (request.lifetime == BufferLifetime::persistent) {
    throw_bad_scaling("a persistent FP8 buffer is unsupported",
                      "use lifetime = per_call; rows are stored together with their scales");
  }
  static_cast<void>(gemm_dtype(request.result_dtype));
  if (request.result_dtype == DType::f16) {
    throw_bad_scaling("f16 results are unsupported for an FP8 buffer",
                      "use bf16 or f32 as result_dtype");
  }
}

void check_operand(const OverlapBuffer& buffer, std::string_view name, const Matrix& matrix,
                   const Shape& shape, Inner inner) {
  if (!is_fp8(matrix.type)) {
    if (matrix.scale_inv.data == nullptr) return check_shape(buffer, name, matrix, shape);
    throw InputError(Diagnostic{
        .code = "D807",
        .where = {.rank = buffer.rank},
        .what = fmt::format("`{}` has dtype {} and a scale_inv", name, shiplap::name(matrix.type)),
        .why = describe_with_id(buffer),
        .help = "omit it; only FP8 has scales"});
  }
  if (buffer.request.scaling_mode == ScalingMode::no_scaling) {
    throw InputError(
        Diagnostic{.code = "D813",
                   .where = {.rank = buffer.rank},
                   .what = fmt::format("`{}` has dtype {}, but its buffer has no_scaling", name,
                                       shiplap::name(matrix.type)),
                   .why = describe_with_id(buffer),
                   .help = std::string("create it with a scaling mode: ") + kScalingModeHelp});
  }
  check_shape(buffer, name, matrix, shape, matrix.type);
  check_scales(buffer, name, matrix, inner);
}

void write_rows(const Matrix& matrix, const QuantFormat& format,
                std::span<const std::int64_t> group_sizes, std::span<std::byte> to) {
  if (matrix.rows == 0 || to.data() == matrix.data) return;
  const std::int64_t row_bytes = std::ssize(to) / matrix.rows;
  if (is_fp8(matrix.type)) {
    write_quantized(matrix, format, to.data(), row_bytes);
  } else if (!is_high_precision(format)) {
    quantize_rows({.data = matrix.data,
                   .type = gemm_dtype(matrix.type),
                   .rows = matrix.rows,
                   .columns = matrix.columns},
                  format, to.data(), row_bytes, ScaleScope::per_row);
  } else {
    const auto bytes = static_cast<std::size_t>(matrix.columns * bytes_of(matrix.type));
    const auto* const from = static_cast<const std::byte*>(matrix.data);
    for (std::int64_t i = 0; i < matrix.rows; ++i) {
      std::memcpy(to.data() + i * row_bytes, from + static_cast<std::size_t>(i) * bytes, bytes);
    }
  }
  write_groups(group_sizes, to.data(), row_bytes);
}

std::vector<kernels::MatrixView> weights_of(const OverlapBuffer& buffer, const OverlapCall& call,
                                            std::vector<std::byte>& scales) {
  const Matrix& w = call.w;
  const auto groups = std::max<std::int64_t>(1, std::ssize(call.group_sizes));
  kernels::MatrixView all{
      .data = w.data, .type = w.type, .rows = w.rows / groups, .columns = w.columns};
  std::int64_t scales_of_group = 0;  // in bytes
  if (is_fp8(w.type)) {
    const bool is_swizzled = w.scale_inv.order == ScaleOrder::swizzled;
    if (is_swizzled) scales = plain_scales(w);
    all.scales = is_swizzled ? scales.data() : static_cast<std::byte*>(w.scale_inv.data);
    if (quant_format_of(w.type, buffer.request.scaling_mode).scaling == Scaling::blocks) {
      all.scaling = kernels::ScaleGranularity::per_block;
      scales_of_group = w.scale_inv.rows / groups * w.scale_inv.columns;
    }
  }
  std::vector<kernels::MatrixView> weights;
  for (std::int64_t group = 0; group < groups; ++group) {
    kernels::MatrixView one = all;
    one.data = static_cast<std::byte*>(w.data) + group * bytes_of(w) / groups;
    one.scales += group * scales_of_group;
    weights.push_back(call.w_is_transposed ? transposed(one) : one);
  }
  return weights;
}

}  // namespace shiplap::run
