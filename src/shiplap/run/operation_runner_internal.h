// Running the operations of one rank: its memory, the context of a step, and timings.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "shiplap/run/actions_internal.h"
#include "shiplap/run/communicator_set_internal.h"
#include "shiplap/run/completion_tracker_internal.h"
#include "shiplap/run/kernel_table.h"
#include "shiplap/run/memory_internal.h"
#include "shiplap/run/messages_internal.h"
#include "shiplap/run/schedule_internal.h"

namespace shiplap::run {

// Program and memory of a rank. If a step fails it is leaked, since a transport may still write to
// it.
struct RankState {
  explicit RankState(plan::RankProgram expanded, MemorySource source = MemorySource::allocated)
      : program(std::move(expanded)), memory(program, source) {}
  plan::RankProgram program;
  RankMemory memory;
  std::vector<Scratch> stream_scratch;
  std::vector<Scratch> group_scratch;
  std::vector<StagingBuffers> stream_staging;
  std::map<std::string, StagingBuffers> channel_staging;
};

// Begin and end of an operation, in seconds of CompletionTracker::now().
struct Timing {
  double begin = 0;
  double end = 0;
};

struct StepContext {
  RankState& state;
  CommunicatorSet& communicators;
  const Schedule& schedule;
  const std::vector<const KernelTable::Kernel*>& kernels;  // by operation
  comm::Communicator& world;
  CompletionTracker& tracker;
  std::int64_t step = 0;
  bool poison = false;
};

// Runs operations, one at a time on each stream, and records their timings.
class OperationRunner {
 public:
  // Kernels call `poll` to let messages make progress; it may be empty.
  explicit OperationRunner(const StepContext& context, std::function<void()> poll = {});

  [[nodiscard]] const plan::flat::Operation& operation(std::int32_t op) const {
    return context_.state.program.operations[op];
  }
  // The operations of a batch, in program order.
  [[nodiscard]] const std::vector<std::int32_t>& members(std::int32_t batch) const {
    return members_[batch];
  }
  [[nodiscard]] const std::vector<Timing>& timings() const { return timings_; }

  // Runs an operation to completion on the calling thread, with the scratch memory of a stream.
  // REQUIRES: it is not a batch.
  void run(std::size_t stream, std::int32_t op);
  void communicate(Scratch& scratch, std::int32_t op);

  // Record begin and end of an operation that runs elsewhere.
  void begin(std::int32_t op) { timings_[op].begin = CompletionTracker::now(); }
  void end(std::int32_t op) {
    timings_[op].end = CompletionTracker::now();
    context_.tracker.complete(op);
  }

 private:
  void run_action(std::size_t stream, std::int32_t op);
  void compute(std::size_t stream, std::int32_t op);

  StepContext context_;
  std::function<void()> poll_;
  std::vector<Timing> timings_;
  std::vector<std::vector<std::int32_t>> members_;  // by batch
};

// Returns the region as a kernel sees it.
[[nodiscard]] KernelAccess kernel_access(const RankMemory& memory, plan::Access::Kind kind,
                                         const plan::flat::Region& region,
                                         const plan::flat::Value& value);

}  // namespace shiplap::run
