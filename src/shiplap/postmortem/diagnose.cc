// From waits, mismatches and deviations to suspects.
//
// The problem. In a hung job nearly every rank waits, and each is late for somebody. The rank that
// waits in a collective is a victim; the one that is missing there may be a victim, too, of a call
// on another group. And what a dump shows of a diverged rank is seldom the fault itself: a rank
// that skipped one of ten equal calls is missing in the tenth.
//
// The idea. Three witnesses, each computed without the others:
//
//   1. the wait-for graph (wait_graph.cc): where do chains of waits end?
//   2. mismatches (contradictions.cc): which calls met and do not fit?
//   3. the comparison of programs (comparison.cc): who does something that its peers, or its own
//      earlier steps, do not do?
//
// A rank that diverged and that holds others up is to blame, whatever it waits in now. Without a
// divergence the ends of the chains are: a rank that waits for nobody (its CPU is busy elsewhere),
// a rank without a dump, a call that everybody has entered (a device or the network), a cycle.
//
// A dump is a moment. A rank that is a millisecond late looks like one that is stuck, so lateness
// alone is no proof: nobody is called a culprit unless calls contradict each other, a timeout has
// passed, or the job was silent for longer than it ever was before.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "shiplap/postmortem/call_site_internal.h"
#include "shiplap/postmortem/comparison_internal.h"
#include "shiplap/postmortem/contradictions_internal.h"
#include "shiplap/postmortem/nccl_ras_internal.h"
#include "shiplap/postmortem/plan_witness_internal.h"
#include "shiplap/postmortem/postmortem.h"
#include "shiplap/postmortem/progress_internal.h"
#include "shiplap/postmortem/slowness_internal.h"
#include "shiplap/postmortem/wait_graph_internal.h"

namespace shiplap::postmortem {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
constexpr std::int32_t kHistory = 14;  // calls
constexpr std::size_t kMaxHistories = 6;
constexpr std::int64_t kMaxFileAge = 86'400 * kSecond;

class Diagnosis {
 public:
  Diagnosis(const dump::JobDump& job, const Options& options)
      : job_(job),
        options_(options),
        progress_(job, options.world),
        graph_(progress_),
        mismatches_(find_mismatches(progress_)) {
    for (const Deviation& deviation : find_deviations(progress_)) {
      deviations_.emplace(deviation.rank, deviation);
    }
  }

  Postmortem run() {
    result_.world = progress_.world();
    result_.dumps = std::ssize(job_.ranks);
    result_.notes = job_.notes;
    for (std::int32_t rank = 0; rank < progress_.world(); ++rank) {
      result_.positions.push_back(position(rank));
      if (progress_.dump(rank) == nullptr) result_.absent.push_back(rank);
      result_.calls += result_.positions.back().calls;
    }
    note_truncated();
    suspect_memberships();
    suspect_mismatches();
    suspect_deviations();
    suspect_roots();
    suspect_by_stacks();
    if (!job_.ras.empty()) add_ras_evidence(job_, result_);
    decide();
    add_histories();
    return std::move(result_);
  }

 private:
  void note_truncated() {
    std::vector<std::int32_t> ranks;
    for (const dump::RankDump& dump : job_.ranks) {
      if (dump.truncated) ranks.push_back(dump.rank);
    }
    if (ranks.empty()) return;
    result_.notes.push_back(ranks_are(ranks, "has a dump that ends", "have dumps that end") +
                            " early, without the last calls");
  }

  [[nodiscard]] bool is_suspect(std::int32_t rank) const {
    return std::ranges::any_of(result_.suspects, [&](const Suspect& suspect) {
      return std::ranges::find(suspect.ranks, rank) != suspect.ranks.end();
    });
  }
  // Nobody knows what it did last.
  [[nodiscard]] bool is_unknown(std::int32_t rank) const {
    return progress_.dump(rank) == nullptr || progress_.dump(rank)->truncated;
  }
  [[nodiscard]] const Deviation* deviation_of(std::int32_t rank) const {
    const auto found = deviations_.find(rank);
    return found == deviations_.end() ? nullptr : &found->second;
  }
  [[nodiscard]] CallSite site(Place place) const {
    return call_site(progress_, place.rank, place.unit);
  }
  [[nodiscard]] std::int64_t victims_of(std::int32_t rank) const {
    for (const Root& root : graph_.roots()) {
      if (std::ranges::find(root.ranks, rank) != root.ranks.end()) {
        return root.victims + std::ssize(root.ranks) - 1;
      }
    }
    return 0;
  }

  [[nodiscard]] Position position(std::int32_t rank) const {
    Position position{.rank = rank};
    const dump::RankDump* dump = progress_.dump(rank);
    if (dump == nullptr) return position;
    const std::vector<Unit>& units = progress_.units(rank);
    position.calls = std::ssize(dump->calls);
    position.waits_for = graph_.waits_for(rank);
    position.now = user_frame(job_, dump->stack);
    if (!units.empty()) {
      position.last = call_site(progress_, rank, static_cast<std::int32_t>(units.size()) - 1);
    }
    const auto pending = progress_.pending(rank);
    position.state = pending.empty() ? Position::State::free : Position::State::waits;
    if (!pending.empty()) position.pending = call_site(progress_, rank, pending.front());
    return position;
  }

  [[nodiscard]] static bool lacks(const PendingCall& call, std::int32_t rank) {
    return std::ranges::find(call.missing, rank) != call.missing.end() ||
           std::ranges::find(call.unknown, rank) != call.unknown.end();
  }

  // The call that most ranks wait in and this one has not entered.
  [[nodiscard]] CallSite awaited_call(std::int32_t rank) const {
    const PendingCall* best = nullptr;
    for (const PendingCall& call : graph_.calls()) {
      if (!lacks(call, rank)) continue;
      if (best == nullptr || call.entered.size() > best->entered.size()) best = &call;
    }
    if (best == nullptr || best->entered.empty()) return {};
    const std::int32_t waiting = best->entered.front();
    for (const WaitGraph::Pending& pending : graph_.pending(waiting)) {
      if (&graph_.calls()[at(pending.call)] == best) {
        return call_site(progress_, waiting, pending.unit);
      }
    }
    return {};
  }

  [[nodiscard]] CallSite last_call(std::int32_t rank) const {
    CallSite last = result_.positions[at(rank)].last;
    const dump::Frame& now = result_.positions[at(rank)].now;
    if (!now.file.empty()) {
      last.rank = rank;
      last.frame = now;
    }
    return last;
  }

  // -------------------------------------------------------------------- divergence

  static std::string what_diverged(Divergence divergence, std::string_view theirs,
                                   std::string_view usual) {
    switch (divergence) {
      case Divergence::skipped:
        return fmt::format("skipped {}", usual);
      case Divergence::extra:
        return fmt::format("made a call that its peers do not make: {}", theirs);
      case Divergence::order:
        return fmt::format("called {} before {}", theirs, usual);
      case Divergence::size:
        return fmt::format("passed another number of elements: {}, its peers {}", theirs, usual);
      case Divergence::dtype:
        return fmt::format("passed another element type: {}, its peers {}", theirs, usual);
      case Divergence::group:
        return fmt::format("called on another group: {}, its peers {}", theirs, usual);
      case Divergence::peer:
        return fmt::format("sent to or received from another rank: {}, usually {}", theirs, usual);
      case Divergence::splits:
        return fmt::format("passed splits that do not add up: {}", theirs);
      case Divergence::membership:
        return fmt::format("disagrees about the members of a group: {}, the others {}", theirs,
                           usual);
      case Divergence::none:
      case Divergence::operation:
        break;
    }
    return fmt::format("called {}, where its peers call {}", theirs, usual);
  }

  Suspect suspect_of(const Deviation& deviation) const {
    Suspect suspect{.ranks = {deviation.rank},
                    .fault = FaultClass::divergence,
                    .divergence = deviation.divergence,
                    .victims = victims_of(deviation.rank)};
    if (deviation.unit >= 0) suspect.at = site({deviation.rank, deviation.unit});
    if (deviation.expected >= 0) suspect.expected = site({deviation.reference, deviation.expected});
    const bool crossed =
        deviation.divergence == Divergence::order && suspect.at.group != suspect.expected.group;
    if (crossed) suspect.fault = FaultClass::order_across_groups;
    suspect.what = fmt::format(
        "rank {} {}", deviation.rank,
        what_diverged(deviation.divergence, to_string(suspect.at), to_string(suspect.expected)));
    if (deviation.reference == deviation.rank) {
      suspect.evidence.push_back("its earlier steps make the other call there");
    } else if (deviation.agreeing > 0) {
      suspect.evidence.push_back(fmt::format(
          "{} with the same program make the other call there, e.g. rank {}",
          deviation.agreeing == 1 ? "1 rank" : fmt::format("{} ranks", deviation.agreeing),
          deviation.reference));
    } else {
      suspect.evidence.push_back(fmt::format(
          "rank {} does otherwise, and no third rank runs the same program", deviation.reference));
      suspect.would_help = "a dump of a third rank with the same program";
    }
    return suspect;
  }

  // ---------------------------------------------------------------------- witnesses

  // Ranks that list other members for a group of the same name.
  void suspect_memberships() {
    std::map<std::string, std::vector<dump::GroupId>> by_name;
    for (std::size_t k = 0; k < job_.groups.size(); ++k) {
      const dump::GroupId id(k);
      if (job_.groups[id].ranks.size() > 1) by_name[job_.groups[id].name].push_back(id);
    }
    std::map<dump::GroupId, std::vector<std::int32_t>> holders;
    for (const dump::RankDump& dump : job_.ranks) {
      for (const dump::GroupId id : dump.groups) holders[id].push_back(dump.rank);
    }
    for (const auto& [name, ids] : by_name) {
      for (std::size_t i = 0; i < ids.size(); ++i) {
        for (std::size_t j = i + 1; j < ids.size(); ++j)
          suspect_membership(holders, ids[i], ids[j]);
      }
    }
  }

  void suspect_membership(std::map<dump::GroupId, std::vector<std::int32_t>>& holders,
                          dump::GroupId a, dump::GroupId b) {
    const auto contains = [&](dump::GroupId group, std::int32_t rank) {
      return std::ranges::find(job_.groups[group].ranks, rank) != job_.groups[group].ranks.end();
    };
    const auto claims = [&](dump::GroupId group, dump::GroupId other) {
      return std::ranges::any_of(holders[other],
                                 [&](std::int32_t rank) { return contains(group, rank); });
    };
    if (!claims(a, b) && !claims(b, a)) return;
    if (holders[a].size() < holders[b].size()) std::swap(a, b);
    const bool sure = holders[a].size() > holders[b].size();
    for (const std::int32_t rank : holders[b]) {
      Suspect suspect{.ranks = {rank},
                      .fault = FaultClass::divergence,
                      .divergence = Divergence::membership,
                      .confidence = sure ? 0.98 : 0.5,
                      .at = last_call(rank),
                      .victims = victims_of(rank)};
      suspect.what = fmt::format(
          "rank {} {}", rank,
          what_diverged(Divergence::membership, format_group(job_, b), format_group(job_, a)));
      result_.suspects.push_back(std::move(suspect));
      result_.proof.push_back("ranks disagree about the members of a group");
    }
  }

  void suspect_mismatches() {
    for (const Mismatch& mismatch : mismatches_) {
      result_.proof.push_back(
          fmt::format("mismatch: {} of rank {} and {} of rank {}",
                      to_string(site(mismatch.sides[0].front())), mismatch.sides[0].front().rank,
                      to_string(site(mismatch.sides[1].front())), mismatch.sides[1].front().rank));
      std::vector<Place> blamed;
      for (std::size_t k = 0; k < mismatch.sides.size(); ++k) {
        for (const Place place : mismatch.sides[k]) {
          const Deviation* deviation = deviation_of(place.rank);
          const bool deviates = deviation != nullptr && deviation->agreeing > 0;
          if (deviates) blamed.push_back(place);
        }
      }
      Witness witness = blamed.empty() ? Witness::nobody : Witness::programs;
      // Most members of a group are a better witness than a few ranks with the same program.
      const bool many = mismatch.sides.front().size() > 2;
      if (mismatch.has_majority() && (witness == Witness::nobody || many)) {
        blamed.clear();
        for (std::size_t k = 1; k < mismatch.sides.size(); ++k) {
          blamed.insert(blamed.end(), mismatch.sides[k].begin(), mismatch.sides[k].end());
        }
        if (witness == Witness::nobody) witness = Witness::majority;
      }
      if (witness == Witness::nobody) {
        for (const auto& side : mismatch.sides) {
          blamed.insert(blamed.end(), side.begin(), side.end());
        }
        // Of an exchange, those whose splits add up may have completed it.
        const auto is_complete = [&](Place place) {
          return progress_.units(place.rank)[at(place.unit)].complete;
        };
        if (!std::ranges::all_of(blamed, is_complete)) std::erase_if(blamed, is_complete);
      }
      for (const Place place : blamed) suspect_mismatch(mismatch, place, witness);
    }
  }

  // Who says that a side of a mismatch is wrong.
  enum class Witness : std::uint8_t { programs, majority, nobody };

  void suspect_mismatch(const Mismatch& mismatch, Place place, Witness witness) {
    if (is_suspect(place.rank)) return;
    const Deviation* deviation = deviation_of(place.rank);
    const auto& usual =
        std::ranges::find(mismatch.sides[0], place.rank, &Place::rank) == mismatch.sides[0].end()
            ? mismatch.sides[0]
            : mismatch.sides[1];
    Suspect suspect{.ranks = {place.rank},
                    .fault = FaultClass::divergence,
                    .divergence = mismatch.divergence,
                    .at = site(place),
                    .expected = site(usual.front()),
                    .victims = victims_of(place.rank)};
    suspect.what = fmt::format(
        "rank {} {}", place.rank,
        what_diverged(mismatch.divergence, to_string(suspect.at), to_string(suspect.expected)));
    if (deviation != nullptr) {
      const std::int64_t victims = suspect.victims;
      suspect = suspect_of(*deviation);
      suspect.victims = victims;
      if (mismatch.divergence == Divergence::splits) suspect.divergence = Divergence::splits;
    }
    suspect.evidence.push_back(fmt::format("its call is matched with {} of rank {}",
                                           to_string(site(usual.front())), usual.front().rank));
    suspect.confidence = witness == Witness::programs   ? 0.97
                         : witness == Witness::majority ? 0.9
                                                        : 0.5;
    if (witness == Witness::nobody) {
      suspect.would_help = "a dump of a third rank with the same program";
    }
    result_.suspects.push_back(std::move(suspect));
  }

  // A rank with another program, if it is where chains of waits end or if somebody waits for it.
  void suspect_deviations() {
    for (const auto& [rank, deviation] : deviations_) {
      if (is_suspect(rank)) continue;
      const bool holds_up = graph_.in_root(rank) || graph_.awaited_by(rank) > 0;
      if (!holds_up) continue;
      Suspect suspect = suspect_of(deviation);
      const bool by_itself = deviation.reference == rank;
      suspect.confidence = deviation.agreeing == 0 ? 0.45 : by_itself ? 0.8 : 0.93;
      if (!graph_.in_root(rank)) suspect.confidence -= 0.25;
      const auto pending = progress_.pending(rank);
      if (!pending.empty() && pending.front() == deviation.unit) suspect.confidence += 0.04;
      if (deviation.agreeing > 0 && graph_.in_root(rank)) {
        result_.proof.push_back(
            fmt::format("rank {} runs another program, and others wait for it", rank));
      }
      result_.suspects.push_back(std::move(suspect));
    }
  }

  void suspect_roots() {
    for (const Root& root : graph_.roots()) {
      if (std::ranges::any_of(root.ranks, [&](std::int32_t rank) {
            const Deviation* deviation = deviation_of(rank);
            return deviation != nullptr && is_suspect(rank);
          })) {
        continue;  // explained
      }
      if (root.ranks.size() > 1) {
        suspect_cycle(root);
      } else if (root.ranks.empty()) {
        suspect_device(root);
      } else {
        suspect_free(root);
      }
    }
  }

  void suspect_free(const Root& root) {
    const std::int32_t rank = root.ranks.front();
    if (is_suspect(rank)) return;
    Suspect suspect{.ranks = {rank},
                    .fault = FaultClass::cpu_stuck,
                    .confidence = 0.88,
                    .at = last_call(rank),
                    .expected = awaited_call(rank),
                    .victims = root.victims};
    const Position& position = result_.positions[at(rank)];
    suspect.what = fmt::format("rank {} has not called {}", rank, to_string(suspect.expected));
    if (position.last.exists()) {
      suspect.evidence.push_back(
          fmt::format("its last call is complete: {}", to_string(position.last)));
    } else {
      suspect.evidence.push_back("it made no call at all");
    }
    suspect.evidence.push_back("it waits for nobody, so its CPU is busy or blocked elsewhere");
    if (position.now.file.empty()) {
      suspect.would_help = fmt::format("its stack: py-spy dump of rank {}", rank);
    } else {
      suspect.evidence.push_back(
          fmt::format("its stack: {} at {}", position.now.function, to_string(position.now)));
      suspect.confidence = 0.95;
    }
    result_.suspects.push_back(std::move(suspect));
  }

  // When the first rank began to wait in a call that lacks this rank alone.
  [[nodiscard]] std::int64_t awaited_since(std::int32_t rank) const {
    std::int64_t since = INT64_MAX;
    for (std::int32_t other = 0; other < progress_.world(); ++other) {
      for (const WaitGraph::Pending& pending : graph_.pending(other)) {
        const PendingCall& call = graph_.calls()[at(pending.call)];
        if (!lacks(call, rank)) continue;
        since = std::min(
            since, progress_.call(other, progress_.units(other)[at(pending.unit)]).created_ns);
      }
    }
    return since;
  }

  void suspect_absent(std::int32_t rank, std::int64_t victims) {
    if (is_suspect(rank)) return;
    Suspect suspect{.ranks = {rank},
                    .fault = FaultClass::absent,
                    .confidence = 0.9,
                    .expected = awaited_call(rank),
                    .victims = victims};
    const bool truncated = progress_.dump(rank) != nullptr;
    suspect.what =
        fmt::format("rank {} wrote {}, and others wait for it in {}", rank,
                    truncated ? "a dump that ends early" : "no dump", to_string(suspect.expected));
    suspect.evidence.push_back(
        truncated ? "what it called last is not in its dump"
                  : "a rank that crashed, was killed or lost its host writes no dump");
    if (truncated) suspect.confidence = 0.4;
    suspect.would_help = fmt::format("the log and the dump of rank {}", rank);
    result_.suspects.push_back(std::move(suspect));
  }

  // Everybody has entered the call, nothing contradicts, and it does not complete.
  void suspect_device(const Root& root) {
    const PendingCall& call = graph_.calls()[at(root.calls.front())];
    for (const Mismatch& mismatch : mismatches_) {
      if (mismatch.group == call.group) return;  // explained
    }
    for (const std::int32_t rank : call.unknown) suspect_absent(rank, root.victims);
    std::vector<std::int32_t> not_started;
    std::vector<std::int32_t> completed;
    CallSite where;
    for (const MemberCalls& member : progress_.group(call.group).members) {
      const std::int32_t unit = call.is_p2p ? -1 : member.unit(call.sequence);
      if (unit < 0) continue;
      const Unit& found = progress_.units(member.rank)[at(unit)];
      if (found.complete) {
        completed.push_back(member.rank);
      } else {
        if (!found.started) not_started.push_back(member.rank);
        if (!where.exists()) where = call_site(progress_, member.rank, unit);
      }
    }
    std::vector<std::int32_t> entered = call.entered;
    std::ranges::sort(entered);
    if (!where.exists() && !entered.empty()) {
      where = call_site(progress_, entered.front(), progress_.pending(entered.front()).front());
    }
    Suspect suspect{.ranks = entered,
                    .fault = FaultClass::device_stuck,
                    .confidence = 0.4,
                    .at = where,
                    .victims = root.victims};
    suspect.what =
        fmt::format("all ranks have entered {}, and it does not complete", to_string(where));
    suspect.would_help = "nvidia-smi and the kernel log of these hosts; NCCL's RAS (ncclras)";
    const bool some_started = not_started.size() < entered.size();
    const bool stands_out = !not_started.empty() && some_started;
    if (!call.unknown.empty() && !stands_out) return;
    if (stands_out) {
      suspect.ranks = not_started;
      suspect.confidence = 0.75;
      suspect.what = fmt::format(
          "the device of rank {} has not started {}, which the others have "
          "started",
          format_ranks(not_started), to_string(where));
      suspect.evidence.push_back(
          "no earlier call holds it up: probably a kernel before it is stuck");
    } else if (!completed.empty()) {
      suspect.confidence = 0.7;
      suspect.what = fmt::format("{} is complete on rank {}, and not on rank {}", to_string(where),
                                 format_ranks(completed), format_ranks(entered));
    }
    result_.suspects.push_back(std::move(suspect));
  }

  // The shortest cycle of ranks through the one that most others of the root wait for.
  [[nodiscard]] std::vector<std::int32_t> shortest_cycle(const Root& root) const {
    const std::set<std::int32_t> inside(root.ranks.begin(), root.ranks.end());
    std::vector<std::int32_t> best;
    std::size_t tried = 0;
    for (const std::int32_t start : root.ranks) {
      if (++tried > 64) break;
      std::map<std::int32_t, std::int32_t> from;
      std::vector<std::int32_t> open{start};
      for (std::size_t k = 0; k < open.size(); ++k) {
        const std::int32_t rank = open[k];
        bool closed = false;
        for (const std::int32_t next : graph_.waits_for(rank)) {
          if (!inside.contains(next)) continue;
          if (next == start) {
            closed = true;
            break;
          }
          if (from.emplace(next, rank).second) open.push_back(next);
        }
        if (!closed) continue;
        std::vector<std::int32_t> cycle;
        for (std::int32_t at_rank = rank; at_rank != start; at_rank = from.at(at_rank)) {
          cycle.push_back(at_rank);
        }
        cycle.push_back(start);
        std::ranges::reverse(cycle);
        if (best.empty() || cycle.size() < best.size()) best = cycle;
        break;
      }
      if (best.size() == 2) break;
    }
    return best;
  }

  void suspect_cycle(const Root& root) {
    const bool only_messages = std::ranges::all_of(
        root.calls, [&](std::int32_t call) { return graph_.calls()[at(call)].is_p2p; });
    const std::vector<std::int32_t> cycle = shortest_cycle(root);
    const std::vector<Place> strangers = unanswered(root);
    if (strangers.size() == 1) {
      suspect_wrong_peer(root, strangers.front());
      return;
    }
    if (only_messages) {
      suspect_message_cycle(root, cycle);
      return;
    }
    // The rank that is missing in calls which many have entered, and waits where few are.
    std::int32_t odd = root.ranks.front();
    const auto oddness = [&](std::int32_t rank) {
      std::int64_t waiting = 0;
      for (const PendingCall& call : graph_.calls()) {
        if (std::ranges::find(call.missing, rank) == call.missing.end()) continue;
        waiting += std::ssize(call.entered) - std::ssize(call.missing) + 1;
      }
      return waiting;
    };
    std::vector<std::pair<std::int64_t, std::int32_t>> order;
    for (const std::int32_t rank : root.ranks) order.emplace_back(-oddness(rank), rank);
    std::ranges::sort(order);
    odd = order.front().second;
    const bool tie = order.size() > 1 && order[1].first == order[0].first;
    Suspect suspect{.ranks = {odd},
                    .fault = FaultClass::order_across_groups,
                    .divergence = Divergence::order,
                    .confidence = tie ? 0.45 : 0.7,
                    .expected = awaited_call(odd),
                    .victims = root.victims + std::ssize(root.ranks) - 1};
    const auto pending = progress_.pending(odd);
    const std::vector<Unit>& units = progress_.units(odd);
    const bool cpu_went_on = !pending.empty() && pending.back() + 1 < std::ssize(units);
    suspect.at = pending.empty() ? last_call(odd) : call_site(progress_, odd, pending.front());
    if (cpu_went_on) {
      suspect.fault = FaultClass::cpu_stuck;
      suspect.divergence = Divergence::none;
      suspect.at = last_call(odd);
      suspect.what = fmt::format("rank {} has not called {}", odd, to_string(suspect.expected));
      suspect.evidence.push_back("it has made calls after the one that it still waits for");
    } else {
      suspect.what = fmt::format("rank {} waits in {}, while others wait for it in {}", odd,
                                 to_string(suspect.at), to_string(suspect.expected));
      suspect.evidence.push_back(
          fmt::format("a wait cycle of {} ranks: {}", cycle.size(), format_cycle(cycle)));
    }
    result_.suspects.push_back(std::move(suspect));
  }

  // Ranks of a root with a pending message to or from a rank that has none with it.
  [[nodiscard]] std::vector<Place> unanswered(const Root& root) const {
    std::vector<Place> found;
    for (const std::int32_t rank : root.ranks) {
      for (const WaitGraph::Pending& pending : graph_.pending(rank)) {
        const PendingCall& call = graph_.calls()[at(pending.call)];
        if (!call.is_p2p) continue;
        const bool any = std::ranges::any_of(call.missing, [&](std::int32_t peer) {
          return progress_.dump(peer) != nullptr && !exchanges_messages(peer, rank);
        });
        if (!any) continue;
        found.push_back({rank, pending.unit});
        break;
      }
    }
    return found;
  }
  [[nodiscard]] bool exchanges_messages(std::int32_t rank, std::int32_t peer) const {
    return std::ranges::any_of(progress_.dump(rank)->calls,
                               [&](const dump::Call& call) { return call.peer == peer; });
  }

  void suspect_wrong_peer(const Root& root, Place place) {
    Suspect suspect{.ranks = {place.rank},
                    .fault = FaultClass::divergence,
                    .divergence = Divergence::peer,
                    .confidence = 0.8,
                    .at = site(place),
                    .expected = awaited_call(place.rank),
                    .victims = root.victims + std::ssize(root.ranks) - 1};
    suspect.what = fmt::format("rank {} waits in {}, and that rank has no message with it",
                               place.rank, to_string(suspect.at));
    suspect.evidence.push_back("every other message of these ranks is with a peer that knows it");
    result_.suspects.push_back(std::move(suspect));
  }

  void suspect_message_cycle(const Root& root, const std::vector<std::int32_t>& cycle) {
    std::vector<std::int32_t> ranks = cycle.empty() ? root.ranks : cycle;
    std::ranges::sort(ranks);
    const std::int32_t first = ranks.front();
    Suspect suspect{.ranks = ranks,
                    .fault = FaultClass::message_cycle,
                    .confidence = 0.75,
                    .at = call_site(progress_, first, progress_.pending(first).front()),
                    .victims = root.victims};
    suspect.what = fmt::format("{} ranks wait for one another in messages: {}", ranks.size(),
                               format_cycle(cycle));
    for (const std::int32_t rank : ranks) {
      suspect.evidence.push_back(
          fmt::format("rank {} waits in {}", rank,
                      to_string(call_site(progress_, rank, progress_.pending(rank).front()))));
      if (suspect.evidence.size() == 8) break;
    }
    result_.suspects.push_back(std::move(suspect));
  }

  static std::string format_cycle(const std::vector<std::int32_t>& cycle) {
    std::string text;
    for (std::size_t k = 0; k < cycle.size() && k < 8; ++k) {
      text += fmt::format("{} -> ", cycle[k]);
    }
    if (cycle.size() > 8) text += ".. -> ";
    return cycle.empty() ? text : text + fmt::format("{}", cycle.front());
  }

  // The function of torch.distributed that a rank is in, by its stack.
  [[nodiscard]] std::string communicates_in(std::int32_t rank) const {
    const dump::RankDump* dump = progress_.dump(rank);
    if (dump == nullptr || !dump->stack.exists()) return "";
    for (const dump::FrameId id : job_.stacks[dump->stack]) {
      const dump::Frame& frame = job_.frames[id];
      if (frame.file.find("distributed_c10d.py") != frame.file.npos) return frame.function;
    }
    return "";
  }

  // If all wait in messages, but one in another function than the rest, it is the odd one out.
  bool suspect_lone_function(const std::vector<std::int32_t>& ranks) {
    std::map<std::string, std::vector<std::int32_t>> functions;
    for (const std::int32_t rank : ranks) {
      functions[result_.positions[at(rank)].now.function].push_back(rank);
    }
    if (functions.size() != 2 || ranks.size() < 3) return false;
    const auto& [first, second] = std::pair(*functions.begin(), *std::next(functions.begin()));
    const auto& lone = first.second.size() == 1 ? first : second;
    const auto& others = first.second.size() == 1 ? second : first;
    if (lone.second.size() != 1) return false;
    Suspect suspect{.ranks = lone.second,
                    .fault = FaultClass::divergence,
                    .divergence = Divergence::operation,
                    .confidence = 0.5,
                    .at = last_call(lone.second.front()),
                    .expected = last_call(others.second.front()),
                    .victims = std::ssize(others.second)};
    suspect.what = fmt::format("rank {} waits in a message in {}, the others in {}",
                               lone.second.front(), lone.first, others.first);
    suspect.evidence.push_back("this is in their stacks; the recorder of gloo has no messages");
    result_.suspects.push_back(std::move(suspect));
    return true;
  }

  // "rank 3 waits", "ranks 3 and 4 wait".
  static std::string ranks_are(const std::vector<std::int32_t>& ranks, std::string_view one,
                               std::string_view several) {
    const bool is_one = ranks.size() == 1;
    return fmt::format("rank{} {} {}", is_one ? "" : "s", format_ranks(ranks),
                       is_one ? one : several);
  }

  // gloo records no messages, so a rank that waits in one has no pending call; its stack shows it.
  void suspect_by_stacks() {
    if (!result_.suspects.empty()) return;
    std::vector<std::int32_t> in_messages;
    std::vector<std::int32_t> elsewhere;
    for (const dump::RankDump& dump : job_.ranks) {
      const std::string function = communicates_in(dump.rank);
      const bool is_message = function == "recv" || function == "send" || function == "wait";
      (is_message ? in_messages : elsewhere).push_back(dump.rank);
    }
    if (in_messages.empty()) return;
    if (elsewhere.empty() && suspect_lone_function(in_messages)) return;
    const bool few_elsewhere = !elsewhere.empty() && elsewhere.size() < in_messages.size();
    Suspect suspect{.ranks = few_elsewhere ? elsewhere : in_messages,
                    .fault = few_elsewhere ? FaultClass::cpu_stuck : FaultClass::message_cycle,
                    .confidence = 0.5,
                    .victims = std::ssize(in_messages)};
    suspect.at = last_call(suspect.ranks.front());
    suspect.expected = last_call(in_messages.front());
    suspect.what =
        few_elsewhere
            ? fmt::format(
                  "{} in no message, while {} in one at {}", ranks_are(elsewhere, "is", "are"),
                  ranks_are(in_messages, "waits", "wait"), to_string(suspect.expected.frame))
            : fmt::format("{} in messages at {}", ranks_are(in_messages, "waits", "wait"),
                          to_string(suspect.at.frame));
    suspect.evidence.push_back("this is in their stacks; the recorder of gloo has no messages");
    result_.suspects.push_back(std::move(suspect));
  }

  // ---------------------------------------------------------------------- histories

  // The calls around `unit`; -1: the last ones.
  void add_history(std::int32_t rank, const std::string& role, std::int32_t unit, bool differs) {
    const bool known = std::ranges::any_of(
        result_.histories, [&](const History& history) { return history.rank == rank; });
    if (known || rank < 0 || progress_.dump(rank) == nullptr ||
        result_.histories.size() == kMaxHistories) {
      return;
    }
    const auto count = static_cast<std::int32_t>(progress_.units(rank).size());
    const std::int32_t end =
        unit < 0 ? count : std::min(count, std::max(unit + kHistory / 2, kHistory));
    History history{.rank = rank, .role = role, .calls = {}};
    for (std::int32_t k = std::max(0, end - kHistory); k < end; ++k) {
      const Unit& each = progress_.units(rank)[at(k)];
      history.calls.push_back({.call = call_site(progress_, rank, k),
                               .started = each.started,
                               .complete = each.complete,
                               .differs = differs && k == unit});
    }
    result_.histories.push_back(std::move(history));
  }

  void add_histories() {
    for (std::size_t k = 0; k < result_.suspects.size() && k < 2; ++k) {
      const Suspect& suspect = result_.suspects[k];
      const std::int32_t rank = suspect.ranks.front();
      const Deviation* deviation = deviation_of(rank);
      const bool diverged = deviation != nullptr && suspect.fault != FaultClass::absent;
      add_history(rank, "suspect", diverged ? deviation->unit : -1, diverged);
      if (diverged && deviation->reference != rank) {
        add_history(deviation->reference, fmt::format("peer of rank {}", rank), deviation->expected,
                    false);
      }
      if (suspect.expected.exists() && suspect.expected.rank != rank) {
        add_history(suspect.expected.rank, "waits", -1, false);
      }
    }
  }

  // ------------------------------------------------------------------------ status

  // Absent ranks are in every call of their groups. If somebody else explains the hang, or if other
  // absent ranks were awaited earlier, they are less likely.
  void weigh_absent() {
    bool explained = false;
    std::int64_t first = INT64_MAX;
    std::int64_t absent = 0;
    for (const Suspect& suspect : result_.suspects) {
      if (suspect.fault == FaultClass::absent) {
        first = std::min(first, awaited_since(suspect.ranks.front()));
        ++absent;
      } else if (suspect.confidence >= 0.45) {
        explained = true;
      }
    }
    for (Suspect& suspect : result_.suspects) {
      if (suspect.fault != FaultClass::absent) continue;
      const std::int64_t since = awaited_since(suspect.ranks.front());
      if (since > first) suspect.confidence -= 0.2;
      if (absent > 1) suspect.confidence -= 0.1;
      if (explained) suspect.confidence *= 0.5;
    }
  }

  // The age of a pending call is measured by the clock of its own rank: clocks of hosts differ.
  // Times of files are no proof, because copying changes them.
  void prove_by_time() {
    std::int64_t longest = 0;  // that any call took
    std::int64_t oldest = 0;   // age of a pending call
    std::int64_t timeouts = 0;
    bool timed_out = false;
    for (const dump::RankDump& dump : job_.ranks) {
      std::int64_t now = 0;
      for (const dump::Call& call : dump.calls) {
        now = std::max({now, call.created_ns, call.started_ns, call.completed_ns});
      }
      for (const Unit& unit : progress_.units(dump.rank)) {
        const dump::Call& call = dump.calls[at(unit.last)];
        if (unit.timed_out) ++timeouts;
        if (unit.complete) {
          if (call.completed_ns > 0) {
            longest = std::max(longest, call.completed_ns - call.created_ns);
          }
          continue;
        }
        const std::int64_t age = now - call.created_ns;
        oldest = std::max(oldest, age);
        timed_out |= call.timeout_ms > 0 && age / 1'000'000 >= call.timeout_ms / 10 * 9;
      }
    }
    if (timeouts > 0) {
      result_.proof.push_back(fmt::format(
          "{} timed out", timeouts == 1 ? "1 call" : fmt::format("{} calls", timeouts)));
    }
    if (timed_out) result_.proof.push_back("a pending call is older than its timeout");
    if (longest > 0 && oldest > std::max(10 * kSecond, 5 * longest)) {
      result_.proof.push_back(
          fmt::format("a call has been pending for {} s; none took longer than {:.1f} s before",
                      oldest / kSecond, static_cast<double>(longest) * 1e-9));
    }
    note_file_times();
  }

  void note_file_times() {
    std::int64_t written = 0;
    for (const dump::RankDump& dump : job_.ranks) written = std::max(written, dump.written_ns);
    const std::int64_t silent = written - progress_.last_ns();
    if (silent < 30 * kSecond || silent > kMaxFileAge || !result_.proof.empty()) return;
    result_.notes.push_back(
        fmt::format("the files are {} s younger than the last call: unless they were copied, the "
                    "job hung (--hung)",
                    silent / kSecond));
  }

  void decide() {
    weigh_absent();
    if (options_.plan != nullptr) ask_plan(*options_.plan, progress_, result_);
    if (!options_.hung.empty()) result_.proof.push_back(options_.hung);
    prove_by_time();
    std::ranges::stable_sort(result_.suspects, {}, [](const Suspect& suspect) {
      return std::pair(-suspect.confidence, -suspect.victims);
    });
    bool any_pending = false;
    for (const dump::RankDump& dump : job_.ranks) {
      any_pending |= !progress_.pending(dump.rank).empty();
    }
    std::set<std::string> seen;
    std::erase_if(result_.proof,
                  [&](const std::string& line) { return !seen.insert(line).second; });
    if (!result_.proof.empty() && !result_.suspects.empty()) {
      result_.status = HangStatus::hung;
    } else if (suspect_slow_rank()) {
      result_.status = HangStatus::slow;
    } else {
      const bool any_waits = any_pending || !result_.suspects.empty();  // by stacks
      result_.status = any_waits ? HangStatus::undecided : HangStatus::finished;
    }
  }

  // Only if nothing proves that the job hangs.
  bool suspect_slow_rank() {
    const std::optional<SlowRank> slow = find_slow_rank(progress_);
    if (!slow) return false;
    Suspect suspect{.ranks = {slow->rank},
                    .fault = FaultClass::slow,
                    .confidence = 0.8,
                    .victims = progress_.world() - 1};
    suspect.what =
        fmt::format("rank {} is slow: others wait {:.0f} % of the time, it waits {:.0f} %",
                    slow->rank, 100 * slow->others_wait, 100 * slow->waits);
    suspect.evidence.emplace_back("all other ranks wait in calls for much longer than it does");
    if (slow->unit >= 0) {
      suspect.at = site({slow->rank, slow->unit});
      suspect.evidence.push_back(
          fmt::format("they waited longest for it in {}", to_string(suspect.at)));
    }
    suspect.would_help = fmt::format(
        "a profile of rank {}, and the clocks, temperature and errors of its device", slow->rank);
    std::erase_if(result_.suspects,
                  [&](const Suspect& each) { return each.ranks == suspect.ranks; });
    result_.suspects.insert(result_.suspects.begin(), std::move(suspect));
    return true;
  }

  const dump::JobDump& job_;
  const Options& options_;
  Progress progress_;
  WaitGraph graph_;
  std::vector<Mismatch> mismatches_;
  std::map<std::int32_t, Deviation> deviations_;
  Postmortem result_;
};

}  // namespace

Postmortem diagnose(const dump::JobDump& job, const Options& options) {
  if (job.ranks.empty() && !job.ras.empty()) return diagnose_ras(job, options);
  return Diagnosis(job, options).run();
}

}  // namespace shiplap::postmortem
