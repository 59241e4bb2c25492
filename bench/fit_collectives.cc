#include "fit_collectives.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

namespace shiplap {
namespace {

using hardware::CollectiveRates;
using hardware::System;

// A number of several machines, which all have the same.
struct Constant {
  std::string name;
  std::vector<double*> places;
  double max = 1e18;

  [[nodiscard]] double value() const { return *places.front(); }
  void set(double value) const {
    for (double* const place : places) *place = value;
  }
};

const std::vector<std::string> kNvidia{"a100_80g", "h100_80g_nvl8", "h200", "b200", "gb200_nvl72"};
const std::vector<std::string> kHopper{"h100_80g_nvl8", "h200"};
const std::vector<std::string> kBlackwell{"b200", "gb200_nvl72"};
const std::vector<std::string> kAmd{"mi300x"};

class Constants {
 public:
  explicit Constants(Machines& machines) : machines_(machines) {
    const auto inner = [](System& system) -> CollectiveRates& {
      return *system.networks.front().collectives;
    };
    const auto outer = [](System& system) -> CollectiveRates& {
      return *system.networks.back().collectives;
    };
    for (const auto& family : {kNvidia, kAmd}) {
      const std::string maker = family == kAmd ? "AMD: " : "NVIDIA: ";
      // Rings of an H100 alone are not among the fitted tables, so all generations share it.
      add(maker + "link efficiency", family, 1,
          [](System& s) { return &s.networks.front().efficiency; });
      add(maker + "link ramp", family, 1, [=](System& s) { return &inner(s).ramp; });
      add(maker + "net efficiency", family, 1,
          [](System& s) { return &s.networks.back().efficiency; });
      add(maker + "net latency", family, 1e3, [=](System& s) { return &outer(s).latency; });
      add(maker + "net ll", family, 1, [=](System& s) { return &outer(s).ll; });
      add(maker + "net ll128", family, 1, [=](System& s) { return &outer(s).ll128; });
      add(maker + "net ramp", family, 1, [=](System& s) { return &outer(s).ramp; });
    }
    for (const auto& generation :
         {std::vector<std::string>{"a100_80g"}, kHopper, kBlackwell, kAmd}) {
      add(generation.front() + ": latency", generation, 1e3,
          [=](System& s) { return &inner(s).latency; });
    }
    for (const auto& generation : {kHopper, kBlackwell}) {
      add(generation.front() + ": in_switch share", generation, 1,
          [=](System& s) { return &inner(s).in_switch->share; });
    }
    std::vector<std::string> in_switch = kHopper;
    in_switch.insert(in_switch.end(), kBlackwell.begin(), kBlackwell.end());
    add("in_switch ramp", in_switch, 1, [=](System& s) { return &inner(s).in_switch->ramp; });
    add("NVIDIA: one_peer bytes per second", kNvidia, 1e12,
        [=](System& s) { return &inner(s).one_peer->bandwidth.bytes_per_second; });
    for (auto& [name, latency] : machines.fabrics) {
      constants_.push_back({.name = name + ": latency", .places = {&latency}});
    }
    for (const Constant& constant : constants_) constant.set(constant.value());
  }

  [[nodiscard]] const std::vector<Constant>& all() const { return constants_; }

 private:
  template <class Place>
  void add(std::string name, const std::vector<std::string>& systems, double max, Place place) {
    Constant constant{.name = std::move(name), .max = max};
    for (const std::string& system : systems) {
      constant.places.push_back(place(machines_.systems.at(system)));
    }
    constants_.push_back(std::move(constant));
  }

  Machines& machines_;
  std::vector<Constant> constants_;
};

// One point far off must not bend the others: above a factor of e it costs no more.
double loss(const Machines& machines, const std::vector<CollectivePoint>& points,
            const std::map<std::string, int>& of_page) {
  double total = 0;
  std::string table;
  System system;
  for (const CollectivePoint& point : points) {
    if (point.table != table) {
      table = point.table;
      system = machines.of(point);
    }
    const double error = std::abs(std::log(predict(system, point).time.value / point.seconds));
    total += std::min(error, 1.0) / of_page.at(point.page);
  }
  return total / static_cast<double>(of_page.size());
}

}  // namespace

std::vector<FittedConstant> fit_collectives(Machines& machines,
                                            const std::vector<CollectivePoint>& points) {
  std::vector<CollectivePoint> fitted;
  std::ranges::copy_if(points, std::back_inserter(fitted), &CollectivePoint::fit);
  std::map<std::string, int> of_page;
  for (const CollectivePoint& point : fitted) ++of_page[point.page];
  const Constants constants(machines);
  double best = loss(machines, fitted, of_page);
  constexpr int kRoundsPerStep = 6;
  double step = 0.5;
  while (step > 0.003) {
    for (int round = 0; round < kRoundsPerStep; ++round) {
      for (const Constant& constant : constants.all()) {
        const double before = constant.value();
        double kept = before;
        for (const double factor : {1 + step, 1 / (1 + step)}) {
          constant.set(std::min(before * factor, constant.max));
          const double now = loss(machines, fitted, of_page);
          if (now < best) kept = constant.value();
          best = std::min(best, now);
        }
        constant.set(kept);
      }
    }
    step *= 0.7;
  }
  std::vector<FittedConstant> found;
  for (const Constant& constant : constants.all()) {
    found.push_back({.name = constant.name, .value = constant.value()});
  }
  found.push_back({.name = "mean of |log(predicted / measured)|", .value = best});
  return found;
}

}  // namespace shiplap
