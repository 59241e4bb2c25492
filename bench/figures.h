// Statistics of repeated measurements, for benchmarks.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "shiplap/base/json.h"

namespace shiplap {

struct Spread {
  double median = 0;
  double least = 0;
  double most = 0;
};

inline Spread spread(std::vector<double> values) {
  std::ranges::sort(values);
  return {values[values.size() / 2], values.front(), values.back()};
}

inline void put(Json& json, const std::string& name, const Spread& s, double scale = 1) {
  json.set(name, s.median * scale);
  json.set(name + "_least", s.least * scale);
  json.set(name + "_most", s.most * scale);
}

}  // namespace shiplap
