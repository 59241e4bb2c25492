#include "shiplap/layout/framework.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "shiplap/base/error.h"
#include "shiplap/base/random.h"

namespace shiplap::layout {
namespace {

using workload::Model;

const Model& model_named(const std::string& name) {
  static std::map<std::string, Model> models;
  if (!models.contains(name)) models.emplace(name, workload::find_model(name).model);
  return models.at(name);
}

template <class T>
T one_of(Random& random, std::initializer_list<T> values) {
  return random.pick(std::vector<T>(values));
}

// Layers cut at random places, of which some stages have none.
std::vector<Stage> random_stages(Random& random, std::int64_t count, const Model& model) {
  std::vector<Stage> stages(static_cast<std::size_t>(count));
  for (std::size_t k = 0; k < model.layers.size(); ++k) {
    ++stages[static_cast<std::size_t>(random.between(0, count))].layers;
  }
  stages.front().embedding = true;
  stages.back().head = true;
  if (!model.mtp.empty()) stages.back().mtp = random.between(0, std::ssize(model.mtp) + 1);
  return stages;
}

// What each framework can say of the pipeline, precision and the optimizer; the rest is common to
// them. data = 0 is no layout: another one is tried.
void choose_for_megatron(Random& random, const Model& model, Layout& l) {
  l.context_method =
      one_of(random, {ContextMethod::ring, ContextMethod::all_gather, ContextMethod::ulysses});
  l.pipeline = one_of<std::int64_t>(random, {1, 2, 4, 8});
  l.chunks = l.pipeline > 1 ? one_of<std::int64_t>(random, {1, 1, 2, 4}) : 1;
  if (l.chunks > 1) l.schedule = PipelineSchedule::interleaved;
  if (l.pipeline > 1 && l.chunks == 1 && random.chance()) {
    l.schedule = PipelineSchedule::zero_bubble;
  }
  if (random.chance()) l.stages = random_stages(random, l.pipeline * l.chunks, model);
  l.expert_tensor = one_of<std::int64_t>(random, {1, l.tensor});
  l.pipeline_fastest = random.chance();
  l.loss = one_of(random, {LossMean::sequences, LossMean::tokens});
  l.recompute = one_of(random, {Recompute::none, Recompute::selective, Recompute::full});
  l.optimizer = one_of(random, {Optimizer::adam, Optimizer::sgd, Optimizer::muon});
  Precision& p = l.precision;
  p.weights = one_of(random, {DType::f32, DType::bf16, DType::f16});
  p.gradients = one_of(random, {DType::f32, p.weights});
  if (p.weights != DType::f32 && random.chance()) p.master = DType::f16;
  p.moments = one_of(random, {DType::f32, DType::bf16, DType::f16, DType::fp8_e4m3});
  p.fp8 = one_of(random, {Fp8::none, Fp8::delayed, Fp8::current, Fp8::block, Fp8::mx});
}

void choose_for_torchtitan(Random& random, const Model& model, Layout& l) {
  l.context_method = one_of(random, {ContextMethod::ring, ContextMethod::all_gather});
  l.pipeline = one_of<std::int64_t>(random, {1, 2, 4, 8});
  if (l.pipeline > 1) {
    l.schedule = one_of(random, {PipelineSchedule::gpipe, PipelineSchedule::one_f_one_b,
                                 PipelineSchedule::interleaved, PipelineSchedule::dual_pipe_v});
    if (l.schedule == PipelineSchedule::interleaved) l.chunks = random.between(2, 5);
    if (l.schedule == PipelineSchedule::dual_pipe_v) l.chunks = 2;
  }
  if (random.chance() || !model.mtp.empty()) {
    l.stages = random_stages(random, l.pipeline * l.chunks, model);
    l.stages.back().mtp = 0;
  }
  const bool shards = l.sharding == Sharding::gradients || l.sharding == Sharding::weights;
  l.sharding = shards ? l.sharding : Sharding::none;
  l.replicas = shards ? l.replicas : 1;
  if ((l.data / l.replicas * l.context > 1) != shards) l.data = 0;  // no words
  l.expert_tensor = one_of<std::int64_t>(random, {1, l.tensor});
  l.loss = LossMean::tokens;
  l.recompute = one_of(random, {Recompute::none, Recompute::selective, Recompute::full});
  l.optimizer = one_of(random, {Optimizer::adam, Optimizer::sgd, Optimizer::muon});
  Precision& p = l.precision;
  p.weights = one_of(random, {DType::f32, DType::bf16});
  p.master = p.weights == DType::f32 ? DType::f32 : one_of(random, {DType::f32, DType::bf16});
  p.moments = p.master;
  p.fp8 = one_of(random, {Fp8::none, Fp8::current, Fp8::mx});
}

void choose_without_experts(const Model& model, Layout& l) {
  l.expert = 1;
  l.sequence_parallel = false;
  l.seq_length = 4096;
  if (model.mtp.empty()) return;
  l.stages = stages_of(l, model);
  l.stages.back().mtp = 0;
}

void choose_for_deepspeed(Random& random, const Model& model, Layout& l) {
  choose_without_experts(model, l);
  if (l.context > 1) l.context_method = ContextMethod::ulysses;
  l.optimizer = one_of(random, {Optimizer::adam, Optimizer::sgd, Optimizer::muon});
  Precision& p = l.precision;
  p.weights = one_of(random, {DType::f32, DType::bf16, DType::f16});
  p.gradients = one_of(random, {DType::f32, DType::bf16, DType::f16});
  if (random.chance(0.3)) {
    p.master = p.weights;
    p.gradients = p.weights;
    if (p.weights == DType::bf16) p.moments = one_of(random, {DType::f32, DType::bf16});
  }
}

void choose_for_accelerate(Random& random, const Model& model, Layout& l) {
  choose_without_experts(model, l);
  l.context_method =
      one_of(random, {ContextMethod::ring, ContextMethod::all_gather, ContextMethod::ulysses});
  if (l.context_method == ContextMethod::ulysses) {
    if (l.context == 1) l.context = 2;
    l.seq_length = 1024 * random.between(1, 9);
  }
  const bool shards = l.sharding == Sharding::gradients || l.sharding == Sharding::weights;
  if (!shards) l.replicas = 1;
  if (shards && l.data / l.replicas * l.context == 1) l.data = 0;  // no words
  l.micro_batch = 1;
  l.recompute = shards ? one_of(random, {Recompute::none, Recompute::full}) : Recompute::none;
  Precision& p = l.precision;
  p.weights = one_of(random, {DType::f32, DType::bf16, DType::f16});
  p.gradients = l.sharding == Sharding::none ? DType::f32 : p.weights;
  if (p.weights == DType::bf16) {
    p.fp8 = one_of(random, {Fp8::none, Fp8::current, Fp8::delayed});
  }
}

Layout random_legal_layout(Random& random, Framework framework, const Model& model) {
  while (true) {
    Layout l{.tensor = one_of<std::int64_t>(random, {1, 2, 4, 8}),
             .context = one_of<std::int64_t>(random, {1, 1, 2, 4}),
             .data = one_of<std::int64_t>(random, {1, 2, 4, 6, 16}),
             .sharding = one_of(random, {Sharding::none, Sharding::optimizer, Sharding::gradients,
                                         Sharding::weights}),
             .expert = one_of<std::int64_t>(random, {1, 1, 2, 4, 8}),
             .micro_batch = random.between(1, 5),
             .seq_length = 1024 * random.between(1, 9)};
    l.sequence_parallel = l.tensor > 1 && random.chance(0.75);
    if (l.sharding != Sharding::none) l.replicas = one_of<std::int64_t>(random, {1, 1, 2});
    switch (framework) {
      case Framework::megatron:
        choose_for_megatron(random, model, l);
        break;
      case Framework::torchtitan:
        choose_for_torchtitan(random, model, l);
        break;
      case Framework::deepspeed:
        choose_for_deepspeed(random, model, l);
        break;
      case Framework::accelerate:
        choose_for_accelerate(random, model, l);
        break;
    }
    l.global_batch = l.micro_batch * l.data * l.pipeline * random.between(1, 6);
    const auto found = check_layout(l, model);
    if (std::ranges::none_of(found, [](const Diagnostic& d) { return d.code == "D606"; })) return l;
  }
}

class EachFramework : public testing::TestWithParam<Framework> {};

TEST_P(EachFramework, ReadsWhatItWrites) {
  Random random(32);
  for (int k = 0; k < 1000; ++k) {
    const Model& model = model_named(
        one_of<std::string>(random, {"llama3-8b", "mixtral-8x7b", "deepseek-v3", "gpt2"}));
    const Layout layout = random_legal_layout(random, GetParam(), model);
    const std::string text = write_layout(GetParam(), layout, model);
    try {
      EXPECT_EQ(read_layout(GetParam(), text, model).layout, layout) << text;
    } catch (const InputError& error) {
      ADD_FAILURE() << text << "\n" << error.what();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Frameworks, EachFramework,
                         testing::Values(Framework::megatron, Framework::torchtitan,
                                         Framework::deepspeed, Framework::accelerate),
                         [](const auto& test) { return std::string(name(test.param)); });

TEST(Frameworks, HaveNames) {
  for (const Framework f :
       {Framework::megatron, Framework::torchtitan, Framework::deepspeed, Framework::accelerate}) {
    EXPECT_EQ(framework_named(name(f)), f);
  }
  EXPECT_FALSE(framework_named("megatro"));
}

}  // namespace
}  // namespace shiplap::layout
