// Who waits for whom, and where it ends.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "shiplap/postmortem/progress_internal.h"

namespace shiplap::postmortem {

// A collective or a message that is not complete, and the ranks that it cannot complete without.
struct PendingCall {
  dump::GroupId group;
  std::int64_t sequence = -1;  // of a collective
  bool is_p2p = false;
  std::vector<std::int32_t> entered;  // and wait in it
  std::vector<std::int32_t> missing;  // have not entered it, or not posted their end
  std::vector<std::int32_t> behind;   // have entered it, but are held up by an earlier call
  std::vector<std::int32_t> unknown;  // no dump says whether they have entered it
};

// The end of a chain of waits: nothing outside holds it up.
struct Root {
  std::vector<std::int32_t> ranks;  // more than one: a cycle; none: a call that all have entered
  std::vector<std::int32_t> calls;  // in WaitGraph::calls(): those of the cycle, or that one
  std::int64_t victims = 0;         // ranks that wait for it, directly or not
};

class WaitGraph {
 public:
  explicit WaitGraph(const Progress& progress);

  [[nodiscard]] const std::vector<PendingCall>& calls() const { return calls_; }
  // The pending calls of a rank: its unit, and the index of the call.
  struct Pending {
    std::int32_t unit = -1;
    std::int32_t call = -1;
  };
  [[nodiscard]] const std::vector<Pending>& pending(std::int32_t rank) const {
    return pending_[at(rank)];
  }
  // The ranks that a rank waits for in its first pending call, ascending.
  [[nodiscard]] std::vector<std::int32_t> waits_for(std::int32_t rank) const;
  // How many ranks wait directly for it, in calls that it has not entered.
  [[nodiscard]] std::int64_t awaited_by(std::int32_t rank) const { return awaited_[at(rank)]; }
  // Most victims first.
  [[nodiscard]] const std::vector<Root>& roots() const { return roots_; }
  [[nodiscard]] bool in_root(std::int32_t rank) const { return in_root_[at(rank)]; }

 private:
  void find_pending(const Progress& progress, std::int32_t rank);
  std::int32_t collective(const Progress& progress, std::int32_t rank, const Unit& unit);
  std::int32_t messages(const Progress& progress, std::int32_t rank, std::int32_t unit);
  void find_roots(std::int32_t world);

  std::vector<PendingCall> calls_;
  std::map<std::pair<dump::GroupId, std::int64_t>, std::int32_t> collectives_;
  std::vector<std::vector<Pending>> pending_;  // by rank
  std::vector<std::int64_t> awaited_;
  std::vector<Root> roots_;
  std::vector<bool> in_root_;
};

}  // namespace shiplap::postmortem
