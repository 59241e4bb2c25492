// What the parts of an overlap take here: measured once, for overlap::choose().
//
//   const overlap::Calibration here = calibrate(world);   // all ranks together, a few seconds
//   const auto chosen = overlap::choose(type, problem, overlap::machine_of(here, type, problem));
#pragma once

#include <string>

#include "shiplap/comm/communicator.h"
#include "shiplap/overlap/calibration.h"

namespace shiplap::run {

struct CalibrateOptions {
  double seconds = 3;   // that it should take, about
  std::string machine;  // what it is called, for people; "": by the number of ranks
};

// All ranks together, each on the cores that it will have; all get the same. Every time is the
// median of several, each of which is that of the slowest rank. Throws comm::Failure.
[[nodiscard]] overlap::Calibration calibrate(comm::Communicator& world,
                                             const CalibrateOptions& options = {});

}  // namespace shiplap::run
