#include "shiplap/base/aside.h"

#include <pthread.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
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

// A thread that gets no signals: they are for those of the program. It takes over the floating
// point mode of the caller (XLA's threads flush denormals).
void begin_thread(std::function<void()> act) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread(std::move(act)).detach();
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

class Aside {
 public:
  Aside() {
    if (timer_ >= 0) begin_thread([this] { look_for_ever(); });
  }

  void run(std::function<void()> act) {
    {
      const std::lock_guard held(mutex_);
      if (works_.size() == idle_) return begin_worker(std::move(act));
      works_.push_back({std::move(act), Clock::now()});
      if (is_worker && wary_ == 0 && look_later()) return;
      if (is_worker && wary_ > 0) --wary_;
    }
    given_.notify_one();
  }

 private:
  void begin_worker(std::function<void()> first) {
    begin_thread([this, act = std::move(first)]() mutable {
      is_worker = true;
      std::exchange(act, nullptr)();
      work_for_ever();
    });
  }

  [[noreturn]] void work_for_ever() {
    std::unique_lock held(mutex_);
    while (true) {
      ++idle_;
      given_.wait(held, [&] { return !works_.empty(); });
      --idle_;
      std::function<void()> act = std::move(works_.front().act);
      works_.pop_front();
      const bool are_more = !works_.empty();  // perhaps the one that somebody was woken for
      held.unlock();
      if (are_more) given_.notify_one();
      act();
      act = nullptr;
      held.lock();
    }
  }

  // Setting a timer costs microseconds, so one that is set stays, whatever has become of the work.
  // False if there is none.
  bool look_later() {
    if (is_set_ || timer_ < 0) return is_set_;
    const itimerspec when{.it_interval = {}, .it_value = {.tv_sec = 0, .tv_nsec = kLook.count()}};
    is_set_ = timerfd_settime(timer_, 0, &when, nullptr) == 0;
    return is_set_;
  }
  void look_for_ever() {
    std::uint64_t times = 0;
    while (read(timer_, &times, sizeof times) >= 0 || errno == EINTR) {
      const std::lock_guard held(mutex_);
      is_set_ = false;
      if (works_.empty()) continue;
      if (Clock::now() - works_.front().given < kLook && look_later()) continue;
      wary_ = kWary;
      given_.notify_all();
    }
    const std::lock_guard held(mutex_);
    is_set_ = false;
    timer_ = -1;
    given_.notify_all();
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
