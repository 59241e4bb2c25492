// An untimed execution of a linked program: one order in which all operations can happen, if there
// is one, and the wait-for graph if there is none. See execution.cc.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "shiplap/plan/link.h"

namespace shiplap::plan {

inline constexpr std::int64_t kAllEager = std::numeric_limits<std::int64_t>::max();
inline constexpr std::int64_t kAllRendezvous = -1;

// Which communication of a rank is serialized in program order, whatever its streams: none; that of
// each communicator, as NCCL executes it; all of it, which is all that NCCL guarantees.
enum class LaunchOrder : std::uint8_t { free, by_communicator, one_queue };

// Is called back in the order of an execution.
class ExecutionObserver {
 public:
  virtual ~ExecutionObserver() = default;
  // A computation, copy, allocate or free.
  virtual void perform(OperationId id) = 0;
  virtual void post(OperationId send) = 0;
  // The message of a send reaches its receive.
  virtual void deliver(OperationId send, OperationId receive) = 0;
  // All members have started a call.
  virtual void call(Match call) = 0;
};

// The task of Execution::run in ProgressPoint::what.
inline constexpr std::string_view kExecutionTask = "executing operations";

class Execution {
 public:
  // Sends of up to `eager_limit` bytes are eager. `observer` may be null.
  // REQUIRES: `linked` and `observer` outlive the execution.
  Execution(const LinkedProgram& linked, std::int64_t eager_limit,
            ExecutionObserver* observer = nullptr, LaunchOrder order = LaunchOrder::free);
  // Returns whether all operations completed; false is a deadlock.
  bool run(const ProgressCallback& progress = {});

  [[nodiscard]] OperationState state(OperationId id) const { return states_[linked_.index(id)]; }

  // An edge of the wait-for graph.
  struct Wait {
    OperationId waiting;
    OperationId awaited;
    friend bool operator==(const Wait&, const Wait&) = default;
  };
  // Returns a cycle of the wait-for graph: ranks that wait for each other, the last for the first.
  // Empty if there is none: then a rank waits for an operation that no rank makes.
  // REQUIRES: run() returned false.
  [[nodiscard]] std::vector<Wait> wait_cycle() const;
  // Returns, for each rank that hangs, the operation in which it waits, in order of rank.
  [[nodiscard]] std::vector<OperationId> stuck() const;

 private:
  class CycleSearch;

  [[nodiscard]] const Step& step(OperationId id) const { return linked_.step(id); }
  void set(OperationId id, OperationState state) { states_[linked_.index(id)] = state; }
  // The operations that must complete before it by the launch order.
  [[nodiscard]] std::span<const std::int32_t> launched_before(OperationId id) const;
  void order_launches(LaunchOrder order);
  void wake(std::int32_t rank);
  void poll(std::int32_t rank);
  [[nodiscard]] bool can_start(OperationId id) const;
  void start(OperationId id);
  void start_batch(OperationId id);
  void start_send(OperationId id);
  void start_receive(OperationId id);
  void start_call(OperationId id);
  void complete(OperationId id);
  [[nodiscard]] std::size_t message(OperationId id) const;
  // Its successors in the wait-for graph: what must happen before it can start, or complete.
  [[nodiscard]] std::vector<OperationId> needs(OperationId id) const;
  [[nodiscard]] std::vector<OperationId> absent_members(Match call) const;
  // How many operations needs() visits.
  [[nodiscard]] std::int64_t cost_of_needs(OperationId id) const;
  // Returns a cycle through `through` that is shorter than `longest`, or nothing.
  [[nodiscard]] std::vector<OperationId> shortest_cycle(OperationId through, std::size_t longest,
                                                        std::int64_t& budget) const;

  const LinkedProgram& linked_;
  std::int64_t eager_limit_;
  ExecutionObserver* observer_;
  std::vector<OperationState> states_;                     // by operation of all ranks
  std::vector<std::vector<std::int32_t>> next_;            // by rank and stream: the next operation
  std::unordered_map<std::size_t, std::int64_t> batches_;  // incomplete members, once started
  // By operation of all ranks: its first entry in before_. Empty if the launch order is free.
  std::vector<std::int64_t> before_first_;
  std::vector<std::int32_t> before_;
  struct Post {
    bool sent = false;
    bool awaited = false;
  };
  std::vector<Post> posts_;            // by message
  std::vector<std::int32_t> arrived_;  // by call
  std::vector<bool> awake_;
  std::vector<std::int32_t> ready_;
  std::int64_t left_ = 0;
};

}  // namespace shiplap::plan
