// Shared by the tests of strategies: completed runs, and systems on which only some operations take
// time.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <string_view>

#include "shiplap/base/error.h"
#include "shiplap/strategy/library.h"

namespace shiplap::strategy::testing {

// The puzzles' sizes: a weight is 512 x 512, a sample 256 tokens, of two bytes each.
inline constexpr workload::ModelShape kPuzzle{.hidden = 512, .block = 256};

struct Machine {
  double flops_per_second = 0;  // of the matrix unit; 0: it takes no time
  double bytes_per_second = 0;  // of the network; 0: it takes no time
};

inline hardware::System machine(const Machine& of) {
  hardware::System system = hardware::zero_cost_system();
  if (of.flops_per_second > 0) {
    system.matrix.speeds.fill(hardware::Processor::Speed{.peak = {of.flops_per_second}});
  }
  if (of.bytes_per_second > 0) system.networks.front().bandwidth = {of.bytes_per_second};
  return system;
}

// A strategy that was run to completion.
class StrategyRun {
 public:
  StrategyRun(std::string_view name, const TrainingSize& size, const hardware::System& system)
      : StrategyRun(find_strategy(name), size, system, Bytes{0}) {}
  StrategyRun(const StrategyInfo& entry, const TrainingSize& size, const hardware::System& system,
              Bytes eager)
      : trainer_(world(entry, size, system, eager), training_for(entry, size)) {
    trainer_.run(entry.strategy);
  }

  [[nodiscard]] double time() const { return trainer_.time().value; }
  [[nodiscard]] const Trainer& trainer() const { return trainer_; }
  [[nodiscard]] const Model& model(int rank) const { return *trainer_.models()[rank]; }
  [[nodiscard]] int ranks() const { return static_cast<int>(trainer_.models().size()); }
  [[nodiscard]] Bytes peak(int rank) const {
    Bytes most;
    for (const Event& event : model(rank).log()) most = std::max(most, event.memory);
    return most;
  }
  [[nodiscard]] Bytes peak() const {
    Bytes most;
    for (int rank = 0; rank < ranks(); ++rank) most = std::max(most, peak(rank));
    return most;
  }

 private:
  static World world(const StrategyInfo& entry, const TrainingSize& size,
                     const hardware::System& system, Bytes eager) {
    World result = world_for(entry, size);
    result.system = system;
    result.eager_limit = eager;
    return result;
  }
  Trainer trainer_;
};

// Returns the first diagnostic that `wrong` throws.
inline Diagnostic diagnostic_of(const std::function<void()>& wrong) {
  try {
    wrong();
  } catch (const InputError& error) {
    return error.diagnostics().front();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

}  // namespace shiplap::strategy::testing
