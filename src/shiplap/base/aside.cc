#include "shiplap/base/aside.h"

#include <sys/timerfd.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

namespace shiplap {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::nanoseconds kLook = std::chrono::milliseconds(1);
constexpr int kWary = 64;  // works

struct Work {
  std::function<void()> act;
  Clock::time_point given;
};

thread_local bool is_worker = false;

class Aside {
 public:
  Aside() {
    if (timer_ >= 0) std::thread([this] { look_for_ever(); }).detach();
  }

  void run(std::function<void()> act) {
    {
      const std::lock_guard held(mutex_);
      if (works_.size() == idle_) return begin_thread(std::move(act));
      works_.push_back({std::move(act), Clock::now()});
      if (is_worker && timer_ >= 0) {
        if (wary_ == 0) return look_later();
        --wary_;
      }
    }
    given_.notify_one();
  }

 private:
  void begin_thread(std::function<void()> first) {
    std::thread([this, act = std::move(first)]() mutable {
      is_worker = true;
      std::exchange(act, nullptr)();
      work_for_ever();
    }).detach();
  }

  [[noreturn]] void work_for_ever() {
    std::unique_lock held(mutex_);
    while (true) {
      ++idle_;
      given_.wait(held, [&] { return !works_.empty(); });
      --idle_;
      std::function<void()> act = std::move(works_.front().act);
      works_.pop_front();
      held.unlock();
      act();
      act = nullptr;
      held.lock();
    }
  }

  // Setting a timer costs microseconds, so one that is set stays, whatever has become of the work.
  void look_later() {
    if (is_set_) return;
    const itimerspec when{.it_interval = {}, .it_value = {.tv_sec = 0, .tv_nsec = kLook.count()}};
    timerfd_settime(timer_, 0, &when, nullptr);
    is_set_ = true;
  }
  void look_for_ever() {
    for (std::uint64_t times = 0; read(timer_, &times, sizeof times) == sizeof times;) {
      const std::lock_guard held(mutex_);
      is_set_ = false;
      if (works_.empty()) continue;
      if (Clock::now() - works_.front().given < kLook) {
        look_later();
      } else {
        wary_ = kWary;
        given_.notify_all();
      }
    }
  }

  std::mutex mutex_;
  std::condition_variable given_;
  std::deque<Work> works_;  // never more than there are idle threads
  std::size_t idle_ = 0;
  int wary_ = 0;
  int timer_ = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);  // < 0: others are woken at once
  bool is_set_ = false;
};

}  // namespace

void run_aside(std::function<void()> work) {
  // Never destroyed, as its threads never end.
  static Aside* const all = new Aside;  // NOLINT(cppcoreguidelines-owning-memory)
  all->run(std::move(work));
}

}  // namespace shiplap
