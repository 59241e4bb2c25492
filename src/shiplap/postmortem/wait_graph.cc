// The wait-for graph of a hung job, from what its ranks had called.
//
// An edge leads from a rank with a pending call to a rank that the call cannot complete without:
//
//   - a member of the group that has not entered the collective;
//   - a member that has entered it but whose device is still in an earlier call of another group
//     (the call is scheduled, not started): the collective is held up by that earlier call;
//   - the peer of a message that has not posted its end.
//
// A rank without a dump, or whose dump ends early, may have entered any call, so no edge leads to
// it: it is suspect only where nobody else is missing.
//
// Ranks that wait for others are victims. The causes are where the chains end: the strongly
// connected components without an edge to another one (Tarjan 1972). A component of one rank
// without pending calls is a rank that is busy elsewhere; one with a pending call that everybody
// has entered is a device or a network that is stuck; one of several ranks is a cycle.
//
// Which messages match is known by number only if both dumps reach back to the first message.
// Otherwise the first pending send of a pair belongs to the first pending receive.
#include <algorithm>
#include <iterator>
#include <string>

#include "shiplap/postmortem/wait_graph_internal.h"

namespace shiplap::postmortem {
namespace {

using dump::Call;
using dump::CallKind;

constexpr std::size_t kMaxPending = 256;  // of one rank

// The messages of a kind between two ranks, in order of program.
struct Messages {
  std::vector<std::int32_t> units;
  std::size_t complete = 0;  // of them; the others follow
};

Messages messages_of(const Progress& progress, std::int32_t rank, CallKind kind,
                     std::int32_t peer) {
  Messages found;
  const std::vector<Unit>& units = progress.units(rank);
  const auto& calls = progress.dump(rank)->calls;
  for (std::size_t u = 0; u < units.size(); ++u) {
    const Unit& unit = units[u];
    if (!unit.is_p2p) continue;
    for (std::int32_t k = unit.first; k <= unit.last; ++k) {
      const Call& call = calls[at(k)];
      if (call.kind != kind || call.peer != peer) continue;
      found.units.push_back(static_cast<std::int32_t>(u));
      if (unit.complete) found.complete = found.units.size();
    }
  }
  return found;
}

}  // namespace

WaitGraph::WaitGraph(const Progress& progress)
    : pending_(at(progress.world())),
      awaited_(at(progress.world())),
      in_root_(at(progress.world())) {
  for (std::int32_t rank = 0; rank < progress.world(); ++rank) find_pending(progress, rank);
  find_roots(progress.world());
}

void WaitGraph::find_pending(const Progress& progress, std::int32_t rank) {
  for (const std::int32_t index : progress.pending(rank)) {
    if (pending_[at(rank)].size() == kMaxPending) break;
    const Unit& unit = progress.units(rank)[at(index)];
    const std::int32_t call =
        unit.is_p2p ? messages(progress, rank, index) : collective(progress, rank, unit);
    calls_[at(call)].entered.push_back(rank);
    pending_[at(rank)].push_back({.unit = index, .call = call});
    // What comes after a collective that lacks a member is held up by it.
    if (!unit.is_p2p && !calls_[at(call)].missing.empty()) break;
  }
}

namespace {

// A rank whose calls on the group were all evicted has entered this one only if its dump begins
// after the call was made elsewhere: a pending call is among its last.
bool may_have_entered(const dump::RankDump& dump, const Progress& progress, std::int64_t made_ns) {
  return !progress.pending(dump.rank).empty() && !dump.calls.empty() &&
         dump.calls.front().created_ns > made_ns;
}

// All members of other collectives have entered it when it is complete on one of them.
bool is_rooted(const std::string& operation) {
  return operation == "broadcast" || operation == "reduce" || operation == "gather" ||
         operation == "scatter";
}

}  // namespace

std::int32_t WaitGraph::collective(const Progress& progress, std::int32_t rank, const Unit& unit) {
  const auto [known, is_new] = collectives_.try_emplace({unit.group, unit.sequence},
                                                        static_cast<std::int32_t>(calls_.size()));
  if (!is_new) return known->second;
  PendingCall& call = calls_.emplace_back(
      PendingCall{.group = unit.group, .sequence = unit.sequence, .is_p2p = false});
  const dump::Call& made = progress.call(rank, unit);
  bool complete_somewhere = false;
  for (const MemberCalls& member : progress.group(unit.group).members) {
    if (!member.has_dump) {
      call.unknown.push_back(member.rank);
      continue;
    }
    if (member.entered < 0 && !member.knows_all &&
        may_have_entered(*progress.dump(member.rank), progress, made.created_ns)) {
      continue;
    }
    if (member.entered < unit.sequence) {
      if (progress.dump(member.rank)->truncated) {
        call.unknown.push_back(member.rank);
      } else {
        call.missing.push_back(member.rank);
        ++awaited_[at(member.rank)];
      }
      continue;
    }
    const std::int32_t theirs = member.unit(unit.sequence);
    if (theirs < 0) continue;
    const Unit& other = progress.units(member.rank)[at(theirs)];
    complete_somewhere |= other.complete && !other.ended;
    const auto pending = progress.pending(member.rank);
    if (!other.complete && !other.started && !pending.empty() && pending.front() < theirs) {
      call.behind.push_back(member.rank);
    }
  }
  if (complete_somewhere && !is_rooted(progress.job().signatures[made.signature].operation)) {
    call.unknown.clear();
  }
  return known->second;
}

std::int32_t WaitGraph::messages(const Progress& progress, std::int32_t rank,
                                 std::int32_t unit_index) {
  const Unit& unit = progress.units(rank)[at(unit_index)];
  PendingCall result{.group = unit.group, .sequence = unit.sequence, .is_p2p = true};
  const auto& calls = progress.dump(rank)->calls;
  for (std::int32_t k = unit.first; k <= unit.last; ++k) {
    const Call& call = calls[at(k)];
    if (call.peer < 0 || call.peer >= progress.world() || call.peer == rank) continue;
    const dump::RankDump* peer = progress.dump(call.peer);
    if (peer == nullptr) {
      result.unknown.push_back(call.peer);
      continue;
    }
    const CallKind other = call.kind == CallKind::send ? CallKind::receive : CallKind::send;
    const Messages mine = messages_of(progress, rank, call.kind, call.peer);
    const Messages theirs = messages_of(progress, call.peer, other, rank);
    const auto place =
        static_cast<std::size_t>(std::ranges::find(mine.units, unit_index) - mine.units.begin());
    const bool whole = !progress.dump(rank)->evicted && !peer->evicted;
    const std::size_t match = whole                   ? place
                              : place < mine.complete ? theirs.units.size()
                                                      : theirs.complete + place - mine.complete;
    if (match >= theirs.units.size()) {
      if (peer->truncated) {
        result.unknown.push_back(call.peer);
      } else {
        result.missing.push_back(call.peer);
        ++awaited_[at(call.peer)];
      }
      continue;
    }
    const auto pending = progress.pending(call.peer);
    if (!pending.empty() && pending.front() < theirs.units[match]) {
      result.behind.push_back(call.peer);
    }
  }
  if (progress.pending(rank).front() < unit_index) result.behind.push_back(rank);
  std::ranges::sort(result.missing);
  const auto repeated = std::ranges::unique(result.missing);
  result.missing.erase(repeated.begin(), repeated.end());
  calls_.push_back(std::move(result));
  return static_cast<std::int32_t>(calls_.size()) - 1;
}

std::vector<std::int32_t> WaitGraph::waits_for(std::int32_t rank) const {
  std::vector<std::int32_t> ranks;
  if (!pending_[at(rank)].empty()) {
    const PendingCall& call = calls_[at(pending_[at(rank)].front().call)];
    ranks = call.missing;
    ranks.insert(ranks.end(), call.behind.begin(), call.behind.end());
    ranks.insert(ranks.end(), call.unknown.begin(), call.unknown.end());
  }
  std::ranges::sort(ranks);
  const auto repeated = std::ranges::unique(ranks);
  ranks.erase(repeated.begin(), repeated.end());
  std::erase(ranks, rank);
  return ranks;
}

namespace {

// Tarjan's algorithm, without recursion.
class Components {
 public:
  explicit Components(const std::vector<std::vector<std::int32_t>>& edges)
      : edges_(edges), index_(edges.size(), -1), low_(edges.size()), of_(edges.size(), -1) {
    for (std::size_t k = 0; k < edges.size(); ++k) {
      if (index_[k] < 0) visit(static_cast<std::int32_t>(k));
    }
  }
  [[nodiscard]] std::int32_t count() const { return count_; }
  [[nodiscard]] std::int32_t of(std::int32_t node) const { return of_[at(node)]; }

 private:
  struct Frame {
    std::int32_t node;
    std::size_t next;
  };
  void open(std::int32_t node) {
    index_[at(node)] = low_[at(node)] = next_++;
    open_.push_back(node);
    frames_.push_back({node, 0});
  }
  void visit(std::int32_t root) {
    open(root);
    while (!frames_.empty()) {
      Frame& frame = frames_.back();
      const std::vector<std::int32_t>& edges = edges_[at(frame.node)];
      if (frame.next < edges.size()) {
        const std::int32_t to = edges[frame.next++];
        if (index_[at(to)] < 0)
          open(to);
        else if (of_[at(to)] < 0)
          low_[at(frame.node)] = std::min(low_[at(frame.node)], index_[at(to)]);
        continue;
      }
      close(frame.node);
      const std::int32_t done = frame.node;
      frames_.pop_back();
      if (!frames_.empty()) {
        std::int32_t& low = low_[at(frames_.back().node)];
        low = std::min(low, low_[at(done)]);
      }
    }
  }
  void close(std::int32_t node) {
    if (low_[at(node)] != index_[at(node)]) return;
    while (true) {
      const std::int32_t member = open_.back();
      open_.pop_back();
      of_[at(member)] = count_;
      if (member == node) break;
    }
    ++count_;
  }

  const std::vector<std::vector<std::int32_t>>& edges_;
  std::vector<std::int32_t> index_;
  std::vector<std::int32_t> low_;
  std::vector<std::int32_t> of_;
  std::vector<std::int32_t> open_;
  std::vector<Frame> frames_;
  std::int32_t next_ = 0;
  std::int32_t count_ = 0;
};

}  // namespace

// Nodes are the ranks and then the calls: a rank waits for its pending calls, a call for the ranks
// that it lacks. With an edge for each pair of ranks, half a group of 16,384 that waits for the
// other half would have 67 million.
void WaitGraph::find_roots(std::int32_t world) {
  std::vector<std::vector<std::int32_t>> edges(at(world) + calls_.size());
  for (std::int32_t rank = 0; rank < world; ++rank) {
    // What comes after the first pending call is usually held up by it.
    if (!pending_[at(rank)].empty()) {
      edges[at(rank)].push_back(world + pending_[at(rank)].front().call);
    }
  }
  for (std::size_t k = 0; k < calls_.size(); ++k) {
    std::vector<std::int32_t>& to = edges[at(world) + k];
    to = calls_[k].missing;
    to.insert(to.end(), calls_[k].behind.begin(), calls_[k].behind.end());
  }
  std::vector<bool> is_first(calls_.size());  // of some rank
  for (std::int32_t rank = 0; rank < world; ++rank) {
    for (const std::int32_t call : edges[at(rank)]) is_first[at(call - world)] = true;
  }
  const Components components(edges);
  const auto count = at(components.count());
  std::vector<Root> members(count);
  std::vector<std::vector<std::int32_t>> into(count);  // components that wait for this one
  std::vector<bool> is_root(count, true);
  std::vector<bool> matters(count, false);
  for (std::size_t node = 0; node < edges.size(); ++node) {
    const auto id = static_cast<std::int32_t>(node);
    if (id >= world && !is_first[node - at(world)]) continue;
    const std::int32_t from = components.of(id);
    if (id < world) {
      members[at(from)].ranks.push_back(id);
    } else {
      members[at(from)].calls.push_back(id - world);
    }
    for (const std::int32_t to : edges[node]) {
      const std::int32_t component = components.of(to);
      matters[at(component)] = true;
      if (component == from) continue;
      is_root[at(from)] = false;
      into[at(component)].push_back(from);
    }
  }
  for (std::size_t k = 0; k < count; ++k) {
    if (!is_root[k] || !matters[k]) continue;
    std::vector<bool> seen(count);
    std::vector<std::int32_t> open{static_cast<std::int32_t>(k)};
    seen[k] = true;
    Root& root = members[k];
    root.victims = -std::ssize(root.ranks);
    while (!open.empty()) {
      const std::int32_t next = open.back();
      open.pop_back();
      root.victims += std::ssize(members[at(next)].ranks);
      for (const std::int32_t from : into[at(next)]) {
        if (!seen[at(from)]) open.push_back(from);
        seen[at(from)] = true;
      }
    }
    for (const std::int32_t rank : root.ranks) in_root_[at(rank)] = true;
  }
  for (std::size_t k = 0; k < count; ++k) {
    if (is_root[k] && matters[k]) roots_.push_back(std::move(members[k]));
  }
  std::ranges::stable_sort(roots_, {}, [](const Root& root) { return -root.victims; });
}

}  // namespace shiplap::postmortem
