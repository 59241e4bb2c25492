#include "shiplap/hardware/fit_system.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <span>

#include "shiplap/base/error.h"

namespace shiplap::hardware {
namespace {

// Of a unit that is too fast to be measured.
constexpr double kMinSecondsPerUnit = 1e-18;

// A time: fixed + amount * each.
struct Line {
  double fixed = 0;
  double each = 0;
};

// The sums of the normal equations, every sample weighted by 1 / time^2.
struct NormalSums {
  double ones = 0;
  double amounts = 0;
  double squares = 0;
  double times = 0;
  double products = 0;

  explicit NormalSums(std::span<const TimedAmount> samples) {
    for (const auto& [amount, time] : samples) {
      ensure(amount > 0 && time.value > 0, "a sample has an amount and a time");
      const double weight = 1 / (time.value * time.value);
      ones += weight;
      amounts += weight * amount;
      squares += weight * amount * amount;
      times += weight * time.value;
      products += weight * amount * time.value;
    }
  }
};

Line fit_line(std::span<const TimedAmount> samples) {
  const NormalSums sums(samples);
  ensure(sums.ones > 0, "a line is fitted to samples");
  const Line proportional{.each = sums.products / sums.squares};
  const double determinant = sums.ones * sums.squares - sums.amounts * sums.amounts;
  if (determinant <= 1e-12 * sums.ones * sums.squares) return proportional;  // of equal amounts
  const Line line{.fixed = (sums.times * sums.squares - sums.products * sums.amounts) / determinant,
                  .each = (sums.products * sums.ones - sums.times * sums.amounts) / determinant};
  if (line.fixed < 0) return proportional;
  if (line.each > kMinSecondsPerUnit) return line;
  return {.fixed = sums.times / sums.ones, .each = kMinSecondsPerUnit};
}

// As fit_line(), of a known fixed part.
double fit_slope(std::span<const TimedAmount> samples, double fixed) {
  const NormalSums sums(samples);
  return std::max(kMinSecondsPerUnit, (sums.products - fixed * sums.amounts) / sums.squares);
}

// Six digits: more are noise.
double rounded(double value) { return std::strtod(fmt::format("{:.6g}", value).c_str(), nullptr); }

Json fitted(std::initializer_list<Json> keys, std::initializer_list<Json> assumed = {}) {
  Json basis = Json::object({{"fitted", Json::array(keys)}});
  if (assumed.size() > 0) basis.set("assumed", Json::array(assumed));
  return basis;
}

// The efficiency amount / (amount + half) gives a fixed time.
Json efficiency_of(const Line& line, double unit) {
  return Json::object({{"limit", 1}, {"half", rounded(line.fixed / line.each / unit)}});
}

Json unit_json(std::span<const TimedAmount> samples, std::string_view source) {
  const Line line = fit_line(samples);
  return Json::object(
      {{"source", source},
       {"float32", Json::object({{"tflops", rounded(1e-12 / line.each)},
                                 {"gflops_efficiency", efficiency_of(line, 1e9)},
                                 {"basis", fitted({"tflops", "gflops_efficiency"})}})}});
}

Json memory_json(std::span<const TimedAmount> samples, Bytes capacity, std::string_view source) {
  const Line line = fit_line(samples);
  return Json::object({{"source", source},
                       {"GiB", rounded(std::ldexp(static_cast<double>(capacity.count), -30))},
                       {"GBps", rounded(1e-9 / line.each)},
                       {"MB_efficiency", efficiency_of(line, 1e6)},
                       {"basis", fitted({"GiB", "GBps", "MB_efficiency"})}});
}

Json network_json(const NetworkSamples& samples) {
  const Line message = fit_line(samples.p2p);
  const auto ranks = static_cast<double>(samples.group);
  const auto factor = [&](std::span<const TimedAmount> timed) {
    const double moved = fit_slope(timed, message.fixed) / message.each;
    return Json::array({rounded(moved / (1 - 1 / ranks)), -1});
  };
  return Json::object({{"kind", samples.kind},
                       {"bandwidth", rounded(1e-9 / message.each)},
                       {"efficiency", 1},
                       {"size", samples.size},
                       {"latency", rounded(message.fixed)},
                       {"ops", Json::object({{"p2p", Json::array({1, nullptr})},
                                             {"reduce_scatter", factor(samples.reduce_scatter)},
                                             {"all_gather", factor(samples.all_gather)},
                                             {"all_reduce", factor(samples.all_reduce)}})},
                       {"must_be_filled", false},
                       {"processor_usage", 0},
                       {"basis", fitted({"bandwidth", "efficiency", "size", "latency", "ops"},
                                        {"must_be_filled", "processor_usage"})}});
}

}  // namespace

Json fit_system(const SystemSamples& samples) {
  ensure(!samples.networks.empty(), "a machine has a network");
  Json networks = Json::array();
  for (const NetworkSamples& network : samples.networks) networks.push(network_json(network));
  return Json::object(
      {{"source", samples.source},
       {"matrix", unit_json(samples.matrix, "Forward and backward of a layer.")},
       {"vector", unit_json(samples.vector, "The update of a layer, with Adam.")},
       {"mem1", memory_json(samples.mem1, samples.memory, "Copies in memory.")},
       {"mem2", memory_json(samples.mem2, samples.memory,
                            "Weights stay in memory between steps: loading them moves nothing.")},
       {"processing_mode", "roofline"},
       {"launch", rounded(samples.launch.value)},
       {"node", Json::object({{"devices", samples.ranks_per_node},
                              {"adapters", 1},
                              {"basis", fitted({"devices"}, {"adapters"})}})},
       {"networks", std::move(networks)},
       {"basis", fitted({"launch"}, {"processing_mode"})}});
}

}  // namespace shiplap::hardware
