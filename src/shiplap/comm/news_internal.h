// What the ranks of a job tell each other about its state, beside the data, over whatever carries
// it. All communicators of a rank share it.
//
// Notices are short, and read while waiting for something else:
//
// - question and answer: whoever reaches its deadline asks the others of its group how far they
//   are. Those that are not there, or do not answer, are the ones to look at. A question also tells
//   how far the rank is that asks, so that one which gave up first is not blamed by the next. Who
//   waits for one message asks its other end, then whom that one waits for, and so on.
// - leaving: this rank's work ended with an exception.
// - farewell: this rank is about to end.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace shiplap::comm {

struct Notice {
  enum class Kind : std::int32_t { question, answer, leaving, farewell };
  Kind kind = Kind::question;
  std::int32_t root = 0;     // leaving: whose fault it was
  std::uint64_t group = 0;   // question, answer: of which group
  std::int64_t arrived = 0;  // how many collectives of it this rank has begun
  std::int32_t waits = 0;    // whether it waits in one of them, and not for something else
  std::int32_t run = 0;      // in which run of work
  // For whom it waits now, then kNobody, or kMore if there was no room for all.
  static constexpr std::int32_t kNobody = -1;
  static constexpr std::int32_t kMore = -2;
  std::array<std::int32_t, 8> awaited{kNobody, kNobody, kNobody, kNobody,
                                      kNobody, kNobody, kNobody, kNobody};
  std::array<char, 256> text{};
};

class News {
 public:
  News() = default;
  News(const News&) = delete;
  News& operator=(const News&) = delete;
  virtual ~News() = default;

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return static_cast<int>(everybody_.size()); }

  // What a rank waits for, and in a collective of which group, if of any.
  struct Doing {
    std::string text;
    std::uint64_t group = 0;
  };
  // Reads notices and looks for the dead; called again and again by whoever waits. `doing` is what
  // it answers to questions. Threads may call it at the same time.
  virtual void serve(const Doing& doing) = 0;

  // While one has been told to begin and lives, this rank waits for another.
  class Awaiting {
   public:
    Awaiting(News& news, int rank) : news_(news), rank_(rank) {}
    ~Awaiting() { set(false); }
    Awaiting(const Awaiting&) = delete;
    Awaiting& operator=(const Awaiting&) = delete;
    void set(bool waits) {
      if (waits == waits_) return;
      waits_ = waits;
      news_.count_awaited(rank_, waits ? 1 : -1);
    }

   private:
    News& news_;
    int rank_;
    bool waits_ = false;
  };

  // A rank that died or left.
  struct Lost {
    int rank = 0;  // whose fault it is; < 0: nobody knows
    int left = 0;  // who told so, or died
    std::string reason;
    double since = 0;  // when it was learned
    int run = 0;       // in which run it left
    bool is_dead = false;
  };
  // Rather one of which is known whose fault it is.
  [[nodiscard]] std::optional<Lost> lost_among(std::span<const int> ranks);
  // Waits so many seconds for one of which that is known.
  void await_culprit(std::span<const int> ranks, const Doing& doing, double seconds);
  [[nodiscard]] bool anybody_lost() const { return anybody_lost_; }

  // A group has ended here. What was said of it is forgotten; how far this rank came is kept for a
  // while, as others may still ask.
  void end_group(std::uint64_t group);
  static constexpr std::size_t kEndedGroupsKept = 4096;
  // How many collectives of a group this rank has begun.
  void set_arrived(std::uint64_t group, std::int64_t count);
  // Who of `ranks` keeps collective number `count` (from 1) of a group from ending, and what is
  // known about them: those that have not begun it, unless they wait in an earlier one for others.
  // `doing` is what this rank answers meanwhile.
  struct RollCall {
    std::vector<int> missing;
    std::string about;
    std::optional<int> culprit;  // the only one missing that did not answer
  };
  [[nodiscard]] RollCall call_roll(std::uint64_t group, std::int64_t count,
                                   std::span<const int> ranks, const Doing& doing);
  // Who keeps those from coming whom this rank waits for, `awaited` and others: themselves, or
  // those at the ends of the chains of ranks that wait for one another. If all lead back, that is
  // said.
  [[nodiscard]] RollCall follow(int awaited, const Doing& doing);
  // Beyond this a roll call would be a storm of messages.
  static constexpr std::size_t kLargestRollCall = 512;

  void leave(int root, const std::string& reason);

 protected:
  // What carries the notices provides these. send() is called with the lock or without.
  virtual void send(const Notice& notice, std::span<const int> ranks) = 0;
  // Seconds on a clock that only runs forward.
  [[nodiscard]] virtual double time() const = 0;
  virtual void pause_briefly() = 0;
  // With the lock.
  virtual void heard_farewell(int /*from*/) {}

  void set_ranks(int own, int count);
  // With the lock: what this rank answers from now on, and what it makes of a notice.
  void say(const Doing& doing);
  void handle(const Notice& notice, int from);
  void lose(int rank, const Lost& lost);
  // It came to the end of its work, and so through all that this rank may still wait in.
  void set_ended(int rank) { ended_.insert(rank); }
  [[nodiscard]] bool is_group_ended(std::uint64_t group) const {
    return ended_groups_.contains(group);
  }
  // Forgets who left before, but not who died.
  void forget_who_left();

  // 0, 1, ..
  [[nodiscard]] std::span<const int> everybody() const { return everybody_; }
  [[nodiscard]] const std::map<int, Lost>& lost() const { return lost_; }

  std::recursive_mutex mutex_;  // NOLINT: of all that is here, and of what derives from it

 private:
  // With the lock.
  [[nodiscard]] Notice answer_to(std::uint64_t group);

  // What a waiter of this process said last.
  struct Said {
    std::string text;
    double time = 0;
  };
  struct Progress {
    std::int64_t arrived = -1;  // nothing is known
    bool waits = false;
    std::vector<int> awaited;
    bool awaits_more = false;
    std::string doing;
    double time = 0;  // when it was told
  };
  [[nodiscard]] bool has_ended(int rank) {
    const std::lock_guard lock(mutex_);
    return ended_.contains(rank);
  }
  // What is known of a rank and was told after `since`.
  [[nodiscard]] Progress progress_of(std::uint64_t group, int rank, double since = 0);
  // The same of this rank.
  [[nodiscard]] Progress own_progress(const Doing& doing);
  [[nodiscard]] static Progress progress_in(const Notice& notice);
  void count_awaited(int rank, int change);
  class Account;
  // Asks `ranks`, and waits until all have answered after `since`, but no longer than `within`.
  void ask(std::uint64_t group, std::span<const int> ranks, const Doing& doing, double since,
           double within);

  int rank_ = 0;
  std::vector<int> everybody_;
  std::atomic<bool> anybody_lost_ = false;
  int run_ = 0;
  std::map<std::uint64_t, std::int64_t> arrived_;             // by group
  std::map<std::uint64_t, Said> said_;                        // by group; 0: in none
  std::mutex awaited_mutex_;                                  // of the following alone
  std::map<int, int> awaited_;                                // how many wait, by rank
  std::map<std::pair<std::uint64_t, int>, Progress> others_;  // by group and rank
  std::map<int, Lost> lost_;                                  // by rank
  std::set<int> ended_;
  std::set<std::uint64_t> ended_groups_;
  std::deque<std::uint64_t> ended_in_order_;
};

}  // namespace shiplap::comm
