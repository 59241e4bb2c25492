// Ranks that should run the same program, and where one of them does not.
#pragma once

#include <cstdint>
#include <vector>

#include "shiplap/postmortem/postmortem.h"
#include "shiplap/postmortem/progress_internal.h"

namespace shiplap::postmortem {

// The first difference between the program of a rank and that of its peers.
struct Deviation {
  std::int32_t rank = -1;
  std::int32_t unit = -1;  // where it differs; -1: after its last
  std::int32_t reference =
      -1;                      // a rank with the usual program; itself, if an earlier step is meant
  std::int32_t expected = -1;  // the unit that the reference has there; -1: none
  Divergence divergence = Divergence::none;
  std::int64_t agreeing = 0;  // peers with the usual program; 0: nobody knows who is right
};

// At most one for each rank, by rank.
[[nodiscard]] std::vector<Deviation> find_deviations(const Progress& progress);

// How two units that should be equal differ.
[[nodiscard]] Divergence difference(const Progress& progress, std::int32_t rank, std::int32_t unit,
                                    std::int32_t reference, std::int32_t expected);

}  // namespace shiplap::postmortem
