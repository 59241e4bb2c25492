// Strategies that train a known model: its layers have parts of their own sizes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "cases.h"
#include "shiplap/check/check.h"
#include "shiplap/cost/cost_model.h"
#include "shiplap/hardware/system.h"
#include "shiplap/plan/expand.h"
#include "shiplap/strategy/to_plan.h"
#include "shiplap/trace/summary.h"
#include "shiplap/workload/model.h"
#include "shiplap/workload/shape.h"

namespace shiplap::strategy {
namespace {

using workload::Model;
using workload::Tokens;

constexpr std::int64_t kTokens = 1024;

Case training_of(const Model& model, const std::string& strategy, int ranks, int samples) {
  TrainingSize size{.ranks = ranks,
                    .layers = static_cast<int>(model.layers.size()),
                    .batch = ranks * samples,
                    .shape = workload::shape_of(model, kTokens)};
  return {.strategy = strategy, .size = size};
}

TEST(ModelLayers, MakeSoundPlansInAllStrategies) {
  const hardware::System system = hardware::find_system("h100_80g_nvl8");
  for (const char* name : {"gpt2", "mixtral-8x7b", "deepseek-v2-lite"}) {
    const Model model = workload::find_model(name).model;
    for (const StrategyInfo& entry : strategies()) {
      const int ranks = entry.axes.empty() ? 1 : 2;
      if (entry.split != WorkSplit::none && model.layers.size() % 4 != 0) continue;
      for (const int samples : {1, 2}) {
        const Case c = training_of(model, entry.name, ranks, samples);
        SCOPED_TRACE(testing::Message() << name << ", " << c);
        const check::Report report = check::check(to_plan(*trained(c, system)), {});
        EXPECT_TRUE(report.sound()) << render(report.findings.front().diagnostic);
      }
    }
  }
}

// Of one rank alone: all products of a forward and a backward pass, and the update. Kernels of one
// rank run one after the other.
TEST(ModelLayers, HaveTheWorkAndTheTimeOfTheirParts) {
  const hardware::System system = hardware::find_system("h100_80g_nvl8");
  const Model model = workload::find_model("llama3.2-1b").model;
  const auto trainer = trained(training_of(model, "single", 1, 2), system);
  const plan::Plan plan = to_plan(*trainer);
  const plan::RankProgram program = plan::expand(plan, Rank(0));
  double flop = 0;
  double seconds = 0;
  std::int64_t parts = 0;
  for (const plan::flat::Operation& operation : program.operations) {
    const auto& work = operation.source->work;
    if (!work || work->kernel_class == "load") continue;
    flop += operation.work.flop;
    parts += operation.source->label.empty() ? 0 : 1;
    seconds += cost::compute_time(system, {.kernel_class = work->kernel_class,
                                           .flop = operation.work.flop,
                                           .bytes = operation.work.bytes,
                                           .type = DType::bf16})
                   .value;
  }
  const double passes = 3 * model.forward_flop(Tokens{.sequences = 2, .length = kTokens});
  const double update = 11.0 * static_cast<double>(model.parameters());
  EXPECT_NEAR(flop / (passes + update), 1, 2e-3);  // elementwise work has FLOPs too
  EXPECT_GT(parts, 16 * 2 * 8);
  EXPECT_NEAR(trace::summarize(trainer->trace()).step_time().value / seconds, 1, 1e-9);
}

// Weights and states of the optimizer, at 2 and 12 bytes for each parameter.
TEST(ModelLayers, TakeTheMemoryOfTheirParameters) {
  const Model model = workload::find_model("mixtral-8x7b").model;
  const workload::ModelShape shape = workload::shape_of(model, kTokens);
  std::int64_t bytes = 0;
  for (std::size_t k = 0; k < shape.layers.size(); ++k) {
    bytes += shape.weight(k).count + shape.opt_state(k).count;
  }
  EXPECT_EQ(bytes, 14 * model.parameters());

  const hardware::System system = hardware::find_system("h100_80g_nvl8");
  const auto trainer = trained(training_of(model, "fsdp", 4, 1), system);
  const plan::Plan plan = to_plan(*trainer);
  const plan::RankProgram program = plan::expand(plan, Rank(3));
  const auto& declared = plan.programs[program.program.index()].buffers;
  std::int64_t held = 0;
  for (std::size_t b = 0; b < declared.size(); ++b) {
    const plan::flat::Buffer& buffer = program.buffers[plan::BufferId(b)];
    if (declared[b].name.starts_with('o')) held += buffer.rows * buffer.row_bytes;
  }
  EXPECT_NEAR(static_cast<double>(held) / (12.0 / 4 * static_cast<double>(model.parameters())), 1,
              1e-6);
}

}  // namespace
}  // namespace shiplap::strategy
