// What the threads share: messages on their way, and the groups where ranks meet. One mutex for all
// of it; ranks lock it only to meet, and copy without it.
#pragma once

#include <chrono>
#include <list>
#include <map>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shiplap/base/thread_annotations.h"
#include "shiplap/comm/communicator.h"
#include "shiplap/comm/threads/threads.h"

namespace shiplap::comm {

// One message on its way: whoever of the two ends comes second copies it. The copy is made without
// the mutex; `claimed` keeps both ends from leaving with their buffers meanwhile.
struct Transfer {
  std::span<const std::byte> source;
  std::span<std::byte> target;
  std::vector<std::byte> eager;  // the message itself, if its send is complete already
  int sender = 0;                // in the world
  int receiver = 0;
  bool claimed = false;
  bool sent = false;
  bool received = false;
  bool too_long = false;
};

// Messages of one group from one rank to another with one tag. Ranks are those of the world.
struct Lane {
  std::int64_t group = 0;
  int from = 0;
  int to = 0;
  int tag = 0;
  friend auto operator<=>(const Lane&, const Lane&) = default;
};

struct Queue {
  std::list<std::shared_ptr<Transfer>> sends;     // without a receive
  std::list<std::shared_ptr<Transfer>> receives;  // without a send
  [[nodiscard]] bool empty() const { return sends.empty() && receives.empty(); }
};

// What one rank brings to a collective.
struct Contribution {
  Fingerprint fingerprint;
  bool compares = false;  // only that
  const std::byte* in = nullptr;
  std::byte* scratch = nullptr;
  std::size_t bytes = 0;
  Pieces to;
  Outgoing parts;
  int colour = 0;  // of a split
  int key = 0;
};

// Where the ranks of one group meet.
struct Group {
  Group(std::int64_t group_id, std::vector<int> members)
      : id(group_id), world_ranks(std::move(members)), contributions(world_ranks.size()) {
    shared.arrivals.resize(world_ranks.size());
  }

  const std::int64_t id;
  const std::vector<int> world_ranks;
  // Each is written by its rank before a meeting, and read by all until the next.
  std::vector<Contribution> contributions;
  // Guarded by the mutex of the world.
  struct Shared {
    std::vector<std::int64_t> arrivals;  // how often each rank has arrived
    std::int64_t meetings = 0;           // how often all have
    int waiting = 0;
    std::string broken;                           // why nobody can meet here any more
    std::map<int, std::shared_ptr<Group>> parts;  // of a split under way, by colour
  } shared;
};

struct World {
  explicit World(const ThreadOptions& options)
      : eager_limit(static_cast<std::size_t>(options.eager_limit.count)),
        wake(static_cast<std::size_t>(options.ranks)),
        left(static_cast<std::size_t>(options.ranks)) {}

  // Why a rank left before its work was done, and whose fault it was.
  struct Leaving {
    bool gone = false;
    int root = 0;
    std::string reason;
  };

  const std::size_t eager_limit;
  std::vector<ConditionVariable> wake;  // by rank
  Mutex mutex;
  std::map<Lane, Queue> lanes SHIPLAP_GUARDED_BY(mutex);
  std::vector<Leaving> left SHIPLAP_GUARDED_BY(mutex);  // by rank
  bool anyone_left SHIPLAP_GUARDED_BY(mutex) = false;
  std::int64_t groups SHIPLAP_GUARDED_BY(mutex) = 0;

  // Also where there is no memory left for the reason.
  void leave(int rank, int root, std::string_view reason) noexcept SHIPLAP_EXCLUDES(mutex) {
    const MutexLock lock(mutex);
    Leaving& leaving = left[rank];
    if (leaving.gone) return;
    leaving.gone = true;
    leaving.root = root;
    try {
      leaving.reason = reason;
    } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): it has none then
    }
    anyone_left = true;
    for (ConditionVariable& one : wake) one.notify_all();
  }
};

class ThreadCommunicator : public Communicator {
 public:
  ThreadCommunicator(std::shared_ptr<World> world, std::shared_ptr<Group> group, int rank,
                     std::string name)
      : Communicator({.rank = rank,
                      .size = static_cast<int>(group->world_ranks.size()),
                      .name = std::move(name)}),
        world_(std::move(world)),
        group_(std::move(group)),
        shared_(&group_->shared) {}

  [[nodiscard]] int world_rank(int rank) const override { return group_->world_ranks[rank]; }

 protected:
  Request start_send(std::span<const std::byte> data, int to, int tag) override;
  Request start_receive(std::span<std::byte> data, int from, int tag) override;
  std::vector<Fingerprint> compare(const Fingerprint& own) override;
  void do_barrier() override;
  void do_broadcast(std::span<std::byte> data, int root) override;
  void do_all_reduce(DType type, std::span<std::byte> data, ReduceOp reduction) override;
  void do_all_gather(std::span<const std::byte> in, std::span<std::byte> out,
                     const Pieces& pieces) override;
  void do_reduce_scatter(DType type, std::span<const std::byte> in, std::span<std::byte> out,
                         ReduceOp reduction) override;
  void do_all_to_all(std::span<const std::byte> in, const Pieces& to, std::span<std::byte> out,
                     const Pieces& from) override;
  void do_all_to_all_parts(const Outgoing& to, const Incoming& from) override;
  std::unique_ptr<Communicator> do_split(int colour, int key, const std::string& name) override;
  void do_leave(int root, const std::string& reason) override {
    world_->leave(self(), root, reason);
  }

 private:
  friend class ThreadRequest;
  [[nodiscard]] int self() const { return world_rank(rank()); }
  ConditionVariable& own_wake() { return world_->wake[self()]; }
  [[nodiscard]] const Contribution& of(int rank) const { return group_->contributions[rank]; }

  // Shows what this rank brings and waits until all have done so. What they wrote before, all see
  // after. Throws if they do not do the same.
  void bring(Contribution contribution);
  void meet();
  [[noreturn]] void fail_unequally_checked();
  // The same for a meeting that all have promised to come to, because they came to the one before:
  // without a deadline and whatever else has failed, since others may still read this rank's
  // memory.
  void meet_again();
  // Counts this rank as present. True if it is the last to come.
  bool arrive(std::int64_t& meeting) SHIPLAP_REQUIRES(world_->mutex);
  [[nodiscard]] std::vector<int> missing_from(std::int64_t meeting) const
      SHIPLAP_REQUIRES(world_->mutex);
  // Combines piece `begin` to `begin` + `bytes` of what all ranks brought, in their order.
  void combine_all(ReduceOp reduction, DType type, std::size_t begin, std::size_t bytes);
  // What `member` has for this rank; false if it is not of the expected lengths.
  bool copy_parts(int member, const Incoming& from);
  [[noreturn]] void fail_sizes(std::vector<int> outliers);

  // Sleeps until this rank is woken. False if that is at the end of the timeout; throws if a rank
  // of the group has left.
  bool sleep_until(ConditionVariable::Clock::time_point end) SHIPLAP_REQUIRES(world_->mutex) {
    check_left();
    return own_wake().wait_until(world_->mutex, end);
  }
  [[nodiscard]] auto timeout_end() const { return ConditionVariable::after(timeout().value); }
  // Throws if a rank of this group has left.
  void check_left() SHIPLAP_REQUIRES(world_->mutex);
  // Called by the end that came second.
  void complete(Transfer& transfer) SHIPLAP_EXCLUDES(world_->mutex);

  std::shared_ptr<World> world_;
  std::shared_ptr<Group> group_;
  Group::Shared* const shared_ SHIPLAP_PT_GUARDED_BY(world_->mutex);
  std::vector<std::byte> scratch_;
};

}  // namespace shiplap::comm
