#include "shiplap/overlap/query.h"

#include <fmt/format.h>

#include <limits>
#include <utility>

#include "shiplap/base/argument_error.h"
#include "shiplap/base/error.h"
#include "shiplap/hardware/system.h"

namespace shiplap::overlap {
namespace {

// Overlapped GEMMs write chunks into their peer's memory (userbuffers, symmetric memory), which
// uses the whole link, unlike NCCL's messages to one peer. REQUIRES: query.hardware.
hardware::System system_of(const Query& query) {
  hardware::System system = hardware::find_system(query.hardware.value_or(""));
  for (hardware::Network& network : system.networks) {
    if (network.collectives) network.collectives->one_peer.reset();
  }
  return system;
}

Type type_of(const std::string& op) {
  if (op == "ag") return Type::all_gather;
  if (op == "rs") return Type::reduce_scatter;
  if (op == "ar") return Type::all_reduce;
  return Type::none;
}

std::int64_t required_size(const char* flag, std::optional<std::int64_t> given) {
  if (!given) {
    throw_argument_error(flag, fmt::format("`{}` is missing", flag), "add --m, --n and --k");
  }
  return *given;
}

void set_formats(const Query& query, Problem& problem) {
  problem.groups = int_flag("--groups", query.groups, 0);
  if (!query.scaling || query.scaling == "none") return;
  const QuantFormat format{.scaling = query.scaling == "tensor" ? Scaling::row : Scaling::blocks,
                           .type = query.fp8 == "e5m2" ? DType::fp8_e5m2 : DType::fp8_e4m3};
  problem.x = problem.w = format;
  const bool sums = query.op == "rs" || query.op == "ar";
  if (sums && !query.high_precision_sums) problem.sums = format;
}

void check_choosing(const Query& query) {
  if (!query.chooses()) {
    throw_argument_error("--calibration", "there is nothing to choose", "add --method auto");
  }
  if (query.hardware && query.calibration) {
    throw_argument_error("--calibration", "conflicts with --hardware",
                         "use --calibration or --hardware, not both");
  }
  if (!query.hardware && !query.calibration) {
    throw_argument_error(
        "--method", "missing cost model for `--method auto`",
        "add --hardware NAME, or --calibration FILE, which --calibrate FILE writes");
  }
  const char* const chosen = query.chunks    ? "--chunks"
                             : query.tapered ? "--tapered"
                             : query.atomic  ? "--atomic"
                             : query.polled  ? "--polled"
                                             : nullptr;
  if (chosen != nullptr)
    throw_argument_error(chosen, "`--method auto` chooses this", "leave it out");
  if (query.op == "none") {
    throw_argument_error("--op", "a GEMM without communication has nothing to overlap",
                         "use --op ag, rs or ar");
  }
}

void check_quantization_flags(const Query& query) {
  const bool is_scaled = query.scaling && query.scaling != "none";
  if (!is_scaled && (query.fp8 || query.high_precision_sums)) {
    throw_argument_error(query.fp8 ? "--fp8" : "--high-precision-sums", "nothing is quantized",
                         "add --scaling tensor or mxfp8");
  }
  if (query.high_precision_sums && (query.op == "ag" || query.op == "none")) {
    throw_argument_error("--high-precision-sums", "no sums are communicated", "use --op rs or ar");
  }
  if (query.groups == 0) throw_argument_error("--groups", "expected 1 or more");
}

// Returns the chunk counts to compare, as far as there are enough rows and the plan stays small.
std::vector<int> chunks_to_compare(const Query& query, const Problem& problem) {
  if (query.chunks) return {problem.chunks};
  std::vector<int> all{1};
  for (const int chunks : {2, 4, 8, 16}) {
    const std::int64_t pieces = std::int64_t{problem.ranks} * chunks;
    if (pieces <= problem.m && pieces * problem.ranks <= 100'000) all.push_back(chunks);
  }
  return all;
}

Chosen chosen_for(const Query& query, Type type, const Problem& problem) {
  if (query.hardware) {
    return choose(type, problem, machine_of(system_of(query), type, problem));
  }
  if (!query.calibrated) throw InternalError("the calibration was not read");
  return choose(type, problem, machine_of(*query.calibrated, type, problem));
}

}  // namespace

bool Query::compares() const {
  return hardware && !method && op && op != "none" && !run && !traces;
}

void check_query(const Query& query) {
  if (query.chooses() || query.calibration) check_choosing(query);
  check_quantization_flags(query);
  if (query.run && query.rounds == 0) throw_argument_error("--rounds", "expected 1 or more");
}

int int_flag(const char* flag, std::optional<std::int64_t> given, int default_value) {
  if (!given) return default_value;
  if (*given == 0) throw_argument_error(flag, "expected 1 or more");
  if (*given > std::numeric_limits<int>::max())
    throw_argument_error(flag, "the value is too large");
  return static_cast<int>(*given);
}

Choice choice_of(const Query& query) {
  if (!query.op) {
    throw_argument_error("--op", "`--op` is missing",
                         "use --op ag, rs or ar; `shiplap overlap --list` lists all overlaps");
  }
  Choice choice{.type = type_of(*query.op), .atomic = query.atomic};
  const std::string method =
      query.method.value_or(choice.type == Type::none ? "none" : "ring_exchange");
  for (const Method each : {Method::none, Method::bulk, Method::pipeline, Method::ring_exchange}) {
    if (name(each) == method) choice.method = each;
  }
  return choice;
}

Problem problem_of(const Query& query) {
  Problem problem{.m = required_size("--m", query.m),
                  .n = required_size("--n", query.n),
                  .k = required_size("--k", query.k),
                  .ranks = int_flag("--tp", query.ranks, 4),
                  .chunks = int_flag("--chunks", query.chunks, 1)};
  if (query.type == "f32") problem.type = DType::f32;
  if (query.type == "f16") problem.type = DType::f16;
  if (query.tapered) problem.cut = Cut::tapered;
  set_formats(query, problem);
  return problem;
}

Study begin_study(const Query& query) {
  Study study{.choice = choice_of(query), .problem = problem_of(query)};
  if (query.chooses()) {
    study.chosen = chosen_for(query, study.choice.type, study.problem);
    study.choice = study.chosen->choice;
    study.problem = study.chosen->problem;
    if (!query.run && !query.traces) return study;
  }
  if (query.compares() && query.hardware) {
    study.comparison = compare(study.choice, study.problem, system_of(query),
                               chunks_to_compare(query, study.problem));
    return study;
  }
  if (study.choice.type == Type::none) {
    throw_argument_error("--op", "a GEMM without communication has nothing to overlap",
                         "use --op ag, rs or ar");
  }
  // Report errors before anything is measured.
  static_cast<void>(make_plan(study.choice, study.problem));
  check_replayable(study.choice, study.problem);
  if (query.hardware) static_cast<void>(system_of(query));
  return study;
}

void finish_study(Study& study, const Query& query) {
  if (study.measured) {
    const Times times = study.measured->times();
    study.calibrated =
        predict(study.choice, study.problem,
                calibrated_system(study.choice, study.problem, {times.gemm, times.communication}));
  }
  const bool wants_prediction = !study.comparison && (!study.chosen || query.run || query.traces);
  if (query.hardware && wants_prediction) {
    study.predicted = predict(study.choice, study.problem, system_of(query));
  }
}

bool is_polled(const Study& study, const Query& query) {
  return study.chosen ? study.choice.method != Method::pipeline : query.polled;
}

}  // namespace shiplap::overlap
