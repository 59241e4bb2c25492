// The start and completion times of a linked program: see clock.cc.
#pragma once

#include <cstdint>
#include <vector>

#include "shiplap/base/progress.h"
#include "shiplap/base/units.h"
#include "shiplap/cost/cost_model.h"
#include "shiplap/hardware/system.h"
#include "shiplap/sim/linked_internal.h"
#include "shiplap/sim/mismatch_internal.h"

namespace shiplap::sim {

class Clock {
 public:
  // Sends of up to `eager` bytes do not wait for their receive; 0: all sends are rendezvous.
  // REQUIRES: `linked` and `system` outlive the clock.
  Clock(LinkedProgram& linked, const hardware::System& system, Bytes eager);
  // Writes the times and durations of all operations that complete into the events of `linked`.
  void run(const ProgressCallback& progress);

  [[nodiscard]] OperationState state(OperationId id) const { return state_[linked_.index(id)]; }
  // The time at which an operation started. REQUIRES: it has started.
  [[nodiscard]] Seconds start(OperationId id) const { return {time_[linked_.index(id)]}; }
  [[nodiscard]] bool all_complete() const { return complete_ == std::ssize(state_); }
  [[nodiscard]] Seconds end() const { return {end_}; }
  [[nodiscard]] const std::vector<Mismatch>& mismatches() const { return mismatches_; }

 private:
  struct CallProgress {
    std::int32_t started = 0;  // members
    double time = 0;           // when the last member started
  };

  void begin(OperationId id);
  void begin_message(OperationId id, const Step& step);
  void begin_call(OperationId id);
  void complete_call(plan::Match match, double time);
  [[nodiscard]] double duration_of(const Step& step, std::int32_t group) const;
  void finish(OperationId id, double time, double duration);
  void finish_member(OperationId batch, double time);
  void release(std::int32_t rank, std::int32_t first, std::int32_t last, double time);

  LinkedProgram& linked_;
  const hardware::System& system_;
  const Bytes eager_;
  std::vector<cost::RankSpan> rank_spans_;  // by group
  // By operation: the latest of the dependencies that are met so far, so its start time once all
  // are met; of a batch that has started, the latest completion of its members.
  std::vector<double> time_;
  // By operation: dependencies that are not met; of a batch that has started, incomplete members.
  std::vector<std::int32_t> pending_;
  std::vector<OperationState> state_;
  std::vector<CallProgress> calls_;  // by collective call
  std::vector<OperationId> ready_;
  std::vector<Mismatch> mismatches_;
  std::int64_t complete_ = 0;
  double end_ = 0;
};

}  // namespace shiplap::sim
