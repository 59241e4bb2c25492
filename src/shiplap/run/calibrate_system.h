// Measures the ranks of a job as a machine of docs/hardware.md, so that `simulate` predicts what
// `run` takes on them.
//
//   const hardware::SystemSamples samples = measure_system(world, {.hidden = 512, .block = 128});
//   write(hardware::fit_system(samples));   // a file for --hardware
#pragma once

#include <cstdint>
#include <string>

#include "shiplap/comm/communicator.h"
#include "shiplap/hardware/fit_system.h"

namespace shiplap::run {

struct SystemCalibrationOptions {
  // The layers whose kernels are measured: GEMMs of other shapes reach other rates.
  std::int64_t hidden = 512;
  std::int64_t block = 128;
  std::string transport = "threads";  // for people: "sockets"
};

// Collective, with each rank on its final core; all ranks get the same samples. Measures
// - the kernels of TrainingKernels, as the executor calls them, on all ranks at once,
// - the time between two operations of the executor,
// - messages in chunks as the executor sends them, and collectives, among the ranks of a host and
//   between hosts.
// If hosts do not have equal numbers of consecutive ranks, the machine has one network. Takes some
// seconds on a slow network. Throws comm::Failure. REQUIRES: two ranks or more.
[[nodiscard]] hardware::SystemSamples measure_system(comm::Communicator& world,
                                                     const SystemCalibrationOptions& options = {});

// The number of consecutive ranks on each host; 0 if it is not the same on all. `hosts` has the
// host of each rank.
[[nodiscard]] std::int64_t ranks_per_host(const std::vector<std::string>& hosts);

}  // namespace shiplap::run
