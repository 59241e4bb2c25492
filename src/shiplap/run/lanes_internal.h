// One step of one rank: the threads of its schedule, and how they end together.
#pragma once

#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>
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
  explicit Holdings(plan::RankProgram expanded) : program(std::move(expanded)), memory(program) {}
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

struct LaneContext {
  Holdings& holdings;
  Links& links;
  const Schedule& schedule;
  const std::vector<const KernelTable::Kernel*>& kernels;  // by operation
  comm::Communicator& world;
  Board& board;
  bool poison = false;
};

class Lanes {
 public:
  Lanes(const LaneContext& context, std::int64_t step);

  // Returns when all operations are complete; throws the first failure.
  void run();
  [[nodiscard]] const std::vector<Timing>& timings() const { return timings_; }

 private:
  [[nodiscard]] const plan::flat::Operation& operation(std::int32_t op) const {
    return context_.holdings.program.operations[static_cast<std::size_t>(op)];
  }
  void stream_lane(std::size_t stream);
  void group_lane(std::size_t group);
  // Does one operation of a stream, or hands it over.
  void pass(std::size_t stream, std::int32_t op);
  void hand(std::int32_t op);
  void start_batch(std::int32_t batch);
  // Does it here and now.
  void perform(std::size_t stream, std::int32_t op);
  void act(std::size_t stream, std::int32_t op);
  void compute(std::size_t stream, std::int32_t op);
  void communicate(Scratch& scratch, std::int32_t op);
  void begin(std::int32_t op) { timings_[static_cast<std::size_t>(op)].begin = Board::now(); }
  void end(std::int32_t op) {
    timings_[static_cast<std::size_t>(op)].end = Board::now();
    context_.board.complete(op);
  }
  template <class Work>
  void guarded(const Work& work);
  void fail(const std::exception_ptr& failure);

  LaneContext context_;
  std::int64_t step_;
  std::vector<Timing> timings_;
  std::vector<std::vector<std::int32_t>> members_;  // by batch
  std::map<std::string, std::unique_ptr<MessageLane>> messages_;
  std::mutex mutex_;
  std::exception_ptr failure_;
};

// Memory as a kernel sees it.
[[nodiscard]] KernelAccess kernel_access(const RankMemory& memory, plan::Access::Kind kind,
                                         const plan::flat::Region& region,
                                         const plan::flat::Value& value);

}  // namespace shiplap::run
