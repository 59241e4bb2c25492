#include "shiplap/base/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <utility>

#include "shiplap/base/error.h"

namespace shiplap {
namespace {

constexpr Seconds kDelay{1.0};     // shorter tasks show no progress bar
constexpr Seconds kInterval{0.1};  // between two drawings
constexpr std::string_view kClearLine = "\r\033[K";

// 12345 as "12 300", 3.456 as "3.46": three digits, because the rate fluctuates anyway.
std::string rate_text(double rate) {
  if (rate < 999.5) return fmt::format("{:.3g}", rate);
  // No task of ours is that fast; the bound keeps the conversion to an integer defined.
  const double bounded = std::min(rate, 9e17);
  const double step = std::pow(10.0, std::floor(std::log10(bounded)) - 2);
  std::string text = with_separators(std::llround(std::round(bounded / step) * step));
  std::replace(text.begin(), text.end(), ',', ' ');
  return text;
}

// Rounded up, so that "0 s left" means that nothing is left.
std::string left_text(Seconds left) {
  constexpr double kMaxLeft = 100.0 * 24 * 3600;
  if (left.value > kMaxLeft) return "more than 100 days left";
  const auto seconds = static_cast<std::int64_t>(std::ceil(left.value));
  if (seconds < 60) return fmt::format("{} s left", seconds);
  if (seconds < 3600) return fmt::format("{} min {:02} s left", seconds / 60, seconds % 60);
  return fmt::format("{} h {:02} min left", seconds / 3600, seconds / 60 % 60);
}

}  // namespace

ProgressTicker::~ProgressTicker() {
  if (!was_called_) return;
  point_.is_over = true;
  try {
    callback_(point_);
  } catch (...) {  // NOLINT(bugprone-empty-catch): there is nothing left to end
  }
}

ProgressBar::ProgressBar(Task task, Output output)
    : task_(std::move(task)), output_(std::move(output)) {
  if (!output_.enabled) return;
  ensure(output_.now && output_.write, "a visible progress bar has a clock and an output");
  start_ = output_.now();
  drawn_ = start_;
}

ProgressBar::~ProgressBar() {
  if (visible_) output_.write(kClearLine);
}

void ProgressBar::update(std::int64_t done) {
  if (!output_.enabled) return;
  const Seconds now = output_.now();
  if (now - start_ <= kDelay || now - drawn_ < kInterval) return;
  draw(done, now);
}

void ProgressBar::draw(std::int64_t done, Seconds now) {
  std::string line = task_.what;
  // Doubles, because 100 * done may overflow an integer.
  const double share =
      task_.total > 0 ? static_cast<double>(done) / static_cast<double>(task_.total) : 0;
  if (task_.total > 0)
    line += fmt::format("  {:.0f} %", std::floor(100 * std::clamp(share, 0.0, 1.0)));
  if (done > 0) {
    const double rate = static_cast<double>(done) / (now - start_).value;
    line += fmt::format("  {} {}/s", rate_text(rate), task_.unit);
    const std::int64_t rest = std::max<std::int64_t>(task_.total - done, 0);
    if (task_.total > 0) line += "  " + left_text({static_cast<double>(rest) / rate});
  }
  output_.write("\r" + line + "\033[K");
  drawn_ = now;
  visible_ = true;
}

ProgressBar::Output progress_on_stderr() {
  return {
      .enabled = isatty(STDERR_FILENO) == 1,
      .now =
          [] {
            const auto since_start = std::chrono::steady_clock::now().time_since_epoch();
            return Seconds{std::chrono::duration<double>(since_start).count()};
          },
      .write =
          [](std::string_view text) {
            std::fwrite(text.data(), 1, text.size(), stderr);
            std::fflush(stderr);
          },
  };
}

}  // namespace shiplap
