#include "oracle.h"

#include <algorithm>
#include <set>

#include "matching.h"
#include "nccl.h"
#include "once.h"
#include "values.h"

namespace shiplap::oracle {
namespace {

using plan::RankProgram;

bool delay_none(Event) { return false; }
void ignore_events(Event) {}

// Some order ends with operations that are not complete.
bool deadlocks(const Machine& machine, const SearchLimits& limits, bool& explored) {
  bool stuck = false;
  const auto visit = [&](const State& state) {
    if (machine.possible(state).empty() && state != State(state.size(), kComplete)) stuck = true;
  };
  if (machine.begin().size() <= limits.operations && machine.explore(limits.states, visit)) {
    return stuck;
  }
  explored = false;
  const State end = machine.run(delay_none, ignore_events);
  return end != State(end.size(), kComplete);
}

// Pairs (a, b) of one rank, b listed later: b may start before a is complete, before a starts.
struct Pairs {
  std::set<std::pair<std::size_t, std::size_t>> not_complete;
  std::set<std::pair<std::size_t, std::size_t>> not_started;
};

void check_overlaps(const State& state, std::size_t a, Pairs& pairs) {
  if (state[a] == kComplete) return;
  for (std::size_t b = a + 1; b < state.size(); ++b) {
    if (state[b] == kWaiting) continue;
    pairs.not_complete.insert({a, b});
    if (state[a] == kWaiting) pairs.not_started.insert({a, b});
  }
}

Pairs pairs_of(const Machine& machine, const SearchLimits& limits, bool& explored) {
  Pairs pairs;
  const std::size_t count = machine.begin().size();
  const auto visit = [&](const State& state) {
    for (std::size_t a = 0; a < count; ++a) check_overlaps(state, a, pairs);
  };
  if (count <= limits.operations && machine.explore(limits.states, visit)) return pairs;
  explored = false;
  for (std::size_t a = 0; a < count; ++a) {
    const std::size_t starter = machine.starter(a);
    const auto start = [&](Event event) { return event == Event{starter, true}; };
    const auto end = [&](Event event) { return event == Event{a, false}; };
    check_overlaps(machine.run(start, ignore_events), a, pairs);
    check_overlaps(machine.run(end, ignore_events), a, pairs);
  }
  return pairs;
}

bool conflict(const std::vector<Touch>& one, const std::vector<Touch>& other) {
  return std::ranges::any_of(one, [&](const Touch& a) {
    return std::ranges::any_of(other, [&](const Touch& b) {
      return a.buffer == b.buffer && a.row == b.row && (a.writes || b.writes);
    });
  });
}

void judge_rank(const RankProgram& program, const SearchLimits& limits, Verdict& verdict) {
  const Pairs pairs = pairs_of(machine_of(program), limits, verdict.explored);
  const auto op = [&](std::size_t k) -> const plan::flat::Operation& {
    return program.operations[k];
  };
  for (const auto& [a, b] : pairs.not_complete) {
    if (conflict(touches(program, op(a)), touches(program, op(b)))) verdict.race = true;
  }
  for (const auto& [a, b] : pairs.not_started) {
    const std::string key = key_of(program, op(a));
    if (!key.empty() && key == key_of(program, op(b))) verdict.unordered = true;
  }
}

// Rows of one exchange that two messages replace.
bool exchange_overlaps(const Job& job, std::size_t node) {
  const auto* exchange = std::get_if<plan::Exchange>(&job.operation(node).source->action);
  if (exchange == nullptr || exchange->add) return false;
  const auto messages = messages_of(job, node);
  if (!messages) return false;
  std::set<std::int64_t> rows;
  for (const Message& message : *messages) {
    for (std::int64_t k = 0; k < message.count; ++k) {
      if (!rows.insert(message.into + k).second) return true;
    }
  }
  return false;
}

std::string broken_rule_of(const Job& job, const Matching& matching, RuleCounts& counts) {
  const std::vector<std::pair<std::string, bool>> statements{
      {"statement: names a contribution once", std::ranges::all_of(job.ranks, sums_are_sets)},
      {"statement: a step begins with old versions", begins_before_update(job.ranks)}};
  for (const auto& [rule, holds] : statements) {
    if (holds) continue;
    counts[rule].broken = 1;
    return rule;
  }
  const std::string rule = first_broken_rule(job, matching, counts);
  for (const auto& [statement, holds] : statements) counts[statement].held = 1;
  return rule;
}

}  // namespace

std::string broken_rule(const plan::Plan& plan) {
  const Job job(plan);
  RuleCounts counts;
  return broken_rule_of(job, match(job), counts);
}

Verdict judge(const plan::Plan& plan, const SearchLimits& limits) {
  const Job job(plan);
  const Matching matching = match(job);
  const Machine eager(nodes_of(job, matching, Sends::eager));
  const Machine rendezvous(nodes_of(job, matching, Sends::rendezvous));
  Verdict verdict{.matched = matching.agrees};
  verdict.deadlock_eager = deadlocks(eager, limits, verdict.explored);
  verdict.deadlock_rendezvous = deadlocks(rendezvous, limits, verdict.explored);
  verdict.nccl_messages = messages_cross(job, matching);
  verdict.nccl_calls = batched_by_half(job, matching) || turns_in_place(job);
  verdict.nccl_deadlock = deadlocks(machine_on_nccl(job, matching), limits, verdict.explored);
  for (const RankProgram& program : job.ranks) judge_rank(program, limits, verdict);
  for (std::size_t node = 0; node < job.nodes(); ++node) {
    if (exchange_overlaps(job, node)) verdict.race = true;
  }
  const bool follows_values = verdict.matched && !verdict.deadlock_eager && !verdict.race;
  for (const RankProgram& program : job.ranks) {
    if (!writes_once(program)) verdict.race = true;
  }
  if (follows_values) {
    verdict.rule = broken_rule_of(job, matching, verdict.rules);
    verdict.values_wrong = !verdict.rule.empty();
  }
  return verdict;
}

}  // namespace shiplap::oracle
