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

class MonitoredCommunicator : public MessageCommunicator {
 public:
  struct Members {
    std::vector<int> world_ranks;  // by rank of the group
    int own = 0;
    std::uint64_t group = 0;  // the same number on all its ranks and on no others
  };
  MonitoredCommunicator(FailureDetector& detector, Members members, std::string name);

  [[nodiscard]] int world_rank(int rank) const override { return members_.world_ranks[rank]; }
  // Waits until all ranks have come to the end of their work.
  void close();

 protected:
  void collective_begun() override { detector_.set_arrived(members_.group, collectives()); }
  void do_leave(int root, const std::string& reason) override {
    detector_.abort_peers(root, reason);
  }

  [[nodiscard]] const Members& members() const { return members_; }
  [[nodiscard]] WaitState wait_state(const std::string& operation) const;
  [[nodiscard]] FailureDetector& detector() const { return detector_; }
  // "all_reduce number 3 (..)", or what a message is called that is no part of one. `verb` is
  // "send to" or "receive from".
  [[nodiscard]] std::string operation(std::string_view verb, int peer, int tag) const;
  // Throws if a rank of this group has failed, and had before `time`.
  void check_failed(double time);
  [[noreturn]] void throw_failed(const FailedRank& failed);
  // The ranks that keep this one, which waits for `peer`, from going on.
  [[nodiscard]] MissingRanks find_missing(const std::string& operation, int peer);

  // The number of a part of this group that begins now.
  [[nodiscard]] std::uint64_t next_group(int colour) const;
  // The ranks here that have chosen the same colour, in the order of the part.
  [[nodiscard]] std::vector<int> choose_part(int colour, int key);
  [[nodiscard]] Members members_of(const std::vector<int>& part, int colour) const;

 private:
  FailureDetector& detector_;
  Members members_;
};

// Calls `work`. If it throws, all other ranks are told why, and the exception is thrown again.
void abort_peers_on_exception(FailureDetector& detector, const std::function<void()>& work);

}  // namespace shiplap::comm
