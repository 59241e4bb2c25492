#include "shiplap/overlap/study.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "shiplap/base/error.h"
#include "shiplap/sim/replay.h"

namespace shiplap::overlap {
namespace {

using hardware::System;

constexpr std::int64_t kMaxReplayedOperations = 5'000'000;  // which a replay holds in about 1.2 GB

// Makes sends synchronous: a stream completes one before the next.
void serialize_sends(std::vector<plan::Statement>& body) {
  for (plan::Statement& statement : body) {
    if (auto* const repeat = std::get_if<plan::Repeat>(&statement.node)) {
      serialize_sends(repeat->body);
    }
    auto* const operation = std::get_if<plan::Operation>(&statement.node);
    if (operation != nullptr && std::holds_alternative<plan::Send>(operation->action)) {
      operation->async = false;
    }
  }
}

plan::Plan plan_over_one_link(const Choice& choice, const Problem& problem) {
  plan::Plan plan = make_plan(choice, problem);
  for (plan::Program& program : plan.programs) serialize_sends(program.body);
  return plan;
}

sim::Replay replayed(const plan::Plan& plan, const System& system) {
  sim::Replay replay = sim::replay(
      plan, {.system = system, .eager_limit = {}, .operations = kMaxReplayedOperations});
  ensure(replay.problems.empty(), "the plan of an overlap has no deadlock");
  return replay;
}

System without_computation(const System& system) {
  System changed = hardware::zero_cost_system();
  changed.networks = system.networks;
  return changed;
}

System without_communication(System system) {
  system.networks = hardware::zero_cost_system().networks;
  return system;
}

// The GEMM without communication.
plan::Plan gemm_only(Problem problem) {
  problem.sums = {};
  return make_plan({}, problem);
}

Choice serial_of(const Choice& choice) { return {.type = choice.type, .method = Method::none}; }

}  // namespace

Seconds Times::lower_bound() const { return std::max(gemm, communication); }

double Times::relative_to_serial() const { return serial > Seconds{0} ? overlapped / serial : 1; }

double Times::efficiency() const {
  return overlapped > Seconds{0} ? lower_bound() / overlapped : 1;
}

std::optional<double> Times::hidden() const {
  const Seconds shorter = std::min(gemm, communication);
  if (shorter <= Seconds{0}) return std::nullopt;
  return (gemm + communication - overlapped) / shorter;
}

Seconds method_bound(const Choice& choice, const Problem& problem, const Times& alone) {
  const double g = alone.gemm.value;
  const double c = alone.communication.value;
  const auto ranks = static_cast<double>(problem.ranks);
  const auto chunks = static_cast<double>(problem.chunks);
  // The fractions of the rows in the first and the last chunk.
  double small = 1 / chunks;
  double large = small;
  if (problem.m >= problem.ranks) {
    const std::int64_t rows = problem.m / problem.ranks;
    const std::vector<std::int64_t> cuts = chunk_boundaries(rows, choice, problem);
    const auto share = [&](std::size_t k) {
      return static_cast<double>(cuts[k + 1] - cuts[k]) / static_cast<double>(rows);
    };
    std::tie(small, large) = std::minmax({share(0), share(cuts.size() - 2)});
  }
  switch (choice.method) {
    case Method::none:
      return {g + c};
    case Method::bulk:
      return {std::max(g, c)};
    case Method::pipeline: {
      // The first chunk is multiplied before anything is sent, the last is sent after all GEMMs.
      const double share = choice.type == Type::reduce_scatter ? 1 : ranks;
      return {std::max(g + c * large / share, c + g * small / share)};
    }
    case Method::ring_exchange:
      // all_gather multiplies the last tile after everything has arrived; a reduction multiplies
      // the first one before anything is sent; all_reduce sends the sums of the last chunk after
      // all GEMMs.
      if (choice.type != Type::all_reduce) return {std::max(g, c + g * small / ranks)};
      return {std::max(g + c * large / 2, c + g * small / ranks)};
  }
  throw InternalError("unknown method");
}

void check_replayable(const Choice& choice, const Problem& problem) {
  const bool whole = choice.method == Method::none || choice.method == Method::bulk;
  // Three operations per tile and rank: receive, send, GEMM; or GEMM, receive, add.
  const std::int64_t operations = whole ? 0 : std::int64_t{3} * problem.ranks * problem.chunks;
  if (operations <= kMaxReplayedOperations / problem.ranks) return;
  throw InputError(Diagnostic{
      .code = "D632",
      .what = fmt::format("{} ranks with {} operations each are too many to be simulated",
                          problem.ranks, with_separators(operations)),
      .help = "give fewer --chunks or a smaller --tp"});
}

Prediction predict(const Choice& choice, const Problem& problem, const System& system) {
  check_replayable(choice, problem);
  const plan::Plan plan = plan_over_one_link(choice, problem);
  const plan::Plan serial = plan_over_one_link(serial_of(choice), problem);
  // With quantized sums, the serial plan computes more than the GEMM.
  const plan::Plan alone = is_high_precision(problem.sums) ? serial : gemm_only(problem);
  sim::Replay all = replayed(plan, system);
  sim::Replay serial_replay = replayed(serial, system);
  Prediction made{.system = system.name,
                  .times = {.gemm = replayed(alone, without_communication(system)).end,
                            .communication = replayed(plan, without_computation(system)).end,
                            .serial = serial_replay.end,
                            .overlapped = all.end},
                  .tiles = replayed(plan, without_communication(system)).end,
                  .bound = {},
                  .trace = std::move(all.trace),
                  .serial_trace = std::move(serial_replay.trace)};
  made.bound = method_bound(choice, problem, made.times);
  made.last_rank = last_rank(made.trace);
  made.steps = timeline(plan, made.trace, made.last_rank);
  return made;
}

Comparison compare(const Choice& choice, const Problem& problem, const System& system,
                   const std::vector<int>& chunks) {
  std::vector<Compared> made;
  for (const SupportedChoice& legal : supported_choices()) {
    const bool whole = legal.choice.method == Method::none;
    const bool alike = legal.choice.atomic == choice.atomic || whole;
    if (legal.choice.type != choice.type || !alike) continue;
    if (legal.choice.method == Method::bulk) continue;
    for (const int count : whole ? std::vector<int>{1} : chunks) {
      Problem cut = problem;
      cut.chunks = count;
      made.push_back({.choice = legal.choice,
                      .chunks = count,
                      .times = predict(legal.choice, cut, system).times});
    }
  }
  std::ranges::sort(made, {}, [](const Compared& each) {
    return std::tuple(each.times.overlapped, each.choice.method, each.chunks);
  });
  return {.problem = problem, .system = system.name, .candidates = std::move(made)};
}

System calibrated_system(const Choice& choice, const Problem& problem,
                         const StandaloneTimes& alone) {
  System system = hardware::zero_cost_system();
  system.name = "these G and C";
  // On a system with 1 flop/s and 1 byte/s, the times are the counts of flop and bytes.
  System slow = hardware::zero_cost_system();
  slow.matrix.speeds.fill(hardware::Processor::Speed{.peak = {1}});
  hardware::Network& network = slow.networks.front();
  network.bandwidth = {1};
  network.all_gather = network.reduce_scatter = {.scalar = 1, .offset = -1};
  network.all_reduce = {.scalar = 2, .offset = -1};
  const double flop =
      replayed(plan_over_one_link(serial_of(choice), problem), without_communication(slow))
          .end.value;
  const double bytes =
      replayed(plan_over_one_link(choice, problem), without_computation(slow)).end.value;
  if (alone.gemm > Seconds{0}) {
    system.matrix.speeds.fill(hardware::Processor::Speed{.peak = {flop / alone.gemm.value}});
  }
  const bool sends = bytes > 0 && alone.communication > Seconds{0};
  if (sends) {
    system.networks = slow.networks;
    system.networks.front().bandwidth = {bytes / alone.communication.value};
  }
  return system;
}

Times Measurement::times() const {
  return {.gemm = gemm.median,
          .communication = communication.median,
          .serial = serial.median,
          .overlapped = overlapped.median};
}

const Prediction& Study::drawn() const {
  if (calibrated) return *calibrated;
  if (predicted) return *predicted;
  throw InternalError("there is a prediction");
}

}  // namespace shiplap::overlap
