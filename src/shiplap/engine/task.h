// A lazy coroutine. The Task object owns the frame. Another task can await it and resumes when it
// is done (symmetric transfer, so that awaiting does not grow the stack).
#pragma once

#include <coroutine>
#include <exception>
#include <utility>

namespace shiplap::engine {

class [[nodiscard]] Task {
 public:
  struct promise_type;
  using Handle = std::coroutine_handle<promise_type>;

  struct promise_type {
    std::exception_ptr failure;
    std::coroutine_handle<> awaited_by = std::noop_coroutine();

    // Resumes the awaiting task.
    struct Final {
      static bool await_ready() noexcept { return false; }
      static std::coroutine_handle<> await_suspend(Handle done) noexcept {
        return done.promise().awaited_by;
      }
      static void await_resume() noexcept {}
    };

    Task get_return_object() { return Task(Handle::from_promise(*this)); }
    static std::suspend_always initial_suspend() noexcept { return {}; }
    static Final final_suspend() noexcept { return {}; }
    static void return_void() {}
    void unhandled_exception() { failure = std::current_exception(); }
  };

  Task(Task&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Task& operator=(Task&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;
  ~Task() {
    if (handle_) handle_.destroy();
  }

  [[nodiscard]] std::coroutine_handle<> handle() const { return handle_; }
  [[nodiscard]] bool done() const { return handle_.done(); }
  // The exception it threw, or null.
  [[nodiscard]] std::exception_ptr failure() const { return handle_.promise().failure; }

  // `co_await task` runs it to completion and rethrows its exception.
  [[nodiscard]] auto operator co_await() const {
    struct Awaiter {
      Handle task;
      [[nodiscard]] bool await_ready() const { return task.done(); }
      std::coroutine_handle<> await_suspend(std::coroutine_handle<> caller) const {
        task.promise().awaited_by = caller;
        return task;
      }
      void await_resume() const {
        if (task.promise().failure) std::rethrow_exception(task.promise().failure);
      }
    };
    return Awaiter{handle_};
  }

 private:
  explicit Task(Handle handle) : handle_(handle) {}
  Handle handle_;
};

}  // namespace shiplap::engine
