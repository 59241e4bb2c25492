// Fits the constants of hardware::CollectiveRates to the tables that collective_tables.csv marks
// with `fit`.
#pragma once

#include <string>
#include <vector>

#include "published.h"

namespace shiplap {

struct FittedConstant {
  std::string name;
  double value = 0;
};

// Minimizes the mean of |log(predicted / measured)|, in which every page has the same weight, by
// a coordinate search from the constants of `machines`, which it changes.
std::vector<FittedConstant> fit_collectives(Machines& machines,
                                            const std::vector<CollectivePoint>& points);

}  // namespace shiplap
