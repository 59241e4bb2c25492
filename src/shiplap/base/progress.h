// Tells a person at a terminal how far long work has come, and nobody else anything.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "shiplap/base/units.h"

namespace shiplap {

// How far long work is: `done` of `total` things.
struct ProgressPoint {
  std::string_view what;  // "expanding ranks"
  std::string_view unit;  // "ranks"
  std::int64_t done = 0;
  std::int64_t total = 0;  // 0: not known
  bool is_over = false;    // the work has ended, in one way or another
};

// Called by long work now and then; may be empty. What it throws ends the work, unless that is
// over.
using ProgressCallback = std::function<void(const ProgressPoint&)>;

// Counts steps of long work and calls back once in a while.
class ProgressTicker {
 public:
  // `callback` must outlive it.
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
// times a second; nothing unless the work has taken over a second; wipes the line at the end.
class Progress {
 public:
  struct Output {
    bool enabled = false;          // stderr is a terminal
    std::function<Seconds()> now;  // any clock that goes forward
    std::function<void(std::string_view)> write;
  };

  struct Work {
    std::string what;        // "checking"
    std::string unit;        // "ranks"
    std::int64_t total = 0;  // 0: not known; then no percentage and no time left
  };

  Progress(Work work, Output output);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // `done` of them are done. Cheap enough to call for each one.
  void update(std::int64_t done);

 private:
  void draw(std::int64_t done, Seconds now);

  Work work_;
  Output output_;
  Seconds begun_;
  Seconds drawn_;
  bool visible_ = false;
};

// stderr and the wall clock of this process; not enabled where stderr is no terminal.
[[nodiscard]] Progress::Output progress_on_stderr();

}  // namespace shiplap
