// Suspects from what NCCL's RAS says.
//
// The problem. RAS counts the operations that each rank has launched on each communicator, by kind.
// It knows no lines, no messages, and no ranks of the job: ranks count within a communicator, and
// the text lists only the few that are unlike the others.
//
// The idea. A collective completes only if all ranks have launched it, so those that have launched
// fewest hold up the others. Programs run the same operations in the same order, so a rank that is
// late has launched at most as many operations of every kind. More of one kind and fewer of another
// is a different program.
//
// A rank of the communicator of all ranks is a rank of the job, and its process identifies it in
// smaller communicators. If two such communicators disagree, no rank is taken for one of the job.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "shiplap/base/units.h"
#include "shiplap/postmortem/call_site_internal.h"
#include "shiplap/postmortem/nccl_ras_internal.h"

namespace shiplap::postmortem {
namespace {

using dump::RasCommunicator;
using dump::RasMember;
using dump::RasProcess;
using dump::RasReport;
using dump::RasState;

constexpr std::int64_t kMaxUnlisted = 64;  // ranks that are named although RAS does not list them
constexpr std::size_t kMaxRasSuspects = 64;
constexpr std::size_t kMaxDoubts = 3;
constexpr std::int64_t kMaxLag = std::int64_t{1} << 60;
constexpr std::size_t kMaxProcesses = 3;  // of a suspect, in evidence

std::string communicator_text(const RasCommunicator& communicator) {
  std::string text = "communicator ";
  text += communicator.name.empty() ? communicator.hash
                                    : fmt::format("{} ({})", communicator.name, communicator.hash);
  if (communicator.size > 0) {
    text += fmt::format(" of {} ranks", with_separators(communicator.size));
  }
  return text;
}

// "6,649 AllReduce operations"
std::string operations_text(const RasState& state) {
  return fmt::format("{} {}operation{}", with_separators(state.operations),
                     state.what.empty() ? "" : state.what + " ", state.operations == 1 ? "" : "s");
}

std::string process_text(const RasProcess& process) {
  return fmt::format("process {} on node {} (GPU {})", process.pid, process.node, process.gpu);
}

std::string_view is_or_are(std::size_t count) { return count == 1 ? "is" : "are"; }
std::string_view has_or_have(std::size_t count) { return count == 1 ? "has" : "have"; }
std::string others_text(std::int64_t count) {
  return count == 1 ? "the other one" : fmt::format("{} others", with_separators(count));
}

class RasWitness {
 public:
  // `before`: an earlier report, or null. `world`: ranks of the job.
  RasWitness(const RasReport& report, const RasReport* before, std::int64_t world)
      : report_(report), world_(world) {
    find_ranks();
    if (before != nullptr) compare(*before);
    for (const RasCommunicator& communicator : report.communicators) {
      for (const States& states : by_kind(communicator)) note_ahead(communicator, states);
    }
    suspect_missing();
    for (const RasCommunicator& communicator : report.communicators) {
      if (suspects_.size() >= kMaxRasSuspects) break;
      suspect_errors(communicator);
      suspect_statuses(communicator);
      suspect_counts(communicator);
    }
    std::ranges::stable_sort(suspects_, std::ranges::greater{}, &Suspect::confidence);
    if (suspects_.size() > kMaxRasSuspects) suspects_.resize(kMaxRasSuspects);
  }

  [[nodiscard]] const std::vector<Suspect>& suspects() const { return suspects_; }
  [[nodiscard]] const std::vector<std::string>& proof() const { return proof_; }
  // Differences between ranks that RAS does not list, and other doubts.
  [[nodiscard]] const std::vector<std::string>& doubts() const { return doubts_; }
  // Whether ranks of the job are known.
  [[nodiscard]] bool knows_ranks() const { return knows_ranks_; }
  // Whether no rank launched an operation between two texts.
  [[nodiscard]] bool is_still() const { return is_still_; }
  [[nodiscard]] bool all_answer() const {
    return report_.dead_count == 0 && report_.silent_count == 0 && !report_.truncated;
  }
  [[nodiscard]] const RasProcess* process_of(std::int32_t rank) const {
    const auto found = processes_.find(rank);
    return found == processes_.end() ? nullptr : &found->second;
  }

 private:
  using States = std::vector<const RasState*>;

  // ------------------------------------------------------------------ ranks of the job

  [[nodiscard]] bool has_all_ranks(const RasCommunicator& communicator) const {
    return world_ > 0 && communicator.size == world_;
  }

  void find_ranks() {
    knows_ranks_ = std::ranges::any_of(
        report_.groups, [&](const dump::RasGroup& group) { return group.size == world_; });
    for (const RasCommunicator& communicator : report_.communicators) {
      if (!has_all_ranks(communicator)) continue;
      knows_ranks_ = true;
      for (const RasMember& member : communicator.members) {
        if (member.process.pid < 0 || member.rank >= world_) continue;
        const bool fits =
            ranks_.try_emplace(member.process, member.rank).first->second == member.rank &&
            processes_.try_emplace(member.rank, member.process).first->second == member.process;
        if (!fits) return forget_ranks();
      }
    }
  }
  void forget_ranks() {
    ranks_.clear();
    processes_.clear();
    knows_ranks_ = false;
  }

  // The rank in the job, or -1.
  [[nodiscard]] std::int32_t rank_of(const RasCommunicator& communicator,
                                     const RasMember& member) const {
    if (member.rank < 0 || member.rank >= world_) return -1;
    if (knows_ranks_ && has_all_ranks(communicator)) return member.rank;
    const auto found = ranks_.find(member.process);
    return found == ranks_.end() ? -1 : found->second;
  }

  [[nodiscard]] std::vector<std::int32_t> ranks_of(const RasCommunicator& communicator,
                                                   std::span<const RasMember> members) const {
    std::vector<std::int32_t> ranks;
    for (const RasMember& member : members) {
      ranks.push_back(rank_of(communicator, member));
      if (ranks.back() < 0) return {};
    }
    std::ranges::sort(ranks);
    return ranks;
  }

  // "ranks 2 and 3", "rank 2 of communicator #1-0 (..) of 4 ranks".
  [[nodiscard]] std::string names(const RasCommunicator& communicator,
                                  std::span<const RasMember> members) const {
    std::vector<std::int32_t> ranks = ranks_of(communicator, members);
    const bool of_job = !ranks.empty();
    if (!of_job) {
      for (const RasMember& member : members) ranks.push_back(member.rank);
      std::ranges::sort(ranks);
    }
    return fmt::format("rank{} {}{}", ranks.size() == 1 ? "" : "s", format_ranks(ranks),
                       of_job ? "" : " of " + communicator_text(communicator));
  }

  // ------------------------------------------------------------------------- suspects

  // Where the processes run, and what to do there.
  void add_processes(Suspect& suspect, const RasCommunicator& communicator,
                     std::span<const RasMember> members) const {
    std::string commands;
    std::size_t known = 0;
    for (const RasMember& member : members) {
      const RasProcess* process = &member.process;
      if (process->pid < 0) process = process_of(rank_of(communicator, member));
      if (process == nullptr || ++known > kMaxProcesses) continue;
      suspect.evidence.push_back(
          fmt::format("{} is {}", names(communicator, {&member, 1}), process_text(*process)));
      commands += fmt::format("{}py-spy dump --pid {} on node {}", known == 1 ? "" : ", ",
                              process->pid, process->node);
    }
    if (known > kMaxProcesses) commands += fmt::format(" and {} more", known - kMaxProcesses);
    if (commands.empty() || suspect.fault == FaultClass::absent) return;
    suspect.would_help = fmt::format("{}: {}", known == 1 ? "its stack" : "their stacks", commands);
  }

  // The same process is found on each of its communicators: once is enough.
  bool is_known(const Suspect& suspect, const RasCommunicator& communicator,
                std::span<const RasMember> members) {
    std::vector<RasProcess> key;
    for (const RasMember& member : members) key.push_back(member.process);
    if (key.empty() || key.front().pid < 0) return false;
    const auto [known, is_new] =
        by_process_.try_emplace({suspect.fault, std::move(key)}, suspects_.size());
    if (is_new) return false;
    Suspect& first = suspects_[known->second];
    first.confidence = std::max(first.confidence, suspect.confidence);
    first.evidence.push_back(fmt::format("the same on {}", communicator_text(communicator)));
    return true;
  }

  void add_suspect(Suspect suspect, const RasCommunicator& communicator,
                   std::span<const RasMember> members) {
    if (is_known(suspect, communicator, members)) return;
    suspect.ranks = ranks_of(communicator, members);
    add_processes(suspect, communicator, members);
    suspects_.push_back(std::move(suspect));
  }

  // ---------------------------------------------------------- processes that do not answer

  void suspect_missing() {
    for (const RasCommunicator& communicator : report_.communicators) {
      for (const RasState& state : communicator.states) {
        if (state.kind == RasState::Kind::missing) suspect_missing(communicator, state);
      }
    }
    suspect_unmatched(report_.dead, true);
    suspect_unmatched(report_.silent, false);
    if (report_.dead_count > 0) {
      proof_.push_back(report_.dead_count == 1
                           ? "NCCL considers a process dead: it cannot be reached"
                           : fmt::format("NCCL considers {} processes dead: they cannot be reached",
                                         report_.dead_count));
    }
  }

  [[nodiscard]] static bool is_in(std::span<const RasProcess> list, const RasProcess& process) {
    return std::ranges::any_of(list, [&](const RasProcess& each) {
      return each.pid == process.pid && each.node == process.node;
    });
  }

  // A process that is listed, or any process if all that are missing are dead.
  [[nodiscard]] bool is_dead(const RasProcess& process) const {
    if (process.pid >= 0 && is_in(report_.dead, process)) return true;
    return report_.dead_count > 0 && report_.silent_count == 0;
  }

  // Those of one node together: a node may be lost.
  void suspect_missing(const RasCommunicator& communicator, const RasState& state) {
    std::map<std::pair<std::string, bool>, std::vector<RasMember>> by_node;
    for (const RasMember& member : state.members) {
      const bool is_new = matched_.emplace(member.process.node, member.process.pid).second;
      if (!is_new && member.process.pid >= 0) continue;  // on another communicator, too
      by_node[{member.process.node, is_dead(member.process)}].push_back(member);
    }
    if (state.members.empty()) doubt(communicator, state.count, "are missing");
    for (auto& [node, members] : by_node) {
      if (node.first.empty() && !is_first_without_process(communicator)) continue;
      suspect_missing(communicator, members, node.second);
    }
  }

  // Before 2.26 missing ranks have no process, so those of small communicators are probably the
  // same as those of the largest one.
  bool is_first_without_process(const RasCommunicator& communicator) {
    if (largest_incomplete_ == nullptr) largest_incomplete_ = &communicator;
    return largest_incomplete_ == &communicator;
  }

  void suspect_missing(const RasCommunicator& communicator, const std::vector<RasMember>& members,
                       bool dead) {
    const RasProcess& first = members.front().process;
    Suspect suspect{.fault = FaultClass::absent,
                    .confidence = dead ? 0.95 : 0.85,
                    .victims = std::max<std::int64_t>(0, communicator.size - std::ssize(members))};
    const std::string who = names(communicator, members);
    suspect.what =
        dead ? fmt::format("{} {} dead", who, is_or_are(members.size()))
             : fmt::format("{} {} not answer NCCL's RAS", who, members.size() == 1 ? "does" : "do");
    if (!first.node.empty()) suspect.what += fmt::format(", on node {}", first.node);
    suspect.evidence.push_back(
        dead ? fmt::format("NCCL cannot reach {} any more, and considers {} dead",
                           members.size() == 1 ? "its process" : "their processes",
                           members.size() == 1 ? "it" : "them")
             : "stopped, overloaded, or cut off; NCCL considers a process dead after 60 s");
    if (first.pid < 0) add_missing_processes(suspect, dead);
    suspect.would_help = first.node.empty()
                             ? "the logs of these processes"
                             : fmt::format(
                                   "the kernel log (dmesg) of node {}: out of memory, Xid "
                                   "errors, link down",
                                   first.node);
    add_suspect(std::move(suspect), communicator, members);
  }

  // If ranks have no process, which process is which is not known, but which processes are.
  void add_missing_processes(Suspect& suspect, bool dead) {
    for (const RasProcess& process : dead ? report_.dead : report_.silent) {
      matched_.emplace(process.node, process.pid);
      if (suspect.evidence.size() <= kMaxProcesses) {
        suspect.evidence.push_back(fmt::format("missing: {}", process_text(process)));
      }
    }
  }

  // Processes whose ranks are not listed.
  void suspect_unmatched(std::span<const RasProcess> processes, bool dead) {
    for (const RasProcess& process : processes) {
      if (matched_.contains({process.node, process.pid})) continue;
      if (suspects_.size() >= kMaxRasSuspects) return;
      suspects_.push_back({.ranks = {},
                           .fault = FaultClass::absent,
                           .confidence = dead ? 0.9 : 0.8,
                           .what = fmt::format("{} {}", process_text(process),
                                               dead ? "is dead" : "does not answer NCCL's RAS"),
                           .evidence = {"which ranks it has is not listed"}});
    }
  }

  // ---------------------------------------------------------------- errors and statuses

  void suspect_errors(const RasCommunicator& communicator) {
    for (const RasState& state : communicator.states) {
      if (state.kind != RasState::Kind::error) continue;
      // A rank that lost another one reports a remote error.
      const bool is_remote = state.what.starts_with("Remote");
      const std::string who = state.members.empty() ? fmt::format("{} ranks of {}", state.count,
                                                                  communicator_text(communicator))
                                                    : names(communicator, state.members);
      proof_.insert(is_remote ? proof_.end() : proof_.begin(),
                    fmt::format("{} reported {}", who, state.what));
      if (state.members.empty()) continue;
      Suspect suspect{.fault = FaultClass::device_stuck,
                      .confidence = is_remote ? 0.35 : 0.8,
                      .what = fmt::format("{} reported an NCCL error: {}", who, state.what),
                      .victims = std::max<std::int64_t>(0, communicator.size - state.count)};
      suspect.evidence.emplace_back(is_remote ? "another rank or the network to it failed"
                                              : "the device, the driver or the network failed");
      add_suspect(std::move(suspect), communicator, state.members);
    }
  }

  // The order in which a rank passes them. NOCOMM: it is not a member, yet or any more.
  static int stage(std::string_view status, bool any_init) {
    if (status == "INIT") return 1;
    if (status == "RUNNING") return 2;
    if (status == "FINALIZE") return 3;
    if (status == "ABORT") return 4;
    return any_init ? 0 : 5;
  }

  void suspect_statuses(const RasCommunicator& communicator) {
    States states;
    bool any_init = false;
    for (const RasState& state : communicator.states) {
      if (state.kind != RasState::Kind::status) continue;
      states.push_back(&state);
      any_init |= state.what == "INIT";
    }
    if (states.size() < 2) return;
    std::ranges::stable_sort(states, {},
                             [&](const RasState* state) { return stage(state->what, any_init); });
    const RasState& earliest = *states.front();
    const RasState& latest = *states.back();
    const RasState& usual = **std::ranges::max_element(states, {}, &RasState::count);
    const bool is_late = &usual != &earliest || earliest.count == latest.count;
    const RasState& odd = is_late ? earliest : latest;
    const RasState& rest = &usual != &odd ? usual : is_late ? latest : earliest;
    if (odd.members.empty()) return doubt(communicator, odd.count, "have another status");
    Suspect suspect{
        .fault = is_late ? FaultClass::cpu_stuck : FaultClass::divergence,
        .confidence = confidence(odd.count, communicator.size) - 0.1,
        .what = fmt::format("{} {} status {}, where {} have {}", names(communicator, odd.members),
                            has_or_have(odd.members.size()), odd.what, others_text(rest.count),
                            rest.what),
        .victims = rest.count};
    suspect.evidence.emplace_back(
        is_late ? "INIT, RUNNING, FINALIZE is the order: it has not made the call that the others "
                  "have made"
                : "it has left the communicator (finalize, destroy or abort), the others have not");
    add_suspect(std::move(suspect), communicator, odd.members);
  }

  static double confidence(std::int64_t accused, std::int64_t size) {
    if (2 * accused >= size) return accused == 1 ? 0.5 : 0.45;
    if (accused == 1) return 0.85;
    return 4 * accused <= size ? 0.6 : 0.5;
  }

  void doubt(const RasCommunicator& communicator, std::int64_t count, std::string_view what) {
    if (doubts_.size() >= kMaxDoubts) return;
    doubts_.push_back(
        fmt::format("{} ranks of {} {}, and NCCL does not list them: use ncclras -v, or -f json "
                    "(NCCL 2.28.7)",
                    count, communicator_text(communicator), what));
  }

  // ------------------------------------------------------------------ operation counts

  // The counts of operations, by their kind; the most frequent count of each first.
  static std::vector<States> all_kinds(const RasCommunicator& communicator) {
    std::vector<States> kinds;
    for (const RasState& state : communicator.states) {
      if (state.kind != RasState::Kind::operations) continue;
      auto kind = std::ranges::find_if(
          kinds, [&](const States& states) { return states.front()->what == state.what; });
      if (kind == kinds.end()) kind = kinds.emplace(kind);
      kind->push_back(&state);
    }
    std::erase_if(kinds, [](const States& states) { return states.size() < 2; });
    return kinds;
  }

  // Whether a rank has two counts of one kind: two texts were taken for one, or NCCL was wrong.
  static bool is_contradictory(const RasCommunicator& communicator, const States& states) {
    std::set<std::int32_t> ranks;
    std::int64_t total = 0;
    std::size_t listed = 0;
    for (const RasState* state : states) {
      total += state->count;
      listed += state->members.size();
      for (const RasMember& member : state->members) ranks.insert(member.rank);
    }
    return ranks.size() < listed || (communicator.size > 0 && total > communicator.size);
  }

  static std::vector<States> by_kind(const RasCommunicator& communicator) {
    std::vector<States> kinds = all_kinds(communicator);
    std::erase_if(kinds,
                  [&](const States& states) { return is_contradictory(communicator, states); });
    return kinds;
  }

  // Those that RAS lists. If it lists all but those of one state, it is known who they are.
  static std::vector<RasMember> members_of(const RasCommunicator& communicator,
                                           const States& states, const RasState& state) {
    if (std::ssize(state.members) == state.count) return state.members;
    std::set<std::int32_t> others;
    std::int64_t total = 0;
    for (const RasState* other : states) {
      total += other->count;
      if (other == &state) continue;
      if (std::ssize(other->members) != other->count) return {};
      for (const RasMember& member : other->members) others.insert(member.rank);
    }
    const bool is_certain = total == communicator.size && state.count <= kMaxUnlisted &&
                            std::ssize(others) + state.count == total;
    if (!is_certain || (!others.empty() && *others.rbegin() >= total)) return {};
    std::vector<RasMember> rest;
    for (std::int32_t rank = 0; rank < total; ++rank) {
      if (!others.contains(rank)) rest.push_back({.rank = rank, .process = {}});
    }
    return rest;
  }

  void note_ahead(const RasCommunicator& communicator, const States& states) {
    const std::int64_t fewest =
        (*std::ranges::min_element(states, {}, &RasState::operations))->operations;
    for (const RasState* state : states) {
      if (state->operations == fewest) continue;
      for (const RasMember& member : state->members) {
        if (member.process.pid >= 0) ahead_.try_emplace(member.process, &communicator);
      }
    }
  }

  // How a rank differs from most others.
  struct Difference {
    RasMember member;
    std::vector<std::pair<const RasState*, const RasState*>> fewer;  // its count, that of most
    std::vector<std::pair<const RasState*, const RasState*>> more;
  };

  void doubt_contradictions(const RasCommunicator& communicator) {
    for (const States& states : all_kinds(communicator)) {
      if (doubts_.size() >= kMaxDoubts || !is_contradictory(communicator, states)) continue;
      doubts_.push_back(
          fmt::format("the counts of {}operations on {} contradict one another, and are left out",
                      states.front()->what.empty() ? "" : states.front()->what + " ",
                      communicator_text(communicator)));
    }
  }

  void suspect_counts(const RasCommunicator& communicator) {
    doubt_contradictions(communicator);
    std::map<std::int32_t, Difference> differences;
    std::int64_t unlisted = 0;
    std::int32_t reference = -1;  // a rank that all others are compared with, if one is listed
    for (const States& states : by_kind(communicator)) {
      const RasState* usual = states.front();
      for (const RasState* state : states) {
        const std::vector<RasMember> members = members_of(communicator, states, *state);
        const bool has_reference =
            std::ranges::find(members, reference, &RasMember::rank) != members.end();
        if (reference >= 0 && has_reference) usual = state;
        if (reference < 0 && state == usual && !members.empty()) reference = members.front().rank;
      }
      for (const RasState* state : states) {
        if (state == usual) continue;
        const std::vector<RasMember> members = members_of(communicator, states, *state);
        if (members.empty()) unlisted = std::max(unlisted, state->count);
        for (const RasMember& member : members) {
          Difference& difference = differences[member.rank];
          difference.member = member;
          (state->operations < usual->operations ? difference.fewer : difference.more)
              .emplace_back(state, usual);
        }
      }
    }
    if (unlisted > 0) doubt(communicator, unlisted, "have launched another number of operations");
    suspect_differences(communicator, differences);
  }

  // Ranks with the same counts are one suspect. Those that are ahead are suspect only if nobody
  // else is: a CPU may launch operations long before they can run.
  void suspect_differences(const RasCommunicator& communicator,
                           const std::map<std::int32_t, Difference>& differences) {
    using Counts = std::vector<std::pair<const RasState*, const RasState*>>;
    std::map<std::pair<Counts, Counts>, std::vector<const Difference*>> alike;
    bool any_fewer = false;
    std::int64_t most = 0;
    for (const auto& [rank, difference] : differences) {
      alike[{difference.fewer, difference.more}].push_back(&difference);
      any_fewer |= !difference.fewer.empty();
      if (difference.more.empty()) most = std::max(most, lag(difference));
    }
    for (const auto& [counts, ranks] : alike) {
      const Difference& first = *ranks.front();
      if (first.fewer.empty() && any_fewer) continue;
      std::vector<RasMember> members;
      for (const Difference* each : ranks) members.push_back(each->member);
      Suspect suspect = first.more.empty() ? behind(communicator, first, members, lag(first) < most)
                        : first.fewer.empty() ? ahead(communicator, first, members)
                                              : diverged(communicator, first, members);
      add_suspect(std::move(suspect), communicator, members);
    }
  }

  // How many operations a rank that is late has yet to launch.
  static std::int64_t lag(const Difference& difference) {
    std::int64_t lag = 0;
    for (const auto& [state, usual] : difference.fewer) {
      lag = std::min(kMaxLag, lag + std::min(kMaxLag, usual->operations - state->operations));
    }
    return lag;
  }

  [[nodiscard]] static std::string difference_text(const RasState& state, const RasState& usual) {
    return fmt::format("{} launched, where {} {} {}", operations_text(state),
                       others_text(usual.count), usual.count == 1 ? "has" : "have",
                       with_separators(usual.operations));
  }

  Suspect behind(const RasCommunicator& communicator, const Difference& first,
                 const std::vector<RasMember>& members, bool others_are_later) const {
    const auto& [state, usual] = first.fewer.front();
    Suspect suspect{.fault = FaultClass::cpu_stuck,
                    .confidence = confidence(std::ssize(members), communicator.size),
                    .victims = usual->count};
    if (others_are_later) suspect.confidence -= 0.3;
    suspect.what = fmt::format("{} {} behind: {}", names(communicator, members),
                               is_or_are(members.size()), difference_text(*state, *usual));
    suspect.evidence.push_back(
        fmt::format("{} not launched the call that the others may wait in, on {}",
                    members.size() == 1 ? "it has" : "they have", communicator_text(communicator)));
    for (std::size_t k = 1; k < first.fewer.size(); ++k) {
      suspect.evidence.push_back("also: " +
                                 difference_text(*first.fewer[k].first, *first.fewer[k].second));
    }
    weigh_ahead(suspect, communicator, members);
    return suspect;
  }

  // A process that is ahead on another communicator may itself wait there.
  void weigh_ahead(Suspect& suspect, const RasCommunicator& communicator,
                   const std::vector<RasMember>& members) const {
    for (const RasMember& member : members) {
      const auto elsewhere = ahead_.find(member.process);
      if (elsewhere == ahead_.end() || elsewhere->second == &communicator) continue;
      suspect.confidence *= 0.65;
      suspect.evidence.push_back(fmt::format("but {} is ahead on {}, and may wait there",
                                             names(communicator, {&member, 1}),
                                             communicator_text(*elsewhere->second)));
      break;
    }
    if (!moves_.contains(communicator.hash)) return;
    suspect.confidence *= 0.4;
    suspect.evidence.push_back("but the counts of this communicator change from text to text");
  }

  Suspect ahead(const RasCommunicator& communicator, const Difference& first,
                const std::vector<RasMember>& members) const {
    const auto& [state, usual] = first.more.front();
    Suspect suspect{.fault = FaultClass::divergence,
                    .divergence = Divergence::extra,
                    .confidence = 0.35,
                    .what = fmt::format("{} {} ahead: {}", names(communicator, members),
                                        is_or_are(members.size()), difference_text(*state, *usual)),
                    .victims = 0};
    suspect.evidence.push_back(
        fmt::format("on {}: a call that the others do not make, or all others are late",
                    communicator_text(communicator)));
    if (moves_.contains(communicator.hash)) suspect.confidence *= 0.4;
    return suspect;
  }

  // Neither late nor early: another program. If as many ranks have one as the other, either may be
  // wrong, and `members` becomes both.
  Suspect diverged(const RasCommunicator& communicator, const Difference& first,
                   std::vector<RasMember>& members) {
    const RasState& usual = *first.fewer.front().second;
    const bool is_tie = 2 * std::ssize(members) >= communicator.size;
    if (is_tie) std::ranges::copy(usual.members, std::back_inserter(members));
    Suspect suspect{.fault = FaultClass::divergence,
                    .divergence = Divergence::operation,
                    .confidence = is_tie ? 0.65 : 0.9,
                    .victims = is_tie ? 0 : usual.count};
    const std::string who = names(communicator, members);
    suspect.what = is_tie
                       ? fmt::format("one of {} has launched other operations than the rest", who)
                       : fmt::format("{} {} launched other operations than {}: {} fewer, {} more",
                                     who, has_or_have(members.size()), others_text(usual.count),
                                     kinds_text(first.fewer), kinds_text(first.more));
    for (const auto* counts : {&first.fewer, &first.more}) {
      for (const auto& [state, other] : *counts) {
        suspect.evidence.push_back(difference_text(*state, *other));
      }
    }
    suspect.evidence.push_back(
        fmt::format("a rank that is only late has launched at most as many of every kind, on {}",
                    communicator_text(communicator)));
    proof_.push_back(
        fmt::format("ranks of {} launched different operations", communicator_text(communicator)));
    return suspect;
  }

  static std::string kinds_text(
      const std::vector<std::pair<const RasState*, const RasState*>>& counts) {
    std::string text;
    for (const auto& [state, usual] : counts) {
      text += (text.empty() ? "" : " and ") + state->what;
    }
    return text;
  }

  // ---------------------------------------------------------------------- two texts

  // A text lists fewer ranks than JSON, so the ranks are not compared.
  static bool is_same_state(const RasCommunicator& a, const RasCommunicator& b) {
    const auto states_of = [](const RasCommunicator& communicator) {
      std::set<std::tuple<RasState::Kind, std::string, std::int64_t, std::int64_t>> states;
      for (const RasState& state : communicator.states) {
        states.emplace(state.kind, state.what, state.operations, state.count);
      }
      return states;
    };
    const bool both_know = a.launched >= 0 && b.launched >= 0;
    return states_of(a) == states_of(b) && (!both_know || a.launched == b.launched);
  }

  // Whether communicators moved between two texts. What a text that ends early lacks did not move.
  void compare(const RasReport& before) {
    if (before.truncated || report_.truncated) return;
    std::map<std::string, const RasCommunicator*> earlier;
    for (const RasCommunicator& communicator : before.communicators) {
      earlier.emplace(communicator.hash, &communicator);
    }
    is_still_ = !report_.communicators.empty();
    for (const RasCommunicator& communicator : report_.communicators) {
      const auto found = earlier.find(communicator.hash);
      const bool is_same = found != earlier.end() && is_same_state(communicator, *found->second);
      if (!is_same) moves_.insert(communicator.hash);
      is_still_ &= is_same && communicator.launched >= 0;
      if (!is_same || communicator.states.empty()) continue;
      proof_.push_back(fmt::format("what NCCL says of {} is the same in two texts",
                                   communicator_text(communicator)));
    }
  }

  const RasReport& report_;
  std::int64_t world_;
  bool knows_ranks_ = false;
  bool is_still_ = false;
  std::map<RasProcess, std::int32_t> ranks_;
  std::map<std::int32_t, RasProcess> processes_;
  std::map<RasProcess, const RasCommunicator*> ahead_;
  std::set<std::pair<std::string, std::int64_t>> matched_;  // missing processes with a rank
  const RasCommunicator* largest_incomplete_ = nullptr;
  std::map<std::pair<FaultClass, std::vector<RasProcess>>, std::size_t> by_process_;
  std::set<std::string> moves_;  // hashes
  std::vector<Suspect> suspects_;
  std::vector<std::string> proof_;
  std::vector<std::string> doubts_;
};

const RasReport* report_before(const dump::JobDump& job) {
  return job.ras.size() > 1 ? &job.ras[job.ras.size() - 2] : nullptr;
}

// "ras.txt: NCCL 2.26.2, 32 GPUs, 1 communicator of 32 ranks (RUNNING, MISMATCH)"
std::string report_text(const RasReport& report) {
  constexpr std::size_t kMaxGroups = 6;
  std::string text = report.file + ": ";
  text += report.version.empty() ? "NCCL of an unknown version" : "NCCL " + report.version;
  if (report.gpus > 0) text += fmt::format(", {} GPUs", with_separators(report.gpus));
  for (std::size_t k = 0; k < report.groups.size() && k < kMaxGroups; ++k) {
    const dump::RasGroup& group = report.groups[k];
    text += fmt::format(", {} communicator{} of {} ranks ({}, {})",
                        with_separators(group.communicators), group.communicators == 1 ? "" : "s",
                        with_separators(group.size), group.status, group.errors);
  }
  if (report.groups.size() > kMaxGroups) text += ", ..";
  if (report.groups.empty()) {
    const std::int64_t count = std::ssize(report.communicators);
    text += fmt::format(", {} communicator{}", with_separators(count), count == 1 ? "" : "s");
  }
  if (report.truncated) text += "; it ends early";
  return text;
}

void add_ras_notes(const dump::JobDump& job, std::vector<std::string>& notes) {
  const RasReport& last = job.ras.back();
  notes.push_back(report_text(last));
  if (job.ras.size() > 2) {
    notes.push_back(fmt::format("of {} texts of ncclras, the last two are used", job.ras.size()));
  }
  const RasReport* before = report_before(job);
  if (before != nullptr && before->truncated) {
    notes.push_back(
        fmt::format("{}, the text before, ends early, so the two are not compared", before->file));
  }
}

// What RAS says of a rank that the dumps suspect.
void add_to_suspect(Suspect& suspect, const Suspect& said, Postmortem& found) {
  const bool is_dead = said.fault == FaultClass::absent;
  if (suspect.fault == FaultClass::absent && is_dead) {
    suspect.confidence = std::max(suspect.confidence, said.confidence + 0.02);
    found.proof.push_back("others wait for a process that NCCL cannot reach");
  } else if (suspect.fault == FaultClass::absent && said.fault == FaultClass::cpu_stuck) {
    suspect.fault = FaultClass::cpu_stuck;
    suspect.evidence.clear();
    suspect.evidence.emplace_back("it wrote no dump, but NCCL's RAS reaches its process");
  }
  const auto where = std::ranges::find_if(said.evidence, [](const std::string& line) {
    return line.find(" is process ") != line.npos;
  });
  suspect.evidence.push_back("NCCL's RAS: " + said.what +
                             (where == said.evidence.end() ? "" : "; " + *where));
  const bool needs_stack = suspect.fault == FaultClass::cpu_stuck && !suspect.would_help.empty();
  if (needs_stack && !said.would_help.empty()) suspect.would_help = said.would_help;
}

// Where a suspect of the dumps runs.
void add_place(Suspect& suspect, const RasWitness& witness) {
  if (suspect.ranks.size() != 1) return;
  const RasProcess* process = witness.process_of(suspect.ranks.front());
  const std::string where = process == nullptr ? "" : process_text(*process);
  if (suspect.fault == FaultClass::absent && witness.all_answer()) {
    suspect.evidence.push_back("NCCL's RAS reaches all processes, also this one" +
                               (where.empty() ? "" : ": " + where));
    return;
  }
  const bool is_known = std::ranges::any_of(
      suspect.evidence, [](const std::string& line) { return line.find("process ") != line.npos; });
  if (!where.empty() && !is_known) suspect.evidence.push_back("NCCL's RAS: it is " + where);
}

std::string why_undecided(const RasReport& report, const RasWitness& witness) {
  if (!witness.suspects().empty()) {
    return "ranks of a running job differ for a moment, too: take a second text some seconds "
           "later, "
           "and name both";
  }
  if (!witness.doubts().empty()) return "ranks differ, and the text does not say which";
  if (report.truncated) return "the text of ncclras ends early, and what is missing may differ";
  if (report.groups.empty() && report.communicators.empty()) {
    return "the text of ncclras has no communicator";
  }
  for (const dump::RasGroup& group : report.groups) {
    if (group.errors == "OK") continue;
    return fmt::format("NCCL reports {}, but no line that is known says of which ranks",
                       group.errors);
  }
  return fmt::format(
      "NCCL sees no difference between the ranks: all processes answer and have launched the same "
      "operations{}. It counts no sends and receives, and does not see whether operations complete",
      witness.is_still() ? ", and none between the two texts" : "");
}

}  // namespace

Postmortem diagnose_ras(const dump::JobDump& job, const Options& options) {
  const RasReport& last = job.ras.back();
  const std::int64_t world = options.world > 0 ? options.world : last.gpus;
  const RasWitness witness(last, report_before(job), world);
  Postmortem found{.suspects = witness.suspects(), .proof = witness.proof()};
  found.by_ras_alone = true;
  found.world = static_cast<std::int32_t>(std::min<std::int64_t>(world, INT32_MAX));
  add_ras_notes(job, found.notes);
  found.notes.insert(found.notes.end(), job.notes.begin(), job.notes.end());
  std::ranges::move(std::vector(witness.doubts()), std::back_inserter(found.notes));
  if (!options.hung.empty()) found.proof.push_back(options.hung);
  if (!found.suspects.empty() && found.suspects.front().fault != FaultClass::absent) {
    found.notes.emplace_back(
        "RAS knows no lines of code, and no sends and receives; a rank that is behind may itself "
        "wait in them");
  }
  if (!found.suspects.empty() && !witness.knows_ranks()) {
    found.notes.emplace_back("ranks are those of a communicator: none that is listed has all");
  }
  const bool is_proved = !found.proof.empty() && !found.suspects.empty();
  found.status = is_proved ? HangStatus::hung : HangStatus::undecided;
  if (!is_proved) found.proof = {why_undecided(last, witness)};
  return found;
}

void add_ras_evidence(const dump::JobDump& job, Postmortem& found) {
  add_ras_notes(job, found.notes);
  const RasWitness witness(job.ras.back(), report_before(job), found.world);
  if (!witness.knows_ranks()) {
    found.notes.push_back(
        fmt::format("no communicator that ncclras lists has {} ranks, so its ranks are not those "
                    "of the dumps",
                    found.world));
    return;
  }
  const bool nobody = found.suspects.empty();
  std::size_t notes = 0;
  for (const Suspect& said : witness.suspects()) {
    if (said.ranks.empty()) continue;
    bool is_new = true;
    for (Suspect& suspect : found.suspects) {
      if (suspect.ranks.empty() || !std::ranges::includes(said.ranks, suspect.ranks)) continue;
      add_to_suspect(suspect, said, found);
      is_new = false;
    }
    const bool is_lost =
        said.fault == FaultClass::absent && std::ranges::includes(found.absent, said.ranks);
    if (!is_new) continue;
    if (nobody || is_lost) {
      found.suspects.push_back(said);
    } else if (notes < kMaxDoubts) {
      found.notes.push_back("NCCL's RAS: " + said.what);
      ++notes;
    }
  }
  for (Suspect& suspect : found.suspects) add_place(suspect, witness);
}

}  // namespace shiplap::postmortem
