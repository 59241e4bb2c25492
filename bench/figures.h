// Statistics of repeated measurements, for benchmarks.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "shiplap/base/json.h"

namespace shiplap {

struct Spread {
  double median = 0;
  double min = 0;
  double max = 0;
};

inline Spread spread(std::vector<double> values) {
  std::ranges::sort(values);
  return {values[values.size() / 2], values.front(), values.back()};
}

inline void put(Json& json, const std::string& name, const Spread& s, double scale = 1) {
  json.set(name, s.median * scale);
  json.set(name + "_min", s.min * scale);
  json.set(name + "_max", s.max * scale);
}

}  // namespace shiplap
