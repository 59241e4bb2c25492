// Calls and messages that meet each other and do not fit.
#pragma once

#include <cstdint>
#include <vector>

#include "shiplap/postmortem/postmortem.h"
#include "shiplap/postmortem/progress_internal.h"

namespace shiplap::postmortem {

// A rank and one of its units.
struct Place {
  std::int32_t rank = -1;
  std::int32_t unit = -1;
};

// The members of a group that made a call, by what they called; or the two ends of a message.
struct Mismatch {
  Divergence divergence = Divergence::none;
  dump::GroupId group;
  std::vector<std::vector<Place>> sides;  // the largest first; equal ones by rank
  std::int64_t since_ns = 0;              // when the first of them was made
  bool first_is_usual = false;            // the first side passes what such calls usually pass
  // Whether one side has more ranks than all others together.
  [[nodiscard]] bool has_majority() const;
};

// The first of each group and of each pair of ranks, the earliest first.
[[nodiscard]] std::vector<Mismatch> find_mismatches(const Progress& progress);

}  // namespace shiplap::postmortem
