// Measures the constants of the overlap cost model on this machine, for overlap::choose().
//
//   const overlap::Calibration here = calibrate(world);   // all ranks together, a few seconds
//   const auto chosen = overlap::choose(type, problem, overlap::machine_of(here, type, problem));
#pragma once

#include <string>

#include "shiplap/comm/communicator.h"
#include "shiplap/overlap/calibration.h"

namespace shiplap::run {

struct CalibrateOptions {
  double seconds = 3;   // approximate duration
  std::string machine;  // display name; "": the number of ranks
};

// Collective, with each rank on its final cores; all ranks get the same result. Every time is the
// median of several samples, each of the slowest rank. Throws comm::Failure.
[[nodiscard]] overlap::Calibration calibrate(comm::Communicator& world,
                                             const CalibrateOptions& options = {});

}  // namespace shiplap::run
