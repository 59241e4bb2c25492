// The kernels of training, in f32: what strategies call load_weights, forward, backward, update ..
// bound to functions that really do it.
//
// A layer is y = tanh(x) W^T, where W is hidden x hidden, a row for each feature of the output. The
// nonlinearity is on the way in, so that backward needs x, dy and W only:
//
//   dx = (dy W) * (1 - tanh(x)^2),   dW = dy^T tanh(x)
//
// A sample is `block` tokens of `hidden` features. Samples are done one by one, in the order in
// which they lie, and each sample's gradient is made on its own and then added, so results do not
// depend on how samples are put into microbatches. docs/run.md says how values lie in memory, and
// which ways to train give the same bits.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "shiplap/comm/communicator.h"
#include "shiplap/run/execute.h"
#include "shiplap/run/kernel_table.h"

namespace shiplap::run {

struct TrainingOptions {
  std::int64_t hidden = 64;
  std::int64_t block = 16;
  std::uint64_t seed = 1;  // of weights, inputs and targets
  double learning_rate = 1e-2;
  // Of Adam (Kingma and Ba, "Adam: a method for stochastic optimization", 2015).
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
};

// One per rank. The bound kernels may be called from several streams at a time.
class TrainingKernels {
 public:
  explicit TrainingKernels(const TrainingOptions& options);
  TrainingKernels(const TrainingKernels&) = delete;
  TrainingKernels& operator=(const TrainingKernels&) = delete;
  ~TrainingKernels();

  // load_weights, read_batch, forward, loss, backward, backward_input, backward_weight, update,
  // zero, add and cast; and what is given: the batch, and before step 0 weights and optimizer
  // states. They throw InputError D641 where regions do not have the size of what they hold. This
  // must live longer than the table.
  void bind(KernelTable& table);

  // The mean over all samples of what `loss` found since the last call: half the squared distance
  // from the target, per number. All ranks together, and all get it; a sample that several have
  // counts once. The same bits however samples are divided.
  [[nodiscard]] double mean_loss(comm::Communicator& world);

 private:
  class State;
  std::unique_ptr<State> state_;
};

// These depend on nothing but their arguments, so all ways to divide training start equal.
// `element` counts as values lie: row * hidden + column, token * hidden + feature.
[[nodiscard]] float initial_weight(const TrainingOptions& options, std::int64_t layer,
                                   std::int64_t element);
[[nodiscard]] float input(const TrainingOptions& options, std::int64_t sample,
                          std::int64_t element);
[[nodiscard]] float target(const TrainingOptions& options, std::int64_t sample,
                           std::int64_t element);

struct GatheredWeights {
  std::map<std::int64_t, std::vector<float>> layers;  // whole, NaN where nobody has it
  std::int64_t unequal = 0;  // numbers of which two ranks hold different copies
};

// The weights that the ranks hold at the end of a step, as the plan says (`goal`, `keep`), put
// together. All ranks together, and all get them.
[[nodiscard]] GatheredWeights gather_weights(comm::Communicator& world, const Executor& executor,
                                             const TrainingOptions& options);

}  // namespace shiplap::run
