#include "shiplap/base/cancellation.h"

#include <chrono>
#include <utility>

namespace shiplap {
namespace {

thread_local CancellationScope* innermost = nullptr;

// Decides only when to poll: no result depends on it.
Seconds steady_now() {
  const auto since_start = std::chrono::steady_clock::now().time_since_epoch();
  return Seconds{std::chrono::duration<double>(since_start).count()};
}

}  // namespace

CancellationScope::CancellationScope(std::function<void()> poll)
    : poll_(std::move(poll)),
      next_(steady_now() + kCancellationInterval),
      outer_(std::exchange(innermost, this)) {}

CancellationScope::~CancellationScope() { innermost = outer_; }

void CancellationScope::poll() {
  if (cancelled_ != nullptr) std::rethrow_exception(cancelled_);
  const Seconds now = steady_now();
  if (now < next_) return;
  next_ = now + kCancellationInterval;
  try {
    poll_();
  } catch (...) {
    cancelled_ = std::current_exception();
    throw;
  }
}

void throw_if_cancelled() {
  if (innermost != nullptr) innermost->poll();
}

bool is_cancellable() { return innermost != nullptr; }

}  // namespace shiplap
