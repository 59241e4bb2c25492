// A communicator made of messages whose ranks also listen to each other's news: it knows who is
// lost, and who is missing when a deadline has passed.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "shiplap/comm/messages_internal.h"
#include "shiplap/comm/news_internal.h"

namespace shiplap::comm {

class ListeningCommunicator : public MessageCommunicator {
 public:
  struct Members {
    std::vector<int> world_ranks;  // by rank of the group
    int own = 0;
    std::uint64_t group = 0;  // the same number on all its ranks and on no others
  };
  ListeningCommunicator(News& news, Members members, std::string name);

  [[nodiscard]] int world_rank(int rank) const override { return members_.world_ranks[rank]; }
  // Waits until all ranks have come to the end of their work.
  void close();

 protected:
  void collective_begun() override { news_.set_arrived(members_.group, collectives()); }
  void do_leave(int root, const std::string& reason) override { news_.leave(root, reason); }

  [[nodiscard]] const Members& members() const { return members_; }
  [[nodiscard]] News::Doing doing(const std::string& operation) const;
  [[nodiscard]] News& news() const { return news_; }
  // "all_reduce number 3 (..)", or what a message is called that is no part of one. `verb` is
  // "send to" or "receive from".
  [[nodiscard]] std::string operation(std::string_view verb, int peer, int tag) const;
  // Throws if a rank of this group is lost, and was before `time`.
  void check_lost(double time);
  [[noreturn]] void fail_lost(const News::Lost& lost);
  // Who keeps this rank waiting that waits for `peer`.
  [[nodiscard]] News::RollCall call_roll(const std::string& operation, int peer);

  // The number of a part of this group that begins now.
  [[nodiscard]] std::uint64_t next_group(int colour) const;
  // The ranks here that have chosen the same colour, in the order of the part.
  [[nodiscard]] std::vector<int> choose_part(int colour, int key);
  [[nodiscard]] Members members_of(const std::vector<int>& part, int colour) const;

 private:
  News& news_;
  Members members_;
};

// Calls `work`. If it throws, all other ranks are told why, and the exception goes on.
void tell_if_it_fails(News& news, const std::function<void()>& work);

}  // namespace shiplap::comm
