// FP8 matrices of callers: what they must bring, and how they lie in the rows of a plan.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "shiplap/base/error.h"
#include "shiplap/run/comm_overlap_internal.h"
#include "shiplap/run/gemm_dtype_internal.h"

namespace shiplap::run {
namespace {

using kernels::MatrixShape;
using kernels::ScaleOrder;
using kernels::ScalingMode;
using overlap::Form;
using overlap::Scaling;

[[noreturn]] void refuse_request(std::string what, std::string help) {
  throw InputError(Diagnostic{.code = "D813", .what = std::move(what), .help = std::move(help)});
}

constexpr const char* kModes =
    "choose current_tensor_scaling, delayed_tensor_scaling or mxfp8_1d_scaling";

std::string in_words(const MatrixShape& shape) {
  return fmt::format("{} x {}", shape.rows, shape.columns);
}

// The scales of an MXFP8 matrix whose blocks go along the inner size.
MatrixShape scale_shape(const Shape& matrix, Inner inner, ScaleOrder order) {
  if (inner == Inner::columns) return kernels::mx_scale_shape(matrix.rows, matrix.columns, order);
  const MatrixShape turned = kernels::mx_scale_shape(matrix.columns, matrix.rows, order);
  return {turned.columns, turned.rows};
}

void demand_scales(const OverlapBuffer& buffer, std::string_view name, const Matrix& matrix,
                   Inner inner) {
  const ScaleInverse& given = matrix.scale_inv;
  if (matrix.rows == 0 || matrix.columns == 0) return;  // nor is there anything to scale
  if (given.data == nullptr) {
    throw InputError(Diagnostic{
        .code = "D811",
        .where = {.rank = buffer.rank},
        .what = fmt::format("Missing inverse scaling factor: `{}` is {} and has no scale_inv", name,
                            shiplap::name(matrix.type)),
        .why = describe_with_id(buffer),
        .help = fmt::format(
            "give what its codes are to be multiplied by: kernels::{}() writes both",
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
      .what = fmt::format("the scales of `{}` are {}{}, and should be {}", name,
                          in_words(MatrixShape{given.rows, given.columns}),
                          given.order == ScaleOrder::swizzled ? " swizzled" : "", in_words(right)),
      .why = fmt::format("{} with {}: `{}` is {} x {}", describe_with_id(buffer),
                         kernels::name(buffer.request.scaling_mode), name, matrix.rows,
                         matrix.columns),
      .help =
          has_blocks
              ? "a byte for every 32 numbers along the inner size; swizzled, of rows in tiles of "
                "128 x 4 (kernels::mx_scale_shape)"
              : "a tensor has one scale; MXFP8 has a scaling mode of its own"});
}

// The scales of an MXFP8 matrix whose blocks lie in its rows, in plain order.
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

void write_codes(const Matrix& matrix, const Form& form, std::byte* to, std::int64_t row_bytes) {
  const auto* const codes = static_cast<const std::byte*>(matrix.data);
  const auto columns = static_cast<std::size_t>(matrix.columns);
  std::vector<std::byte> scales;
  if (form.scaling == Scaling::blocks) scales = plain_scales(matrix);
  const std::size_t blocks =
      form.scaling == Scaling::blocks
          ? static_cast<std::size_t>(kernels::scale_bytes(kernels::Scales::blocks, matrix.columns))
          : sizeof(float);
  for (std::int64_t i = 0; i < matrix.rows; ++i) {
    std::byte* const row = to + i * row_bytes;
    std::memcpy(row, codes + i * matrix.columns, columns);
    const void* const own = form.scaling == Scaling::blocks
                                ? scales.data() + static_cast<std::size_t>(i) * blocks
                                : matrix.scale_inv.data;
    std::memcpy(row + columns, own, blocks);
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

Form form_of(DType type, ScalingMode mode) {
  if (!is_fp8(type)) return {};
  return {.scaling = mode == ScalingMode::mxfp8_1d_scaling ? Scaling::blocks : Scaling::row,
          .type = type};
}

overlap::Form OverlapBuffer::form() const {
  return form_of(request.buffer_dtype, request.scaling_mode);
}

DType OverlapBuffer::type() const {
  return is_fp8(request.buffer_dtype) ? request.result_dtype : request.buffer_dtype;
}

void demand_scaling(const BufferRequest& request) {
  if (!is_fp8(request.buffer_dtype)) return;
  if (request.scaling_mode == ScalingMode::no_scaling) {
    refuse_request(
        fmt::format("a buffer of {} with no_scaling", shiplap::name(request.buffer_dtype)), kModes);
  }
  if (request.contents == Contents::between_calls) {
    refuse_request("a buffer of FP8 whose contents last",
                   "let contents last during_call; rows and scales lie together there");
  }
  static_cast<void>(gemm_dtype(request.result_dtype));
  if (request.result_dtype == DType::f16) {
    refuse_request("a buffer of FP8 with results of f16", "choose bf16 or f32 as result_dtype");
  }
}

void demand_factor(const OverlapBuffer& buffer, std::string_view name, const Matrix& matrix,
                   const Shape& shape, Inner inner) {
  if (!is_fp8(matrix.type)) {
    if (matrix.scale_inv.data == nullptr) return demand_shape(buffer, name, matrix, shape);
    throw InputError(Diagnostic{
        .code = "D807",
        .where = {.rank = buffer.rank},
        .what = fmt::format("`{}` is of {} and has a scale_inv", name, shiplap::name(matrix.type)),
        .why = describe_with_id(buffer),
        .help = "leave it out; numbers other than FP8 are what they are"});
  }
  if (buffer.request.scaling_mode == ScalingMode::no_scaling) {
    throw InputError(Diagnostic{.code = "D813",
                                .where = {.rank = buffer.rank},
                                .what = fmt::format("`{}` is of {}, and its buffer has no_scaling",
                                                    name, shiplap::name(matrix.type)),
                                .why = describe_with_id(buffer),
                                .help = std::string("create it with a scaling mode: ") + kModes});
  }
  demand_shape(buffer, name, matrix, shape, matrix.type);
  demand_scales(buffer, name, matrix, inner);
}

void write_rows(const Matrix& matrix, const Form& form, std::span<const std::int64_t> group_sizes,
                std::span<std::byte> to) {
  if (matrix.rows == 0 || to.data() == matrix.data) return;
  const std::int64_t row_bytes = std::ssize(to) / matrix.rows;
  if (is_fp8(matrix.type)) {
    write_codes(matrix, form, to.data(), row_bytes);
  } else if (!is_plain(form)) {
    encode({.data = matrix.data,
            .type = gemm_dtype(matrix.type),
            .rows = matrix.rows,
            .columns = matrix.columns},
           form, to.data(), row_bytes, ScaleOf::each_row);
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
    if (form_of(w.type, buffer.request.scaling_mode).scaling == Scaling::blocks) {
      all.scaling = kernels::Scales::blocks;
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
