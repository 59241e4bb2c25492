// Every strategy of the library, in sizes that it supports.
#pragma once

#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "shiplap/strategy/library.h"

namespace shiplap::strategy {

struct Case {
  std::string strategy;
  TrainingSize size;
  friend std::ostream& operator<<(std::ostream& out, const Case& c) {
    return out << c.strategy << " on " << c.size.ranks << " ranks, " << c.size.layers << " layers, "
               << c.size.batch << " samples, " << c.size.microbatches << " microbatches, stage "
               << c.size.zero_stage << " of ZeRO";
  }
};

// With one sample per rank, and two; and with every stage of ZeRO.
[[nodiscard]] std::vector<Case> all_cases(int ranks);

// Returns a trainer that has run.
[[nodiscard]] std::unique_ptr<Trainer> trained(const Case& c, const hardware::System& system);

}  // namespace shiplap::strategy
