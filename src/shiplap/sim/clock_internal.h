// The start and completion times of a linked program: see clock.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "shiplap/base/progress.h"
#include "shiplap/base/units.h"
#include "shiplap/cost/collective.h"
#include "shiplap/hardware/system.h"
#include "shiplap/sim/linked_internal.h"
#include "shiplap/sim/mismatch_internal.h"
#include "shiplap/sim/replay.h"
#include "shiplap/sim/shared_links_internal.h"

namespace shiplap::sim {

class Clock {
 public:
  // Throws plan::Asymmetric if links are shared and alike ranks have unlike links. REQUIRES:
  // `linked` and `options` outlive the clock.
  Clock(LinkedProgram& linked, const ReplayOptions& options);
  // Writes the times and durations of all operations that complete into the events of `linked`.
  void run(const ProgressCallback& progress);

  [[nodiscard]] OperationState state(OperationId id) const { return state_[linked_.index(id)]; }
  // The time at which an operation started. REQUIRES: it has started.
  [[nodiscard]] Seconds start(OperationId id) const { return {time_[linked_.index(id)]}; }
  [[nodiscard]] bool all_complete() const { return complete_ == std::ssize(state_); }
  // With one hardware queue: the operation of a rank that waits at its head, or none.
  [[nodiscard]] OperationId head_of_queue(std::int32_t rank) const;
  [[nodiscard]] Seconds end() const { return {end_}; }
  [[nodiscard]] const std::vector<Mismatch>& mismatches() const { return mismatches_; }

 private:
  struct CallProgress {
    std::int32_t started = 0;  // members
    double time = 0;           // when the last member started
  };

  // A message or a call that crosses links.
  struct Transit {
    OperationId send;  // of a message; if it completes with the receive
    OperationId receive;
    plan::Match call;
    double begin = 0;
  };

  [[nodiscard]] static bool is_queued(const Step& step);
  [[nodiscard]] OperationId next_in_queue(OperationId id) const;
  void make_queues();
  void run_in_any_order(ProgressTicker& ticker);
  void run_by_time(ProgressTicker& ticker);
  void make_ready(OperationId id);
  OperationId take_ready();
  // Whether operations that are ready run in this order of time.
  [[nodiscard]] bool is_later(OperationId a, OperationId b) const;
  void start_transit(const Transfer& transfer, const Transit& transit);
  void end_transit(const Flows::End& end);

  void begin(OperationId id);
  void begin_message(OperationId id, const Step& step);
  void begin_call(OperationId id);
  void complete_call(plan::Match match, double time);
  [[nodiscard]] double duration_of(const Step& step, std::int32_t group) const;
  void finish(OperationId id, double time, double duration);
  void finish_member(OperationId batch, double time);
  void meet_dependency(OperationId id, double time);
  void release(std::int32_t rank, std::int32_t first, std::int32_t last, double time);

  LinkedProgram& linked_;
  const hardware::System& system_;
  const Bytes eager_;
  const bool one_queue_;
  std::vector<cost::RankSpan> rank_spans_;  // by group
  // By operation: the latest of the dependencies that are met so far, so its start time once all
  // are met; of a batch that has started, the latest completion of its members.
  std::vector<double> time_;
  // By operation: dependencies that are not met; of a batch that has started, incomplete members.
  std::vector<std::int32_t> pending_;
  std::vector<OperationState> state_;
  std::vector<CallProgress> calls_;  // by collective call
  std::vector<OperationId> ready_;   // if links are shared, a heap, the earliest on top
  std::unique_ptr<SharedLinks> links_;
  std::vector<Transit> transits_;  // by flow
  std::vector<Mismatch> mismatches_;
  std::int64_t complete_ = 0;
  double end_ = 0;
};

}  // namespace shiplap::sim
