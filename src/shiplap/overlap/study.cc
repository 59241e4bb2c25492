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

// A send that is not asynchronous is complete before its stream goes on to the next.
void send_in_turn(std::vector<plan::Statement>& body) {
  for (plan::Statement& statement : body) {
    if (auto* const repeat = std::get_if<plan::Repeat>(&statement.node)) {
      send_in_turn(repeat->body);
    }
    auto* const operation = std::get_if<plan::Operation>(&statement.node);
    if (operation != nullptr && std::holds_alternative<plan::Send>(operation->action)) {
      operation->async = false;
    }
  }
}

plan::Plan plan_over_one_link(const Choice& choice, const Problem& problem) {
  plan::Plan plan = make_plan(choice, problem);
  for (plan::Program& program : plan.programs) send_in_turn(program.body);
  return plan;
}

sim::Replay replayed(const plan::Plan& plan, const System& system) {
  sim::Replay replay = sim::replay(
      plan, {.system = system, .eager_up_to = {}, .operations = kMaxReplayedOperations});
  ensure(replay.problems.empty(), "a plan of an overlap can be carried out");
  return replay;
}

System without_computation(const System& system) {
  System changed = hardware::free_system();
  changed.networks = system.networks;
  return changed;
}

System without_communication(System system) {
  system.networks = hardware::free_system().networks;
  return system;
}

// Nothing but the product.
plan::Plan product_of(Problem problem) {
  problem.sums = {};
  return make_plan({}, problem);
}

Choice serial_of(const Choice& choice) { return {.type = choice.type, .method = Method::none}; }

}  // namespace

Seconds Times::least() const { return std::max(product, communication); }

double Times::of_serial() const { return serial > Seconds{0} ? overlapped / serial : 1; }

double Times::least_of_it() const { return overlapped > Seconds{0} ? least() / overlapped : 1; }

std::optional<double> Times::hidden() const {
  const Seconds shorter = std::min(product, communication);
  if (shorter <= Seconds{0}) return std::nullopt;
  return (product + communication - overlapped) / shorter;
}

Seconds method_bound(const Choice& choice, const Problem& problem, const Times& alone) {
  const double g = alone.product.value;
  const double c = alone.communication.value;
  const auto ranks = static_cast<double>(problem.ranks);
  const auto chunks = static_cast<double>(problem.chunks);
  // Of the rows of a rank: those of the chunks at the two ends.
  double small = 1 / chunks;
  double large = small;
  if (problem.rows >= problem.ranks) {
    const std::int64_t rows = problem.rows / problem.ranks;
    const std::vector<std::int64_t> cuts = chunks_of(rows, choice, problem);
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
      // The first piece is multiplied before anything is sent, the last is sent after all is.
      const double share = choice.type == Type::reduce_scatter ? 1 : ranks;
      return {std::max(g + c * large / share, c + g * small / share)};
    }
    case Method::ring_exchange:
      // Where rows are gathered, the last tile is multiplied after all has arrived; where they are
      // summed, the first one before anything is sent. The sums of the last chunk go to everybody
      // after all is multiplied, if they go anywhere.
      if (choice.type != Type::all_reduce) return {std::max(g, c + g * small / ranks)};
      return {std::max(g + c * large / 2, c + g * small / ranks)};
  }
  throw InternalError("unknown method");
}

void check_replayable(const Choice& choice, const Problem& problem) {
  const bool whole = choice.method == Method::none || choice.method == Method::bulk;
  // Each tile is received, sent and multiplied, or multiplied, received and added, on each rank.
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
  // Where sums are coded, one after the other has more to compute than the product.
  const plan::Plan alone = is_plain(problem.sums) ? serial : product_of(problem);
  sim::Replay all = replayed(plan, system);
  sim::Replay one_by_one = replayed(serial, system);
  Prediction made{.system = system.name,
                  .times = {.product = replayed(alone, without_communication(system)).end,
                            .communication = replayed(plan, without_computation(system)).end,
                            .serial = one_by_one.end,
                            .overlapped = all.end},
                  .tiles = replayed(plan, without_communication(system)).end,
                  .bound = {},
                  .trace = std::move(all.trace),
                  .serial_trace = std::move(one_by_one.trace)};
  made.bound = method_bound(choice, problem, made.times);
  made.last_rank = last_rank(made.trace);
  made.steps = timeline(plan, made.trace, made.last_rank);
  return made;
}

Comparison compare(const Choice& choice, const Problem& problem, const System& system,
                   const std::vector<int>& chunks) {
  std::vector<Compared> made;
  for (const Legal& legal : legal_choices()) {
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

System calibrated(const Choice& choice, const Problem& problem, const TimesAlone& alone) {
  System system = hardware::free_system();
  system.name = "these G and C";
  // Where each flop and each byte takes a second, the times say how many count.
  System slow = hardware::free_system();
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
  if (alone.product > Seconds{0}) {
    system.matrix.speeds.fill(hardware::Processor::Speed{.peak = {flop / alone.product.value}});
  }
  const bool sends = bytes > 0 && alone.communication > Seconds{0};
  if (sends) {
    system.networks = slow.networks;
    system.networks.front().bandwidth = {bytes / alone.communication.value};
  }
  return system;
}

Times Measurement::times() const {
  return {.product = product.median,
          .communication = communication.median,
          .serial = serial.median,
          .overlapped = overlapped.median};
}

const Prediction& Study::drawn() const {
  if (calibrated) return *calibrated;
  if (predicted) return *predicted;
  throw InternalError("what is shown was predicted");
}

}  // namespace shiplap::overlap
