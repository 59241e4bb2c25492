// The state of every operation of a step: pending, started or complete, each an atomic counter that
// only rises. The threads of a rank wait here for each other.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <vector>

#include "shiplap/base/units.h"
#include "shiplap/plan/expand.h"

namespace shiplap::run {

// Thrown to a waiting thread when another thread of the rank has failed. The thread that failed
// reports the error.
struct Cancelled : std::exception {};

class CompletionTracker {
 public:
  explicit CompletionTracker(const plan::RankProgram& program);

  // REQUIRES: no thread is using the tracker. Call before each step.
  void reset();

  // Returns whether all dependencies (`after`) of the operation are complete.
  [[nodiscard]] bool is_ready(const plan::flat::Operation& op) const;
  [[nodiscard]] bool is_complete(std::int32_t op) const {
    return states_[op] == OperationState::complete;
  }

  [[nodiscard]] bool has_started(std::int32_t op) const {
    return states_[op] != OperationState::pending;
  }

  // These block. They throw Cancelled after cancel().
  void await_dependencies(const plan::flat::Operation& op);
  void await_start(std::int32_t op);
  void await_completion(std::int32_t op);

  void start(std::int32_t op);
  // A batch completes with the last of its members.
  void complete(std::int32_t op);
  void cancel();
  [[nodiscard]] bool is_cancelled() const { return cancelled_; }

  // Marks the rank as computing for its lifetime, so that messages do not time out meanwhile.
  class Computing {
   public:
    explicit Computing(CompletionTracker& tracker) : tracker_(tracker) { ++tracker_.computing_; }
    ~Computing() {
      tracker_.progress_ = now();
      --tracker_.computing_;
    }
    Computing(const Computing&) = delete;
    Computing& operator=(const Computing&) = delete;

   private:
    CompletionTracker& tracker_;
  };
  [[nodiscard]] bool is_idle() const { return computing_ == 0; }
  // When the rank became idle; now() if it is computing.
  [[nodiscard]] Seconds idle_since() const { return {is_idle() ? progress_.load() : now()}; }
  // Seconds of a monotonic clock.
  [[nodiscard]] static double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }

 private:
  enum class OperationState : std::uint8_t { pending, started, complete };
  void notify() {
    ++changes_;
    changes_.notify_all();
  }
  template <class Done>
  void await(const Done& done) {
    while (true) {
      const std::uint32_t seen = changes_;
      if (cancelled_) throw Cancelled{};
      if (done()) return;
      changes_.wait(seen);
    }
  }

  const plan::RankProgram& program_;
  std::vector<std::atomic<OperationState>> states_;    // by operation
  std::vector<std::atomic<std::int32_t>> incomplete_;  // by batch: number of members
  std::atomic<std::uint32_t> changes_ = 0;
  std::atomic<bool> cancelled_ = false;
  std::atomic<int> computing_ = 0;
  std::atomic<double> progress_ = 0;
};

}  // namespace shiplap::run
