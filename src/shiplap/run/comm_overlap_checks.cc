#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "shiplap/base/error.h"
#include "shiplap/run/comm_overlap_internal.h"
#include "shiplap/run/gemm_dtype_internal.h"

namespace shiplap::run {
namespace {

using overlap::Choice;
using overlap::Method;
using overlap::Type;

// ---- requests

// Nothing if it is beyond 64 bits. Promises that neither is negative.
std::optional<std::int64_t> times(std::optional<std::int64_t> a, std::int64_t b) {
  if (!a || (b != 0 && *a > std::numeric_limits<std::int64_t>::max() / b)) return std::nullopt;
  return *a * b;
}

[[noreturn]] void refuse_shape(const BufferRequest& request, std::string what, std::string help) {
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
    refuse_shape(request, "a buffer needs at least one dimension of rows and one of columns",
                 "give the shape over all ranks, such as (rows, columns)");
  }
  const std::int64_t boundary = request.axis_boundary == -1 ? last : request.axis_boundary;
  if (boundary < 1 || boundary > last) {
    refuse_shape(request, fmt::format("an axis boundary of {}", boundary),
                 fmt::format("choose 1 to {}, or -1 for the last dimension", last));
  }
  std::optional<std::int64_t> rows = 1;
  std::optional<std::int64_t> columns = 1;
  for (std::int64_t k = 0; k <= last; ++k) {
    const std::int64_t size = shape[k];
    if (size < 1) {
      refuse_shape(request, fmt::format("dimension {} has the size {}", k, size),
                   "leave out the buffer of an empty matrix; nothing is communicated for it");
    }
    std::optional<std::int64_t>& side = k < boundary ? rows : columns;
    side = times(side, size);
  }
  const std::int64_t element = bytes_of(request.buffer_dtype);
  if (!rows || !columns || !times(times(rows, *columns), element)) {
    refuse_shape(request, "a buffer of more bytes than 64 bits can count",
                 "check the sizes of its dimensions");
  }
  return {*rows, *columns};
}

void demand_communication(const BufferRequest& request) {
  if (request.comm_type != Type::none) return;
  throw InputError(
      Diagnostic{.code = "D803",
                 .what = "Invalid collective type: a buffer without communication",
                 .why = "comm_type = none: the product alone needs no buffer",
                 .help = "choose all_gather, reduce_scatter or all_reduce, or multiply without"});
}

void demand_ranks(const BufferRequest& request, int ranks) {
  if (request.tp_size == 0 || request.tp_size == ranks) return;
  throw InputError(Diagnostic{
      .code = "D802",
      .what =
          fmt::format("tp_size = {}, and the communicator has {} ranks", request.tp_size, ranks),
      .help = fmt::format("give tp_size = {} or 0, or a registry on a communicator of {} ranks",
                          ranks, request.tp_size)});
}

// ---- calls

std::string in_words(const Matrix& matrix) {
  return fmt::format("{} x {} {}", matrix.rows, matrix.columns, name(matrix.type));
}

[[noreturn]] void refuse_call(const OverlapBuffer& buffer, std::string what, std::string help) {
  throw InputError(Diagnostic{.code = "D807",
                              .where = {.rank = buffer.rank},
                              .what = std::move(what),
                              .why = describe_with_id(buffer),
                              .help = std::move(help)});
}

void demand_given(const OverlapBuffer& buffer, std::string_view name, const Matrix& matrix) {
  // What has rows of no columns, or no rows of some, need not be anywhere.
  const bool is_empty = (matrix.rows == 0) != (matrix.columns == 0);
  if (matrix.data != nullptr || is_empty) return;
  refuse_call(buffer, fmt::format("`{}` is not given", name), "give its memory and its shape");
}

void demand_absent(const OverlapBuffer& buffer, std::string_view name, const Matrix& matrix,
                   std::string_view where) {
  if (matrix.data == nullptr) return;
  refuse_call(buffer, fmt::format("`{}` has no meaning here", name),
              fmt::format("leave it out; it is for {}", where));
}

bool is_given(const Matrix& matrix) { return matrix.data != nullptr; }

// The call as it is without anything transposed.
struct Factors {
  Shape x;
  Shape w;
};
Factors factors_of(const OverlapCall& call) {
  Factors sizes{{call.x.rows, call.x.columns}, {call.w.rows, call.w.columns}};
  if (call.x_is_transposed) std::swap(sizes.x.rows, sizes.x.columns);
  if (call.w_is_transposed) std::swap(sizes.w.rows, sizes.w.columns);
  return sizes;
}
Shape as_given(const Shape& shape, bool is_transposed) {
  return is_transposed ? Shape{shape.columns, shape.rows} : shape;
}

// A factor that may be FP8, whose inner size is its columns unless it is transposed.
void demand_x(const OverlapBuffer& buffer, const OverlapCall& call, const Shape& shape) {
  if (is_fp8(call.x.type) && call.x_is_transposed) {
    refuse_call(buffer, "`x` of FP8 is transposed", "give it by rows, with blocks along them");
  }
  demand_factor(buffer, "x", call.x, as_given(shape, call.x_is_transposed), Inner::columns);
}

std::int64_t groups_of(const OverlapCall& call) {
  return std::max<std::int64_t>(1, std::ssize(call.group_sizes));
}

// Depth x columns, for each group.
void demand_w(const OverlapBuffer& buffer, const OverlapCall& call, Shape shape) {
  shape = as_given(shape, call.w_is_transposed);
  shape.rows *= groups_of(call);
  const bool has_blocks =
      is_fp8(call.w.type) && buffer.request.scaling_mode == kernels::ScalingMode::mxfp8_1d_scaling;
  const std::int64_t depth = shape.rows / groups_of(call);
  if (has_blocks && !call.w_is_transposed && groups_of(call) > 1 &&
      depth % kernels::kMxBlock != 0) {
    refuse_call(buffer, fmt::format("`w` of groups with an inner size of {}, by rows", depth),
                "give w_is_transposed weights, or an inner size that 32 divides: blocks would "
                "reach into the next group");
  }
  if (has_blocks && groups_of(call) > 1 &&
      call.w.scale_inv.order == kernels::ScaleOrder::swizzled) {
    refuse_call(buffer, "swizzled scales of weights of groups", "give them in plain order");
  }
  demand_factor(buffer, "w", call.w, shape, call.w_is_transposed ? Inner::columns : Inner::rows);
}

// The columns of w, of one group.
std::int64_t columns_of(const OverlapCall& call) {
  return call.w_is_transposed ? call.w.rows / groups_of(call) : call.w.columns;
}

void demand_groups(const OverlapBuffer& buffer, const OverlapCall& call, std::int64_t rows) {
  if (call.group_sizes.empty()) return;
  const auto refuse = [&](std::string what) {
    throw InputError(
        Diagnostic{.code = "D814",
                   .where = {.rank = buffer.rank},
                   .what = std::move(what),
                   .why = describe_with_id(buffer),
                   .help = "give a number of rows for each group, 0 for one that has none"});
  };
  double all = 0;  // which no sum is too large for
  for (std::size_t k = 0; k < call.group_sizes.size(); ++k) {
    const std::int64_t size = call.group_sizes[k];
    if (size < 0) refuse(fmt::format("group_sizes[{}] is {}", k, size));
    all += static_cast<double>(size);
  }
  if (all != static_cast<double>(rows)) {
    refuse(fmt::format("group_sizes add up to {:.0f}, and `x` has {} rows", all, rows));
  }
  if (call.x_is_transposed || buffer.lasts()) {
    refuse_call(buffer, "`group_sizes` with rows that are transposed, or contents that last",
                "give x by rows, to a buffer whose contents last during_call");
  }
}

// What is cut over ranks, of all ranks, where this one has `own`.
std::int64_t of_all(const OverlapBuffer& buffer, const OverlapCall& call, std::string_view what,
                    std::int64_t own) {
  const auto even = times(own, buffer.ranks);
  const std::int64_t all = call.size_of_all != 0 ? call.size_of_all : even.value_or(-1);
  if (all >= 0 && share_of(all, buffer.rank, buffer.ranks) == own) return all;
  throw InputError(Diagnostic{
      .code = "D804",
      .where = {.rank = buffer.rank},
      .what = fmt::format("Buffer size is incorrect: of {} {}, rank {} of {} has {}, not {}", all,
                          what, buffer.rank, buffer.ranks,
                          all < 0 ? 0 : share_of(all, buffer.rank, buffer.ranks), own),
      .why = describe_with_id(buffer),
      .help = "cut as evenly as can be, the first ranks have one more; size_of_all is the sum"});
}

void demand_type(const OverlapBuffer& buffer, std::string_view name, const Matrix& matrix) {
  if (matrix.type == buffer.type() || matrix.type == DType::f32) return;
  throw InputError(Diagnostic{
      .code = "D804",
      .where = {.rank = buffer.rank},
      .what =
          fmt::format("Buffer size is incorrect: `{}` is of {}", name, shiplap::name(matrix.type)),
      .why = describe_with_id(buffer),
      .help = buffer.type() == DType::f32
                  ? "set its type to f32"
                  : fmt::format("set its type to f32 or {}", shiplap::name(buffer.type()))});
}

// What may come with a result of this shape.
void check_epilogue(const OverlapBuffer& buffer, const OverlapCall& call, const Shape& result) {
  const auto check = [&](std::string_view name, Matrix matrix, const Shape& shape) {
    if (!is_given(matrix)) return;
    demand_type(buffer, name, matrix);
    matrix.type = buffer.type();
    demand_shape(buffer, name, matrix, shape);
  };
  const bool makes_result =
      buffer.choice.type == Type::all_gather || buffer.choice.method == Method::bulk;
  if (is_given(call.bias) && !call.group_sizes.empty() && !makes_result) {
    refuse_call(buffer, "a bias for groups of a product that is summed",
                "add it to the result; rows of one group lie together there");
  }
  check("bias", call.bias, {groups_of(call), result.columns});
  check("before_activation", call.before_activation, result);
}

void check_result(const OverlapBuffer& buffer, const OverlapCall& call, const Shape& shape) {
  const bool stays = buffer.choice.type == Type::all_reduce && buffer.lasts();
  if (!is_given(call.result) && stays) {
    if (call.beta != 0) {
      refuse_call(buffer, "`beta` without a `result` to which to add", "give `result`");
    }
    return;
  }
  demand_given(buffer, "result", call.result);
  demand_shape(buffer, "result", call.result, shape);
}

// Rows that travel as FP8 may be given wide.
void demand_gathered(const OverlapBuffer& buffer, const OverlapCall& call, const Shape& own) {
  const bool is_coded = !is_plain(buffer.form());
  const DType travels = buffer.request.buffer_dtype;
  if (is_fp8(call.x.type) && call.x.type != travels) {
    throw InputError(
        Diagnostic{.code = "D804",
                   .where = {.rank = buffer.rank},
                   .what = fmt::format("Buffer size is incorrect: `x` is of {}, and {} travels",
                                       shiplap::name(call.x.type), shiplap::name(travels)),
                   .why = describe_with_id(buffer),
                   .help = is_coded ? "give x as the buffer has it, or wide"
                                    : "create a buffer of FP8 for rows of FP8"});
  }
  if (is_coded && !is_fp8(call.x.type) && call.x_is_transposed) {
    refuse_call(buffer, "`x` that becomes FP8 is transposed", "give it by rows");
  }
  const bool is_delayed =
      buffer.request.scaling_mode == kernels::ScalingMode::delayed_tensor_scaling;
  if (is_coded && !is_fp8(call.x.type) && is_delayed) {
    refuse_call(buffer, "`x` is wide, and its scale would be that of this step",
                "give codes and scale_inv by the scale of a kernels::AmaxHistory, or choose "
                "current_tensor_scaling");
  }
  demand_x(buffer, call, own);
}

overlap::Problem check_gathered(const OverlapBuffer& buffer, const OverlapCall& call) {
  const Shape own{buffer.own_rows(), buffer.columns};
  if (is_given(call.x) || !buffer.lasts()) {
    demand_given(buffer, "x", call.x);
    demand_gathered(buffer, call, own);
  }
  demand_groups(buffer, call, own.rows);
  demand_w(buffer, call, {buffer.columns, columns_of(call)});
  const Shape result{buffer.rows, columns_of(call)};
  check_result(buffer, call, result);
  check_epilogue(buffer, call, result);
  if (is_given(call.gathered)) {
    demand_shape(buffer, "gathered", call.gathered, {buffer.rows, buffer.columns});
  }
  return {.rows = buffer.rows,
          .columns = of_all(buffer, call, "columns of w", columns_of(call)),
          .depth = buffer.columns};
}

overlap::Problem check_summed(const OverlapBuffer& buffer, const OverlapCall& call) {
  const std::int64_t depth = factors_of(call).x.columns;
  demand_given(buffer, "x", call.x);
  demand_x(buffer, call, {buffer.rows, depth});
  demand_groups(buffer, call, buffer.rows);
  demand_w(buffer, call, {depth, buffer.columns});
  const bool scatters = buffer.choice.type == Type::reduce_scatter;
  const Shape result{scatters ? buffer.own_rows() : buffer.rows, buffer.columns};
  check_result(buffer, call, result);
  check_epilogue(buffer, call, result);
  return {.rows = buffer.rows,
          .columns = buffer.columns,
          .depth = of_all(buffer, call, "columns of x", depth)};
}

overlap::Problem check_bulk(const OverlapBuffer& buffer, const OverlapCall& call) {
  const Factors sizes = factors_of(call);
  demand_given(buffer, "x", call.x);
  demand_x(buffer, call, sizes.x);
  demand_groups(buffer, call, sizes.x.rows);
  demand_w(buffer, call, {sizes.x.columns, columns_of(call)});
  const Shape result{sizes.x.rows, columns_of(call)};
  check_result(buffer, call, result);
  check_epilogue(buffer, call, result);
  if (is_given(call.to_scatter) || !buffer.lasts()) {
    demand_given(buffer, "to_scatter", call.to_scatter);
    demand_shape(buffer, "to_scatter", call.to_scatter, {buffer.rows, buffer.columns});
  }
  demand_given(buffer, "scattered", call.scattered);
  demand_shape(buffer, "scattered", call.scattered, {buffer.own_rows(), buffer.columns});
  if (call.size_of_all != 0) {
    refuse_call(buffer, "`size_of_all` has no meaning here",
                "leave it out; a product beside a bulk transfer is not cut over ranks");
  }
  return {.rows = sizes.x.rows,
          .columns = columns_of(call),
          .depth = times(sizes.x.columns, buffer.ranks).value_or(-1),
          .bulk_rows = buffer.rows,
          .bulk_columns = buffer.columns};
}

// What is wrong may be the type alone, or which way it lies.
std::string help_for(std::string_view name, const Matrix& given, const Matrix& right) {
  const bool is_alike = given.rows == right.rows && given.columns == right.columns;
  if (is_alike) {
    return fmt::format("its shape is right: set the type of `{}` to {}", name,
                       shiplap::name(right.type));
  }
  if (name == "x" || name == "w") {
    return fmt::format(
        "give `{0}` in that shape; if it lies the other way round than {0}_is_transposed "
        "says, change that; or create a buffer for the shapes you have",
        name);
  }
  return fmt::format("give `{}` in that shape, or create a buffer for the shapes you have", name);
}

}  // namespace

std::int64_t share_of(std::int64_t count, int rank, int ranks) {
  return count / ranks + (rank < count % ranks ? 1 : 0);
}

std::int64_t OverlapBuffer::own_rows() const { return share_of(rows, rank, ranks); }
std::int64_t OverlapBuffer::own_begin() const {
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
  demand_communication(request);
  const Choice choice{request.comm_type, request.method, request.atomic_gemm};
  overlap::demand_legal(choice);
  demand_ranks(request, world.size());
  demand_scaling(request);
  if (!is_fp8(request.buffer_dtype)) static_cast<void>(gemm_dtype(request.buffer_dtype));
  const auto [rows, columns] = flat_shape(request);
  const bool gathers = choice.type == Type::all_gather;
  // What else can be wrong shows in any product of it.
  static_cast<void>(overlap::plan_text(choice, {.rows = rows,
                                                .columns = gathers ? world.size() : columns,
                                                .depth = gathers ? columns : world.size(),
                                                .ranks = world.size(),
                                                .chunks = request.chunks}));
  return {.request = request,
          .choice = choice,
          .rows = rows,
          .columns = columns,
          .rank = world.rank(),
          .ranks = world.size()};
}

void demand_shape(const OverlapBuffer& buffer, std::string_view name, const Matrix& matrix,
                  const Shape& shape, std::optional<DType> type) {
  const Matrix right{.rows = shape.rows,
                     .columns = shape.columns,
                     .type = type.value_or(buffer.type()),
                     .owner = nullptr};
  const bool is_right = matrix.rows == shape.rows && matrix.columns == shape.columns &&
                        matrix.rows >= 0 && matrix.columns >= 0 && matrix.type == right.type;
  if (is_right) return demand_given(buffer, name, matrix);
  throw InputError(Diagnostic{
      .code = "D804",
      .where = {.rank = buffer.rank},
      .what = fmt::format("Buffer size is incorrect: `{}` is {}, and should be {}", name,
                          in_words(matrix), in_words(right)),
      .why = fmt::format("{}; rank {} of {} has {} of its rows", describe_with_id(buffer),
                         buffer.rank, buffer.ranks, buffer.own_rows()),
      .help = help_for(name, matrix, right)});
}

overlap::Problem checked(const OverlapBuffer& buffer, const OverlapCall& call) {
  const bool is_bulk = buffer.choice.method == Method::bulk;
  if (buffer.choice.type != Type::all_gather) {
    demand_absent(buffer, "gathered", call.gathered, "all_gather");
  }
  if (!is_bulk) {
    demand_absent(buffer, "to_scatter", call.to_scatter, "bulk_overlap");
    demand_absent(buffer, "scattered", call.scattered, "bulk_overlap");
  }
  overlap::Problem problem = buffer.choice.type == Type::all_gather ? check_gathered(buffer, call)
                             : is_bulk                              ? check_bulk(buffer, call)
                                                                    : check_summed(buffer, call);
  problem.type = buffer.type();
  problem.groups = static_cast<int>(std::ssize(call.group_sizes));
  problem.w = form_of(call.w.type, buffer.request.scaling_mode);
  problem.x = form_of(call.x.type, buffer.request.scaling_mode);
  if (buffer.choice.type == Type::all_gather) {
    problem.x = buffer.form();
  } else {
    problem.sums = buffer.form();
  }
  demand_kernels(problem);
  problem.ranks = buffer.ranks;
  problem.chunks = buffer.request.chunks;
  problem.cut = buffer.request.cut;
  return problem;
}

}  // namespace shiplap::run
