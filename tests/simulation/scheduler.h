// Deterministic simulation: processes of a job as fibers of one thread, on a virtual clock. Only
// one runs at a time, and which one runs next is drawn from a seed, so a run can be repeated
// exactly.
//
// A process is a rank or a stranger; it may have several fibers, as a process has threads. A fiber
// gives way where a thread would block. When nobody can run, the clock goes on to the next event.
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
  // Until all fibers have ended. False if `most_steps` were not enough.
  [[nodiscard]] bool run(std::int64_t most_steps);

  // ---- for what runs in a fiber

  [[nodiscard]] double now() const { return now_; }
  // How the clock of a process goes: that of a dead one runs away, so that all its waits end.
  [[nodiscard]] double now(int process);
  // Time passes, and nobody else runs.
  void pass(double seconds) { now_ += seconds; }
  // A call of the system takes a moment, and others may run meanwhile.
  void step(double seconds);
  // Until is_ready() or `deadline`; true if it is ready. A dead process never waits.
  bool wait(const std::function<bool()>& is_ready, double deadline);
  // For what a process cannot go on without: its threads.
  void wait_even_dead(const std::function<bool()>& is_ready);
  [[nodiscard]] int process() const;
  [[nodiscard]] bool is_over(int fiber) const { return fibers_[fiber]->is_over; }

  // ---- faults

  // Its fibers go on without effect: they see a network that is gone and a clock that runs away.
  void kill(int process);
  // As SIGSTOP: until the end, when it is killed.
  void stop(int process);
  [[nodiscard]] bool is_dead(int process) const { return state(process) == State::dead; }
  // Something may be ready then.
  void look_again_at(double time) {
    if (time != kNever) looks_.push(time);
  }
  // Calls `act` at that time.
  void at_time(double time, std::function<void()> act);

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
    // What the language keeps for exceptions of a thread, while this fiber does not run.
    std::array<std::uintptr_t, 2> exceptions{};
    void* fake_stack = nullptr;  // of the address sanitizer
  };
  struct Event {
    double time = 0;
    std::function<void()> act;
  };
  static std::size_t at(int number) { return static_cast<std::size_t>(number); }
  [[nodiscard]] State state(int process) const;
  void set_state(int process, State state);
  [[nodiscard]] bool can_run(const Fiber& fiber) const;
  // To the next event, or to a fiber that can run then; false if there is none.
  bool advance();
  void enter(int fiber);
  void give_way();
  static void trampoline();

  Random random_;
  double now_ = 1000;  // as a machine that has been up for a while
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<State> states_;     // by process; 0 is that of strangers
  std::vector<double> dead_now_;  // clocks of dead processes
  std::vector<Event> events_;
  std::priority_queue<double, std::vector<double>, std::greater<>> looks_;
  int running_ = -1;
  ucontext_t main_{};
  void* main_fake_stack_ = nullptr;
  std::int64_t steps_ = 0;
};

// The one that runs now in this thread; none outside of run().
[[nodiscard]] Scheduler* current();

}  // namespace shiplap::simulation
