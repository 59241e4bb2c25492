#include "shiplap/cli/progress.h"

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <memory>
#include <optional>
#include <utility>

namespace shiplap::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr Clock::duration kMaxSilence = std::chrono::milliseconds(500);

// A signal handler may access only lock-free atomics.
std::atomic<Clock::rep> last_call = 0;
std::atomic<bool> is_interrupted = false;
static_assert(std::atomic<Clock::rep>::is_always_lock_free);

void on_interrupt(int signal) {
  const Clock::time_point last{Clock::duration(last_call.load())};
  if (!is_interrupted && Clock::now() - last < kMaxSilence) {
    is_interrupted = true;
    return;
  }
  static_cast<void>(std::signal(signal, SIG_DFL));
  static_cast<void>(std::raise(signal));
}

class Terminal {
 public:
  void show(const ProgressPoint& point) {
    if (point.is_over) return drawn_.reset();
    last_call = Clock::now().time_since_epoch().count();
    if (!drawn_ || work_ != point.what) {
      drawn_.reset();
      work_ = point.what;
      drawn_.emplace(
          ProgressBar::Task{.what = work_, .unit = std::string(point.unit), .total = point.total},
          progress_on_stderr());
    }
    drawn_->update(point.done);
    if (is_interrupted) throw Interrupted(point);
  }

 private:
  std::string work_;
  std::optional<ProgressBar> drawn_;
};

}  // namespace

Interrupted::Interrupted(const ProgressPoint& point)
    : work_(point.what), text_(fmt::format("interrupted while {}", point.what)) {
  if (point.total > 0) text_ += fmt::format(", {} % done", 100 * point.done / point.total);
}

ProgressCallback process_progress() {
  struct sigaction previous{};
  sigaction(SIGINT, nullptr, &previous);
  const bool is_ignored = previous.sa_handler == SIG_IGN;  // by nohup, say
  if (!is_ignored) static_cast<void>(std::signal(SIGINT, on_interrupt));
  return [terminal = std::make_shared<Terminal>()](const ProgressPoint& point) {
    terminal->show(point);
  };
}

}  // namespace shiplap::cli
