// The training kernels that strategies name (load_weights, forward, backward, update, ..), in f32.
//
// A layer is y = tanh(x) W^T, where W is hidden x hidden, a row for each feature of the output. The
// nonlinearity is applied to the input, so that backward needs x, dy and W only:
//
//   dx = (dy W) * (1 - tanh(x)^2),   dW = dy^T tanh(x)
//
// A sample is `block` tokens of `hidden` features. Samples are processed one by one in memory
// order, and each sample's gradient is computed separately and then added, so results do not depend
// on the microbatch size. docs/run.md describes the memory layout and which strategies give the
// same bits.
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

  // Binds load_weights, read_batch, forward, loss, backward, backward_input, backward_weight,
  // update, zero, add and cast, and the provider of given values: the batch, and before step 0
  // weights and optimizer states. They throw InputError D641 on a size mismatch. REQUIRES: this
  // outlives the table.
  void bind(KernelTable& table);

  // Collective. Returns on all ranks the mean over all samples of the loss since the last call:
  // half the squared error, per element. Samples that several ranks hold count once. Bitwise
  // independent of how samples are distributed.
  [[nodiscard]] double mean_loss(comm::Communicator& world);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// Pure functions of their arguments, so all strategies start equal. `element` is the row-major
// index: row * hidden + column, token * hidden + feature.
[[nodiscard]] float initial_weight(const TrainingOptions& options, std::int64_t layer,
                                   std::int64_t element);
[[nodiscard]] float input(const TrainingOptions& options, std::int64_t sample,
                          std::int64_t element);
[[nodiscard]] float target(const TrainingOptions& options, std::int64_t sample,
                           std::int64_t element);

struct GatheredWeights {
  std::map<std::int64_t, std::vector<float>> layers;  // unsharded; NaN where no rank has it
  std::int64_t unequal = 0;                           // elements whose copies differ between ranks
};

// Collective. Returns on all ranks the weights that the ranks hold at the end of a step (`goal`,
// `keep`), unsharded.
[[nodiscard]] GatheredWeights gather_weights(comm::Communicator& world, const Executor& executor,
                                             const TrainingOptions& options);

}  // namespace shiplap::run
