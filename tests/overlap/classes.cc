#include "classes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "shiplap/base/error.h"
#include "shiplap/kernels/quantize.h"

namespace shiplap::tests {

using overlap::Choice;
using overlap::Method;
using overlap::Type;
using run::CommOverlapCore;
using run::Matrix;
using run::OverlapCall;

namespace {

constexpr std::int64_t kBulkRows = 7;
constexpr std::int64_t kBulkColumns = 3;

using Function = run::StepResult (CommOverlapCore::*)(const OverlapCall&);

const std::map<std::string, Function>& functions() {
  static const std::map<std::string, Function> all{
      {"bulk_overlap", &CommOverlapCore::bulk_overlap},
      {"split_overlap_ag", &CommOverlapCore::split_overlap_ag},
      {"split_overlap_rs", &CommOverlapCore::split_overlap_rs},
      {"split_overlap_ar", &CommOverlapCore::split_overlap_ar},
      {"atomic_gemm_overlap_ag", &CommOverlapCore::atomic_gemm_overlap_ag},
      {"atomic_gemm_overlap_rs", &CommOverlapCore::atomic_gemm_overlap_rs},
      {"atomic_gemm_overlap_ar", &CommOverlapCore::atomic_gemm_overlap_ar}};
  return all;
}

// A sum of ones over ranks equals the number of ranks.
std::string find_scatter_mismatch(const RankData& local, int ranks) {
  for (std::int64_t k = 0; k < local.scattered.rows * local.scattered.columns; ++k) {
    const double found = get(*local.scattered.bytes, local.scattered.type, k);
    if (found != ranks) return fmt::format("scattered: {} where {} is right", found, ranks);
  }
  return "";
}

// Equivalent calls: row-major, transposed, with a result that has an owner, with cached weights.
std::vector<OverlapCall> call_variants(const OverlapCall& call, const RankData& local,
                                       const OwnedMatrix& x_transposed,
                                       const OwnedMatrix& w_transposed) {
  OverlapCall other = call;
  other.x = x_transposed.matrix();
  other.x_is_transposed = true;
  other.w = w_transposed.matrix();
  other.w_is_transposed = false;
  OverlapCall direct = call;
  direct.result = local.result.owned();
  direct.scattered = local.scattered.owned();
  OverlapCall again = direct;
  direct.weights_version = again.weights_version = 5;
  return {call, other, direct, again};
}

}  // namespace

Matrix OwnedMatrix::matrix() const {
  return {.data = bytes == nullptr || bytes->empty() ? nullptr : bytes->data(),
          .rows = rows,
          .columns = columns,
          .type = type};
}

Matrix OwnedMatrix::owned() const {
  Matrix made = matrix();
  made.owner = bytes;
  return made;
}

OwnedMatrix owned_matrix(std::vector<std::byte> bytes, std::int64_t rows, std::int64_t columns,
                         DType type) {
  return {std::make_shared<std::vector<std::byte>>(std::move(bytes)), rows, columns, type};
}

OwnedMatrix owned_matrix(std::int64_t rows, std::int64_t columns, DType type) {
  const std::int64_t bytes = rows * columns * bytes_of(type);
  return owned_matrix(std::vector<std::byte>(bytes), rows, columns, type);
}

OwnedMatrix transposed(const OwnedMatrix& from) {
  OwnedMatrix made = owned_matrix(from.columns, from.rows, from.type);
  for (std::int64_t i = 0; i < from.rows; ++i) {
    for (std::int64_t j = 0; j < from.columns; ++j) {
      put(*made.bytes, from.type, j * from.rows + i,
          get(*from.bytes, from.type, i * from.columns + j));
    }
  }
  return made;
}

RankData rank_data(const Choice& choice, const Given& given, int rank) {
  const overlap::Problem& p = given.problem;
  LocalOperands local = local_operands(choice.type, given, rank);
  const Wanted want = wanted(choice, p, rank);
  RankData made{.x = owned_matrix(std::move(local.x), local.m, local.k, p.type),
                .w = owned_matrix(std::move(local.w), local.n, local.k, p.type),
                .result = owned_matrix(want.cut.rows, want.cut.columns, p.type)};
  if (choice.method != Method::bulk) return made;
  made.to_scatter = owned_matrix(kBulkRows, kBulkColumns, p.type);
  for (std::int64_t k = 0; k < kBulkRows * kBulkColumns; ++k) {
    put(*made.to_scatter.bytes, p.type, k, 1);
  }
  const std::int64_t begin = begin_of(rank, kBulkRows, p.ranks);
  made.scattered =
      owned_matrix(begin_of(rank + 1, kBulkRows, p.ranks) - begin, kBulkColumns, p.type);
  return made;
}

OverlapCall RankData::call(const Choice& choice, const Given& given) const {
  OverlapCall made{.x = x.matrix(),
                   .w = w.matrix(),
                   .w_is_transposed = true,
                   .result = result.matrix(),
                   .to_scatter = to_scatter.matrix(),
                   .scattered = scattered.matrix()};
  if (choice.method == Method::bulk) return made;
  made.global_size = choice.type == Type::all_gather ? given.problem.n : given.problem.k;
  return made;
}

run::BufferRequest request_for(const Choice& choice, const overlap::Problem& problem) {
  run::BufferRequest request{
      .comm_type = choice.type,
      .method = choice.method,
      .buffer_shape = {problem.m, choice.type == Type::all_gather ? problem.k : problem.n},
      .buffer_dtype = problem.type,
      .tp_size = problem.ranks,
      .atomic_gemm = choice.atomic,
      .chunks = problem.chunks,
      .cut = problem.cut};
  if (choice.method == Method::bulk) request.buffer_shape = {kBulkRows, kBulkColumns};
  return request;
}

run::StepResult call_by_name(CommOverlapCore& object, const std::string& function,
                             const OverlapCall& call) {
  if (function == "multiply") return object.multiply(call);
  return (object.*functions().at(function))(call);
}

const std::vector<std::string>& function_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> made;
    for (const auto& [name, function] : functions()) made.push_back(name);
    return made;
  }();
  return names;
}

std::string find_class_mismatch(comm::Communicator& world, const Choice& choice, const Given& given,
                                run::Progress progress) {
  const RankData local = rank_data(choice, given, world.rank());
  const OwnedMatrix x_transposed = transposed(local.x);
  const OwnedMatrix w_transposed = transposed(local.w);
  run::BufferRegistry registry(world, {.progress = progress});
  for (const run::BufferLifetime lifetime :
       {run::BufferLifetime::per_call, run::BufferLifetime::persistent}) {
    run::BufferRequest request = request_for(choice, given.problem);
    request.lifetime = lifetime;
    const std::int64_t id = registry.create_comm_overlap_buffer(request);
    for (const OverlapCall& call :
         call_variants(local.call(choice, given), local, x_transposed, w_transposed)) {
      std::ranges::fill(*local.result.bytes, std::byte{0xff});  // not a number
      call_by_name(*registry.find(id), run::function_name(choice), call);
      std::string mismatch = find_mismatch(*local.result.bytes, choice, given, world.rank());
      if (mismatch.empty() && choice.method == Method::bulk)
        mismatch = find_scatter_mismatch(local, world.size());
      if (!mismatch.empty()) return mismatch;
    }
    registry.destroy_comm_overlap_buffer(id);
  }
  return "";
}

namespace {

// A quantized matrix with its scales.
struct QuantizedMatrix {
  OwnedMatrix codes;
  std::vector<std::byte> scales;
  run::ScaleInverse inverse;
  [[nodiscard]] Matrix matrix() {
    Matrix made = codes.matrix();
    made.scale_inv = inverse;
    made.scale_inv.data = scales.data();
    return made;
  }
};

// Quantizes f32 rows.
QuantizedMatrix quantized(const OwnedMatrix& high_precision, const overlap::QuantFormat& format) {
  QuantizedMatrix made{
      .codes = owned_matrix(high_precision.rows, high_precision.columns, format.type),
      .scales = {},
      .inverse = {}};
  kernels::MatrixView rows{.data = made.codes.bytes->data(),
                           .type = format.type,
                           .rows = high_precision.rows,
                           .columns = high_precision.columns};
  const kernels::ConstMatrixView from{.data = high_precision.bytes->data(),
                                      .rows = high_precision.rows,
                                      .columns = high_precision.columns};
  if (format.scaling == overlap::Scaling::row) {
    made.scales.resize(sizeof(float));
    rows.scales = made.scales.data();
    kernels::quantize(from, kernels::current_scale(kernels::compute_amax(from), rows.type), rows);
    return made;
  }
  const kernels::MatrixShape shape = kernels::mx_scale_shape(
      high_precision.rows, high_precision.columns, kernels::ScaleOrder::plain);
  made.scales.resize(shape.count());
  made.inverse.rows = shape.rows;
  made.inverse.columns = shape.columns;
  rows.scaling = kernels::ScaleGranularity::per_block;
  rows.scales = made.scales.data();
  kernels::quantize_blocks(from, rows);
  return made;
}

QuantizedMatrix swizzled(const QuantizedMatrix& plain) {
  QuantizedMatrix made = plain;
  const kernels::MatrixShape shape =
      kernels::mx_scale_shape(plain.codes.rows, plain.codes.columns, kernels::ScaleOrder::swizzled);
  made.scales.assign(shape.count(), std::byte{});
  kernels::swizzle({plain.inverse.rows, plain.inverse.columns}, plain.scales, made.scales);
  made.inverse = {
      .rows = shape.rows, .columns = shape.columns, .order = kernels::ScaleOrder::swizzled};
  return made;
}

// Transposes values and scales.
QuantizedMatrix transposed_quantized(const QuantizedMatrix& plain) {
  const auto transpose_bytes = [](const std::vector<std::byte>& from, std::int64_t rows,
                                  std::int64_t columns) {
    std::vector<std::byte> to(from.size());
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < columns; ++j) {
        to[j * rows + i] = from[i * columns + j];
      }
    }
    return to;
  };
  QuantizedMatrix made = plain;
  made.codes =
      owned_matrix(transpose_bytes(*plain.codes.bytes, plain.codes.rows, plain.codes.columns),
                   plain.codes.columns, plain.codes.rows, plain.codes.type);
  if (plain.scales.size() != sizeof(float) || plain.inverse.rows != 1 ||
      plain.inverse.columns != 1) {
    made.scales = transpose_bytes(plain.scales, plain.inverse.rows, plain.inverse.columns);
    std::swap(made.inverse.rows, made.inverse.columns);
  }
  return made;
}

// The local operands in f32.
RankData high_precision_rank_data(const Choice& choice, const Given& given, int rank) {
  Given high_precision = given;
  high_precision.problem.type = DType::f32;
  high_precision.problem.x = high_precision.problem.w = high_precision.problem.sums = {};
  LocalOperands local = local_operands(choice.type, high_precision, rank);
  if (given.problem.groups > 0 && choice.type == Type::all_gather) {
    // Without the numbers of groups.
    const std::size_t width = static_cast<std::size_t>(local.k) * 4;
    std::vector<std::byte> rows;
    for (std::size_t i = 0; i < static_cast<std::size_t>(local.m); ++i) {
      const auto begin = local.x.begin() + static_cast<std::ptrdiff_t>(i * (width + 4));
      rows.insert(rows.end(), begin, begin + static_cast<std::ptrdiff_t>(width));
    }
    local.x = std::move(rows);
  }
  const Wanted want = wanted(choice, given.problem, rank);
  RankData made = rank_data(choice, high_precision, rank);
  made.x = owned_matrix(std::move(local.x), local.m, local.k, DType::f32);
  made.w = owned_matrix(std::move(local.w), local.n * std::max(1, given.problem.groups), local.k,
                        DType::f32);
  made.result = owned_matrix(want.cut.rows, want.cut.columns, given.problem.type);
  if (choice.method != Method::bulk) return made;
  made.scattered = owned_matrix(made.scattered.rows, made.scattered.columns, given.problem.type);
  OwnedMatrix ones =
      owned_matrix(made.to_scatter.rows, made.to_scatter.columns, given.problem.type);
  for (std::int64_t k = 0; k < ones.rows * ones.columns; ++k) put(*ones.bytes, ones.type, k, 1);
  made.to_scatter = std::move(ones);
  return made;
}

}  // namespace

std::string find_fp8_class_mismatch(comm::Communicator& world, const Choice& choice,
                                    overlap::Problem problem, const ScaledSetting& setting) {
  const bool has_blocks = setting.mode == kernels::ScalingMode::mxfp8_1d_scaling;
  const overlap::QuantFormat format{.scaling = has_blocks ? overlap::Scaling::blocks
                                                          : overlap::Scaling::row};
  problem.groups = setting.groups;
  problem.x = problem.w = format;
  if (choice.type != Type::all_gather && setting.quantized_comm) problem.sums = format;
  Given all = given(problem);
  std::ranges::sort(all.groups);
  const auto ordered = [&](std::int64_t rank) {  // rows of a rank that are gathered, by group
    return begin_of(rank, problem.m, problem.ranks);
  };
  for (int rank = 0; rank < problem.ranks; ++rank) {
    std::sort(all.groups.begin() + ordered(rank), all.groups.begin() + ordered(rank + 1));
  }
  const RankData local = high_precision_rank_data(choice, all, world.rank());
  QuantizedMatrix x = quantized(local.x, format);
  QuantizedMatrix w = quantized(local.w, format);
  QuantizedMatrix w_turned = transposed_quantized(w);
  OverlapCall call = local.call(choice, all);
  call.x = x.matrix();
  call.w = w.matrix();
  const bool gathers = choice.type == Type::all_gather;
  if (setting.groups > 0) {
    call.group_sizes.assign(setting.groups, 0);
    const std::int64_t begin = gathers ? ordered(world.rank()) : 0;
    const std::int64_t end = gathers ? ordered(world.rank() + 1) : problem.m;
    for (std::int64_t i = begin; i < end; ++i) {
      ++call.group_sizes[all.groups[i]];
    }
  }
  std::vector<OverlapCall> calls{call};
  QuantizedMatrix x_swizzled = has_blocks ? swizzled(x) : x;
  QuantizedMatrix w_swizzled = has_blocks ? swizzled(w) : w;
  if (has_blocks) calls.emplace_back(call).x = x_swizzled.matrix();
  if (has_blocks && setting.groups == 0) calls.emplace_back(call).w = w_swizzled.matrix();
  if (setting.groups == 0) {
    calls.emplace_back(call).w = w_turned.matrix();
    calls.back().w_is_transposed = false;
  }
  OwnedMatrix wide_x = owned_matrix(local.x.rows, local.x.columns, problem.type);
  for (std::int64_t k = 0; k < wide_x.rows * wide_x.columns; ++k) {
    put(*wide_x.bytes, wide_x.type, k, get(*local.x.bytes, local.x.type, k));
  }
  const bool is_current = setting.mode != kernels::ScalingMode::delayed_tensor_scaling;
  if (gathers && is_current) calls.emplace_back(call).x = wide_x.matrix();

  run::BufferRegistry registry(world, {.poison = true});
  run::BufferRequest request = request_for(choice, problem);
  request.scaling_mode = setting.mode;
  request.result_dtype = problem.type;
  if (gathers || setting.quantized_comm) request.buffer_dtype = format.type;
  const std::int64_t id = registry.create_comm_overlap_buffer(request);
  for (const OverlapCall& each : calls) {
    std::ranges::fill(*local.result.bytes, std::byte{0xff});
    call_by_name(*registry.find(id), run::function_name(choice), each);
    std::string mismatch = find_mismatch(*local.result.bytes, choice, all, world.rank());
    if (mismatch.empty() && choice.method == Method::bulk)
      mismatch = find_scatter_mismatch(local, world.size());
    if (!mismatch.empty()) return mismatch;
  }
  return "";
}

}  // namespace shiplap::tests
