#include "classes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "shiplap/base/error.h"

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

Held held(std::vector<std::byte> bytes, std::int64_t rows, std::int64_t columns,
          plan::ElementType type) {
  return {std::make_shared<std::vector<std::byte>>(std::move(bytes)), rows, columns, type};
}

Held held(std::int64_t rows, std::int64_t columns, plan::ElementType type) {
  const std::int64_t bytes = rows * columns * plan::bytes_of(type);
  return held(std::vector<std::byte>(static_cast<std::size_t>(bytes)), rows, columns, type);
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

}  // namespace shiplap::tests
