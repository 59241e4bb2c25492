// State shared by the ranks: match queues of messages, and groups with their barriers. One mutex
// guards all of it; data is copied without it.
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

// A message in flight. Whichever of send and receive comes second copies it, without the mutex;
// `claimed` keeps both ends from returning with their buffers meanwhile.
struct Transfer {
  std::span<const std::byte> source;
  std::span<std::byte> target;
  std::vector<std::byte> eager;  // the data, if the send is complete
  int sender = 0;                // rank of the world
  int receiver = 0;
  bool claimed = false;
  bool sent = false;
  bool received = false;
  bool too_long = false;
};

// Group, source, destination and tag. Ranks are those of the world.
struct ThreadMatchKey {
  std::int64_t group = 0;
  int from = 0;
  int to = 0;
  int tag = 0;
  friend auto operator<=>(const ThreadMatchKey&, const ThreadMatchKey&) = default;
};

struct ThreadMatchQueue {
  std::list<std::shared_ptr<Transfer>> sends;     // unmatched
  std::list<std::shared_ptr<Transfer>> receives;  // unmatched
  [[nodiscard]] bool empty() const { return sends.empty() && receives.empty(); }
};

// The arguments of one rank of a collective.
struct Contribution {
  Fingerprint fingerprint;
  bool compares = false;  // only the fingerprint is exchanged
  const std::byte* in = nullptr;
  std::byte* scratch = nullptr;
  std::size_t bytes = 0;
  Pieces to;
  Outgoing parts;
  int colour = 0;  // of a split
  int key = 0;
};

struct ThreadGroup {
  ThreadGroup(std::int64_t group_id, std::vector<int> members)
      : id(group_id), world_ranks(std::move(members)), contributions(world_ranks.size()) {
    shared.arrivals.resize(world_ranks.size());
  }

  const std::int64_t id;
  const std::vector<int> world_ranks;
  // By rank. Each is written by its rank before a barrier, and read by all until the next.
  std::vector<Contribution> contributions;
  // Guarded by the mutex of the world.
  struct Shared {
    std::vector<std::int64_t> arrivals;  // barriers that each rank has reached
    std::int64_t generation = 0;         // barriers that all have passed
    int waiting = 0;
    std::string broken;                                 // why the barrier can no longer complete
    std::map<int, std::shared_ptr<ThreadGroup>> parts;  // of the current split, by colour
  } shared;
};

struct ThreadWorld {
  explicit ThreadWorld(const ThreadOptions& options)
      : eager_limit(static_cast<std::size_t>(options.eager_limit.count)),
        wake(static_cast<std::size_t>(options.ranks)),
        aborts(static_cast<std::size_t>(options.ranks)) {}

  struct Abort {
    bool has_aborted = false;
    int culprit = 0;
    std::string reason;
  };

  const std::size_t eager_limit;
  std::vector<ConditionVariable> wake;  // by rank
  Mutex mutex;
  std::map<ThreadMatchKey, ThreadMatchQueue> match_queues SHIPLAP_GUARDED_BY(mutex);
  std::vector<Abort> aborts SHIPLAP_GUARDED_BY(mutex);  // by rank
  bool any_aborted SHIPLAP_GUARDED_BY(mutex) = false;
  std::int64_t groups SHIPLAP_GUARDED_BY(mutex) = 0;

  // Works without memory for the reason.
  void abort_rank(int rank, int culprit, std::string_view reason) noexcept SHIPLAP_EXCLUDES(mutex) {
    const MutexLock lock(mutex);
    Abort& abort = aborts[rank];
    if (abort.has_aborted) return;
    abort.has_aborted = true;
    abort.culprit = culprit;
    try {
      abort.reason = reason;
    } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): no reason then
    }
    any_aborted = true;
    for (ConditionVariable& one : wake) one.notify_all();
  }
};

class ThreadCommunicator : public Communicator {
 public:
  ThreadCommunicator(std::shared_ptr<ThreadWorld> world, std::shared_ptr<ThreadGroup> group,
                     int rank, std::string name)
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
  std::vector<Fingerprint> gather_fingerprints(const Fingerprint& local) override;
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
  void do_abort(int culprit, const std::string& reason) override {
    world_->abort_rank(self(), culprit, reason);
  }

 private:
  friend class ThreadRequest;
  [[nodiscard]] int self() const { return world_rank(rank()); }
  ConditionVariable& wakeup() { return world_->wake[self()]; }
  [[nodiscard]] const Contribution& contribution(int rank) const {
    return group_->contributions[rank];
  }

  // Publishes the arguments of this rank and waits until all ranks have done so. Throws Mismatch if
  // their calls differ.
  void publish(Contribution contribution);
  void wait_barrier();
  [[noreturn]] void fail_checked_mismatch();
  // Waits without a timeout and whatever has failed, since others may still read the memory of this
  // rank. REQUIRES: all ranks have passed the barrier before, so all reach this one.
  void wait_barrier_untimed();
  // Returns true if this rank is the last of the current generation.
  bool arrive(std::int64_t& generation) SHIPLAP_REQUIRES(world_->mutex);
  [[nodiscard]] std::vector<int> missing_from(std::int64_t generation) const
      SHIPLAP_REQUIRES(world_->mutex);
  // Combines bytes `begin` to `begin` + `bytes` of all contributions into scratch_, in the order of
  // ranks.
  void combine_all(ReduceOp reduction, DType type, std::size_t begin, std::size_t bytes);
  // Copies the parts of `member` for this rank. Returns false if the lengths do not match.
  bool copy_parts(int member, const Incoming& from);
  [[noreturn]] void fail_size_mismatch(std::vector<int> outliers);

  // Sleeps until this rank is woken. Returns false on timeout; throws if a rank of the group has
  // aborted.
  bool sleep_until(ConditionVariable::Clock::time_point end) SHIPLAP_REQUIRES(world_->mutex) {
    check_aborted();
    return wakeup().wait_until(world_->mutex, end);
  }
  [[nodiscard]] auto timeout_end() const { return ConditionVariable::after(timeout().value); }
  // Throws if a rank of this group has aborted.
  void check_aborted() SHIPLAP_REQUIRES(world_->mutex);
  // Copies the data. Called by whichever of send and receive comes second.
  void complete(Transfer& transfer) SHIPLAP_EXCLUDES(world_->mutex);

  std::shared_ptr<ThreadWorld> world_;
  std::shared_ptr<ThreadGroup> group_;
  ThreadGroup::Shared* const shared_ SHIPLAP_PT_GUARDED_BY(world_->mutex);
  std::vector<std::byte> scratch_;
};

}  // namespace shiplap::comm
