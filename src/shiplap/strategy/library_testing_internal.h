// What the tests of the strategies share: strategies that ran, and machines on which only some
// things cost time.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <string_view>

#include "shiplap/base/error.h"
#include "shiplap/strategy/library.h"

namespace shiplap::strategy::testing {

// Small enough to reckon with: a weight is 512 x 512, a sample 256 tokens, of two bytes each.
inline constexpr workload::ModelShape kPuzzle{.hidden = 512, .block = 256};

struct Machine {
  double flops_per_second = 0;  // of the matrix unit; 0: it takes no time
  double bytes_per_second = 0;  // of the network; 0: it takes no time
};

inline hardware::System machine(const Machine& of) {
  hardware::System system = hardware::free_system();
  if (of.flops_per_second > 0) {
    system.matrix.speeds.fill(hardware::Processor::Speed{.peak = {of.flops_per_second}});
  }
  if (of.bytes_per_second > 0) system.networks.front().bandwidth = {of.bytes_per_second};
  return system;
}

// A strategy as it is asked for, run to its end.
class Ran {
 public:
  Ran(std::string_view name, const Size& size, const hardware::System& system)
      : Ran(find_strategy(name), size, system, Bytes{0}) {}
  Ran(const Entry& entry, const Size& size, const hardware::System& system, Bytes eager)
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
  static World world(const Entry& entry, const Size& size, const hardware::System& system,
                     Bytes eager) {
    World result = world_for(entry, size);
    result.system = system;
    result.eager_up_to = eager;
    return result;
  }
  Trainer trainer_;
};

// What is said about something wrong.
inline Diagnostic complaint(const std::function<void()>& wrong) {
  try {
    wrong();
  } catch (const InputError& error) {
    return error.diagnostics().front();
  }
  ADD_FAILURE() << "nothing was refused";
  return {};
}

}  // namespace shiplap::strategy::testing
