// Findings about order: idle ranks, deadlocks, races.
//
// A deadlock is reported by a cycle of the wait-for graph (Holt 1972; Coffman et al. 1971):
// plan::Execution finds one once no operation can progress. The cycle is the witness. Ranks that
// only wait for a rank of the cycle are consequences; they are counted (`folded`), not listed.
//
// Races are pairs of operations. Pairs that share an operation usually have one cause, and so do
// equal pairs of lines of the plan on several ranks: both are folded into one finding.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "shiplap/base/error.h"
#include "shiplap/base/units.h"
#include "shiplap/check/diagnosis_internal.h"

namespace shiplap::check {
namespace {

constexpr std::size_t kMaxCycleNotes = 8;

}  // namespace

Finding finding_at(Formatter& formatter, OperationId place, Diagnostic diagnostic) {
  diagnostic.where = formatter.where(place);
  return {.diagnostic = std::move(diagnostic), .place = place};
}

Diagnostic as_note(Diagnostic diagnostic) {
  diagnostic.severity = Severity::note;
  diagnostic.why = diagnostic.help = "";
  return diagnostic;
}

std::vector<Finding> diagnose_idle(const Job& job) {
  std::vector<std::int32_t> idle;
  for (const Script& script : job.scripts) {
    const bool spare = !script.program.exists();
    if (!spare && script.ops.empty()) idle.push_back(script.rank);
  }
  const bool empty =
      std::ranges::all_of(job.scripts, [](const Script& script) { return script.ops.empty(); });
  if (idle.empty() && !empty) return {};
  Finding finding;
  finding.diagnostic = {
      .code = "D700",
      .what =
          empty ? "this plan does nothing" : fmt::format("rank {} has nothing to do", idle.front()),
      .why = "a plan without operations proves nothing",
      .help = empty ? "give its programs operations" : "declare it `spare`, or give it operations"};
  if (idle.size() > 1 && !empty) {
    finding.diagnostic.what = fmt::format("ranks {} have nothing to do", format_ranks(idle));
  }
  if (!idle.empty()) {
    finding.place.rank = idle.front();
    finding.diagnostic.where.rank = idle.front();
  }
  finding.folded = std::max<std::int64_t>(0, std::ssize(idle) - 1);
  return {finding};
}

std::vector<Finding> diagnose_shapes(const Job& job, const std::vector<Violation>& violations) {
  if (violations.empty()) return {};
  Formatter formatter(job);
  const Violation& violation = violations.front();
  Finding finding = finding_at(formatter, violation.place,
                               {.code = violation.code,
                                .what = violation.what,
                                .why = violation.why,
                                .help = violation.help});
  finding.witness = {violation.place};
  finding.folded = std::ssize(violations) - 1;
  return {finding};
}

namespace {

struct DeadlockText {
  const char* code;
  const char* what;  // its arguments: ranks that hang, all ranks
  const char* help;
};

// The advice holds for all libraries: members of a batch always progress together, but on NCCL a
// send that is `async` or on its own stream does not.
DeadlockText text_of(Deadlock deadlock) {
  switch (deadlock) {
    case Deadlock::always:
      return {"D720", "deadlock: {} of {} ranks hang",
              "let one rank of the cycle follow the order of the others, or put the operations "
              "that wait for each other into one `batch` on each rank"};
    case Deadlock::rendezvous:
      return {"D721",
              "deadlock with rendezvous sends (passes with eager sends): {} of {} ranks hang",
              "let one rank of the cycle receive before it sends, or put send and receive into "
              "one `batch` on each rank"};
    case Deadlock::communicators:
      return {"D723",
              "deadlock on NCCL, which runs the operations of a communicator in order on any "
              "stream: {} of {} ranks hang",
              "launch in the same order on all ranks, put crossing messages into one `batch` on "
              "each rank, or give each direction its own `channel`"};
    case Deadlock::one_queue:
      return {"D726",
              "possible deadlock on NCCL, which does not guarantee progress on two communicators "
              "at once: {} of {} ranks would hang",
              "launch on the communicators in the same order on all ranks, or make one wait for "
              "the other"};
  }
  throw InternalError("unknown deadlock");
}

}  // namespace

Finding diagnose_deadlock(const Job& job, const plan::Execution& execution, Deadlock deadlock) {
  Formatter formatter(job);
  const std::vector<plan::Execution::Wait> cycle = execution.wait_cycle();
  const std::vector<OperationId> stuck = execution.stuck();
  const OperationId first = cycle.empty() ? stuck.front() : cycle.front().waiting;
  const DeadlockText texts = text_of(deadlock);
  Finding finding = finding_at(formatter, first, {.code = texts.code, .severity = Severity::error});
  Diagnostic& diagnostic = finding.diagnostic;
  finding.only_rendezvous = deadlock == Deadlock::rendezvous;
  diagnostic.what = fmt::format(fmt::runtime(texts.what), with_separators(std::ssize(stuck)),
                                with_separators(std::ssize(job.scripts)));
  std::string text;
  for (std::size_t k = 0; k < cycle.size(); ++k) {
    const plan::Execution::Wait& wait = cycle[k];
    finding.witness.push_back(wait.waiting);
    finding.notes.push_back(
        {.code = diagnostic.code,
         .severity = Severity::note,
         .where = formatter.where(wait.waiting),
         .what =
             fmt::format("rank {} waits in `{}` for `{}` of rank {}{}", wait.waiting.rank,
                         formatter.operation(wait.waiting), formatter.operation(wait.awaited),
                         wait.awaited.rank,
                         fmt::format(", which comes after `{}`",
                                     formatter.operation(cycle[(k + 1) % cycle.size()].waiting)))});
    text += fmt::format("{}r{}: {}", k == 0 ? "" : " -> ", wait.waiting.rank,
                        formatter.operation(wait.waiting));
    if (k + 1 == kMaxCycleNotes && cycle.size() > kMaxCycleNotes) {
      text += fmt::format(" -> {} more", cycle.size() - kMaxCycleNotes);
      break;
    }
  }
  diagnostic.why =
      cycle.empty() ? "" : fmt::format("wait cycle of length {}: {}", cycle.size(), text);
  diagnostic.help = texts.help;
  finding.folded = std::max<std::int64_t>(0, std::ssize(stuck) - std::ssize(cycle));
  return finding;
}

namespace {

// Pairs that share an operation have one cause.
std::vector<std::vector<const Violation*>> by_cause(const std::vector<Violation>& violations) {
  std::vector<std::vector<const Violation*>> sets;
  std::map<OperationId, std::size_t> set_of;
  for (const Violation& violation : violations) {
    const auto first = set_of.find(violation.place);
    const auto second = set_of.find(violation.other);
    std::size_t set = sets.size();
    if (first != set_of.end()) set = first->second;
    if (second != set_of.end()) set = second->second;
    if (set == sets.size()) sets.emplace_back();
    sets[set].push_back(&violation);
    set_of[violation.place] = set;
    set_of[violation.other] = set;
  }
  return sets;
}

Diagnostic race_diagnostic(Formatter& formatter, const Job& job, const Violation& violation) {
  const std::string first = formatter.operation(violation.other);
  const std::string second = formatter.operation(violation.place);
  if (violation.symptom == Symptom::unordered) {
    return {
        .code = "D722",
        .what = fmt::format("`{}` and `{}` may start in either order, but are matched by order",
                            first, second),
        .why =
            "operations with one peer, tag and channel, or on one group, are matched in the "
            "order in which they start",
        .help = fmt::format("put them on one stream, or let `{}` come after `{}`", second, first)};
  }
  const bool writes = violation.symptom == Symptom::race_write;
  const std::string rows = formatter.row_range(violation.place.rank, violation.row_range);
  const ScriptOp& earlier = job.op(violation.other);
  return {.code = writes ? "D731" : "D730",
          .what = writes ? fmt::format("data race: `{}` and `{}` may both write {} at once", first,
                                       second, rows)
                         : fmt::format("data race: `{}` and `{}` may access {} at once, and one "
                                       "writes it",
                                       first, second, rows),
          .why = fmt::format("nothing makes `{}` wait until `{}` is complete{}", second, first,
                             earlier.source->async ? ", which is async" : ""),
          .help = earlier.source->name.name.empty()
                      ? fmt::format("give `{}` a name, and let `{}` come `after` it", first, second)
                      : fmt::format("let `{}` come `after` `{}`", second, first)};
}

}  // namespace

std::vector<Finding> diagnose_races(const Job& job, const std::vector<Violation>& violations) {
  Formatter formatter(job);
  std::vector<Finding> findings;
  // The same lines of the plan on several ranks are one cause.
  std::map<std::pair<const plan::Operation*, const plan::Operation*>, std::size_t> known;
  for (const std::vector<const Violation*>& set : by_cause(violations)) {
    const Violation& violation = *set.front();
    const auto key = std::pair(job.op(violation.other).source, job.op(violation.place).source);
    const auto found = known.find(key);
    if (found != known.end()) {
      findings[found->second].folded += std::ssize(set);
      findings[found->second].witness.push_back(violation.place);
      continue;
    }
    known[key] = findings.size();
    Finding finding =
        finding_at(formatter, violation.place, race_diagnostic(formatter, job, violation));
    finding.witness = {violation.other, violation.place};
    finding.folded = std::ssize(set) - 1;
    if (job.op(violation.other).source->at.source.exists()) {
      const Where other = formatter.where(violation.other);
      finding.diagnostic.help =
          fmt::format("wait for the operation of {}:{} before this line", other.file, other.line);
      finding.notes.push_back({.severity = Severity::note,
                               .where = other,
                               .what = "the operation that may still be in flight"});
    }
    findings.push_back(std::move(finding));
  }
  return findings;
}

}  // namespace shiplap::check
