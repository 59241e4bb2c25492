#include "choice.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <stdexcept>
#include <vector>

#include "figures.h"
#include "launch.h"

namespace shiplap {
namespace {

constexpr int kShapes = 30;
constexpr int kShapesPerWorker = 10;  // a worker calibrates once
// A round is discarded if its serial time differs from the usual one by more than this factor.
constexpr double kFarOff = 1.3;
constexpr double kNoticedMs = 0.02;  // milliseconds: what choosing may cost, whatever the shape
constexpr double kWorthIt = 0.8;     // T / serial of a shape that was worth it

std::vector<double> numbers(const Json& list) {
  std::vector<double> all;
  for (const Json& each : list.as_array()) all.push_back(each.as_number());
  return all;
}

// One shape: the median of each method, over the rounds that are not discarded.
struct Tried {
  std::map<std::string, Spread> ways;
  std::map<std::string, std::vector<double>> times;  // by round, of those that count
  std::size_t rounds = 0;                            // of those

  [[nodiscard]] double of(const std::string& way) const { return ways.at(way).median; }
  [[nodiscard]] std::string best_way() const {
    const auto median_of = [](const auto& each) { return each.second.median; };
    return std::ranges::min_element(ways, {}, median_of)->first;
  }
  [[nodiscard]] double best() const { return of(best_way()); }
  // The median over the rounds: in some, the machine is faster for all methods.
  [[nodiscard]] double auto_over(const std::string& way, double noticed = 0) const {
    std::vector<double> ratios;
    for (std::size_t k = 0; k < rounds; ++k) {
      ratios.push_back((times.at("auto")[k] - noticed) / times.at(way)[k]);
    }
    return spread(std::move(ratios)).median;
  }
  [[nodiscard]] double over_serial() const { return auto_over("serial"); }
  [[nodiscard]] double noticed() const { return auto_over("serial", kNoticedMs); }
  [[nodiscard]] double regret() const { return std::max(1.0, auto_over(best_way())); }
};

Tried tried_of(const Json& shape) {
  const Json& times = *shape.find("times_ms");
  const std::vector<double> serial = numbers(*times.find("serial"));
  const double usual = spread(serial).median;
  Tried tried;
  for (const auto& [name, list] : times.as_object()) {
    const std::vector<double> all = numbers(list);
    std::vector<double> kept;
    for (std::size_t k = 0; k < all.size(); ++k) {
      if (serial[k] < kFarOff * usual && usual < kFarOff * serial[k]) kept.push_back(all[k]);
    }
    tried.rounds = kept.size();
    tried.times[name] = kept;
    tried.ways[name] = spread(std::move(kept));
  }
  return tried;
}

std::string name_of(const Json& shape) {
  const auto size = [&](const char* key) {
    return std::to_string(static_cast<std::int64_t>(shape.find(key)->as_number()));
  };
  return shape.find("type")->as_string() + " " + size("rows") + "x" + size("columns") + "x" +
         size("depth") + " " + shape.find("element_type")->as_string();
}

void print(const Json& shape, const Tried& tried) {
  std::printf("%-34s n %2zu  serial %8.3f ms  auto %8.3f ms  best %8.3f ms  T/serial %.2f  %s\n",
              name_of(shape).c_str(), tried.rounds, tried.of("serial"), tried.of("auto"),
              tried.best(), tried.over_serial(), shape.find("chosen")->as_string().c_str());
}

Json told(const Json& shape, const Tried& tried) {
  Json ways = Json::object({});
  for (const auto& [name, times] : tried.ways) put(ways, name, times);
  return Json::object({{"shape", name_of(shape)},
                       {"chosen", *shape.find("chosen")},
                       {"why", *shape.find("why")},
                       {"rounds", static_cast<std::int64_t>(tried.rounds)},
                       {"T_over_serial_auto", tried.over_serial()},
                       {"regret", tried.regret()},
                       {"times_ms", ways},
                       {"estimates_ms", *shape.find("estimates_ms")}});
}

// Of FP8 over that of bf16, the larger of the two types.
void put_quantized(const Json& list, Json& into) {
  double worst = 0;
  for (const Json& each : list.as_array()) {
    const double ratio = spread(numbers(*each.find("mxfp8_ms"))).median /
                         spread(numbers(*each.find("bf16_ms"))).median;
    into.set("fp8_over_bf16_comm_" + each.find("type")->as_string(), ratio);
    worst = std::max(worst, ratio);
  }
  if (worst > 0) into.set("fp8_over_bf16_comm", worst);
}

}  // namespace

Json measured_choices(const ChoiceOptions& options) {
  Json result = Json::object({{"choice_rate", options.rate}});
  Json shapes = Json::array();
  Json calibrations = Json::array();
  std::vector<double> regrets;
  double worst = 0;
  std::int64_t overlapped = 0;
  for (int first = 0; first < kShapes; first += kShapesPerWorker) {
    const Json part =
        worker("-n 2 --on hosts --hosts 2 --rate " + options.rate, "bench_choice_worker",
               options.seconds + " " + std::to_string(first) + " " +
                   std::to_string(first + kShapesPerWorker));
    if (part.is_null()) throw std::runtime_error("the worker failed");
    for (const Json& shape : part.find("shapes")->as_array()) {
      const Tried tried = tried_of(shape);
      if (options.prints) print(shape, tried);
      shapes.push(told(shape, tried));
      regrets.push_back(tried.regret());
      worst = std::max(worst, tried.noticed());
      const bool overlaps = shape.find("chosen")->as_string() != "none";
      if (overlaps && tried.over_serial() <= kWorthIt) ++overlapped;
    }
    calibrations.push(*part.find("calibration"));
    put_quantized(*part.find("quantized_communication"), result);
  }
  result.set("worst_T_over_serial_auto", worst);
  result.set("choice_regret_worst", std::ranges::max(regrets));
  result.set("choice_regret_median", spread(regrets).median);
  result.set("shapes_overlapped", overlapped);
  result.set("choices", shapes);
  return result.set("calibrations", calibrations);
}

}  // namespace shiplap
