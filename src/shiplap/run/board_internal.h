// Which operations of a step have started and which are complete: where the lanes of a rank wait
// for each other.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <vector>

#include "shiplap/base/units.h"
#include "shiplap/plan/expand.h"

namespace shiplap::run {

// Thrown to a lane that waits when another one has failed. Not an error of its own.
struct Stopped : std::exception {};

class Board {
 public:
  explicit Board(const plan::RankProgram& program);

  // Before each step.
  void reset();

  // Whether all that it comes after is complete.
  [[nodiscard]] bool is_ready(const plan::flat::Operation& op);
  [[nodiscard]] bool is_complete(std::int32_t op);

  // Each throws Stopped when stop() was called.
  void await_dependencies(const plan::flat::Operation& op);
  void await_start(std::int32_t op);
  void await_completion(std::int32_t op);

  void start(std::int32_t op);
  // A batch is complete with the last of its members.
  void complete(std::int32_t op);
  void stop();
  [[nodiscard]] bool is_stopped() const { return stopped_; }

  // While one lives, the rank computes: that nothing completes is then no reason to give up.
  class Computing {
   public:
    explicit Computing(Board& board) : board_(board) { ++board_.computing_; }
    ~Computing() {
      board_.progress_ = now();
      --board_.computing_;
    }
    Computing(const Computing&) = delete;
    Computing& operator=(const Computing&) = delete;

   private:
    Board& board_;
  };
  [[nodiscard]] bool is_idle() const { return computing_ == 0; }
  // Since when nothing has happened on this rank; now, if something is.
  [[nodiscard]] Seconds idle_since() const { return {is_idle() ? progress_.load() : now()}; }
  // Seconds of a clock that never goes back.
  [[nodiscard]] static double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }

 private:
  enum class State : std::uint8_t { listed, started, complete };
  [[nodiscard]] bool is_ready_locked(const plan::flat::Operation& op) const;
  void complete_locked(std::int32_t op);
  template <class Done>
  void await(const Done& done) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stopped_ || done(); });
    if (stopped_) throw Stopped{};
  }

  const plan::RankProgram& program_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<State> states_;             // by operation
  std::vector<std::int32_t> incomplete_;  // by batch: how many of its members
  std::atomic<bool> stopped_ = false;
  std::atomic<int> computing_ = 0;
  std::atomic<double> progress_ = 0;
};

}  // namespace shiplap::run
