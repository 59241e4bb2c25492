#include "scheduler.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <span>

#include "shiplap/base/error.h"

namespace shiplap::simulation {
namespace {

Scheduler* g_current = nullptr;

constexpr std::size_t kStackBytes = std::size_t{256} * 1024;
std::vector<std::unique_ptr<std::byte[]>> g_stacks;  // NOLINT(modernize-avoid-c-arrays)

// AddressSanitizer must be notified of stack switches; null if it is not linked.
using StartSwitch = void (*)(void**, const void*, std::size_t);
using FinishSwitch = void (*)(void*, const void**, std::size_t*);
template <class Function>
Function sanitizer(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
}
const auto kStartSwitch = sanitizer<StartSwitch>("__sanitizer_start_switch_fiber");
const auto kFinishSwitch = sanitizer<FinishSwitch>("__sanitizer_finish_switch_fiber");

std::span<const std::byte> thread_stack() {
  static const std::span<const std::byte> stack = [] {
    pthread_attr_t attributes;
    void* begin = nullptr;
    std::size_t size = 0;
    pthread_getattr_np(pthread_self(), &attributes);
    pthread_attr_getstack(&attributes, &begin, &size);
    pthread_attr_destroy(&attributes);
    return std::span(static_cast<const std::byte*>(begin), size);
  }();
  return stack;
}

// The exceptions in flight are per thread in the C++ runtime; swap them with each fiber.
void exchange_exceptions(std::array<std::uintptr_t, 2>& kept) {
  std::array<std::uintptr_t, 2> now{};
  void* const globals = abi::__cxa_get_globals();
  std::memcpy(now.data(), globals, sizeof now);
  std::memcpy(globals, kept.data(), sizeof kept);
  kept = now;
}

}  // namespace

Scheduler* current() { return g_current; }

Scheduler::~Scheduler() {
  for (auto& fiber : fibers_) {
    if (fiber->is_over)
      g_stacks.push_back(std::move(fiber->stack));
    else
      fiber->stack.release();  // NOLINT: objects on it were not destroyed
  }
}

Scheduler::State Scheduler::state(int process) const {
  return at(process) < states_.size() ? states_[process] : State::alive;
}

void Scheduler::set_state(int process, State state) {
  if (at(process) >= states_.size()) states_.resize(at(process) + 1, State::alive);
  states_[process] = state;
}

double Scheduler::now(int process) {
  if (!is_dead(process)) return now_;
  if (at(process) >= dead_now_.size()) dead_now_.resize(at(process) + 1, now_);
  return dead_now_[process] += 0.05;
}

void Scheduler::kill(int process) { set_state(process, State::dead); }

void Scheduler::stop(int process) {
  if (state(process) == State::alive) set_state(process, State::stopped);
}

void Scheduler::at_time(double time, std::function<void()> action) {
  events_.push_back({time, std::move(action)});
}

int Scheduler::start(int process, std::function<void()> work, double time) {
  auto fiber = std::make_unique<Fiber>();
  fiber->process = process;
  fiber->work = std::move(work);
  fiber->wake_at = now_ + time;
  if (g_stacks.empty()) {
    fiber->stack = std::make_unique_for_overwrite<std::byte[]>(kStackBytes);  // NOLINT
  } else {
    fiber->stack = std::move(g_stacks.back());
    g_stacks.pop_back();
  }
  getcontext(&fiber->context);
  fiber->context.uc_stack.ss_sp = fiber->stack.get();
  fiber->context.uc_stack.ss_size = kStackBytes;
  fiber->context.uc_link = &main_;
  makecontext(&fiber->context, &Scheduler::trampoline, 0);
  fibers_.push_back(std::move(fiber));
  return static_cast<int>(fibers_.size()) - 1;
}

void Scheduler::trampoline() {
  Scheduler& self = *g_current;
  if (kFinishSwitch != nullptr) kFinishSwitch(nullptr, nullptr, nullptr);
  Fiber& fiber = *self.fibers_[self.running_];
  fiber.work();
  fiber.work = nullptr;
  fiber.is_over = true;
  if (kStartSwitch != nullptr) kStartSwitch(nullptr, thread_stack().data(), thread_stack().size());
}

bool Scheduler::can_run(const Fiber& fiber) const {
  if (fiber.is_over) return false;
  const State process = state(fiber.process);
  if (process == State::dead) return true;
  if (process == State::stopped) return false;
  return fiber.wake_at <= now_ || (fiber.is_ready && fiber.is_ready());
}

bool Scheduler::advance() {
  double next = kNever;
  bool any_left = false;
  for (const auto& fiber : fibers_) {
    if (fiber->is_over || state(fiber->process) == State::stopped) continue;
    any_left = true;
    if (fiber->wake_at > now_) next = std::min(next, fiber->wake_at);
  }
  for (const Event& event : events_) next = std::min(next, event.time);
  while (!wakeups_.empty() && wakeups_.top() <= now_) wakeups_.pop();
  if (!wakeups_.empty()) next = std::min(next, wakeups_.top());
  if (!any_left || next == kNever) return false;
  now_ = std::max(now_, next);
  return true;
}

bool Scheduler::run(std::int64_t max_steps) {
  g_current = this;
  std::vector<int> able;
  while (steps_ < max_steps) {
    for (std::size_t k = 0; k < events_.size(); ++k) {
      if (events_[k].time > now_) continue;
      const auto action = std::move(events_[k].action);
      events_.erase(events_.begin() + static_cast<std::ptrdiff_t>(k--));
      action();
    }
    able.clear();
    for (std::size_t k = 0; k < fibers_.size(); ++k) {
      if (can_run(*fibers_[k])) able.push_back(static_cast<int>(k));
    }
    if (!able.empty()) {
      enter(random_.pick(able));
      continue;
    }
    if (advance()) continue;
    // Only stopped processes are left.
    bool any_left = false;
    for (const auto& fiber : fibers_) {
      if (fiber->is_over) continue;
      any_left = true;
      kill(fiber->process);
    }
    if (!any_left) break;
  }
  g_current = nullptr;
  return std::ranges::all_of(fibers_, [](const auto& fiber) { return fiber->is_over; });
}

void Scheduler::enter(int number) {
  Fiber& fiber = *fibers_[number];
  ++steps_;
  running_ = number;
  exchange_exceptions(fiber.exceptions);
  if (kStartSwitch != nullptr) {
    kStartSwitch(&main_fake_stack_, fiber.stack.get(), kStackBytes);
  }
  swapcontext(&main_, &fiber.context);
  if (kFinishSwitch != nullptr) kFinishSwitch(main_fake_stack_, nullptr, nullptr);
  exchange_exceptions(fiber.exceptions);
  running_ = -1;
}

void Scheduler::yield() {
  Fiber& fiber = *fibers_[running_];
  if (kStartSwitch != nullptr) {
    kStartSwitch(&fiber.fake_stack, thread_stack().data(), thread_stack().size());
  }
  swapcontext(&fiber.context, &main_);
  if (kFinishSwitch != nullptr) kFinishSwitch(fiber.fake_stack, nullptr, nullptr);
}

int Scheduler::process() const { return fibers_[running_]->process; }

void Scheduler::step(double seconds) {
  if (!is_dead(process())) now_ += seconds;
  if (random_.between(0, 4) > 0) return;
  Fiber& fiber = *fibers_[running_];
  fiber.is_ready = nullptr;
  fiber.wake_at = now_;
  yield();
}

void Scheduler::wait_even_dead(const std::function<bool()>& is_ready) {
  Fiber& fiber = *fibers_[running_];
  while (!is_ready()) {
    fiber.is_ready = is_ready;
    fiber.wake_at = kNever;
    yield();
  }
  fiber.is_ready = nullptr;
}

bool Scheduler::wait(const std::function<bool()>& is_ready, double deadline) {
  Fiber& fiber = *fibers_[running_];
  fiber.is_ready = is_ready;
  fiber.wake_at = is_dead(process()) ? now_ : deadline;
  yield();
  fiber.is_ready = nullptr;
  return is_ready();
}

}  // namespace shiplap::simulation
