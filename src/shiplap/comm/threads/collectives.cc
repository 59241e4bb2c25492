// Collectives of ranks that share memory: publish pointers to the arguments (a barrier), read those
// of the others, and pass a second barrier, so that no rank returns while its memory is read.
//
// The barrier is a counter and a generation number under the mutex. The first one has a timeout: a
// rank that times out is no longer counted, and marks the barrier as broken, since its memory may
// be freed. The second one has none: all ranks have passed the first and only copy memory in
// between, so all of them arrive.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "shiplap/comm/threads/world_internal.h"

namespace shiplap::comm {
namespace {

void copy_disjoint(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

}  // namespace

// ---- the barrier

bool ThreadCommunicator::arrive(std::int64_t& generation) {
  generation = shared_->generation;
  ++shared_->arrivals[rank()];
  if (++shared_->waiting < size()) return false;
  shared_->waiting = 0;
  ++shared_->generation;
  for (const int member : group_->world_ranks) {
    world_->wake[member].notify_all();
  }
  return true;
}

std::vector<int> ThreadCommunicator::missing_from(std::int64_t generation) const {
  std::vector<int> missing;
  for (int member = 0; member < size(); ++member) {
    if (shared_->arrivals[member] <= generation) {
      missing.push_back(world_rank(member));
    }
  }
  return missing;
}

void ThreadCommunicator::check_aborted() {
  if (!world_->any_aborted) return;
  for (const int member : group_->world_ranks) {
    const ThreadWorld::Abort& abort = world_->aborts[member];
    if (abort.has_aborted) fail_aborted(member, abort.culprit, abort.reason);
  }
}

void ThreadCommunicator::wait_barrier() {
  const MutexLock lock(world_->mutex);
  check_aborted();
  if (!shared_->broken.empty()) fail_dead(shared_->broken);
  std::int64_t generation = 0;
  if (arrive(generation)) return;
  const auto end = timeout_end();
  try {
    while (shared_->generation <= generation) {
      if (sleep_until(end) || shared_->generation > generation) continue;
      fail_operation_timeout(describe(current()), missing_from(generation));
    }
  } catch (...) {  // a Failure, or std::bad_alloc
    // This rank returns, and its memory may be freed: it no longer counts as waiting. It stays in
    // `arrivals`, so that no other rank reports it as missing.
    --shared_->waiting;
    if (shared_->broken.empty()) {
      shared_->broken = fmt::format("rank {} timed out in {}", self(), describe(current()));
    }
    throw;
  }
}

void ThreadCommunicator::wait_barrier_untimed() {
  const MutexLock lock(world_->mutex);
  std::int64_t generation = 0;
  if (arrive(generation)) return;
  while (shared_->generation <= generation) wakeup().wait(world_->mutex);
}

void ThreadCommunicator::publish(Contribution contribution) {
  contribution.fingerprint = current();
  group_->contributions[rank()] = contribution;
  wait_barrier();
  // Also in unchecked mode: here the check is free, and copying would be out of bounds.
  const bool agree = std::ranges::all_of(group_->contributions, [&](const Contribution& other) {
    return other.fingerprint == current() && !other.compares;
  });
  if (agree) return;
  std::vector<Fingerprint> all;
  for (const Contribution& other : group_->contributions) all.push_back(other.fingerprint);
  check_agreement(all);
  fail_checked_mismatch();
}

std::vector<Fingerprint> ThreadCommunicator::gather_fingerprints(const Fingerprint& local) {
  std::vector<Fingerprint> all(group_->contributions.size());
  group_->contributions[rank()] = {.fingerprint = local, .compares = true};
  wait_barrier();
  bool agree = true;
  for (std::size_t k = 0; k < all.size(); ++k) {
    all[k] = group_->contributions[k].fingerprint;
    agree = agree && group_->contributions[k].compares;
  }
  if (!agree) fail_checked_mismatch();  // on all ranks
  wait_barrier_untimed();               // before the next publish()
  return all;
}

void ThreadCommunicator::fail_checked_mismatch() {
  std::vector<int> checked;
  for (int member = 0; member < size(); ++member) {
    if (contribution(member).compares) checked.push_back(world_rank(member));
  }
  const std::string what = fmt::format("mismatch in `{}`: only {} of {} ranks are in checked mode",
                                       name(), checked.size(), size());
  fail_mismatch(what, std::move(checked));
}

// ---- collectives

void ThreadCommunicator::do_barrier() {
  publish({});
  wait_barrier_untimed();  // before the next publish()
}

void ThreadCommunicator::do_broadcast(std::span<std::byte> data, int root) {
  publish({.in = data.data()});
  if (rank() != root) copy_disjoint(data.data(), contribution(root).in, data.size());
  wait_barrier_untimed();
}

void ThreadCommunicator::combine_all(ReduceOp reduction, DType type, std::size_t begin,
                                     std::size_t bytes) {
  if (bytes == 0) return;
  copy_disjoint(scratch_.data(), contribution(0).in + begin, bytes);
  for (int member = 1; member < size(); ++member) {
    combine(reduction, type, scratch_.data(), scratch_.data(), contribution(member).in + begin,
            bytes / bytes_of(type));
  }
}

// Rank r combines the r-th part of all data; then all ranks copy all parts.
void ThreadCommunicator::do_all_reduce(DType type, std::span<std::byte> data, ReduceOp reduction) {
  const std::size_t width = bytes_of(type);
  const std::size_t count = data.size() / width;
  const auto ranks = static_cast<std::size_t>(size());
  const auto begin_of = [&](std::size_t r) { return count * r / ranks * width; };
  const auto local = static_cast<std::size_t>(rank());
  const std::size_t bytes = begin_of(local + 1) - begin_of(local);
  scratch_.resize(std::max(scratch_.size(), bytes));
  publish({.in = data.data(), .scratch = scratch_.data()});
  combine_all(reduction, type, begin_of(local), bytes);
  wait_barrier_untimed();
  for (std::size_t member = 0; member < ranks; ++member) {
    const std::size_t begin = begin_of(member);
    copy_disjoint(data.data() + begin, contribution(static_cast<int>(member)).scratch,
                  begin_of(member + 1) - begin);
  }
  wait_barrier_untimed();
}

void ThreadCommunicator::fail_size_mismatch(std::vector<int> outliers) {
  const std::string what =
      fmt::format("mismatch in `{}`, {}: rank {} does not send what rank {} expects", name(),
                  describe(current()), outliers.front(), self());
  fail_mismatch(what, std::move(outliers));
}

void ThreadCommunicator::do_all_gather(std::span<const std::byte> in, std::span<std::byte> out,
                                       const Pieces& pieces) {
  std::vector<int> outliers;
  outliers.reserve(group_->world_ranks.size());  // no exception between the barriers
  publish({.in = in.data(), .bytes = in.size()});
  for (int member = 0; member < size(); ++member) {
    const auto k = static_cast<std::size_t>(member);
    const auto bytes = static_cast<std::size_t>(pieces.counts[k]);
    std::byte* const target = out.data() + pieces.offsets[k];
    if (contribution(member).bytes != bytes) {
      outliers.push_back(world_rank(member));
    } else if (target != contribution(member).in) {
      copy_disjoint(target, contribution(member).in, bytes);
    }
  }
  wait_barrier_untimed();
  if (!outliers.empty()) fail_size_mismatch(std::move(outliers));
}

void ThreadCommunicator::do_reduce_scatter(DType type, std::span<const std::byte> in,
                                           std::span<std::byte> out, ReduceOp reduction) {
  scratch_.resize(std::max(scratch_.size(), out.size()));
  publish({.in = in.data()});
  combine_all(reduction, type, out.size() * static_cast<std::size_t>(rank()), out.size());
  wait_barrier_untimed();  // `out` may be a part of `in`, which others read
  copy_disjoint(out.data(), scratch_.data(), out.size());
}

void ThreadCommunicator::do_all_to_all(std::span<const std::byte> in, const Pieces& to,
                                       std::span<std::byte> out, const Pieces& from) {
  std::vector<int> outliers;
  outliers.reserve(group_->world_ranks.size());
  publish({.in = in.data(), .to = to});
  const auto local = static_cast<std::size_t>(rank());
  for (int member = 0; member < size(); ++member) {
    const auto k = static_cast<std::size_t>(member);
    const Pieces& theirs = contribution(member).to;
    if (theirs.counts[local] != from.counts[k]) {
      outliers.push_back(world_rank(member));
    } else {
      copy_disjoint(out.data() + from.offsets[k], contribution(member).in + theirs.offsets[local],
                    static_cast<std::size_t>(from.counts[k]));
    }
  }
  wait_barrier_untimed();
  if (!outliers.empty()) fail_size_mismatch(std::move(outliers));
}

bool ThreadCommunicator::copy_parts(int member, const Incoming& from) {
  const Outgoing& to = contribution(member).parts;
  const auto local = static_cast<std::size_t>(rank());
  const auto k = static_cast<std::size_t>(member);
  const auto theirs = to.parts.subspan(to.first[local], to.first[local + 1] - to.first[local]);
  const auto mine = from.parts.subspan(from.first[k], from.first[k + 1] - from.first[k]);
  if (theirs.size() != mine.size()) return false;
  for (std::size_t part = 0; part < mine.size(); ++part) {
    if (theirs[part].size() != mine[part].size()) return false;
    copy_disjoint(mine[part].data(), theirs[part].data(), mine[part].size());
  }
  return true;
}

void ThreadCommunicator::do_all_to_all_parts(const Outgoing& to, const Incoming& from) {
  int outlier = -1;
  publish({.parts = to});
  // Each rank begins with another member, so that they do not all read the same memory.
  for (int step = 0; step < size(); ++step) {
    const int member = (rank() + step) % size();
    if (!copy_parts(member, from)) outlier = member;
  }
  wait_barrier_untimed();
  if (outlier >= 0) fail_size_mismatch({world_rank(outlier)});
}

std::unique_ptr<Communicator> ThreadCommunicator::do_split(int colour, int key,
                                                           const std::string& name) {
  // After an exception between the barriers, the other ranks still wait for this one.
  struct RemainingBarriers {
    ThreadCommunicator& communicator;
    int left = 2;
    void next() {
      --left;
      communicator.wait_barrier_untimed();
    }
    ~RemainingBarriers() {
      while (left > 0) next();
    }
  };
  publish({.colour = colour, .key = key});
  RemainingBarriers barriers{*this};
  std::vector<std::pair<int, int>> members;  // key and rank
  for (int member = 0; member < size(); ++member) {
    if (contribution(member).colour == colour)
      members.emplace_back(contribution(member).key, member);
  }
  std::ranges::sort(members);
  const auto local = std::ranges::find(members, rank(), &std::pair<int, int>::second);
  std::shared_ptr<ThreadGroup> part;
  {
    const MutexLock lock(world_->mutex);
    std::shared_ptr<ThreadGroup>& shared = shared_->parts[colour];
    if (shared == nullptr) {
      std::vector<int> world_ranks;
      for (const auto& [ignored, member] : members) world_ranks.push_back(world_rank(member));
      shared = std::make_shared<ThreadGroup>(++world_->groups, std::move(world_ranks));
    }
    part = shared;
  }
  barriers.next();
  {
    const MutexLock lock(world_->mutex);
    shared_->parts.erase(colour);
  }
  barriers.next();  // before the next split
  return std::make_unique<ThreadCommunicator>(world_, std::move(part),
                                              static_cast<int>(local - members.begin()), name);
}

}  // namespace shiplap::comm
