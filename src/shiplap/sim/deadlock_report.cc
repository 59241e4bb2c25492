// The report of a deadlock that the clock ran into.
//
// The clock only counts unmet dependencies, so when it stops it has no wait-for graph. The program
// is executed once more without times (plan/execution.h); one order decides, because matching is
// fixed and starting an operation never disables another. What that execution leaves is the
// wait-for graph (R. C. Holt, "Some deadlock properties of computer systems", 1972) and the
// shortest wait cycle that it finds within its budget.
//
// Two cases:
// - There is a cycle: the diagnostic prints its edges, each an operation in which a rank waits and
//   the operation of another rank that it waits for. Of a long cycle only the first edges are
//   shown.
// - There is none: an operation waits for a send, receive or call that no rank makes, or that is
//   never reached. The diagnostic then explains the first rank that hangs.
// Notes explain the first few ranks that hang, in order of rank.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "shiplap/base/error.h"
#include "shiplap/base/units.h"
#include "shiplap/plan/execution.h"
#include "shiplap/sim/deadlock_report_internal.h"
#include "shiplap/sim/format_internal.h"

namespace shiplap::sim {
namespace {

using Wait = plan::Execution::Wait;

constexpr std::size_t kMaxNotes = 8;
constexpr std::size_t kMaxCycle = 6;

class DeadlockReport {
 public:
  DeadlockReport(const LinkedProgram& linked, const plan::Execution& execution)
      : linked_(linked), execution_(execution), formatter_(linked), stuck_(execution.stuck()) {
    ensure(!stuck_.empty(), "a deadlock has at least one waiting rank");
    first_wait_.resize(linked.ranks.size());
    for (const OperationId& id : stuck_) first_wait_[id.rank] = id;
  }

  std::vector<Diagnostic> problems() {
    std::vector<Diagnostic> result{head()};
    for (std::size_t k = 0; k < std::min(stuck_.size(), kMaxNotes); ++k) {
      result.push_back({.code = "D630",
                        .severity = Severity::note,
                        .where = formatter_.where(stuck_[k]),
                        .what = explain(stuck_[k])});
    }
    const std::int64_t more = hanging() - std::ssize(result) + 1;
    if (more > 0) {
      result.push_back({.code = "D630",
                        .severity = Severity::note,
                        .what = fmt::format("{} more ranks hang", with_separators(more))});
    }
    return result;
  }

 private:
  [[nodiscard]] std::int64_t hanging() const {
    return std::ssize(stuck_) * linked_.symmetry.class_size();
  }

  Diagnostic head() {
    const std::vector<Wait> cycle = execution_.wait_cycle();
    const OperationId first = cycle.empty() ? stuck_.front() : cycle.front().waiting;
    Diagnostic diagnostic{.code = "D630", .where = formatter_.where(first)};
    diagnostic.what = fmt::format("deadlock: {} of {} ranks hang", with_separators(hanging()),
                                  with_separators(std::ssize(linked_.ranks)));
    diagnostic.why = cycle.empty() ? explain(first) : format_cycle(cycle);
    diagnostic.help =
        cycle.empty()
            ? "every send needs a receive with the same channel and tag, and all members of a "
              "group must make the same calls on it, equally often"
            : "reverse the order on one of the ranks, or put the operations into one `batch` or "
              "on separate streams";
    return diagnostic;
  }

  std::string format_cycle(const std::vector<Wait>& cycle) {
    std::string text = "wait cycle: ";
    for (std::size_t k = 0; k < std::min(cycle.size(), kMaxCycle); ++k) {
      const Wait& wait = cycle[k];
      text += fmt::format("{}rank {} waits in `{}` for `{}` of rank {}", k == 0 ? "" : ", ",
                          wait.waiting.rank, formatter_.operation(wait.waiting),
                          formatter_.operation(wait.awaited), wait.awaited.rank);
      const OperationId next = cycle[(k + 1) % cycle.size()].waiting;
      text += fmt::format(", which comes after `{}`", formatter_.operation(next));
    }
    if (cycle.size() > kMaxCycle) {
      text += fmt::format("; the cycle has {} operations", with_separators(std::ssize(cycle)));
    }
    return text;
  }

  std::string explain(OperationId id) {
    const std::string head =
        fmt::format("rank {} waits in `{}` ", id.rank, formatter_.operation(id));
    const Step& step = linked_.step(id);
    const bool message = step.action == ActionKind::send || step.action == ActionKind::receive;
    return head + (message ? other_end(id) : members(id));
  }

  std::string other_end(OperationId id) {
    const OperationId other = linked_.other_end(id);
    if (other.exists()) {
      return fmt::format("for `{}` of rank {}, {}", formatter_.operation(other), other.rank,
                         doing(other.rank));
    }
    const bool sends = linked_.step(id).action == ActionKind::send;
    const std::int32_t peer = peer_of(id);
    return fmt::format("for a {} of rank {}, which has no matching one and {}",
                       sends ? "receive" : "send", peer,
                       done(peer) ? "has finished its program" : "waits too");
  }

  // The peer of a message is kept in its event.
  [[nodiscard]] std::int32_t peer_of(OperationId id) const {
    const auto event = static_cast<std::size_t>(linked_.step(id).event);
    return linked_.trace.ranks[id.rank].events[event].peer;
  }

  std::string members(OperationId id) {
    const std::vector<std::int32_t> absent = absent_ranks(id);
    const auto more = std::ssize(absent) - 1;
    std::string text = fmt::format("over {} for rank {}", formatter_.group(id), absent.front());
    text += more > 0 ? fmt::format(" and {} more; rank {} ", with_separators(more), absent.front())
                     : std::string(", which ");
    const bool finished = done(absent.front());
    return text + (finished ? "has finished its program" : doing_itself(absent.front()));
  }

  // The members that have not started the call, in order of rank.
  [[nodiscard]] std::vector<std::int32_t> absent_ranks(OperationId call) const {
    const GroupCalls& group = linked_.group(call);
    const std::int32_t n = linked_.match(call).n;
    std::vector<std::int32_t> absent;
    for (std::int64_t k = 0; k < group.ranks.size(); ++k) {
      const std::int32_t rank = group.ranks[k].value;
      const std::int32_t slot = group.slot_of(linked_.symmetry.representative(rank));
      const OperationId id = slot < 0 ? OperationId{} : group.call(slot, n);
      const bool here = id.exists() && execution_.state(id) != OperationState::waiting;
      if (!here) absent.push_back(rank);
    }
    std::ranges::sort(absent);
    return absent;
  }

  // A rank hangs where its representative does.
  [[nodiscard]] const OperationId& first_wait(std::int32_t rank) const {
    return first_wait_[linked_.symmetry.representative(rank)];
  }
  [[nodiscard]] bool done(std::int32_t rank) const { return !first_wait(rank).exists(); }
  std::string doing(std::int32_t rank) {
    return done(rank) ? "which has finished its program" : "which " + doing_itself(rank);
  }
  std::string doing_itself(std::int32_t rank) {
    return fmt::format("waits in `{}`", formatter_.operation(first_wait(rank)));
  }

  const LinkedProgram& linked_;
  const plan::Execution& execution_;
  Formatter formatter_;
  std::vector<OperationId> stuck_;
  std::vector<OperationId> first_wait_;  // by rank; none if it is done
};

// An operation waits at the head of a queue for one that a rank cannot launch before its own.
std::vector<Diagnostic> queue_problems(const LinkedProgram& linked, const Clock& clock) {
  Formatter formatter(linked);
  std::vector<OperationId> heads;
  for (std::int32_t rank = 0; rank < std::ssize(linked.ranks); ++rank) {
    if (!linked.is_linked(rank)) continue;
    const OperationId head = clock.head_of_queue(rank);
    if (head.exists()) heads.push_back(head);
  }
  ensure(!heads.empty(), "a deadlock has at least one waiting rank");
  std::vector<Diagnostic> result{
      {.code = "D636",
       .where = formatter.where(heads.front()),
       .what = fmt::format("deadlock with one hardware queue: on {} of {} ranks an operation "
                           "waits at its head",
                           with_separators(std::ssize(heads) * linked.symmetry.class_size()),
                           with_separators(std::ssize(linked.ranks))),
       .why = "operations of all streams start in program order, so those behind it cannot start, "
              "and another rank waits for one of them",
       .help = "launch communication before computations that wait for other communication, or "
               "use several queues (CUDA_DEVICE_MAX_CONNECTIONS above 1)"}};
  for (std::size_t k = 0; k < std::min(heads.size(), kMaxNotes); ++k) {
    result.push_back({.code = "D636",
                      .severity = Severity::note,
                      .where = formatter.where(heads[k]),
                      .what = fmt::format("rank {}: `{}` is at the head of the queue",
                                          heads[k].rank, formatter.operation(heads[k]))});
  }
  return result;
}

}  // namespace

std::vector<Diagnostic> deadlock_problems(const LinkedProgram& linked, Bytes eager,
                                          const Clock& clock) {
  plan::Execution execution(linked, eager.count > 0 ? eager.count : plan::kAllRendezvous);
  if (execution.run()) return queue_problems(linked, clock);
  return DeadlockReport(linked, execution).problems();
}

}  // namespace shiplap::sim
