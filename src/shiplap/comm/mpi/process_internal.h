// Shared by all communicators of a process: MPI itself, and the failure detector, whose control
// messages have an MPI communicator of their own.
//
// After a failure, a process waits at exit for the goodbyes of all others, so that all ranks have
// reported before the job is aborted.
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
  // Returns the singleton. The first call starts MPI, or exits the process on timeout.
  static Process& instance(Seconds start_within);

  [[nodiscard]] static double now() { return MPI_Wtime(); }

  [[nodiscard]] FailureDetector& detector() { return detector_; }
  // Also polls MPI for dead ranks.
  void poll(const WaitState& state) override SHIPLAP_EXCLUDES(mutex_);
  // Whether poll() is due: it is too expensive for every iteration.
  [[nodiscard]] bool due(double time) const { return time >= next_poll_; }

  // MPI has reported a death, but perhaps not yet the rank: polls for a while.
  [[nodiscard]] std::optional<FailedRank> wait_for_failed(std::span<const int> ranks)
      SHIPLAP_EXCLUDES(mutex_);
  MPI_Comm base() { return base_; }

  void begin_run() SHIPLAP_EXCLUDES(mutex_);
  // After a failure, end() waits for the reports of the others.
  void set_failed(bool failed) { failed_ = failed; }
  [[nodiscard]] bool has_failed() const { return failed_; }
  // Sends goodbye to all others, and waits a moment for theirs. Returns true if all live ranks sent
  // one.
  bool exchange_goodbyes() SHIPLAP_EXCLUDES(mutex_);
  // Called at exit, with the exit status.
  void end(int status);

 private:
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
  // One receive for control messages is always posted.
  void post_control_receive() SHIPLAP_REQUIRES(mutex_);
  void read_messages() SHIPLAP_REQUIRES(mutex_);
  void poll_dead_ranks();
  [[nodiscard]] bool got_all_goodbyes() SHIPLAP_EXCLUDES(mutex_);
  // REQUIRES: no other thread uses MPI.
  void finalize_or_exit(int status) SHIPLAP_REQUIRES(mutex_);

  // A control message in flight.
  struct ControlSend {
    ControlMessage message;
    MPI_Request request = MPI_REQUEST_NULL;
  };

  FailureDetector detector_;
  MPI_Comm control_;
  MPI_Comm base_;  // parent of the world communicator of every run
  std::atomic<double> next_poll_ = 0;
  std::atomic<bool> failed_ = false;
  bool ended_ = false;

  Mutex mutex_;
  ControlMessage incoming_ SHIPLAP_GUARDED_BY(mutex_);
  MPI_Request control_receive_ SHIPLAP_GUARDED_BY(mutex_) = MPI_REQUEST_NULL;
  double next_dead_poll_ SHIPLAP_GUARDED_BY(mutex_) = 0;
  std::list<ControlSend> sending_ SHIPLAP_GUARDED_BY(mutex_);
  std::vector<bool> goodbyes_ SHIPLAP_GUARDED_BY(mutex_);  // by rank
};

}  // namespace shiplap::comm
