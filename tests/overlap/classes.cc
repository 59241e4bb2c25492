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

// What was all ones is as large as there are ranks.
std::string wrong_scatter(const Deal& own, int ranks) {
  for (std::int64_t k = 0; k < own.scattered.rows * own.scattered.columns; ++k) {
    const double found = get(*own.scattered.bytes, own.scattered.type, k);
    if (found != ranks) return fmt::format("scattered: {} where {} is right", found, ranks);
  }
  return "";
}

// The ways to say the same: as it lies, transposed, with a result that has an owner.
std::vector<OverlapCall> ways(const OverlapCall& call, const Deal& own, const Held& x_transposed,
                              const Held& w_transposed) {
  OverlapCall other = call;
  other.x = x_transposed.matrix();
  other.x_is_transposed = true;
  other.w = w_transposed.matrix();
  other.w_is_transposed = false;
  OverlapCall direct = call;
  direct.result = own.result.owned();
  direct.scattered = own.scattered.owned();
  OverlapCall again = direct;
  direct.weights_version = again.weights_version = 5;
  return {call, other, direct, again};
}

}  // namespace

Matrix Held::matrix() const {
  return {.data = bytes == nullptr || bytes->empty() ? nullptr : bytes->data(),
          .rows = rows,
          .columns = columns,
          .type = type};
}

Matrix Held::owned() const {
  Matrix made = matrix();
  made.owner = bytes;
  return made;
}

Held held(std::vector<std::byte> bytes, std::int64_t rows, std::int64_t columns, DType type) {
  return {std::make_shared<std::vector<std::byte>>(std::move(bytes)), rows, columns, type};
}

Held held(std::int64_t rows, std::int64_t columns, DType type) {
  const std::int64_t bytes = rows * columns * bytes_of(type);
  return held(std::vector<std::byte>(bytes), rows, columns, type);
}

Held transposed(const Held& from) {
  Held made = held(from.columns, from.rows, from.type);
  for (std::int64_t i = 0; i < from.rows; ++i) {
    for (std::int64_t j = 0; j < from.columns; ++j) {
      put(*made.bytes, from.type, j * from.rows + i,
          get(*from.bytes, from.type, i * from.columns + j));
    }
  }
  return made;
}

Deal deal(const Choice& choice, const Given& given, int rank) {
  const overlap::Problem& p = given.problem;
  Factors own = factors_of(choice.type, given, rank);
  const Wanted want = wanted(choice, p, rank);
  Deal made{.x = held(std::move(own.x), own.rows, own.depth, p.type),
            .w = held(std::move(own.w), own.columns, own.depth, p.type),
            .result = held(want.cut.rows, want.cut.columns, p.type)};
  if (choice.method != Method::bulk) return made;
  made.to_scatter = held(kBulkRows, kBulkColumns, p.type);
  for (std::int64_t k = 0; k < kBulkRows * kBulkColumns; ++k) {
    put(*made.to_scatter.bytes, p.type, k, 1);
  }
  const std::int64_t begin = begin_of(rank, kBulkRows, p.ranks);
  made.scattered = held(begin_of(rank + 1, kBulkRows, p.ranks) - begin, kBulkColumns, p.type);
  return made;
}

OverlapCall Deal::call(const Choice& choice, const Given& given) const {
  OverlapCall made{.x = x.matrix(),
                   .w = w.matrix(),
                   .w_is_transposed = true,
                   .result = result.matrix(),
                   .to_scatter = to_scatter.matrix(),
                   .scattered = scattered.matrix()};
  if (choice.method == Method::bulk) return made;
  made.size_of_all = choice.type == Type::all_gather ? given.problem.columns : given.problem.depth;
  return made;
}

run::BufferRequest request_for(const Choice& choice, const overlap::Problem& problem) {
  run::BufferRequest request{
      .comm_type = choice.type,
      .method = choice.method,
      .buffer_shape = {problem.rows,
                       choice.type == Type::all_gather ? problem.depth : problem.columns},
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

std::string wrong_class(comm::Communicator& world, const Choice& choice, const Given& given,
                        run::Progress progress) {
  const Deal own = deal(choice, given, world.rank());
  const Held x_transposed = transposed(own.x);
  const Held w_transposed = transposed(own.w);
  run::BufferRegistry registry(world, {.progress = progress});
  for (const run::Contents contents : {run::Contents::during_call, run::Contents::between_calls}) {
    run::BufferRequest request = request_for(choice, given.problem);
    request.contents = contents;
    const std::int64_t id = registry.create_comm_overlap_buffer(request);
    for (const OverlapCall& call : ways(own.call(choice, given), own, x_transposed, w_transposed)) {
      std::ranges::fill(*own.result.bytes, std::byte{0xff});  // not a number
      call_by_name(*registry.find(id), run::function_of(choice), call);
      std::string said = wrong_number(*own.result.bytes, choice, given, world.rank());
      if (said.empty() && choice.method == Method::bulk) said = wrong_scatter(own, world.size());
      if (!said.empty()) return said;
    }
    registry.destroy_comm_overlap_buffer(id);
  }
  return "";
}

namespace {

// A matrix as codes, with its scales.
struct Coded {
  Held codes;
  std::vector<std::byte> scales;
  run::ScaleInverse inverse;
  [[nodiscard]] Matrix matrix() {
    Matrix made = codes.matrix();
    made.scale_inv = inverse;
    made.scale_inv.data = scales.data();
    return made;
  }
};

// Rows of f32; of several groups each has its own blocks.
Coded coded(const Held& wide, const overlap::Form& form) {
  Coded made{.codes = held(wide.rows, wide.columns, form.type), .scales = {}, .inverse = {}};
  kernels::MatrixView rows{.data = made.codes.bytes->data(),
                           .type = form.type,
                           .rows = wide.rows,
                           .columns = wide.columns};
  const kernels::ConstMatrixView from{
      .data = wide.bytes->data(), .rows = wide.rows, .columns = wide.columns};
  if (form.scaling == overlap::Scaling::row) {
    made.scales.resize(sizeof(float));
    rows.scales = made.scales.data();
    kernels::quantize(from, kernels::current_scale(kernels::largest_absolute(from), rows.type),
                      rows);
    return made;
  }
  const kernels::MatrixShape shape =
      kernels::mx_scale_shape(wide.rows, wide.columns, kernels::ScaleOrder::plain);
  made.scales.resize(shape.count());
  made.inverse.rows = shape.rows;
  made.inverse.columns = shape.columns;
  rows.scaling = kernels::Scales::blocks;
  rows.scales = made.scales.data();
  kernels::quantize_blocks(from, rows);
  return made;
}

Coded swizzled(const Coded& plain) {
  Coded made = plain;
  const kernels::MatrixShape shape =
      kernels::mx_scale_shape(plain.codes.rows, plain.codes.columns, kernels::ScaleOrder::swizzled);
  made.scales.assign(shape.count(), std::byte{});
  kernels::swizzle({plain.inverse.rows, plain.inverse.columns}, plain.scales, made.scales);
  made.inverse = {
      .rows = shape.rows, .columns = shape.columns, .order = kernels::ScaleOrder::swizzled};
  return made;
}

// Codes and scales with rows and columns swapped.
Coded turned(const Coded& plain) {
  const auto turn = [](const std::vector<std::byte>& from, std::int64_t rows,
                       std::int64_t columns) {
    std::vector<std::byte> to(from.size());
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < columns; ++j) {
        to[j * rows + i] = from[i * columns + j];
      }
    }
    return to;
  };
  Coded made = plain;
  made.codes = held(turn(*plain.codes.bytes, plain.codes.rows, plain.codes.columns),
                    plain.codes.columns, plain.codes.rows, plain.codes.type);
  if (plain.scales.size() != sizeof(float) || plain.inverse.rows != 1 ||
      plain.inverse.columns != 1) {
    made.scales = turn(plain.scales, plain.inverse.rows, plain.inverse.columns);
    std::swap(made.inverse.rows, made.inverse.columns);
  }
  return made;
}

// What a rank has of the factors, as f32.
Deal wide_deal(const Choice& choice, const Given& given, int rank) {
  Given wide = given;
  wide.problem.type = DType::f32;
  wide.problem.x = wide.problem.w = wide.problem.sums = {};
  Factors own = factors_of(choice.type, wide, rank);
  if (given.problem.groups > 0 && choice.type == Type::all_gather) {
    // Without the numbers of groups.
    const std::size_t width = static_cast<std::size_t>(own.depth) * 4;
    std::vector<std::byte> rows;
    for (std::size_t i = 0; i < static_cast<std::size_t>(own.rows); ++i) {
      const auto begin = own.x.begin() + static_cast<std::ptrdiff_t>(i * (width + 4));
      rows.insert(rows.end(), begin, begin + static_cast<std::ptrdiff_t>(width));
    }
    own.x = std::move(rows);
  }
  const Wanted want = wanted(choice, given.problem, rank);
  Deal made = deal(choice, wide, rank);
  made.x = held(std::move(own.x), own.rows, own.depth, DType::f32);
  made.w = held(std::move(own.w), own.columns * std::max(1, given.problem.groups), own.depth,
                DType::f32);
  made.result = held(want.cut.rows, want.cut.columns, given.problem.type);
  if (choice.method != Method::bulk) return made;
  made.scattered = held(made.scattered.rows, made.scattered.columns, given.problem.type);
  Held ones = held(made.to_scatter.rows, made.to_scatter.columns, given.problem.type);
  for (std::int64_t k = 0; k < ones.rows * ones.columns; ++k) put(*ones.bytes, ones.type, k, 1);
  made.to_scatter = std::move(ones);
  return made;
}

}  // namespace

std::string wrong_scaled_class(comm::Communicator& world, const Choice& choice,
                               overlap::Problem problem, const ScaledSetting& setting) {
  const bool has_blocks = setting.mode == kernels::ScalingMode::mxfp8_1d_scaling;
  const overlap::Form form{.scaling =
                               has_blocks ? overlap::Scaling::blocks : overlap::Scaling::row};
  problem.groups = setting.groups;
  problem.x = problem.w = form;
  if (choice.type != Type::all_gather && setting.codes_travel) problem.sums = form;
  Given all = given(problem);
  std::ranges::sort(all.groups);
  const auto ordered = [&](std::int64_t rank) {  // rows of a rank that are gathered, by group
    return begin_of(rank, problem.rows, problem.ranks);
  };
  for (int rank = 0; rank < problem.ranks; ++rank) {
    std::sort(all.groups.begin() + ordered(rank), all.groups.begin() + ordered(rank + 1));
  }
  const Deal own = wide_deal(choice, all, world.rank());
  Coded x = coded(own.x, form);
  Coded w = coded(own.w, form);
  Coded w_turned = turned(w);
  OverlapCall call = own.call(choice, all);
  call.x = x.matrix();
  call.w = w.matrix();
  const bool gathers = choice.type == Type::all_gather;
  if (setting.groups > 0) {
    call.group_sizes.assign(setting.groups, 0);
    const std::int64_t begin = gathers ? ordered(world.rank()) : 0;
    const std::int64_t end = gathers ? ordered(world.rank() + 1) : problem.rows;
    for (std::int64_t i = begin; i < end; ++i) {
      ++call.group_sizes[all.groups[i]];
    }
  }
  std::vector<OverlapCall> calls{call};
  Coded x_swizzled = has_blocks ? swizzled(x) : x;
  Coded w_swizzled = has_blocks ? swizzled(w) : w;
  if (has_blocks) calls.emplace_back(call).x = x_swizzled.matrix();
  if (has_blocks && setting.groups == 0) calls.emplace_back(call).w = w_swizzled.matrix();
  if (setting.groups == 0) {
    calls.emplace_back(call).w = w_turned.matrix();
    calls.back().w_is_transposed = false;
  }
  Held wide_x = held(own.x.rows, own.x.columns, problem.type);
  for (std::int64_t k = 0; k < wide_x.rows * wide_x.columns; ++k) {
    put(*wide_x.bytes, wide_x.type, k, get(*own.x.bytes, own.x.type, k));
  }
  const bool is_current = setting.mode != kernels::ScalingMode::delayed_tensor_scaling;
  if (gathers && is_current) calls.emplace_back(call).x = wide_x.matrix();

  run::BufferRegistry registry(world, {.poison = true});
  run::BufferRequest request = request_for(choice, problem);
  request.scaling_mode = setting.mode;
  request.result_dtype = problem.type;
  if (gathers || setting.codes_travel) request.buffer_dtype = form.type;
  const std::int64_t id = registry.create_comm_overlap_buffer(request);
  for (const OverlapCall& each : calls) {
    std::ranges::fill(*own.result.bytes, std::byte{0xff});
    call_by_name(*registry.find(id), run::function_of(choice), each);
    std::string said = wrong_number(*own.result.bytes, choice, all, world.rank());
    if (said.empty() && choice.method == Method::bulk) said = wrong_scatter(own, world.size());
    if (!said.empty()) return said;
  }
  return "";
}

}  // namespace shiplap::tests
