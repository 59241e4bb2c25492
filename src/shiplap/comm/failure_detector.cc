// A failure detector without heartbeats, so it costs nothing in a healthy job. It records ranks
// that died or aborted, and after a timeout it finds the rank for which all others wait.
//
// Fail-stop. The transports detect dead processes and report them here: sockets when a connection
// closes (Endpoint::disconnect), Open MPI by its failure list (Process::poll_dead_ranks); MPICH
// ends the job by itself. A rank that fails with an exception sends abort with the culprit.
//
// Timeouts. A rank that timed out probes others and reports the missing ones:
// - In a collective (probe_group), ranks that have not begun it are missing. A rank that waits in
//   an earlier collective of the group is a victim itself, and only counts if there are no others.
// - For a message (trace_wait_chain), the wait-for graph is searched breadth first: each reply
//   lists the ranks for which its sender waits. Ranks that wait for none, or do not reply, are
//   missing. If there are none, all chains lead back: a deadlock (cf. Knapp, "Deadlock detection in
//   distributed databases", ACM Computing Surveys 19(4), 1987).
//
// A rank that does not reply computes, is stopped or hangs, which cannot be told apart. If it is
// the only one, it is the culprit. A progress thread would reply for it and hide that
// (docs/decisions/010).
//
// All ranks time out at about the same time, so a rank that probes is probed as well: every loop
// here calls poll().
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <numeric>
#include <ranges>

#include "shiplap/comm/failure_detector_internal.h"

namespace shiplap::comm {
namespace {

constexpr double kReplyWithin = 0.5;
// For one edge of a wait chain. Longer, since a rank that does not reply is reported as the
// culprit, and few ranks are probed.
constexpr double kLinkReplyWithin = 1;
constexpr double kTraceWithin = 3;
constexpr double kFresh = 0.1;  // a wait state is valid this long
constexpr std::size_t kMaxSummary = 400;

bool contains(const std::vector<int>& ranks, int rank) {
  return std::ranges::find(ranks, rank) != ranks.end();
}

void set_text(ControlMessage& message, const std::string& text) {
  text.copy(message.text.data(), message.text.size() - 1);
}

}  // namespace

FailureDetector::FailureDetector(ControlChannel& channel, int rank, int size)
    : channel_(channel), rank_(rank), all_ranks_(size) {
  std::iota(all_ranks_.begin(), all_ranks_.end(), 0);
}

// ---- control messages

void FailureDetector::set_waiting(const WaitState& state) {
  const MutexLock lock(mutex_);
  reported_[state.group] = {.text = state.text, .time = channel_.time()};
}

void FailureDetector::count_awaited(int rank, int change) {
  const MutexLock lock(mutex_);
  const auto found = awaited_.try_emplace(rank).first;
  found->second += change;
  if (found->second == 0) awaited_.erase(found);
}

// Threads of this rank may wait in several groups: the thread that reads a probe need not be the
// one that waits in the probed group.
ControlMessage FailureDetector::report(ControlMessage::Kind kind, std::uint64_t group) {
  ControlMessage message{.kind = kind, .group = group};
  const auto arrived = arrived_.find(group);
  if (arrived != arrived_.end()) message.arrived = arrived->second;
  const double fresh = channel_.time() - kFresh;
  auto reported = reported_.find(group);
  message.waits = reported != reported_.end() && reported->second.time > fresh ? 1 : 0;
  if (message.waits == 0) {
    reported =
        std::ranges::max_element(reported_, {}, [](const auto& one) { return one.second.time; });
  }
  if (reported != reported_.end()) set_text(message, reported->second.text);
  std::ranges::copy(awaited_ | std::views::keys | std::views::take(message.awaited.size()),
                    message.awaited.begin());
  if (awaited_.size() > message.awaited.size()) message.awaited.back() = ControlMessage::kMore;
  return message;
}

std::vector<int> FailureDetector::awaited_in(const ControlMessage& message) const {
  std::vector<int> ranks;
  std::ranges::copy_if(message.awaited, std::back_inserter(ranks),
                       [&](int rank) { return rank >= 0 && rank < size(); });
  return ranks;
}

std::optional<ControlMessage> FailureDetector::handle(const ControlMessage& message, int from) {
  const MutexLock lock(mutex_);
  switch (message.kind) {
    case ControlMessage::Kind::probe:
    case ControlMessage::Kind::probe_reply:
      others_[{message.group, from}] = {.message = message, .time = channel_.time()};
      if (message.kind == ControlMessage::Kind::probe_reply) break;
      return report(ControlMessage::Kind::probe_reply, message.group);
    case ControlMessage::Kind::abort:
      if (message.run < run_) break;
      add_failed({.rank = from,
                  .culprit = message.culprit < size() ? std::max(message.culprit, -1) : from,
                  .reason = message.text.data(),
                  .run = message.run});
      break;
    case ControlMessage::Kind::goodbye:
      break;  // handled by the transport
  }
  return std::nullopt;
}

// ---- failed ranks

void FailureDetector::add_failed(FailedRank failed) {
  failed.since = channel_.time();
  FailedRank& known = failed_.try_emplace(failed.rank, failed).first->second;
  known.is_dead = known.is_dead || failed.is_dead;
  any_failed_ = true;
}

void FailureDetector::set_dead(int rank, const std::string& reason) {
  const MutexLock lock(mutex_);
  add_failed({.rank = rank, .culprit = rank, .reason = reason, .is_dead = true});
}

bool FailureDetector::is_dead(int rank) {
  const MutexLock lock(mutex_);
  const auto found = failed_.find(rank);
  return found != failed_.end() && found->second.is_dead;
}

void FailureDetector::set_ended(int rank) {
  const MutexLock lock(mutex_);
  ended_.insert(rank);
}

std::optional<FailedRank> FailureDetector::failed_among(std::span<const int> ranks) {
  if (!any_failed_) return std::nullopt;
  const MutexLock lock(mutex_);
  std::optional<FailedRank> found;
  for (const auto& [rank, failed] : failed_) {
    if (std::ranges::find(ranks, rank) == ranks.end()) continue;
    if (failed.culprit >= 0) return failed;
    if (!found) found = failed;
  }
  return found;
}

void FailureDetector::await_culprit(std::span<const int> ranks, const WaitState& state,
                                    double seconds) {
  for (const double end = channel_.time() + seconds; channel_.time() < end;) {
    if (const auto failed = failed_among(ranks); failed && failed->culprit >= 0) return;
    channel_.poll(state);
    channel_.pause_briefly();
  }
}

void FailureDetector::begin_run() {
  const MutexLock lock(mutex_);
  const int run = ++run_;
  std::erase_if(failed_,
                [&](const auto& one) { return !one.second.is_dead && one.second.run < run; });
  any_failed_ = !failed_.empty();
}

void FailureDetector::abort_peers(int culprit, const std::string& reason) {
  ControlMessage message{.kind = ControlMessage::Kind::abort, .culprit = culprit};
  set_text(message, reason);
  MutexLock lock(mutex_);
  message.run = run_;
  // Send the cause before other threads of this rank see the failure and report a consequence.
  lock.unlock();
  channel_.send(message, all_ranks_);
  lock.lock();
  add_failed({.rank = rank_, .culprit = culprit, .reason = reason, .run = message.run});
}

// ---- groups

void FailureDetector::set_arrived(std::uint64_t group, std::int64_t count) {
  const MutexLock lock(mutex_);
  arrived_[group] = count;
  ended_groups_.erase(group);  // a new group has the same number
}

void FailureDetector::end_group(std::uint64_t group) {
  const MutexLock lock(mutex_);
  reported_.erase(group);
  others_.erase(others_.lower_bound({group, std::numeric_limits<int>::min()}),
                others_.upper_bound({group, std::numeric_limits<int>::max()}));
  if (ended_groups_.insert(group).second) ended_in_order_.push_back(group);
  if (ended_in_order_.size() <= kEndedGroupsKept) return;
  const std::uint64_t oldest = ended_in_order_.front();
  ended_in_order_.pop_front();
  if (ended_groups_.erase(oldest) > 0) arrived_.erase(oldest);
}

bool FailureDetector::is_group_ended(std::uint64_t group) {
  const MutexLock lock(mutex_);
  return ended_groups_.contains(group);
}

// ---- probes

// The states of ranks, as text.
class FailureDetector::ProbeSummary {
 public:
  void add(int rank, const ControlMessage* last) {
    if (last == nullptr) {
      append(silent_text_, ", ", fmt::to_string(rank));
      silent_.push_back(rank);
    } else {
      add(fmt::format("rank {} is in {}", rank, last->text.data()));
    }
  }
  void add_failed(const FailedRank& failed) {
    add(fmt::format("rank {} has aborted: {}", failed.rank, failed.reason));
    if (failed.culprit >= 0) silent_.push_back(failed.culprit);
  }
  // Returns the only one of `missing` that did not reply; nothing if there are several.
  [[nodiscard]] std::optional<int> culprit(const std::vector<int>& missing) const {
    std::optional<int> found;
    for (const int rank : missing) {
      if (!contains(silent_, rank)) continue;
      if (found) return std::nullopt;
      found = rank;
    }
    return found;
  }
  [[nodiscard]] std::string text() const {
    std::string all;
    if (!silent_text_.empty()) {
      all = fmt::format("no reply from {}: computing, stopped or hanging", silent_text_);
    }
    if (!text_.empty()) append(all, "; ", text_);
    return all;
  }

 private:
  void add(const std::string& what) {
    if (text_.size() < kMaxSummary) append(text_, "; ", what);
  }
  static void append(std::string& all, const char* between, const std::string& one) {
    if (!all.empty()) all += between;
    all += one;
  }
  std::string text_;
  std::string silent_text_;
  std::vector<int> silent_;
};

const ControlMessage* FailureDetector::last_of(std::uint64_t group, int rank, double since) {
  const auto found = others_.find({group, rank});
  if (found == others_.end() || found->second.time < since) return nullptr;
  return &found->second.message;
}

bool FailureDetector::all_known(std::uint64_t group, std::span<const int> ranks, double since) {
  const MutexLock lock(mutex_);
  for (const int rank : ranks) {
    if (rank == rank_ || failed_.contains(rank) || ended_.contains(rank)) continue;
    if (last_of(group, rank, since) == nullptr) return false;
  }
  return true;
}

ControlMessage FailureDetector::make_probe(std::uint64_t group, const WaitState& state) {
  set_waiting(state);
  const MutexLock lock(mutex_);
  return report(ControlMessage::Kind::probe, group);
}

void FailureDetector::probe(std::uint64_t group, std::span<const int> ranks, const WaitState& state,
                            double since, double within) {
  channel_.send(make_probe(group, state), ranks);
  for (const double end = channel_.time() + within;
       channel_.time() < end && !all_known(group, ranks, since);) {
    channel_.poll(state);
    channel_.pause_briefly();
  }
}

MissingRanks FailureDetector::probe_group(std::uint64_t group, std::int64_t count,
                                          std::span<const int> ranks, const WaitState& state) {
  if (ranks.size() > kMaxProbed) return {};
  probe(group, ranks, state, 0, kReplyWithin);
  std::vector<int> behind;
  MissingRanks missing;
  const MutexLock lock(mutex_);
  for (const int rank : ranks) {
    const ControlMessage* const last = last_of(group, rank, 0);
    const bool has_begun = last != nullptr && last->arrived >= count;
    if (rank == rank_ || has_begun || ended_.contains(rank)) continue;
    (last != nullptr && last->waits != 0 ? behind : missing.ranks).push_back(rank);
  }
  if (missing.ranks.empty()) missing.ranks = behind;
  ProbeSummary summary;
  for (const int rank : missing.ranks) summary.add(rank, last_of(group, rank, 0));
  missing.about = summary.text();
  missing.culprit = summary.culprit(missing.ranks);
  return missing;
}

MissingRanks FailureDetector::trace_wait_chain(int awaited, const WaitState& state) {
  const double begin = channel_.time();
  MissingRanks missing;
  ProbeSummary summary;
  const ControlMessage local = make_probe(0, state);
  std::vector<int> next = awaited_in(local);
  if (!contains(next, awaited)) next.push_back(awaited);
  std::vector<int> probed;
  bool is_truncated = local.awaited.back() == ControlMessage::kMore;
  while (!next.empty()) {
    if (probed.size() + next.size() > kMaxProbed || channel_.time() > begin + kTraceWithin) {
      is_truncated = true;
      break;
    }
    probe(0, next, state, begin, kLinkReplyWithin);
    probed.insert(probed.end(), next.begin(), next.end());
    std::vector<int> after;
    const MutexLock lock(mutex_);
    for (const int rank : next) {
      const auto failed = failed_.find(rank);
      if (failed != failed_.end()) {
        summary.add_failed(failed->second);
        const int rank_at_fault = failed->second.culprit >= 0 ? failed->second.culprit : rank;
        if (!contains(missing.ranks, rank_at_fault)) missing.ranks.push_back(rank_at_fault);
        continue;
      }
      const ControlMessage* const last = rank == rank_ ? &local : last_of(0, rank, begin);
      summary.add(rank, last);
      is_truncated =
          is_truncated || (last != nullptr && last->awaited.back() == ControlMessage::kMore);
      const std::vector<int> theirs = last == nullptr ? std::vector<int>() : awaited_in(*last);
      if (theirs.empty() && !contains(missing.ranks, rank)) missing.ranks.push_back(rank);
      std::ranges::copy_if(theirs, std::back_inserter(after), [&](int other) {
        return !contains(probed, other) && !contains(after, other);
      });
    }
    next = std::move(after);
  }
  missing.about = summary.text();
  if (missing.ranks.empty()) {
    missing.ranks = {awaited};
    if (!is_truncated) missing.about = "deadlock, ranks wait for each other: " + missing.about;
  } else if (!is_truncated) {
    missing.culprit = summary.culprit(missing.ranks);
  }
  return missing;
}

}  // namespace shiplap::comm
