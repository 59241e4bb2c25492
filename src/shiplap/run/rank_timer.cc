#include <algorithm>
#include <array>
#include <chrono>
#include <span>
#include <utility>

#include "shiplap/run/rank_timer_internal.h"

namespace shiplap::run {
namespace {

using TimerClock = std::chrono::steady_clock;

constexpr int kMinSamples = 5;  // per median
constexpr int kMaxSamples = 101;
constexpr std::chrono::milliseconds kIdleTime{2};

double seconds_since(TimerClock::time_point begin) {
  return std::chrono::duration<double>(TimerClock::now() - begin).count();
}

}  // namespace

double median(std::vector<double> all) {
  const auto middle = all.begin() + std::ssize(all) / 2;
  std::ranges::nth_element(all, middle);
  return *middle;
}

double RankTimer::timed(const std::function<void()>& act, const TimingOptions& timing) {
  const auto first = TimerClock::now();
  if (timing.before) timing.before();
  world_.barrier();
  const auto begin = TimerClock::now();
  for (int k = 0; k < timing.times; ++k) act();
  std::array<double, 2> took{seconds_since(begin), seconds_since(first)};
  world_.all_reduce(std::span<double>(took), ReduceOp::max);
  spent_ += took[1];
  return took[0] / timing.times;
}

double RankTimer::measure(const std::function<void()>& act, const TimingOptions& timing) {
  timed(act, timing);
  std::vector<double> all;
  const double end = spent_ + budget_;
  while (std::ssize(all) < kMinSamples || (std::ssize(all) < kMaxSamples && spent_ < end)) {
    all.push_back(timed(act, timing));
  }
  return timing.uses_min ? std::ranges::min(all) : median(std::move(all));
}

RankTimer::Pair RankTimer::measure_interleaved(const std::function<void()>& first,
                                               const std::function<void()>& second,
                                               const TimingOptions& timing) {
  timed(first, timing);
  timed(second, timing);
  std::vector<double> ratios;
  std::vector<double> times;
  const double end = spent_ + 2 * budget_;
  while (std::ssize(times) < kMinSamples || (std::ssize(times) < kMaxSamples && spent_ < end)) {
    const double took = timed(first, timing);
    times.push_back(timed(second, timing));
    ratios.push_back(took / times.back());
  }
  return {.ratio = median(std::move(ratios)), .second = median(std::move(times))};
}

void RankTimer::idle() {
  const auto end = TimerClock::now() + kIdleTime;
  while (TimerClock::now() < end) {
  }
}

}  // namespace shiplap::run
