// Finds out which ranks of a job have failed, and which of those that are alive keep the others
// waiting. One per rank; all communicators of the rank share it.
//
// Ranks exchange short control messages next to the data, over the same transport. There is no
// heartbeat and no thread: a rank that waits reads them, and one that computes does not respond.
//
// - probe and probe_reply: a rank whose deadline has passed asks the others of its group how far
//   they are. Those that have not begun the collective, or do not reply, are reported. A probe also
//   says how far its sender is, so that the first to time out is not reported by the next. A rank
//   that waits for one message probes its peer, then the ranks that the peer waits for, and so on
//   along the wait-for graph.
// - abort: the work of this rank ended with an exception.
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
  std::uint64_t group = 0;   // probe, probe_reply: of which group
  std::int64_t arrived = 0;  // how many collectives of it this rank has begun
  std::int32_t waits = 0;    // whether it waits in one of them, and not for something else
  std::int32_t run = 0;      // in which run of work
  // The ranks it waits for now, then kNobody; kMore at the end if there was no room for all.
  static constexpr std::int32_t kNobody = -1;
  static constexpr std::int32_t kMore = -2;
  std::array<std::int32_t, 8> awaited{kNobody, kNobody, kNobody, kNobody,
                                      kNobody, kNobody, kNobody, kNobody};
  std::array<char, 256> text{};
};

// What a rank waits for, and in a collective of which group, if of any.
struct WaitState {
  std::string text;
  std::uint64_t group = 0;
};

// The transport, as the detector uses it.
class ControlChannel {
 public:
  ControlChannel() = default;
  ControlChannel(const ControlChannel&) = delete;
  ControlChannel& operator=(const ControlChannel&) = delete;
  virtual ~ControlChannel() = default;

  // To all of `ranks` but this one.
  virtual void send(const ControlMessage& message, std::span<const int> ranks) = 0;
  // Gives control messages that have arrived, and deaths, to the detector. Called in a loop by a
  // thread that waits for `state`; several threads may call it at the same time.
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
  double since = 0;  // when it became known
  int run = 0;       // in which run it aborted
  bool is_dead = false;
};

// The ranks that keep a wait from ending, and what is known about them.
struct MissingRanks {
  std::vector<int> ranks;
  std::string about;
  std::optional<int> culprit;  // the only one missing that did not reply
};

class FailureDetector {
 public:
  FailureDetector(ControlChannel& channel, int rank, int size);

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return static_cast<int>(everybody_.size()); }
  // 0, 1, ..
  [[nodiscard]] std::span<const int> everybody() const { return everybody_; }

  // ---- what the transport reports

  // This rank waits for `state`, and replies so to probes.
  void set_waiting(const WaitState& state) SHIPLAP_EXCLUDES(mutex_);
  // Returns the reply, if there is one, to be sent to `from`.
  [[nodiscard]] std::optional<ControlMessage> handle(const ControlMessage& message, int from)
      SHIPLAP_EXCLUDES(mutex_);
  void set_dead(int rank, const std::string& reason) SHIPLAP_EXCLUDES(mutex_);
  // The rank came to the end of its work, and so through all that this rank may still wait in.
  void set_ended(int rank) SHIPLAP_EXCLUDES(mutex_);
  // Forgets the ranks that aborted in an earlier run, but not the dead.
  void begin_run() SHIPLAP_EXCLUDES(mutex_);
  [[nodiscard]] bool is_dead(int rank) SHIPLAP_EXCLUDES(mutex_);
  [[nodiscard]] bool is_group_ended(std::uint64_t group) SHIPLAP_EXCLUDES(mutex_);

  // ---- what communicators report and ask

  // While one is set and alive, this rank waits for another.
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

  // How many collectives of a group this rank has begun.
  void set_arrived(std::uint64_t group, std::int64_t count) SHIPLAP_EXCLUDES(mutex_);
  // A group has ended here. What others reported of it is dropped; how far this rank came is kept
  // for a while, as others may still ask.
  void end_group(std::uint64_t group) SHIPLAP_EXCLUDES(mutex_);
  static constexpr std::size_t kEndedGroupsKept = 4096;

  [[nodiscard]] bool any_failed() const { return any_failed_; }
  // Prefers one whose culprit is known.
  [[nodiscard]] std::optional<FailedRank> failed_among(std::span<const int> ranks)
      SHIPLAP_EXCLUDES(mutex_);
  // Waits at most so many seconds for one whose culprit is known.
  void await_culprit(std::span<const int> ranks, const WaitState& state, double seconds);
  // Which of `ranks` keep collective number `count` (from 1) of a group from ending: those that
  // have not begun it, unless they wait for others in an earlier one.
  [[nodiscard]] MissingRanks probe_group(std::uint64_t group, std::int64_t count,
                                         std::span<const int> ranks, const WaitState& state);
  // Which ranks keep `awaited`, and others that this rank waits for, from coming: themselves, or
  // the ends of the chains in the wait-for graph. If all chains lead back, `about` says so.
  [[nodiscard]] MissingRanks trace_wait_chain(int awaited, const WaitState& state);
  // With more ranks the probes would be a storm of messages.
  static constexpr std::size_t kMaxProbed = 512;

  // Tells all other ranks that this one fails, and why.
  void abort_peers(int culprit, const std::string& reason) SHIPLAP_EXCLUDES(mutex_);

 private:
  // What a waiter of this process last reported.
  struct LastReported {
    std::string text;
    double time = 0;
  };
  // A probe or a reply of another rank.
  struct Received {
    ControlMessage message;
    double time = 0;
  };
  class ProbeSummary;

  void count_awaited(int rank, int change) SHIPLAP_EXCLUDES(mutex_);
  void add_failed(FailedRank failed) SHIPLAP_REQUIRES(mutex_);
  // The state of this rank, as a probe or a reply has it.
  [[nodiscard]] ControlMessage report(ControlMessage::Kind kind, std::uint64_t group)
      SHIPLAP_REQUIRES(mutex_);
  // What a rank reported last, if that was after `since`; or else null.
  [[nodiscard]] const ControlMessage* last_of(std::uint64_t group, int rank, double since)
      SHIPLAP_REQUIRES(mutex_);
  [[nodiscard]] std::vector<int> awaited_in(const ControlMessage& message) const;
  [[nodiscard]] ControlMessage make_probe(std::uint64_t group, const WaitState& state)
      SHIPLAP_EXCLUDES(mutex_);
  // Sends probes, and waits until all of `ranks` have replied after `since`, but no longer than
  // `within`.
  void probe(std::uint64_t group, std::span<const int> ranks, const WaitState& state, double since,
             double within) SHIPLAP_EXCLUDES(mutex_);
  [[nodiscard]] bool all_known(std::uint64_t group, std::span<const int> ranks, double since)
      SHIPLAP_EXCLUDES(mutex_);

  ControlChannel& channel_;
  const int rank_;
  std::vector<int> everybody_;
  std::atomic<bool> any_failed_ = false;  // whether failed_ has any

  Mutex mutex_;
  int run_ SHIPLAP_GUARDED_BY(mutex_) = 0;
  std::map<std::uint64_t, std::int64_t> arrived_ SHIPLAP_GUARDED_BY(mutex_);  // by group
  // By group; 0: in none.
  std::map<std::uint64_t, LastReported> reported_ SHIPLAP_GUARDED_BY(mutex_);
  std::map<int, int> awaited_ SHIPLAP_GUARDED_BY(mutex_);  // how many waits, by rank
  // By group and rank.
  std::map<std::pair<std::uint64_t, int>, Received> others_ SHIPLAP_GUARDED_BY(mutex_);
  std::map<int, FailedRank> failed_ SHIPLAP_GUARDED_BY(mutex_);  // by rank
  std::set<int> ended_ SHIPLAP_GUARDED_BY(mutex_);
  std::set<std::uint64_t> ended_groups_ SHIPLAP_GUARDED_BY(mutex_);
  std::deque<std::uint64_t> ended_in_order_ SHIPLAP_GUARDED_BY(mutex_);
};

}  // namespace shiplap::comm
