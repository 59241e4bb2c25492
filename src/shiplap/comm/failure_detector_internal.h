// Failure detector: finds out which ranks of a job have failed, and which live ranks the others
// wait for. One per rank; all communicators of the rank share it.
//
// Ranks exchange short control messages next to the data, over the same transport. There is no
// heartbeat and no thread: a rank that waits reads them, and one that computes does not respond.
//
// - probe and probe_reply: a rank that timed out probes the others of its group. Ranks that have
//   not begun the collective, or do not reply, are reported as missing. A probe also contains the
//   progress of its sender, so that the first rank to time out is not reported by the next. A rank
//   that waits for one message probes its peer, then the ranks for which the peer waits, and so on
//   along the wait-for graph.
// - abort: this rank failed with an exception.
// - goodbye: this rank is about to exit.
//
// Locking: the mutex is a leaf. It is never held during a call of the ControlChannel that may lock
// or block, so the owner of the channel may call every function here with its own lock held.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "shiplap/base/thread_annotations.h"

namespace shiplap::comm {

struct ControlMessage {
  enum class Kind : std::int32_t { probe, probe_reply, abort, goodbye };
  Kind kind = Kind::probe;
  std::int32_t culprit = 0;  // abort: the rank at fault
  std::uint64_t group = 0;   // probe, probe_reply
  std::int64_t arrived = 0;  // collectives of the group that this rank has begun
  std::int32_t waits = 0;    // 1: it waits in one of them; goodbye: 1 after a failure
  std::int32_t run = 0;      // number of the call of run_on_mpi()
  // The ranks for which it waits, then kNobody; kMore at the end if there are more.
  static constexpr std::int32_t kNobody = -1;
  static constexpr std::int32_t kMore = -2;
  std::array<std::int32_t, 8> awaited{kNobody, kNobody, kNobody, kNobody,
                                      kNobody, kNobody, kNobody, kNobody};
  std::array<char, 256> text{};
};

// What a rank waits for; `group` is 0 if not in a collective.
struct WaitState {
  std::string text;
  std::uint64_t group = 0;
};

// The transport of control messages.
class ControlChannel {
 public:
  ControlChannel() = default;
  ControlChannel(const ControlChannel&) = delete;
  ControlChannel& operator=(const ControlChannel&) = delete;
  virtual ~ControlChannel() = default;

  // Sends to all of `ranks` except this one.
  virtual void send(const ControlMessage& message, std::span<const int> ranks) = 0;
  // Passes control messages that have arrived, and deaths, to the detector. Called in a loop by a
  // thread that waits for `state`. Thread-safe.
  virtual void poll(const WaitState& state) = 0;
  virtual void pause_briefly() = 0;
  // Seconds on a monotonic clock.
  [[nodiscard]] virtual double time() const = 0;
};

// A rank that died or aborted.
struct FailedRank {
  int rank = 0;
  int culprit = 0;  // the rank at fault; < 0: unknown
  std::string reason;
  double since = 0;  // time at which it became known
  int run = 0;       // number of the run
  bool is_dead = false;
};

// The ranks for which a wait did not end, and their states.
struct MissingRanks {
  std::vector<int> ranks;
  std::string about;
  std::optional<int> culprit;  // the only missing rank that did not reply
};

class FailureDetector {
 public:
  FailureDetector(ControlChannel& channel, int rank, int size);

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return static_cast<int>(all_ranks_.size()); }
  // 0, 1, ..
  [[nodiscard]] std::span<const int> all_ranks() const { return all_ranks_; }

  // ---- called by the transport

  // Sets the wait state of this rank for replies to probes.
  void set_waiting(const WaitState& state) SHIPLAP_EXCLUDES(mutex_);
  // Returns the reply to be sent to `from`, if there is one.
  [[nodiscard]] std::optional<ControlMessage> handle(const ControlMessage& message, int from)
      SHIPLAP_EXCLUDES(mutex_);
  void set_dead(int rank, const std::string& reason) SHIPLAP_EXCLUDES(mutex_);
  // `rank` has finished its work, and so has completed all collectives.
  void set_ended(int rank) SHIPLAP_EXCLUDES(mutex_);
  // Clears the ranks that aborted in earlier runs, but not dead ones.
  void begin_run() SHIPLAP_EXCLUDES(mutex_);
  [[nodiscard]] bool is_dead(int rank) SHIPLAP_EXCLUDES(mutex_);
  [[nodiscard]] bool is_group_ended(std::uint64_t group) SHIPLAP_EXCLUDES(mutex_);

  // ---- called by communicators

  // While it is set, this rank waits for `rank`: an edge of the wait-for graph.
  class Awaiting {
   public:
    Awaiting(FailureDetector& detector, int rank) : detector_(detector), rank_(rank) {}
    ~Awaiting() { set(false); }
    Awaiting(const Awaiting&) = delete;
    Awaiting& operator=(const Awaiting&) = delete;
    void set(bool waits) {
      if (waits == waits_) return;
      waits_ = waits;
      detector_.count_awaited(rank_, waits ? 1 : -1);
    }

   private:
    FailureDetector& detector_;
    int rank_;
    bool waits_ = false;
  };

  // This rank has begun `count` collectives of a group.
  void set_arrived(std::uint64_t group, std::int64_t count) SHIPLAP_EXCLUDES(mutex_);
  // A group has ended on this rank. Reports of other ranks are dropped; the progress of this rank
  // is kept for kEndedGroupsKept groups, as others may still probe it.
  void end_group(std::uint64_t group) SHIPLAP_EXCLUDES(mutex_);
  static constexpr std::size_t kEndedGroupsKept = 4096;

  [[nodiscard]] bool any_failed() const { return any_failed_; }
  // Returns a failed rank, if possible one whose culprit is known.
  [[nodiscard]] std::optional<FailedRank> failed_among(std::span<const int> ranks)
      SHIPLAP_EXCLUDES(mutex_);
  // Waits until a failed rank with a known culprit is reported, at most `seconds`.
  void await_culprit(std::span<const int> ranks, const WaitState& state, double seconds);
  // Returns which of `ranks` are missing in collective number `count` (from 1) of a group: those
  // that have not begun it, except those that wait for others in an earlier one.
  [[nodiscard]] MissingRanks probe_group(std::uint64_t group, std::int64_t count,
                                         std::span<const int> ranks, const WaitState& state);
  // Returns the ranks for which this one waits, directly or not, and that do not wait themselves:
  // the sinks of the wait-for graph. Begins with `awaited`. If there are none, the ranks are
  // deadlocked, and `about` says so.
  [[nodiscard]] MissingRanks trace_wait_chain(int awaited, const WaitState& state);
  // No probes in larger groups: all ranks probe all others.
  static constexpr std::size_t kMaxProbed = 512;

  // Sends abort to all other ranks.
  void abort_peers(int culprit, const std::string& reason) SHIPLAP_EXCLUDES(mutex_);

 private:
  // The last wait state of a thread of this rank.
  struct LastReported {
    std::string text;
    double time = 0;
  };
  // The last probe or reply of another rank.
  struct Received {
    ControlMessage message;
    double time = 0;
  };
  class ProbeSummary;

  void count_awaited(int rank, int change) SHIPLAP_EXCLUDES(mutex_);
  void add_failed(FailedRank failed) SHIPLAP_REQUIRES(mutex_);
  // Returns a probe or reply with the state of this rank.
  [[nodiscard]] ControlMessage report(ControlMessage::Kind kind, std::uint64_t group)
      SHIPLAP_REQUIRES(mutex_);
  // Returns the last message of a rank, if it is not older than `since`; otherwise null.
  [[nodiscard]] const ControlMessage* last_of(std::uint64_t group, int rank, double since)
      SHIPLAP_REQUIRES(mutex_);
  [[nodiscard]] std::vector<int> awaited_in(const ControlMessage& message) const;
  [[nodiscard]] ControlMessage make_probe(std::uint64_t group, const WaitState& state)
      SHIPLAP_EXCLUDES(mutex_);
  // Sends probes, and waits until all of `ranks` have replied after `since`, at most `within`.
  void probe(std::uint64_t group, std::span<const int> ranks, const WaitState& state, double since,
             double within) SHIPLAP_EXCLUDES(mutex_);
  [[nodiscard]] bool all_known(std::uint64_t group, std::span<const int> ranks, double since)
      SHIPLAP_EXCLUDES(mutex_);

  ControlChannel& channel_;
  const int rank_;
  std::vector<int> all_ranks_;
  std::atomic<bool> any_failed_ = false;  // whether failed_ has any

  Mutex mutex_;
  int run_ SHIPLAP_GUARDED_BY(mutex_) = 0;
  std::map<std::uint64_t, std::int64_t> arrived_ SHIPLAP_GUARDED_BY(mutex_);  // by group
  // By group; 0: in none.
  std::map<std::uint64_t, LastReported> reported_ SHIPLAP_GUARDED_BY(mutex_);
  std::map<int, int> awaited_ SHIPLAP_GUARDED_BY(mutex_);  // number of waits, by rank
  // By group and rank.
  std::map<std::pair<std::uint64_t, int>, Received> others_ SHIPLAP_GUARDED_BY(mutex_);
  std::map<int, FailedRank> failed_ SHIPLAP_GUARDED_BY(mutex_);  // by rank
  std::set<int> ended_ SHIPLAP_GUARDED_BY(mutex_);
  std::set<std::uint64_t> ended_groups_ SHIPLAP_GUARDED_BY(mutex_);
  std::deque<std::uint64_t> ended_in_order_ SHIPLAP_GUARDED_BY(mutex_);
};

}  // namespace shiplap::comm
