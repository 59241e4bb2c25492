// Collectives of ranks that share memory: they meet, read what the others brought, and meet again,
// so that nobody leaves while its memory is being read.
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

// ---- meeting

bool ThreadCommunicator::arrive(std::int64_t& meeting) {
  meeting = shared_->meetings;
  ++shared_->arrivals[rank()];
  if (++shared_->waiting < size()) return false;
  shared_->waiting = 0;
  ++shared_->meetings;
  for (const int member : group_->world_ranks) {
    world_->wake[member].notify_all();
  }
  return true;
}

std::vector<int> ThreadCommunicator::missing_from(std::int64_t meeting) const {
  std::vector<int> missing;
  for (int member = 0; member < size(); ++member) {
    if (shared_->arrivals[member] <= meeting) {
      missing.push_back(world_rank(member));
    }
  }
  return missing;
}

void ThreadCommunicator::check_left() {
  if (!world_->anyone_left) return;
  for (const int member : group_->world_ranks) {
    const World::Leaving& leaving = world_->left[member];
    if (leaving.gone) fail_left(member, leaving.root, leaving.reason);
  }
}

void ThreadCommunicator::meet() {
  const MutexLock lock(world_->mutex);
  check_left();
  if (!shared_->broken.empty()) fail_dead(shared_->broken);
  std::int64_t meeting = 0;
  if (arrive(meeting)) return;
  const auto end = timeout_end();
  try {
    while (shared_->meetings <= meeting) {
      if (sleep_until(end) || shared_->meetings > meeting) continue;
      fail_late(describe(current()), missing_from(meeting));
    }
  } catch (...) {  // a Failure, or no memory to tell one
    // Whoever comes now must not find this rank counted: it is leaving, with its memory. It did
    // arrive, though, so nobody blames it.
    --shared_->waiting;
    if (shared_->broken.empty()) {
      shared_->broken = fmt::format("rank {} gave up waiting in {}", self(), describe(current()));
    }
    throw;
  }
}

void ThreadCommunicator::meet_again() {
  const MutexLock lock(world_->mutex);
  std::int64_t meeting = 0;
  if (arrive(meeting)) return;
  while (shared_->meetings <= meeting) own_wake().wait(world_->mutex);
}

void ThreadCommunicator::bring(Contribution contribution) {
  contribution.fingerprint = current();
  group_->contributions[rank()] = contribution;
  meet();
  // Even unchecked, threads see at no cost when they do not do the same, and must not go on then.
  const bool agree = std::ranges::all_of(group_->contributions, [&](const Contribution& other) {
    return other.fingerprint == current() && !other.compares;
  });
  if (agree) return;
  std::vector<Fingerprint> all;
  for (const Contribution& other : group_->contributions) all.push_back(other.fingerprint);
  judge(all);
  fail_unequally_checked();
}

std::vector<Fingerprint> ThreadCommunicator::compare(const Fingerprint& own) {
  std::vector<Fingerprint> all(group_->contributions.size());
  group_->contributions[rank()] = {.fingerprint = own, .compares = true};
  meet();
  bool agree = true;
  for (std::size_t k = 0; k < all.size(); ++k) {
    all[k] = group_->contributions[k].fingerprint;
    agree = agree && group_->contributions[k].compares;
  }
  if (!agree) fail_unequally_checked();  // on all ranks: the others see it too
  meet_again();                          // before anybody brings something else
  return all;
}

void ThreadCommunicator::fail_unequally_checked() {
  std::vector<int> checked;
  for (int member = 0; member < size(); ++member) {
    if (of(member).compares) checked.push_back(world_rank(member));
  }
  const std::string what =
      fmt::format("in `{}` {} of {} ranks are in checked mode", name(), checked.size(), size());
  fail_mismatch(what, std::move(checked));
}

// ---- moving

void ThreadCommunicator::do_barrier() {
  bring({});
  meet_again();  // before anybody brings something else
}

void ThreadCommunicator::do_broadcast(std::span<std::byte> data, int root) {
  bring({.in = data.data()});
  if (rank() != root) copy_disjoint(data.data(), of(root).in, data.size());
  meet_again();
}

void ThreadCommunicator::combine_all(ReduceOp reduction, DType type, std::size_t begin,
                                     std::size_t bytes) {
  if (bytes == 0) return;
  copy_disjoint(scratch_.data(), of(0).in + begin, bytes);
  for (int member = 1; member < size(); ++member) {
    combine(reduction, type, scratch_.data(), scratch_.data(), of(member).in + begin,
            bytes / bytes_of(type));
  }
}

// Rank r combines the r-th part of everybody's data.
void ThreadCommunicator::do_all_reduce(DType type, std::span<std::byte> data, ReduceOp reduction) {
  const std::size_t width = bytes_of(type);
  const std::size_t count = data.size() / width;
  const auto ranks = static_cast<std::size_t>(size());
  const auto begin_of = [&](std::size_t r) { return count * r / ranks * width; };
  const auto own = static_cast<std::size_t>(rank());
  const std::size_t bytes = begin_of(own + 1) - begin_of(own);
  scratch_.resize(std::max(scratch_.size(), bytes));
  bring({.in = data.data(), .scratch = scratch_.data()});
  combine_all(reduction, type, begin_of(own), bytes);
  meet_again();
  for (std::size_t member = 0; member < ranks; ++member) {
    const std::size_t begin = begin_of(member);
    copy_disjoint(data.data() + begin, of(static_cast<int>(member)).scratch,
                  begin_of(member + 1) - begin);
  }
  meet_again();
}

void ThreadCommunicator::fail_sizes(std::vector<int> outliers) {
  const std::string what = fmt::format("in `{}`, {}, rank {} does not send what rank {} expects",
                                       name(), describe(current()), outliers.front(), self());
  fail_mismatch(what, std::move(outliers));
}

void ThreadCommunicator::do_all_gather(std::span<const std::byte> in, std::span<std::byte> out,
                                       const Pieces& pieces) {
  std::vector<int> odd;
  odd.reserve(group_->world_ranks.size());  // no failing between the meetings
  bring({.in = in.data(), .bytes = in.size()});
  for (int member = 0; member < size(); ++member) {
    const auto k = static_cast<std::size_t>(member);
    const auto bytes = static_cast<std::size_t>(pieces.counts[k]);
    std::byte* const target = out.data() + pieces.offsets[k];
    if (of(member).bytes != bytes) {
      odd.push_back(world_rank(member));
    } else if (target != of(member).in) {
      copy_disjoint(target, of(member).in, bytes);
    }
  }
  meet_again();
  if (!odd.empty()) fail_sizes(std::move(odd));
}

void ThreadCommunicator::do_reduce_scatter(DType type, std::span<const std::byte> in,
                                           std::span<std::byte> out, ReduceOp reduction) {
  scratch_.resize(std::max(scratch_.size(), out.size()));
  bring({.in = in.data()});
  combine_all(reduction, type, out.size() * static_cast<std::size_t>(rank()), out.size());
  meet_again();  // `out` may be a part of `in`, which others were reading
  copy_disjoint(out.data(), scratch_.data(), out.size());
}

void ThreadCommunicator::do_all_to_all(std::span<const std::byte> in, const Pieces& to,
                                       std::span<std::byte> out, const Pieces& from) {
  std::vector<int> odd;
  odd.reserve(group_->world_ranks.size());
  bring({.in = in.data(), .to = to});
  const auto own = static_cast<std::size_t>(rank());
  for (int member = 0; member < size(); ++member) {
    const auto k = static_cast<std::size_t>(member);
    const Pieces& theirs = of(member).to;
    if (theirs.counts[own] != from.counts[k]) {
      odd.push_back(world_rank(member));
    } else {
      copy_disjoint(out.data() + from.offsets[k], of(member).in + theirs.offsets[own],
                    static_cast<std::size_t>(from.counts[k]));
    }
  }
  meet_again();
  if (!odd.empty()) fail_sizes(std::move(odd));
}

bool ThreadCommunicator::copy_parts(int member, const Incoming& from) {
  const Outgoing& to = of(member).parts;
  const auto own = static_cast<std::size_t>(rank());
  const auto k = static_cast<std::size_t>(member);
  const auto theirs = to.parts.subspan(to.first[own], to.first[own + 1] - to.first[own]);
  const auto mine = from.parts.subspan(from.first[k], from.first[k + 1] - from.first[k]);
  if (theirs.size() != mine.size()) return false;
  for (std::size_t part = 0; part < mine.size(); ++part) {
    if (theirs[part].size() != mine[part].size()) return false;
    copy_disjoint(mine[part].data(), theirs[part].data(), mine[part].size());
  }
  return true;
}

void ThreadCommunicator::do_all_to_all_parts(const Outgoing& to, const Incoming& from) {
  int odd = -1;
  bring({.parts = to});
  // Everybody begins with another one, so that they do not all read the same memory.
  for (int step = 0; step < size(); ++step) {
    const int member = (rank() + step) % size();
    if (!copy_parts(member, from)) odd = member;
  }
  meet_again();
  if (odd >= 0) fail_sizes({world_rank(odd)});
}

std::unique_ptr<Communicator> ThreadCommunicator::do_split(int colour, int key,
                                                           const std::string& name) {
  // What fails between the meetings must not keep the others there.
  struct Meetings {
    ThreadCommunicator& communicator;
    int left = 2;
    void next() {
      --left;
      communicator.meet_again();
    }
    ~Meetings() {
      while (left > 0) next();
    }
  };
  bring({.colour = colour, .key = key});
  Meetings meetings{*this};
  std::vector<std::pair<int, int>> members;  // key and rank
  for (int member = 0; member < size(); ++member) {
    if (of(member).colour == colour) members.emplace_back(of(member).key, member);
  }
  std::ranges::sort(members);
  const auto own = std::ranges::find(members, rank(), &std::pair<int, int>::second);
  std::shared_ptr<Group> part;
  {
    const MutexLock lock(world_->mutex);
    std::shared_ptr<Group>& shared = shared_->parts[colour];
    if (shared == nullptr) {
      std::vector<int> world_ranks;
      for (const auto& [ignored, member] : members) world_ranks.push_back(world_rank(member));
      shared = std::make_shared<Group>(++world_->groups, std::move(world_ranks));
    }
    part = shared;
  }
  meetings.next();
  {
    const MutexLock lock(world_->mutex);
    shared_->parts.erase(colour);
  }
  meetings.next();  // before anybody splits again
  return std::make_unique<ThreadCommunicator>(world_, std::move(part),
                                              static_cast<int>(own - members.begin()), name);
}

}  // namespace shiplap::comm
