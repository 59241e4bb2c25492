// Every strategy on real ranks: after five steps the weights are those of one rank alone.
//
//   strategies_ranks --ranks 4          on threads
//   tools/ranks -n 4 strategies_ranks   on processes
#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "shiplap/base/error.h"
#include "shiplap/comm/ranks.h"
#include "shiplap/run/execute.h"
#include "shiplap/run/training.h"
#include "shiplap/strategy/library.h"
#include "shiplap/strategy/to_plan.h"

namespace shiplap {
namespace {

constexpr int kSteps = 5;
constexpr int kLayers = 16;
// Sums of gradients in another order differ in the last bits, and five steps of Adam carry that on.
constexpr double kTolerance = 2e-5;

struct Trained {
  run::GatheredWeights weights;
  std::vector<double> losses;
};

// A strategy, and its stage of ZeRO.
struct Case {
  std::string strategy;
  int zero_stage = 0;
};

// ZeRO shards along dp, so it has two replicas of layers split in two.
std::vector<plan::Axis> mesh_of(const Case& c, int ranks) {
  if (c.zero_stage == 0 || ranks < 4) return {};
  return {{.name = "dp", .size = 2}, {.name = "pp", .size = ranks / 4}, {.name = "tp", .size = 2}};
}

plan::Plan plan_of(const Case& c, int ranks, const run::TrainingOptions& options) {
  const strategy::StrategyInfo& entry = strategy::find_strategy(c.strategy);
  const strategy::TrainingSize size{
      .ranks = ranks,
      .layers = kLayers,
      .batch = 16,
      .microbatches = 0,
      .chunks = 0,
      .zero_stage = c.zero_stage,
      .mesh = mesh_of(c, ranks),
      .shape = {.hidden = options.hidden, .block = options.block, .datatype = DType::f32}};
  strategy::Training training = strategy::training_for(entry, size);
  strategy::Trainer trainer(strategy::world_for(entry, size), training);
  trainer.run(entry.strategy);
  return strategy::to_plan(trainer);
}

Trained train(comm::Communicator& world, const plan::Plan& plan,
              const run::TrainingOptions& options) {
  run::TrainingKernels kernels(options);
  run::KernelTable table;
  kernels.bind(table);
  run::Executor executor(plan, world, table, {.poison = true});
  Trained trained;
  for (int step = 0; step < kSteps; ++step) {
    executor.step();
    trained.losses.push_back(kernels.mean_loss(world));
  }
  trained.weights = run::gather_weights(world, executor, options);
  return trained;
}

// The largest difference, relative to the largest weight.
double difference(const run::GatheredWeights& a, const run::GatheredWeights& b) {
  double most = 0;
  double largest = 0;
  for (const auto& [layer, numbers] : a.layers) {
    const std::vector<float>& others = b.layers.at(layer);
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      const double apart = std::abs(double{numbers[i]} - double{others.at(i)});
      most = std::isnan(apart) ? INFINITY : std::max(most, apart);
      largest = std::max(largest, std::abs(double{numbers[i]}));
    }
  }
  return most / largest;
}

std::vector<Case> cases(int ranks) {
  std::vector<Case> all;
  for (const strategy::StrategyInfo& entry : strategy::strategies()) {
    if (entry.axes.empty() != (ranks == 1)) continue;
    for (int stage = 0; stage <= (entry.zero_stages ? 3 : 0); ++stage) {
      all.push_back({.strategy = entry.name, .zero_stage = stage});
    }
  }
  return all;
}

int check_all(comm::Communicator& world, const Trained& alone,
              const run::TrainingOptions& options) {
  int wrong = 0;
  for (const Case& c : cases(world.size())) {
    const std::vector<std::string>& axes = strategy::find_strategy(c.strategy).axes;
    const plan::Plan plan = plan_of(c, world.size(), options);
    const Trained trained = train(world, plan, options);
    const double apart = difference(alone.weights, trained.weights);
    const bool layers = trained.weights.layers.size() == kLayers;
    // A pipeline whose microbatches are single samples adds them up as one rank does.
    const bool exact = axes == std::vector<std::string>{"pp"};
    const bool good = layers && trained.weights.unequal == 0 && apart <= (exact ? 0 : kTolerance);
    if (!good) ++wrong;
    if (world.rank() == 0) {
      const std::string name =
          c.zero_stage == 0 ? c.strategy : fmt::format("{} zero {}", c.strategy, c.zero_stage);
      fmt::print("{} {:<22} {}, loss {:.6f} to {:.6f}\n", good ? "pass" : "FAIL", name,
                 apart == 0 ? "the same bits" : fmt::format("apart {:.1e}", apart),
                 trained.losses.front(), trained.losses.back());
    }
  }
  return wrong;
}

int main_of(int ranks) {
  const run::TrainingOptions options{.hidden = 32, .block = 8};
  const plan::Plan single = plan_of({.strategy = "single"}, 1, options);
  int wrong = 0;
  std::mutex mutex;
  comm::run_ranks({.threads = ranks, .timeout = {60}}, [&](comm::Communicator& world) {
    // Single-rank training, on every rank: the reference.
    const auto self = world.split(world.rank(), 0, "alone");
    const Trained alone = train(*self, single, options);
    const bool falls = alone.losses.back() < alone.losses.front();
    const int found = check_all(world, alone, options) + (falls ? 0 : 1);
    const std::lock_guard lock(mutex);
    wrong += found;
  });
  return wrong == 0 ? 0 : 1;
}

}  // namespace
}  // namespace shiplap

int main(int argc, char** argv) {
  int ranks = 1;
  for (int i = 1; i + 1 < argc; ++i) {
    if (std::string_view(argv[i]) == "--ranks")
      ranks = static_cast<int>(std::strtol(argv[i + 1], nullptr, 10));
  }
  try {
    return shiplap::main_of(ranks);
  } catch (const shiplap::InputError& error) {
    fmt::print(stderr, "{}", shiplap::render(error.diagnostics()));
  } catch (const shiplap::comm::Failure& failure) {
    fmt::print(stderr, "{}", shiplap::render(failure.diagnostic()));
  }
  return 1;
}
