// Clang thread safety annotations (-Wthread-safety, enabled by tools/lint): members are annotated
// with their mutex, functions with the locks that they require, and violations are errors. See
// https://clang.llvm.org/docs/ThreadSafetyAnalysis.html.
//
// g++ does not have these attributes, and clang accepts only the GNU spelling, which g++ warns
// about. So this is the only file of the library with conditional compilation.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define SHIPLAP_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define SHIPLAP_THREAD_ATTRIBUTE(x)
#endif

// For a member: it, or the object that it points to, is accessed only with the mutex held.
#define SHIPLAP_GUARDED_BY(x) SHIPLAP_THREAD_ATTRIBUTE(guarded_by(x))
#define SHIPLAP_PT_GUARDED_BY(x) SHIPLAP_THREAD_ATTRIBUTE(pt_guarded_by(x))
// For a function: the caller holds the mutex, or must not hold it.
#define SHIPLAP_REQUIRES(...) SHIPLAP_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define SHIPLAP_EXCLUDES(...) SHIPLAP_THREAD_ATTRIBUTE(locks_excluded(__VA_ARGS__))
// For a function: it locks, unlocks or returns the mutex.
#define SHIPLAP_ACQUIRE(...) SHIPLAP_THREAD_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define SHIPLAP_RELEASE(...) SHIPLAP_THREAD_ATTRIBUTE(release_capability(__VA_ARGS__))
#define SHIPLAP_TRY_ACQUIRE(...) SHIPLAP_THREAD_ATTRIBUTE(try_acquire_capability(__VA_ARGS__))
#define SHIPLAP_RETURN_CAPABILITY(x) SHIPLAP_THREAD_ATTRIBUTE(lock_returned(x))

namespace shiplap {

class SHIPLAP_THREAD_ATTRIBUTE(capability("mutex")) Mutex {
 public:
  void lock() SHIPLAP_ACQUIRE() { mutex_.lock(); }
  void unlock() SHIPLAP_RELEASE() { mutex_.unlock(); }
  [[nodiscard]] bool try_lock() SHIPLAP_TRY_ACQUIRE(true) { return mutex_.try_lock(); }

 private:
  friend class ConditionVariable;
  std::mutex mutex_;
};

// Holds a mutex to the end of its scope, except between unlock() and lock().
class SHIPLAP_THREAD_ATTRIBUTE(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) SHIPLAP_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  // Adopts a mutex that try_lock() has locked.
  MutexLock(Mutex& mutex, std::adopt_lock_t /*held*/) SHIPLAP_REQUIRES(mutex) : mutex_(mutex) {}
  ~MutexLock() SHIPLAP_RELEASE() {
    if (is_held_) mutex_.unlock();
  }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  void lock() SHIPLAP_ACQUIRE() {
    mutex_.lock();
    is_held_ = true;
  }
  void unlock() SHIPLAP_RELEASE() {
    is_held_ = false;
    mutex_.unlock();
  }

 private:
  Mutex& mutex_;
  bool is_held_ = true;
};

// The analysis does not propagate locks into lambdas, so there are no waits with a predicate:
// `while (!is_ready_) changed_.wait(mutex_);`.
class ConditionVariable {
 public:
  using Clock = std::chrono::steady_clock;

  void wait(Mutex& mutex) SHIPLAP_REQUIRES(mutex) {
    std::unique_lock<std::mutex> held(mutex.mutex_, std::adopt_lock);
    condition_.wait(held);
    (void)held.release();
  }
  // Returns false on timeout.
  bool wait_until(Mutex& mutex, Clock::time_point end) SHIPLAP_REQUIRES(mutex) {
    std::unique_lock<std::mutex> held(mutex.mutex_, std::adopt_lock);
    const std::cv_status status = condition_.wait_until(held, end);
    (void)held.release();
    return status == std::cv_status::no_timeout;
  }
  [[nodiscard]] static Clock::time_point after(double seconds) {
    return Clock::now() +
           std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  }
  void notify_one() noexcept { condition_.notify_one(); }
  void notify_all() noexcept { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace shiplap
