// Puts the programs of many ranks together: those that differ in numbers only become one.
#pragma once

#include <cstdint>
#include <vector>

#include "shiplap/plan/plan.h"

namespace shiplap::strategy {

// Gathers programs in the order of ranks, each in plain numbers and with peers named by rank.
class ProgramSharing {
 public:
  explicit ProgramSharing(const plan::Mesh& mesh) : mesh_(mesh) {}

  void add(plan::Program program);
  // Into `plan`, which has the mesh: its programs and the lists that they need.
  void finish(plan::Plan& plan);

 private:
  // Ranks whose programs have the same words.
  struct Kind {
    plan::Program program;  // that of the first rank
    std::uint64_t hash = 0;
    std::vector<std::int32_t> ranks;
    std::vector<std::int64_t> numbers;  // as many for each rank, rank after rank
    std::size_t count = 0;              // of numbers per rank
  };
  void fit(Kind& kind, plan::Plan& plan) const;
  [[nodiscard]] plan::Selector selector(const std::vector<std::int32_t>& ranks) const;

  plan::Mesh mesh_;
  std::int32_t added_ = 0;
  std::vector<Kind> kinds_;
};

}  // namespace shiplap::strategy
