// What all communicators of a process share: MPI itself, and the failure detector, whose control
// messages have an MPI communicator of their own.
//
// At the end of a process that failed all wait a moment for everybody's goodbye, so that all have
// reported before the job is ended.
#pragma once

#include <mpi.h>

#include <atomic>
#include <list>
#include <optional>
#include <span>
#include <vector>

#include "shiplap/base/thread_annotations.h"
#include "shiplap/comm/failure_detector_internal.h"

namespace shiplap::comm {

class Process final : private ControlChannel {
 public:
  // The one of this process; starts MPI when called first, or ends the process.
  static Process& instance(Seconds start_within);

  [[nodiscard]] static double now() { return MPI_Wtime(); }

  [[nodiscard]] FailureDetector& detector() { return detector_; }
  // Also asks MPI who died.
  void poll(const WaitState& state) override SHIPLAP_EXCLUDES(mutex_);
  // Whether poll() is due: it costs too much to be called each time round.
  [[nodiscard]] bool due(double time) const { return time >= next_poll_; }

  // MPI said that somebody died, but perhaps not yet who: asks for a while.
  [[nodiscard]] std::optional<FailedRank> wait_for_failed(std::span<const int> ranks)
      SHIPLAP_EXCLUDES(mutex_);
  MPI_Comm base() { return base_; }

  void begin_run() SHIPLAP_EXCLUDES(mutex_);
  // Something failed: at its end this process takes care that others can report.
  void set_failed(bool failed) { failed_ = failed; }
  [[nodiscard]] bool has_failed() const { return failed_; }
  // Tells all others that this process is about to end, and waits a moment for them to do the same.
  // True if all did that are alive.
  bool say_goodbye() SHIPLAP_EXCLUDES(mutex_);
  // Called when the process ends, with its exit status.
  void end(int status);

 private:
  // MPI has started.
  struct Started {
    int rank = 0;
    int size = 0;
    MPI_Comm control = MPI_COMM_NULL;
    MPI_Comm base = MPI_COMM_NULL;
  };
  [[nodiscard]] static Started start(Seconds within);
  explicit Process(const Started& started);

  // ControlChannel
  void send(const ControlMessage& message, std::span<const int> ranks) override
      SHIPLAP_EXCLUDES(mutex_);
  void pause_briefly() override;
  [[nodiscard]] double time() const override { return now(); }

  void post(const ControlMessage& message, int to) SHIPLAP_REQUIRES(mutex_);
  // There is always one receive for control messages.
  void listen() SHIPLAP_REQUIRES(mutex_);
  void read_messages() SHIPLAP_REQUIRES(mutex_);
  void look_for_dead();
  [[nodiscard]] bool all_said_goodbye() SHIPLAP_EXCLUDES(mutex_);
  // At the end, when no other thread uses MPI any more.
  void finalize_or_exit(int status) SHIPLAP_REQUIRES(mutex_);

  // A control message on its way, to one rank.
  struct Sending {
    ControlMessage message;
    MPI_Request request = MPI_REQUEST_NULL;
  };

  FailureDetector detector_;
  MPI_Comm control_;
  MPI_Comm base_;  // from which every run makes its world
  std::atomic<double> next_poll_ = 0;
  std::atomic<bool> failed_ = false;
  bool ended_ = false;

  Mutex mutex_;
  ControlMessage incoming_ SHIPLAP_GUARDED_BY(mutex_);
  MPI_Request listening_ SHIPLAP_GUARDED_BY(mutex_) = MPI_REQUEST_NULL;
  double next_look_ SHIPLAP_GUARDED_BY(mutex_) = 0;
  std::list<Sending> sending_ SHIPLAP_GUARDED_BY(mutex_);
  std::vector<bool> goodbyes_ SHIPLAP_GUARDED_BY(mutex_);  // by rank
};

}  // namespace shiplap::comm
