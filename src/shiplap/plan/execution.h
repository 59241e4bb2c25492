// An untimed execution of a linked program: one order in which all operations can happen, if there
// is one. Whatever can start, starts.
//
// Matching is fixed, so what one rank does never keeps another from going on: if this order gets
// stuck, every order does. What is left then is a wait-for graph: operations that have started and
// are not complete, and what each of them waits for. A deadlock is a cycle in it.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <unordered_map>
#include <vector>

#include "shiplap/plan/link.h"

namespace shiplap::plan {

inline constexpr std::int64_t kAllEager = std::numeric_limits<std::int64_t>::max();
inline constexpr std::int64_t kAllRendezvous = -1;

// Which communication of a rank is done in the order in which it is listed, whatever streams it is
// on: none; that of each communicator, as NCCL does; all of it, which is what NCCL promises.
enum class LaunchOrder : std::uint8_t { free, by_communicator, one_queue };

// Follows an execution.
class Observer {
 public:
  virtual ~Observer() = default;
  // A computation, copy, allocate or free.
  virtual void perform(Place place) = 0;
  virtual void post(Place send) = 0;
  // What the send posted arrives.
  virtual void deliver(Place send, Place receive) = 0;
  // A call that all members have started: its group, and its number there.
  virtual void call(Match call) = 0;
};

class Execution {
 public:
  // Sends of up to `eager_limit` bytes are eager. `observer` may be null; both must outlive it.
  Execution(const LinkedProgram& linked, std::int64_t eager_limit, Observer* observer = nullptr,
            LaunchOrder order = LaunchOrder::free);
  // Whether everything was done.
  bool run(const ProgressCallback& progress = {});

  enum class State : std::uint8_t { waiting, started, complete };
  [[nodiscard]] State state(Place place) const { return states_[linked_.index(place)]; }

  // One operation that another waits for.
  struct Wait {
    Place waiting;
    Place awaited;
    friend bool operator==(const Wait&, const Wait&) = default;
  };
  // Operations in which ranks wait for each other, each for the next, the last for the first. None
  // if there is no cycle: then somebody waits for what nobody does. REQUIRES: run() returned false.
  [[nodiscard]] std::vector<Wait> wait_cycle() const;
  // The operation in which each rank that is not done waits, in order of rank.
  [[nodiscard]] std::vector<Place> stuck() const;

 private:
  class CycleSearch;

  [[nodiscard]] const Step& step(Place place) const { return linked_.step(place); }
  void set(Place place, State state) { states_[linked_.index(place)] = state; }
  // What must be complete before it by the launch order.
  [[nodiscard]] std::span<const std::int32_t> launched_before(Place place) const;
  void order_launches(LaunchOrder order);
  void wake(std::int32_t rank);
  void poll(std::int32_t rank);
  [[nodiscard]] bool can_start(Place place) const;
  void start(Place place);
  void start_batch(Place place);
  void start_send(Place place);
  void start_receive(Place place);
  void start_call(Place place);
  void complete(Place place);
  [[nodiscard]] std::size_t message(Place place) const;
  // What must happen before it can start or be complete.
  [[nodiscard]] std::vector<Place> needs(Place place) const;
  [[nodiscard]] std::vector<Place> absent_members(Match call) const;
  // How many operations that looks at.
  [[nodiscard]] std::int64_t cost_of_needs(Place place) const;
  // Shorter than `longest`, or nothing.
  [[nodiscard]] std::vector<Place> shortest_cycle(Place through, std::size_t longest,
                                                  std::int64_t& budget) const;

  const LinkedProgram& linked_;
  std::int64_t eager_limit_;
  Observer* observer_;
  std::vector<State> states_;                              // by operation of all ranks
  std::vector<std::vector<std::int32_t>> next_;            // by rank and stream: what starts next
  std::unordered_map<std::size_t, std::int64_t> batches_;  // members to complete, once started
  // By operation of all ranks, in before_; empty if the launch order is free.
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
