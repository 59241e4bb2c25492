// One step of one rank: what it works on, and how an operation is done.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "shiplap/run/actions_internal.h"
#include "shiplap/run/board_internal.h"
#include "shiplap/run/kernel_table.h"
#include "shiplap/run/links_internal.h"
#include "shiplap/run/memory_internal.h"
#include "shiplap/run/messages_internal.h"
#include "shiplap/run/schedule_internal.h"

namespace shiplap::run {

// Memory that a transport may write to: kept for ever if it failed.
struct Holdings {
  explicit Holdings(plan::RankProgram expanded, Memory from = Memory::own)
      : program(std::move(expanded)), memory(program, from) {}
  plan::RankProgram program;
  RankMemory memory;
  std::vector<Scratch> stream_scratch;
  std::vector<Scratch> group_scratch;
  std::vector<Parcels> stream_parcels;
  std::map<std::string, Parcels> channel_parcels;
};

// When an operation began and was complete, in seconds of Board::now().
struct Timing {
  double begin = 0;
  double end = 0;
};

struct StepContext {
  Holdings& holdings;
  Links& links;
  const Schedule& schedule;
  const std::vector<const KernelTable::Kernel*>& kernels;  // by operation
  comm::Communicator& world;
  Board& board;
  std::int64_t step = 0;
  bool poison = false;
};

// Does operations, one at a time on each stream, and notes when.
class Performer {
 public:
  // `look` is what kernels call from time to time; it may be empty.
  explicit Performer(const StepContext& context, std::function<void()> look = {});

  [[nodiscard]] const plan::flat::Operation& operation(std::int32_t op) const {
    return context_.holdings.program.operations[op];
  }
  // The operations of a batch, as listed.
  [[nodiscard]] const std::vector<std::int32_t>& members(std::int32_t batch) const {
    return members_[batch];
  }
  [[nodiscard]] const std::vector<Timing>& timings() const { return timings_; }

  // Does it here and now, with the memory of a stream or group, from start to completion. Promises
  // that it is no batch.
  void perform(std::size_t stream, std::int32_t op);
  void communicate(Scratch& scratch, std::int32_t op);

  // For what is done elsewhere.
  void begin(std::int32_t op) { timings_[op].begin = Board::now(); }
  void end(std::int32_t op) {
    timings_[op].end = Board::now();
    context_.board.complete(op);
  }

 private:
  void act(std::size_t stream, std::int32_t op);
  void compute(std::size_t stream, std::int32_t op);

  StepContext context_;
  std::function<void()> look_;
  std::vector<Timing> timings_;
  std::vector<std::vector<std::int32_t>> members_;  // by batch
};

// Memory as a kernel sees it.
[[nodiscard]] KernelAccess kernel_access(const RankMemory& memory, plan::Access::Kind kind,
                                         const plan::flat::Region& region,
                                         const plan::flat::Value& value);

}  // namespace shiplap::run
