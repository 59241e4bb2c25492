// A plan of training, run: some steps of it with the kernels of training.h, on as many ranks as it
// has.
#pragma once

#include <cstdint>
#include <functional>
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
  // Called after each, on rank 0.
  std::function<void(const TrainingStep&)> on_step;
};

struct TrainingRun {
  std::vector<double> losses;
  std::vector<Seconds> times;  // of the slowest rank
  std::int64_t unequal = 0;    // numbers of weights that two ranks hold differently
  trace::Trace trace;          // of all ranks, on rank 0; empty unless asked for

  // Losses are numbers, and ranks agree on the weights.
  [[nodiscard]] bool good() const;
};

// The sizes of the layers of a plan, from the first weight and the first activation that a
// computation touches, and a learning rate that suits them: Adam moves every weight by about the
// rate, so a wider layer moves further, and the rate falls with the width. Throws as expand() does.
[[nodiscard]] TrainingOptions training_for(const plan::Plan& plan, std::uint64_t seed);

// All ranks of `world` together, which are as many as the plan has. Throws as Executor does.
[[nodiscard]] TrainingRun run_training(comm::Communicator& world, const plan::Plan& plan,
                                       const TrainingRunOptions& options);

}  // namespace shiplap::run
