// Cooperative cancellation of long calls, such as by Ctrl-C in Python.
//
// The caller installs a function on its thread. Long loops and waits poll it, and an exception that
// it throws ends the call. The function belongs to the thread and is not a parameter, because every
// loop of every module would have to pass it on, and because a call must not be ended by a signal
// that is for another thread. Threads that a call starts do not poll: the call polls while it waits
// for them, and ends them as if it had failed.
#pragma once

#include <exception>
#include <functional>

#include "shiplap/base/units.h"

namespace shiplap {

// How often a wait must call throw_if_cancelled().
inline constexpr Seconds kCancellationInterval{0.02};

// Installs a function on this thread during its lifetime.
class CancellationScope {
 public:
  explicit CancellationScope(std::function<void()> poll);
  ~CancellationScope();
  CancellationScope(const CancellationScope&) = delete;
  CancellationScope& operator=(const CancellationScope&) = delete;

 private:
  friend void throw_if_cancelled();
  void poll();

  std::function<void()> poll_;
  std::exception_ptr cancelled_;
  Seconds next_;
  CancellationScope* outer_;
};

// Calls the innermost function of this thread, unless it was called within kCancellationInterval.
// What it has thrown once is thrown again. Cheap enough for each microsecond of work.
void throw_if_cancelled();

// Whether this thread has a function: a wait that could be long must then be cut into intervals.
[[nodiscard]] bool is_cancellable();

}  // namespace shiplap
