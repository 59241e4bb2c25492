// What all communicators of a process share: MPI itself, and the news about other ranks, on a
// communicator of their own.
//
// At the end of a process that failed all wait a moment for everybody's farewell, so that all have
// reported before the job is ended.
#pragma once

#include <mpi.h>

#include <atomic>
#include <list>
#include <optional>
#include <span>
#include <vector>

#include "shiplap/comm/news_internal.h"

namespace shiplap::comm {

class Process final : public News {
 public:
  // The one of this process; starts MPI when called first, or ends the process.
  static Process& instance(Seconds start_within);

  [[nodiscard]] static double now() { return MPI_Wtime(); }

  // Also asks MPI who died.
  void serve(const Doing& doing) override;
  // Whether serve() is due: it costs too much to be called each time round.
  [[nodiscard]] bool due(double time) const { return time >= next_service_; }

  // MPI said that somebody died, but perhaps not yet who: asks for a while.
  [[nodiscard]] std::optional<Lost> wait_for_lost(std::span<const int> ranks);
  MPI_Comm base() { return base_; }

  void begin_run();
  // Something failed: at its end this process takes care that others can report.
  void set_failed(bool failed) { failed_ = failed; }
  [[nodiscard]] bool has_failed() const { return failed_; }
  // Tells all others that this process is about to end, and waits a moment for them to do the same.
  // True if all did that are alive.
  bool say_farewell();
  // Called when the process ends, with its exit status.
  void end(int status);

 protected:
  void send(const Notice& notice, std::span<const int> ranks) override;
  [[nodiscard]] double time() const override { return now(); }
  void pause_briefly() override;
  void heard_farewell(int from) override { farewells_[from] = true; }

 private:
  explicit Process(Seconds start_within);

  // There is always one receive for notices.
  void listen();
  void read_notices();
  void look_for_dead();
  void finalize_or_exit(int status);

  // A notice on its way, to one rank.
  struct Sending {
    Notice notice;
    MPI_Request request = MPI_REQUEST_NULL;
  };

  MPI_Comm notices_ = MPI_COMM_NULL;
  MPI_Comm base_ = MPI_COMM_NULL;  // from which every run makes its world
  Notice incoming_;
  MPI_Request listening_ = MPI_REQUEST_NULL;
  std::atomic<double> next_service_ = 0;
  double next_look_ = 0;
  std::atomic<bool> failed_ = false;
  bool ended_ = false;
  std::list<Sending> sending_;
  std::vector<bool> farewells_;  // by rank
};

}  // namespace shiplap::comm
