// Progress of long tasks: callbacks, and a progress bar for terminals.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "shiplap/base/cancellation.h"
#include "shiplap/base/units.h"

namespace shiplap {

// `done` of `total` items of a long task are done.
struct ProgressPoint {
  std::string_view what;  // "expanding ranks"
  std::string_view unit;  // "ranks"
  std::int64_t done = 0;
  std::int64_t total = 0;  // 0: not known
  bool is_over = false;    // the task has ended, successfully or not
};

// Called regularly by long tasks; may be empty. An exception cancels the task, unless is_over.
using ProgressCallback = std::function<void(const ProgressPoint&)>;

// Counts the items of a task. Every `interval` items it calls back and can be cancelled.
class ProgressTicker {
 public:
  // REQUIRES: `callback` outlives this.
  ProgressTicker(const ProgressCallback& callback, ProgressPoint start, std::int64_t interval = 1)
      : callback_(callback), point_(start), interval_(interval), next_(start.done + interval) {}
  ~ProgressTicker();
  ProgressTicker(const ProgressTicker&) = delete;
  ProgressTicker& operator=(const ProgressTicker&) = delete;
  void advance() { advance_to(point_.done + 1); }
  void advance_to(std::int64_t done) {
    point_.done = done;
    if (done < next_) return;
    next_ = done + interval_;
    throw_if_cancelled();
    if (!callback_) return;
    was_called_ = true;
    callback_(point_);
  }

 private:
  const ProgressCallback& callback_;
  ProgressPoint point_;
  std::int64_t interval_;
  std::int64_t next_;
  bool was_called_ = false;
};

// Draws "checking  41 %  12 300 ranks/s  3 s left" over itself on one line of stderr, at most ten
// times a second; nothing in the first second; clears the line at the end.
class ProgressBar {
 public:
  struct Output {
    bool enabled = false;          // stderr is a terminal
    std::function<Seconds()> now;  // any monotonic clock
    std::function<void(std::string_view)> write;
  };

  struct Task {
    std::string what;        // "checking"
    std::string unit;        // "ranks"
    std::int64_t total = 0;  // 0: not known; then no percentage and no time left
  };

  ProgressBar(Task task, Output output);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // `done` items are done. Cheap enough to call for each item.
  void update(std::int64_t done);

 private:
  void draw(std::int64_t done, Seconds now);

  Task task_;
  Output output_;
  Seconds start_;
  Seconds drawn_;
  bool visible_ = false;
};

// stderr and the steady clock of this process; disabled unless stderr is a terminal.
[[nodiscard]] ProgressBar::Output progress_on_stderr();

}  // namespace shiplap
