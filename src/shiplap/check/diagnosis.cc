// What is wrong with the order: idle ranks, deadlocks, races.
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

Finding finding_at(Words& words, Place place, Diagnostic said) {
  said.where = words.where(place);
  return {.diagnostic = std::move(said), .place = place};
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
    finding.diagnostic.what = fmt::format("ranks {} have nothing to do", some_ranks(idle));
  }
  if (!idle.empty()) {
    finding.place.rank = idle.front();
    finding.diagnostic.where.rank = idle.front();
  }
  finding.folded = std::max<std::int64_t>(0, std::ssize(idle) - 1);
  return {finding};
}

std::vector<Finding> diagnose_shapes(const Job& job, const std::vector<Trouble>& troubles) {
  if (troubles.empty()) return {};
  Words words(job);
  const Trouble& trouble = troubles.front();
  Finding finding = finding_at(
      words, trouble.place,
      {.code = trouble.code, .what = trouble.what, .why = trouble.why, .help = trouble.help});
  finding.witness = {trouble.place};
  finding.folded = std::ssize(troubles) - 1;
  return {finding};
}

namespace {

struct DeadlockText {
  const char* code;
  const char* what;  // of so many of so many ranks
  const char* help;
};

// Advice that holds under all rules: members of a batch progress together everywhere, while on NCCL
// a send that is `async` or on a stream of its own does not.
DeadlockText text_of(Deadlock deadlock) {
  switch (deadlock) {
    case Deadlock::always:
      return {"D720", "deadlock: {} of {} ranks wait for ever",
              "let one rank of the circle do it in the order of the others, or put what waits for "
              "each other into one `batch` on each rank"};
    case Deadlock::rendezvous:
      return {
          "D721",
          "deadlock under rendezvous sends (passes with eager sends): {} of {} ranks wait for "
          "ever",
          "let one rank of the circle receive before it sends, or put send and receive into one "
          "`batch` on each rank"};
    case Deadlock::communicators:
      return {
          "D723",
          "deadlock on NCCL, where a communicator works in order whatever streams are used: {} of "
          "{} ranks wait for ever",
          "launch in one order on all ranks, put messages that cross into one `batch` on each "
          "rank, or give each direction a `channel` of its own"};
    case Deadlock::one_queue:
      return {"D726",
              "a deadlock is possible on NCCL, which promises no progress on two communicators at "
              "once: {} of {} ranks would wait for ever",
              "launch on the communicators in one order on all ranks, or make one wait for the "
              "other"};
  }
  throw InternalError("unknown deadlock");
}

}  // namespace

Finding diagnose_deadlock(const Job& job, const plan::Execution& execution, Deadlock deadlock) {
  Words words(job);
  const std::vector<plan::Execution::Wait> circle = execution.wait_cycle();
  const std::vector<Place> stuck = execution.stuck();
  const Place first = circle.empty() ? stuck.front() : circle.front().waiting;
  const DeadlockText text = text_of(deadlock);
  Finding finding = finding_at(words, first, {.code = text.code, .severity = Severity::error});
  Diagnostic& said = finding.diagnostic;
  finding.only_rendezvous = deadlock == Deadlock::rendezvous;
  said.what = fmt::format(fmt::runtime(text.what), with_separators(std::ssize(stuck)),
                          with_separators(std::ssize(job.scripts)));
  std::string cycle;
  for (std::size_t k = 0; k < circle.size(); ++k) {
    const plan::Execution::Wait& wait = circle[k];
    finding.witness.push_back(wait.waiting);
    finding.notes.push_back(
        {.code = said.code,
         .severity = Severity::note,
         .where = words.where(wait.waiting),
         .what = fmt::format(
             "rank {} waits in `{}` for `{}` of rank {}{}", wait.waiting.rank,
             words.operation(wait.waiting), words.operation(wait.awaited), wait.awaited.rank,
             fmt::format(", which comes after `{}`",
                         words.operation(circle[(k + 1) % circle.size()].waiting)))});
    cycle += fmt::format("{}r{}: {}", k == 0 ? "" : " -> ", wait.waiting.rank,
                         words.operation(wait.waiting));
    if (k + 1 == kMaxCycleNotes && circle.size() > kMaxCycleNotes) {
      cycle += fmt::format(" -> {} more", circle.size() - kMaxCycleNotes);
      break;
    }
  }
  said.why = circle.empty() ? "" : fmt::format("a circle of {}: {}", circle.size(), cycle);
  said.help = text.help;
  finding.folded = std::max<std::int64_t>(0, std::ssize(stuck) - std::ssize(circle));
  return finding;
}

namespace {

// Pairs that share an operation have one cause.
std::vector<std::vector<const Trouble*>> by_cause(const std::vector<Trouble>& troubles) {
  std::vector<std::vector<const Trouble*>> sets;
  std::map<Place, std::size_t> of;
  for (const Trouble& trouble : troubles) {
    const auto first = of.find(trouble.place);
    const auto second = of.find(trouble.other);
    std::size_t set = sets.size();
    if (first != of.end()) set = first->second;
    if (second != of.end()) set = second->second;
    if (set == sets.size()) sets.emplace_back();
    sets[set].push_back(&trouble);
    of[trouble.place] = set;
    of[trouble.other] = set;
  }
  return sets;
}

Diagnostic said_of_race(Words& words, const Job& job, const Trouble& trouble) {
  const std::string first = words.operation(trouble.other);
  const std::string second = words.operation(trouble.place);
  if (trouble.symptom == Symptom::unordered) {
    return {
        .code = "D722",
        .what = fmt::format("`{}` and `{}` may start in either order, and what they meet is "
                            "decided by their order",
                            first, second),
        .why = "operations with one peer, tag and channel, or on one group, meet by number",
        .help = fmt::format("put them on one stream, or let `{}` come after `{}`", second, first)};
  }
  const bool writes = trouble.symptom == Symptom::race_write;
  const std::string rows = words.zone(trouble.place.rank, trouble.zone);
  const Op& earlier = job.op(trouble.other);
  return {.code = writes ? "D731" : "D730",
          .what = writes
                      ? fmt::format("`{}` and `{}` may both write {} at once", first, second, rows)
                      : fmt::format("`{}` and `{}` may touch {} at once, and one writes it", first,
                                    second, rows),
          .why = fmt::format("nothing makes `{}` wait until `{}` is complete{}", second, first,
                             earlier.source->async ? ", which is async" : ""),
          .help = earlier.source->name.name.empty()
                      ? fmt::format("give `{}` a name, and let `{}` come `after` it", first, second)
                      : fmt::format("let `{}` come `after` `{}`", second, first)};
}

}  // namespace

std::vector<Finding> diagnose_races(const Job& job, const std::vector<Trouble>& troubles) {
  Words words(job);
  std::vector<Finding> findings;
  // The same lines of the plan on several ranks are one cause.
  std::map<std::pair<const plan::Operation*, const plan::Operation*>, std::size_t> known;
  for (const std::vector<const Trouble*>& set : by_cause(troubles)) {
    const Trouble& trouble = *set.front();
    const auto key = std::pair(job.op(trouble.other).source, job.op(trouble.place).source);
    const auto found = known.find(key);
    if (found != known.end()) {
      findings[found->second].folded += std::ssize(set);
      findings[found->second].witness.push_back(trouble.place);
      continue;
    }
    known[key] = findings.size();
    Finding finding = finding_at(words, trouble.place, said_of_race(words, job, trouble));
    finding.witness = {trouble.other, trouble.place};
    finding.folded = std::ssize(set) - 1;
    findings.push_back(std::move(finding));
  }
  return findings;
}

}  // namespace shiplap::check
