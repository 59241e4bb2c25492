// Deterministic simulation testing: the processes of a job as fibers of one thread, on a virtual
// clock. One fiber runs at a time, and the next one is drawn from a seed, so that a run can be
// repeated exactly.
//
// A process is a rank or a rogue client; it may have several fibers, one per thread. A fiber yields
// where a thread would block. When no fiber can run, the clock advances to the next event.
#pragma once

#include <ucontext.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <queue>
#include <vector>

#include "shiplap/base/random.h"

namespace shiplap::simulation {

constexpr double kNever = std::numeric_limits<double>::infinity();

class Scheduler {
 public:
  explicit Scheduler(std::uint64_t seed) : random_(seed) {}
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;
  ~Scheduler();

  // Adds a fiber of a process, which starts at `time`; returns its number.
  int start(int process, std::function<void()> work, double time = 0);
  // Runs until all fibers have ended. Returns false if that takes more than `max_steps`.
  [[nodiscard]] bool run(std::int64_t max_steps);

  // ---- for code in a fiber

  [[nodiscard]] double now() const { return now_; }
  // The clock of a process. That of a dead process runs fast, so that all its waits time out.
  [[nodiscard]] double now(int process);
  // Advances the clock without yielding.
  void pass(double seconds) { now_ += seconds; }
  // A system call: advances the clock and may yield.
  void step(double seconds);
  // Waits until is_ready() or `deadline`; returns is_ready(). A dead process does not wait.
  bool wait(const std::function<bool()>& is_ready, double deadline);
  // Waits also in a dead process: for joining threads.
  void wait_even_dead(const std::function<bool()>& is_ready);
  [[nodiscard]] int process() const;
  [[nodiscard]] bool is_over(int fiber) const { return fibers_[fiber]->is_over; }

  // ---- faults

  // Its fibers continue without effect: their connections fail and their clock runs fast.
  void kill(int process);
  // As SIGSTOP; it is killed when no other process is left.
  void stop(int process);
  [[nodiscard]] bool is_dead(int process) const { return state(process) == State::dead; }
  // Makes the scheduler check all waits at that time.
  void schedule_wakeup(double time) {
    if (time != kNever) wakeups_.push(time);
  }
  // Calls `action` at that time.
  void at_time(double time, std::function<void()> action);

  [[nodiscard]] Random& random() { return random_; }
  [[nodiscard]] std::int64_t steps() const { return steps_; }

 private:
  enum class State : std::uint8_t { alive, stopped, dead };
  struct Fiber {
    int process = 0;
    std::function<void()> work;
    ucontext_t context{};
    std::unique_ptr<std::byte[]> stack;  // NOLINT(modernize-avoid-c-arrays): memory, not elements
    std::function<bool()> is_ready;
    double wake_at = 0;
    bool is_over = false;
    // The C++ runtime's exception state (per thread), while this fiber does not run.
    std::array<std::uintptr_t, 2> exceptions{};
    void* fake_stack = nullptr;  // of AddressSanitizer
  };
  struct Event {
    double time = 0;
    std::function<void()> action;
  };
  static std::size_t at(int number) { return static_cast<std::size_t>(number); }
  [[nodiscard]] State state(int process) const;
  void set_state(int process, State state);
  [[nodiscard]] bool can_run(const Fiber& fiber) const;
  // Advances the clock to the next event or timeout. Returns false if there is none.
  bool advance();
  void enter(int fiber);
  void yield();
  static void trampoline();

  Random random_;
  double now_ = 1000;  // a machine with some uptime
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<State> states_;     // by process
  std::vector<double> dead_now_;  // clocks of dead processes
  std::vector<Event> events_;
  std::priority_queue<double, std::vector<double>, std::greater<>> wakeups_;
  int running_ = -1;
  ucontext_t main_{};
  void* main_fake_stack_ = nullptr;
  std::int64_t steps_ = 0;
};

// The scheduler that is running in this thread, or null outside of run().
[[nodiscard]] Scheduler* current();

}  // namespace shiplap::simulation
