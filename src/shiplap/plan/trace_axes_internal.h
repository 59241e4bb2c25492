// Names the axes along which ranks communicate, each set of axes once.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "shiplap/plan/expand.h"
#include "shiplap/plan/link.h"

namespace shiplap::plan {

class TraceAxes {
 public:
  // Adds to `names`. REQUIRES: both outlive this.
  TraceAxes(const Mesh& mesh, std::vector<std::string>& names);
  // The index of the name; -1 if the ranks are listed, or there is only one. REQUIRES: a message or
  // a call.
  std::int32_t of(const RankProgram& program, const flat::Operation& op, const Step& step);

 private:
  // The axes on which two ranks have different positions.
  [[nodiscard]] std::uint64_t between(std::int64_t a, std::int64_t b) const;
  // The alias for these axes, or their names.
  [[nodiscard]] std::string name(std::uint64_t along) const;

  const Mesh& mesh_;
  std::vector<std::string>& names_;
  std::vector<std::int64_t> strides_;
  // By axis and alias: a set of axes with several ranks, as bits; axes after the 64th have none.
  IdVector<AxisId, std::uint64_t> bits_;
  std::unordered_map<std::uint64_t, std::int32_t> known_;
};

}  // namespace shiplap::plan
