// What all communicators of a process share: MPI itself, and the news about other ranks.
//
// Ranks talk about the state of the job on a communicator of their own, in short notices that are
// read while waiting for something else:
//
// - question and answer: whoever reaches its deadline asks the others of its group how far they
//   are. Those that are not there, or do not answer, are the ones to look at. A question also tells
//   how far the rank is that asks, so that one which gave up first is not blamed by the next.
// - leaving: this rank's work ended with an exception.
// - farewell: this process is about to end after a failure. All wait a moment for everybody's, so
//   that all have reported before the job is ended.
#pragma once

#include <mpi.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
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
  std::array<char, 256> text{};
};

class Process {
 public:
  // The one of this process; starts MPI when called first.
  static Process& instance();

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }
  [[nodiscard]] static double now() { return MPI_Wtime(); }

  // What a rank waits for, and in a collective of which group, if of any.
  struct Doing {
    std::string text;
    std::uint64_t group = 0;
  };
  // Reads notices and asks MPI who died; called again and again by whoever waits. `doing` is what
  // it answers to questions. Threads may call it at the same time.
  void serve(const Doing& doing);
  // Whether serve() is due: it costs too much to be called each time round.
  [[nodiscard]] bool due(double time) const { return time >= next_service_; }

  // A rank that died or left.
  struct Lost {
    int rank = 0;  // whose fault it is
    std::string reason;
    double since = 0;  // when it was learned
    int run = 0;       // in which run it left
    bool is_dead = false;
  };
  [[nodiscard]] std::optional<Lost> lost_among(std::span<const int> ranks);
  // MPI said that somebody died, but perhaps not yet who: asks for a while.
  [[nodiscard]] std::optional<Lost> wait_for_lost(std::span<const int> ranks);
  [[nodiscard]] bool anybody_lost() const { return anybody_lost_; }

  // How many collectives of a group this rank has begun.
  void set_arrived(std::uint64_t group, std::int64_t count);
  // Who of `ranks` keeps collective number `count` (from 1) of a group from ending, and what is
  // known about them: those that have not begun it, unless they wait in an earlier one for others.
  // `doing` is what this rank answers meanwhile.
  struct RollCall {
    std::vector<int> missing;
    std::string about;
  };
  [[nodiscard]] RollCall call_roll(std::uint64_t group, std::int64_t count,
                                   std::span<const int> ranks, const Doing& doing);
  MPI_Comm base() { return base_; }

  void leave(int root, const std::string& reason);
  // Forgets who left before, but not who died.
  void begin_run();
  // Something failed: at its end this process takes care that others can report.
  void set_failed(bool failed) { failed_ = failed; }
  [[nodiscard]] bool has_failed() const { return failed_; }
  // Tells all others that this process is about to end, and waits a moment for them to do the same.
  // True if all did that are alive.
  bool say_farewell();
  // Called when the process ends, with its exit status.
  void end(int status);

 private:
  Process();

  void send(const Notice& notice, std::span<const int> ranks);
  // There is always one receive for notices.
  void listen();
  void read_notices();
  void handle(const Notice& notice, int from);
  [[nodiscard]] Notice answer_to(std::uint64_t group);
  void look_for_dead();
  void lose(int rank, const Lost& lost);
  void finalize_or_exit(int status);

  // A notice on its way, to one rank.
  struct Sending {
    Notice notice;
    MPI_Request request = MPI_REQUEST_NULL;
  };
  // What a waiter of this process said last.
  struct Said {
    std::string text;
    double time = 0;
  };
  struct Progress {
    std::int64_t arrived = -1;  // nothing is known
    bool waits = false;
    std::string doing;
  };

  std::recursive_mutex mutex_;
  MPI_Comm notices_ = MPI_COMM_NULL;
  MPI_Comm base_ = MPI_COMM_NULL;  // from which every run makes its world
  Notice incoming_;
  MPI_Request listening_ = MPI_REQUEST_NULL;
  int rank_ = 0;
  int size_ = 1;
  std::vector<int> everybody_;  // 0, 1, ..
  std::atomic<double> next_service_ = 0;
  double next_look_ = 0;
  std::atomic<bool> failed_ = false;
  std::atomic<bool> anybody_lost_ = false;
  bool ended_ = false;
  int run_ = 0;
  std::list<Sending> sending_;
  std::map<std::uint64_t, std::int64_t> arrived_;             // by group
  std::map<std::uint64_t, Said> said_;                        // by group; 0: in none
  std::map<std::pair<std::uint64_t, int>, Progress> others_;  // by group and rank
  std::map<int, Lost> lost_;                                  // by rank
  std::vector<bool> farewells_;                               // by rank
};

}  // namespace shiplap::comm
