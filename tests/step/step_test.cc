// The plans of training steps.
#include "shiplap/step/step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "random_layout.h"
#include "shiplap/base/error.h"
#include "shiplap/check/check.h"
#include "shiplap/plan/text.h"
#include "shiplap/workload/model.h"

namespace shiplap::step {
namespace {

using layout::Layout;
using layout::Sharding;
using testing::Contains;
using workload::Model;

// A number that a build with sanitizers makes smaller.
int number(const char* variable, int complete) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? complete : static_cast<int>(std::strtol(text, nullptr, 10));
}

void expect_sound(const Model& model, const Layout& layout) {
  const std::vector<Diagnostic> wrong = layout::check_layout(layout, model);
  for (const Diagnostic& diagnostic : wrong) {
    ASSERT_NE(diagnostic.severity, Severity::error) << render(diagnostic);
  }
  const std::string text = step_text(model, layout);
  const plan::Plan plan = plan::parse_text(text, "step.plan");
  const check::Report report = check::check(plan, {});
  EXPECT_TRUE(report.sound()) << render(report.findings.front().diagnostic);
  // Also with all communication of a rank in one queue (D726).
  EXPECT_TRUE(report.advice.empty()) << render(report.advice.front());
}

Layout basic() {
  Layout layout;
  layout.global_batch = 8;
  layout.seq_length = 1024;
  return layout;
}

Model model_named(const char* name) { return workload::find_model(name).model; }

TEST(Step, OfOneRank) { expect_sound(model_named("gpt2"), basic()); }

TEST(Step, OfTensorRanks) {
  Layout layout = basic();
  layout.tensor = 4;
  expect_sound(model_named("llama3.2-1b"), layout);
  layout.sequence_parallel = true;
  expect_sound(model_named("llama3.2-1b"), layout);
  expect_sound(model_named("qwen3-8b"), layout);
}

TEST(Step, OfDataRanks) {
  for (const Sharding sharding :
       {Sharding::none, Sharding::optimizer, Sharding::gradients, Sharding::weights}) {
    Layout layout = basic();
    layout.data = 4;
    layout.sharding = sharding;
    SCOPED_TRACE(name(sharding));
    expect_sound(model_named("llama3.2-1b"), layout);
    if (sharding == Sharding::none) continue;
    layout.replicas = 2;
    expect_sound(model_named("llama3.2-1b"), layout);
  }
}

TEST(Step, OfPipelines) {
  Layout layout = basic();
  layout.pipeline = 4;
  expect_sound(model_named("llama3.2-1b"), layout);
  layout.schedule = layout::PipelineSchedule::interleaved;
  layout.chunks = 2;
  expect_sound(model_named("llama3-8b"), layout);
}

TEST(Step, OfPipelinesThatSplitBackwards) {
  Layout layout = basic();
  layout.pipeline = 4;
  layout.schedule = layout::PipelineSchedule::zero_bubble;
  for (const Sharding sharding :
       {Sharding::none, Sharding::optimizer, Sharding::gradients, Sharding::weights}) {
    SCOPED_TRACE(name(sharding));
    layout.data = 2;
    layout.global_batch = 16;
    layout.sharding = sharding;
    layout.schedule = layout::PipelineSchedule::zero_bubble;
    layout.chunks = 1;
    expect_sound(model_named("llama3.2-1b"), layout);
    layout.schedule = layout::PipelineSchedule::dual_pipe_v;
    layout.chunks = 2;
    expect_sound(model_named("llama3.2-1b"), layout);
  }
}

TEST(Step, OfContextRanks) {
  Layout layout = basic();
  layout.context = 2;
  layout.context_method = layout::ContextMethod::all_gather;
  layout.data = 2;
  layout.tensor = 2;
  layout.sequence_parallel = true;
  layout.sharding = Sharding::optimizer;
  expect_sound(model_named("llama3-8b"), layout);
  layout.context_method = layout::ContextMethod::ring;
  expect_sound(model_named("llama3-8b"), layout);
  layout.context = 4;
  layout.global_batch = 2;
  expect_sound(model_named("gpt-oss-20b"), layout);
  layout.context_method = layout::ContextMethod::ulysses;
  expect_sound(model_named("llama3-8b"), layout);
}

TEST(Step, OfExperts) {
  Layout layout = basic();
  layout.expert = 4;
  layout.data = 4;
  expect_sound(model_named("qwen3-30b-a3b"), layout);
  layout.data = 2;
  layout.tensor = 4;
  layout.sequence_parallel = true;
  expect_sound(model_named("qwen3-30b-a3b"), layout);
  layout.expert_tensor = 2;
  expect_sound(model_named("mixtral-8x7b"), layout);
  layout.sharding = Sharding::optimizer;
  layout.pipeline = 3;
  layout.data = 4;
  layout.expert_tensor = 1;
  layout.global_batch = 16;
  expect_sound(model_named("deepseek-v2-lite"), layout);
}

TEST(Step, OfModulesForFurtherTokens) {
  Layout layout = basic();
  layout.expert = 4;
  layout.data = 4;
  expect_sound(model_named("deepseek-v3"), layout);
  layout.pipeline = 2;
  layout.stages = {{.embedding = true, .layers = 31}, {.layers = 30, .mtp = 1, .head = true}};
  layout.schedule = layout::PipelineSchedule::zero_bubble;
  expect_sound(model_named("deepseek-v3"), layout);
}

TEST(Step, DoesNotPlanModulesBeforeTheLastStage) {
  Layout layout = basic();
  layout.pipeline = 2;
  layout.stages = {{.embedding = true, .layers = 61}, {.mtp = 1, .head = true}};
  expect_sound(model_named("deepseek-v3"), layout);
  layout.pipeline = 3;
  layout.stages = {{.embedding = true, .layers = 61}, {.mtp = 1}, {.head = true}};
  EXPECT_THAT([&] { static_cast<void>(step_text(model_named("deepseek-v3"), layout)); },
              testing::Throws<InputError>(testing::Property(
                  &InputError::what, testing::HasSubstr("only planned on the last stage"))));
}

// Of every layout that is legal.
TEST(Step, IsSoundForRandomLayouts) {
  Random random(1);
  const std::vector<Model> models = small_models();
  const int layouts = number("SHIPLAP_STEP_LAYOUTS", 1000);
  for (int k = 0; k < layouts; ++k) {
    const Model& model = models[k % models.size()];
    const Layout layout = random_layout(model, random);
    SCOPED_TRACE(testing::Message() << "layout " << k << " of " << model.name);
    expect_sound(model, layout);
    if (HasFailure()) break;
  }
}

// Every single change of a group, a scale or a reduction is found.
TEST(Step, ChangesOfItsPlansAreFound) {
  Random random(2);
  const std::vector<Model> models = small_models();
  const int changes = number("SHIPLAP_STEP_CHANGES", 20);
  for (const StepMutation& mutation : step_mutations()) {
    SCOPED_TRACE(mutation.name);
    for (int found = 0; found < changes;) {
      const Model& model = random.pick(models);
      const std::string text = step_text(model, random_layout(model, random, 16));
      const std::string changed = mutation.change(text, random);
      const std::optional<plan::Plan> plan = changed_plan(changed);
      if (!plan) continue;
      ++found;
      const check::Report report = check::check(*plan, {});
      ASSERT_FALSE(report.sound()) << changed;
      EXPECT_THAT(mutation.codes, Contains(report.findings.front().diagnostic.code)) << changed;
    }
  }
}

}  // namespace
}  // namespace shiplap::step
