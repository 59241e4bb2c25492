#include "shiplap/base/progress.h"

#include <gtest/gtest.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "shiplap/base/error.h"

namespace shiplap {
namespace {

// A terminal of one line with a manual clock.
struct Terminal {
  double time = 100;
  std::vector<std::string> writes;
  ProgressBar::Output output() {
    return {.enabled = true,
            .now = [this] { return Seconds{time}; },
            .write = [this](std::string_view text) { writes.emplace_back(text); }};
  }
};

// The visible text after all writes.
std::string screen(const Terminal& terminal) {
  std::string line;
  std::size_t column = 0;
  for (std::string_view text : terminal.writes) {
    while (!text.empty()) {
      if (text.starts_with("\033[K")) {
        line.resize(column);
        text.remove_prefix(3);
        continue;
      }
      if (text[0] == '\r') {
        column = 0;
      } else {
        line.replace(column++, 1, 1, text[0]);
      }
      text.remove_prefix(1);
    }
  }
  return line;
}

// The line when `done` of `total` took `seconds`.
std::string shown(std::int64_t done, std::int64_t total, double seconds) {
  Terminal terminal;
  ProgressBar progress({.what = "checking", .unit = "ranks", .total = total}, terminal.output());
  terminal.time += seconds;
  progress.update(done);
  return screen(terminal);
}

TEST(ProgressBar, ShowsShareRateAndTimeLeft) {
  // 41 of 100 in 2 s: 20.5 a second; the other 59 take 2.88 s.
  EXPECT_EQ(shown(41, 100, 2), "checking  41 %  20.5 ranks/s  3 s left");
  // 24,600 in 2 s are 12,300 a second; 36,900 are left.
  EXPECT_EQ(shown(24600, 61500, 2), "checking  40 %  12 300 ranks/s  3 s left");
}

TEST(ProgressBar, RoundsTheRateToThreeDigits) {
  EXPECT_EQ(shown(24691, 0, 2), "checking  12 300 ranks/s");  // 12,345.5
  EXPECT_EQ(shown(2469135, 0, 2), "checking  1 230 000 ranks/s");
  EXPECT_EQ(shown(1999, 0, 2), "checking  1 000 ranks/s");  // 999.5
  EXPECT_EQ(shown(1998, 0, 2), "checking  999 ranks/s");
  EXPECT_EQ(shown(7, 0, 2), "checking  3.5 ranks/s");
  EXPECT_EQ(shown(1, 0, 8), "checking  0.125 ranks/s");
}

TEST(ProgressBar, RoundsTheShareDownAndTheTimeUp) {
  EXPECT_EQ(shown(999, 1000, 10), "checking  99 %  99.9 ranks/s  1 s left");
  EXPECT_EQ(shown(1000, 1000, 10), "checking  100 %  100 ranks/s  0 s left");
  EXPECT_EQ(shown(2000, 1000, 10), "checking  100 %  200 ranks/s  0 s left");
}

TEST(ProgressBar, ShowsLongTimesInLargerUnits) {
  EXPECT_EQ(shown(2, 120, 2), "checking  1 %  1 ranks/s  1 min 58 s left");
  EXPECT_EQ(shown(2, 61, 2), "checking  3 %  1 ranks/s  59 s left");
  EXPECT_EQ(shown(2, 62, 2), "checking  3 %  1 ranks/s  1 min 00 s left");
  EXPECT_EQ(shown(2, 3722, 2), "checking  0 %  1 ranks/s  1 h 02 min left");
  EXPECT_EQ(shown(1, 1'000'000'000'000, 2), "checking  0 %  0.5 ranks/s  more than 100 days left");
}

TEST(ProgressBar, PromisesNoRateBeforeAnythingIsDone) {
  EXPECT_EQ(shown(0, 100, 2), "checking  0 %");
  EXPECT_EQ(shown(0, 0, 2), "checking");
}

TEST(ProgressBar, ShowsNothingInTheFirstSecond) {
  Terminal terminal;
  {
    ProgressBar progress({.what = "checking", .unit = "ranks", .total = 100}, terminal.output());
    for (int i = 0; i <= 100; ++i) {
      terminal.time = 100 + i / 100.0;
      progress.update(i);
    }
  }
  EXPECT_TRUE(terminal.writes.empty());
}

TEST(ProgressBar, DrawsAtMostTenTimesASecond) {
  Terminal terminal;
  std::vector<double> drawn;
  ProgressBar progress({.what = "checking", .unit = "ranks", .total = 10000}, terminal.output());
  for (int i = 0; i <= 10000; ++i) {
    terminal.time = 100 + i / 1024.0;
    const std::size_t before = terminal.writes.size();
    progress.update(i);
    if (terminal.writes.size() > before) drawn.push_back(terminal.time);
  }
  // 9.77 s, of which the first is quiet.
  EXPECT_GE(drawn.size(), 80u);
  EXPECT_LE(drawn.size(), 88u);
  EXPECT_GT(drawn.front(), 101);
  for (std::size_t i = 1; i < drawn.size(); ++i) EXPECT_GE(drawn[i] - drawn[i - 1], 0.1);
}

TEST(ProgressBar, LeavesNothingOfALongerLineBehind) {
  Terminal terminal;
  ProgressBar progress({.what = "checking", .unit = "ranks", .total = 1000}, terminal.output());
  terminal.time = 1100;
  progress.update(1);
  const std::size_t longer = screen(terminal).size();
  terminal.time = 1101;
  progress.update(1000);
  EXPECT_EQ(screen(terminal), "checking  100 %  0.999 ranks/s  0 s left");
  EXPECT_LT(screen(terminal).size(), longer);
}

TEST(ProgressBar, WipesTheLineAtTheEnd) {
  Terminal terminal;
  {
    ProgressBar progress({.what = "checking", .unit = "ranks", .total = 100}, terminal.output());
    terminal.time += 2;
    progress.update(50);
    EXPECT_NE(screen(terminal), "");
  }
  EXPECT_EQ(screen(terminal), "");
}

TEST(ProgressBar, SaysNothingWhereNobodyLooks) {
  Terminal terminal;
  auto output = terminal.output();
  output.enabled = false;
  {
    ProgressBar progress({.what = "checking", .unit = "ranks", .total = 100}, output);
    terminal.time += 5;
    progress.update(50);
  }
  EXPECT_TRUE(terminal.writes.empty());
  ProgressBar without_anything({.what = "checking", .unit = "ranks", .total = 100}, {});
  EXPECT_NO_THROW(without_anything.update(50));
}

TEST(ProgressBar, NeedsAClockAndAPlaceToBeShown) {
  EXPECT_THROW(ProgressBar({.what = "checking", .unit = "ranks"}, {.enabled = true}),
               InternalError);
}

TEST(ProgressTicker, CallsBackOnceInAWhileAndWhenTheWorkIsOver) {
  std::vector<ProgressPoint> points;
  const ProgressCallback callback = [&](const ProgressPoint& point) { points.push_back(point); };
  {
    ProgressTicker ticker(callback, {.what = "checking", .unit = "ranks", .total = 25}, 10);
    for (int k = 0; k < 25; ++k) ticker.advance();
  }
  ASSERT_EQ(points.size(), 3U);
  EXPECT_EQ(points[0].done, 10);
  EXPECT_EQ(points[1].done, 20);
  EXPECT_FALSE(points[1].is_over);
  EXPECT_TRUE(points[2].is_over);
  EXPECT_EQ(points[2].what, "checking");
}

TEST(ProgressTicker, EndsWorkByWhatTheCallbackThrows) {
  bool over = false;
  const ProgressCallback callback = [&](const ProgressPoint& point) {
    over = point.is_over;
    throw std::runtime_error("enough");  // also when it is over: ignored
  };
  const auto work = [&] {
    ProgressTicker ticker(callback, {.what = "checking", .unit = "ranks"});
    ticker.advance();
  };
  EXPECT_THROW(work(), std::runtime_error);
  EXPECT_TRUE(over);
}

TEST(ProgressTicker, NeedsNobodyWhoLooks) {
  const ProgressCallback nobody;
  ProgressTicker ticker(nobody, {.what = "checking", .unit = "ranks"});
  EXPECT_NO_THROW(ticker.advance());
}

TEST(ProgressOnStderr, HasAClockThatGoesForward) {
  const ProgressBar::Output output = progress_on_stderr();
  const Seconds first = output.now();
  const Seconds second = output.now();
  EXPECT_LE(first, second);
}

}  // namespace
}  // namespace shiplap
