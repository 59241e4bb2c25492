// Trains with a plan on real ranks, as threads or as processes, and prints the result.
//
//   run_plan_ranks FILE.plan [--steps K] [--hidden H] [--seq-length B]
//
// As many threads as the plan has ranks, unless an MPI launcher started it. Prints the loss of each
// step and a checksum of the weights, so that two ways to run a plan can be compared bit by bit.
#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>

#include "shiplap/comm/ranks.h"
#include "shiplap/plan/text.h"
#include "shiplap/run/execute.h"
#include "shiplap/run/training.h"

namespace {

namespace comm = shiplap::comm;
namespace run = shiplap::run;

struct Options {
  std::string file;
  long steps = 5;
  run::TrainingOptions training;
};

Options options_of(int count, char** words) {
  Options options{.file = count > 1 ? words[1] : ""};
  for (int k = 2; k + 1 < count; k += 2) {
    const std::string_view flag(words[k]);
    const long number = std::strtol(words[k + 1], nullptr, 10);
    if (flag == "--steps") options.steps = number;
    if (flag == "--hidden") options.training.hidden = number;
    if (flag == "--seq-length") options.training.block = number;
  }
  return options;
}

std::string text_of(const std::string& file) {
  std::ifstream from(file);
  std::stringstream text;
  text << from.rdbuf();
  return text.str();
}

std::uint64_t checksum(const run::GatheredWeights& weights) {
  std::uint64_t sum = 0xcbf29ce484222325;
  for (const auto& [layer, numbers] : weights.layers) {
    for (const float number : numbers) {
      sum = (sum ^ std::bit_cast<std::uint32_t>(number)) * 0x100000001b3;
    }
  }
  return sum;
}

void train(const Options& options, const shiplap::plan::Plan& plan, comm::Communicator& world) {
  run::TrainingKernels kernels(options.training);
  run::KernelTable table;
  kernels.bind(table);
  run::Executor executor(plan, world, table, {.traces = true});
  for (long step = 0; step < options.steps; ++step) {
    const run::StepResult result = executor.step();
    const double loss = kernels.mean_loss(world);
    const shiplap::trace::Trace trace = run::gather_trace(world, plan, result);
    if (world.rank() != 0) continue;
    std::size_t events = 0;
    for (const shiplap::trace::RankTrace& rank : trace.ranks) events += rank.events.size();
    std::printf("step %ld: loss %.17g, %zu events\n", step, loss, events);
  }
  const run::GatheredWeights weights = run::gather_weights(world, executor, options.training);
  if (world.rank() != 0) return;
  std::printf("weights of %zu layers: %016llx, %lld copies differ\n", weights.layers.size(),
              static_cast<unsigned long long>(checksum(weights)),
              static_cast<long long>(weights.unequal));
}

}  // namespace

int main(int count, char** words) {
  try {
    const Options options = options_of(count, words);
    const shiplap::plan::Plan plan = shiplap::plan::parse_plan(text_of(options.file), options.file);
    comm::run_ranks({.threads = static_cast<int>(plan.mesh.ranks()), .timeout = {60}},
                    [&](comm::Communicator& world) { train(options, plan, world); });
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
