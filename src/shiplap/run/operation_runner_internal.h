// Running the operations of one rank: its memory, the context of a step, and timings.
#pragma once

#include <functional>
#include <map>
#include <span>
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

// The kernel of a computation, and its form for `joined` ones, if there is one.
struct BoundKernel {
  const KernelTable::Kernel* one = nullptr;
  const KernelTable::JoinedKernel* joined = nullptr;
};

struct StepContext {
  RankState& state;
  CommunicatorSet& communicators;
  const Schedule& schedule;
  const std::vector<BoundKernel>& kernels;  // by operation
  comm::Communicator& world;
  CompletionTracker& tracker;
  std::vector<Timing>& timings;  // by operation
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

  // Runs an operation to completion on the calling thread, with the scratch memory of a stream.
  // REQUIRES: it is not a batch.
  void run(std::size_t stream, std::int32_t op);

  // Returns how many operations from `listed[from]` on are one kernel call.
  [[nodiscard]] std::size_t call_size(std::span<const std::int32_t> listed, std::size_t from) const;
  // Runs them by one call. `await` waits for the dependencies of one, or returns false to end the
  // call. Returns how many are complete. REQUIRES: the first one is ready, and there are several.
  std::size_t run_joined(std::size_t stream, std::span<const std::int32_t> ops,
                         const std::function<bool(std::int32_t op)>& await);
  void communicate(Scratch& scratch, std::int32_t op);

  // Record begin and end of an operation that runs elsewhere.
  void begin(std::int32_t op) { context_.timings[op].begin = CompletionTracker::now(); }
  void end(std::int32_t op) {
    context_.timings[op].end = CompletionTracker::now();
    context_.tracker.complete(op);
  }

 private:
  void run_action(std::size_t stream, std::int32_t op);
  void compute(std::size_t stream, std::int32_t op);
  [[nodiscard]] std::vector<KernelAccess> accesses_of(std::int32_t op) const;
  [[nodiscard]] KernelCall kernel_call(std::size_t stream, std::int32_t op,
                                       std::span<const KernelAccess> accesses) const;

  StepContext context_;
  std::function<void()> poll_;
  std::vector<std::vector<std::int32_t>> members_;  // by batch
};

// Returns the region as a kernel sees it.
[[nodiscard]] KernelAccess kernel_access(const RankMemory& memory, plan::Access::Kind kind,
                                         const plan::flat::Region& region,
                                         const plan::flat::Value& value);

}  // namespace shiplap::run
