// A communicator made of messages that asks the failure detector which ranks have failed, and which
// are missing when a wait has timed out.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "shiplap/comm/failure_detector_internal.h"
#include "shiplap/comm/messages_internal.h"

namespace shiplap::comm {

// In seconds. Messages in flight may arrive after the failure of their sender is known: a failure
// counts only after this time.
inline constexpr double kFailureGracePeriod = 0.1;

class MonitoredCommunicator : public MessageCommunicator {
 public:
  struct Members {
    std::vector<int> world_ranks;  // by rank of the group
    int rank = 0;                  // of this process, in the group
    std::uint64_t group = 0;       // the same on all ranks of the group, and unique
  };
  MonitoredCommunicator(FailureDetector& detector, Members members, std::string name);

  [[nodiscard]] int world_rank(int rank) const override { return members_.world_ranks[rank]; }
  // Waits until all ranks have called it.
  void close();

 protected:
  void on_collective_begin() override { detector_.set_arrived(members_.group, collectives()); }
  void do_abort(int culprit, const std::string& reason) override {
    detector_.abort_peers(culprit, reason);
  }

  [[nodiscard]] const Members& members() const { return members_; }
  [[nodiscard]] WaitState wait_state(const std::string& operation) const;
  [[nodiscard]] FailureDetector& detector() const { return detector_; }
  // Returns "all_reduce number 3 (..)" in a collective, otherwise "send to rank 1 (tag 2)". `verb`
  // is "send to" or "receive from".
  [[nodiscard]] std::string operation(std::string_view verb, int peer, int tag) const;
  // Throws if a rank of this group had failed before `time`.
  void throw_if_rank_failed(double time);
  [[noreturn]] void throw_failed(const FailedRank& failed);
  // Returns the ranks for which this one waits, directly or not.
  [[nodiscard]] MissingRanks find_missing(const std::string& operation, int peer);

  // Returns the group number of a split that begins now.
  [[nodiscard]] std::uint64_t next_group(int colour) const;
  // Returns the ranks of this group with the same colour, in the order of the new group.
  [[nodiscard]] std::vector<int> exchange_colours(int colour, int key);
  [[nodiscard]] Members members_of(const std::vector<int>& ranks, int colour) const;

 private:
  FailureDetector& detector_;
  Members members_;
};

// Calls `work`. If it throws, aborts all other ranks with the reason and rethrows.
void abort_peers_on_exception(FailureDetector& detector, const std::function<void()>& work);

}  // namespace shiplap::comm
