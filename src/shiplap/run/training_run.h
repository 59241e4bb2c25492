// Runs steps of a training plan with the kernels of training.h.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "shiplap/base/units.h"
#include "shiplap/comm/communicator.h"
#include "shiplap/plan/plan.h"
#include "shiplap/run/training.h"
#include "shiplap/trace/trace.h"

namespace shiplap::run {

struct TrainingStep {
  std::int64_t number = 0;
  double loss = 0;
  Seconds time;  // of the slowest rank
};

struct TrainingRunOptions {
  TrainingOptions training;  // see training_for()
  std::int64_t steps = 5;
  bool traces = false;  // of the last step
  // If a step fails, every rank writes what it has called to this folder, for `shiplap postmortem`.
  std::string dump_folder;
  std::string plan_file = "plan";  // its name in these dumps
  // Called after each step, on rank 0.
  std::function<void(const TrainingStep&)> on_step;
};

struct TrainingRun {
  std::vector<double> losses;
  std::vector<Seconds> times;  // of the slowest rank
  std::int64_t unequal = 0;    // elements of weights that differ between ranks
  trace::Trace trace;          // of all ranks, on rank 0; empty unless asked for

  [[nodiscard]] bool has_finite_losses() const;
  // And all ranks have the same weights.
  [[nodiscard]] bool good() const { return unequal == 0 && has_finite_losses(); }
};

// Derives the layer sizes from the first weight and the first activation that a computation
// accesses, and a learning rate: Adam moves every weight by about the rate, so a wider layer moves
// further, and the rate is inversely proportional to the width. Throws as expand() does.
[[nodiscard]] TrainingOptions training_for(const plan::Plan& plan, std::uint64_t seed);

// Collective over `world`. REQUIRES: as many ranks as the plan. Throws as Executor does.
[[nodiscard]] TrainingRun run_training(comm::Communicator& world, const plan::Plan& plan,
                                       const TrainingRunOptions& options);

}  // namespace shiplap::run
