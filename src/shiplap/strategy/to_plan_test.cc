#include "shiplap/strategy/to_plan.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "shiplap/base/error.h"
#include "shiplap/plan/expand.h"
#include "shiplap/plan/text.h"
#include "shiplap/strategy/library.h"
#include "shiplap/strategy/rank_program_internal.h"

namespace shiplap::strategy {
namespace {

Diagnostic thrown_diagnostic(const std::function<void()>& act) {
  try {
    act();
  } catch (const InputError& error) {
    return error.diagnostics().front();
  }
  ADD_FAILURE() << "was accepted";
  return {};
}

// Up to the gradient of the only layer.
void to_gradient(Model& model) {
  auto& [weights, opt_states, activations, grad_activations, grad_weights] = model.storage();
  std::tie(weights[0], opt_states[0]) = model.load_weights(0);
  activations[0] = model.get_input_activation(model.samples(model.rank(), model.ranks()));
  activations[1] = model.forward(0, activations[0], weights[0]);
  grad_activations[1] = model.loss(activations[1]);
  std::tie(grad_weights[0], grad_activations[0]) =
      model.backward(0, activations[0], grad_activations[1], weights[0]);
}

Task elsewhere(Model& model) {
  to_gradient(model);
  auto& [weights, opt_states, activations, grad_activations, grad_weights] = model.storage();
  std::tie(weights[1], opt_states[1]) = model.update(0, grad_weights[0], weights[0], opt_states[0]);
  model.set_final_weight(0, weights[1]);
  co_return;
}

Task dropped(Model& model) {
  to_gradient(model);
  auto& [weights, opt_states, activations, grad_activations, grad_weights] = model.storage();
  std::tie(weights[0], opt_states[0]) = model.update(0, grad_weights[0], weights[0], opt_states[0]);
  model.set_final_weight(0, weights[0]);
  opt_states.erase(0);
  co_return;
}

// A sum that is stored in addition to both terms, and a copy of a weight.
Task copies(Model& model) {
  to_gradient(model);
  auto& [weights, opt_states, activations, grad_activations, grad_weights] = model.storage();
  weights[7] = weights[0];
  weights.erase(7);
  std::tie(weights[0], opt_states[0]) = model.update(0, grad_weights[0], weights[0], opt_states[0]);
  model.set_final_weight(0, weights[0]);
  co_return;
}

TEST(ToPlan, RefusesAStepThatCannotBeRepeated) {
  for (const auto& [strategy, what] : std::vector<std::pair<Strategy, std::string>>{
           {elsewhere, "it is never updated"}, {dropped, "it is dropped"}}) {
    Trainer trainer(World{}, {.layers = 1, .batch = 1});
    trainer.run(strategy);
    const Diagnostic found = thrown_diagnostic([&] { (void)to_plan(trainer); });
    EXPECT_EQ(found.code, "D625");
    EXPECT_EQ(found.where.rank, 0);
    EXPECT_NE(found.what.find(what), std::string::npos) << found.what;
  }
}

// A whole weight, and beside it the shard that the rank updates, of ZeRO 1. Up to its update.
Task zero1_updated(Model& model) {
  auto& [weights, opt_states, activations, grad_activations, grad_weights] = model.storage();
  weights[0] = model.load_weights(0).first;
  std::tie(weights[1], opt_states[0]) = model.load_weights(0, model.rank(), model.ranks());
  activations[0] = model.get_input_activation(model.samples(model.rank(), model.ranks()));
  activations[1] = model.forward(0, activations[0], weights[0]);
  grad_activations[1] = model.loss(activations[1]);
  std::tie(grad_weights[0], grad_activations[0]) =
      model.backward(0, activations[0], grad_activations[1], weights[0]);
  grad_weights[0] = co_await model.all_reduce(grad_weights[0], 0);
  std::tie(weights[1], opt_states[0]) = model.update(0, grad_weights[0], weights[1], opt_states[0]);
}

// `between` runs while the updated shards are gathered.
template <class Between>
Task zero1_beside(Model& model, Between between) {
  co_await zero1_updated(model);
  ValueMap<Weight>& weights = model.storage().weights;
  auto gathered = model.start_all_gather(weights[1], 0);
  between(model);
  weights[0] = co_await gathered;
  model.set_final_weight(0, weights[0]);
}
Task zero1_unused(Model& model) {
  return zero1_beside(model, [](Model&) {});
}
Task zero1_used(Model& model) {
  return zero1_beside(model, [](Model& m) { m.storage().weights[2] = m.storage().weights[0]; });
}

// The old weight is still sent when the gather of the new one begins.
Task zero1_sent(Model& model) {
  co_await zero1_updated(model);
  ValueMap<Weight>& weights = model.storage().weights;
  const int last = model.ranks() - 1;
  Pending<Weight> received = model.start_receive<Weight>((model.rank() + last) % model.ranks());
  Pending<Weight> sent = model.start_send((model.rank() + 1) % model.ranks(), weights[0]);
  auto gathered = model.start_all_gather(weights[1], 0);
  co_await sent;
  weights[2] = co_await received;
  weights[0] = co_await gathered;
  model.set_final_weight(0, weights[0]);
}

// The whole weight and the shard; the state of the optimizer that is not stored is not loaded.
TEST(ToPlan, GathersAWeightInPlaceOfTheLoadedOne) {
  const World world{.mesh = {{.name = "dp", .size = 4}}};
  Trainer trainer(world, {.layers = 1, .batch = 4});
  trainer.run(zero1_unused);
  const std::string text = plan::to_text(to_plan(trainer));
  EXPECT_NE(text.find("buffer w rows 5 "), std::string::npos) << text;
  EXPECT_NE(text.find("buffer o rows 1 "), std::string::npos) << text;
}

TEST(ToPlan, DoesNotGatherInPlaceOfAWeightThatIsUsedMeanwhile) {
  for (const Strategy strategy : {zero1_used, zero1_sent}) {
    const World world{.mesh = {{.name = "dp", .size = 4}}};
    Trainer trainer(world, {.layers = 1, .batch = 4});
    trainer.run(strategy);
    const Diagnostic found = thrown_diagnostic([&] { (void)to_plan(trainer); });
    EXPECT_EQ(found.code, "D625");
    EXPECT_NE(found.what.find("it is dropped"), std::string::npos) << found.what;
  }
}

TEST(ToPlan, WritesACopyAsACast) {
  Trainer trainer(World{}, {.layers = 1, .batch = 1});
  trainer.run(copies);
  const std::string text = plan::to_text(to_plan(trainer));
  EXPECT_NE(text.find("compute cast work 0 seconds\n    reads  w[0 +1] = W[0]\n    writes w[1 +1]"),
            std::string::npos)
      << text;
}

// What is left at the end: the activations, their gradients and that of the weight; what was
// erased is not freed again, and the weights stay.
TEST(ToPlan, FreesAtTheEndWhatIsStillStored) {
  Trainer trainer(World{}, {.layers = 1, .batch = 1});
  trainer.run(copies);
  const std::string text = plan::to_text(to_plan(trainer));
  const std::size_t update = text.find("compute update");
  ASSERT_NE(update, std::string::npos);
  EXPECT_NE(text.find("  free w[1 +1]\n"), std::string::npos) << text;
  EXPECT_LT(text.find("  free w[1 +1]\n"), update) << text;
  EXPECT_EQ(text.substr(text.find("  free ", update)),
            "  free a[0 +1]\n  free a[1 +1]\n  free d[0 +1]\n  free g[0 +1]\n  free d[1 +1]\n")
      << text;
}

TEST(ToPlan, RefusesShardsThatDoNotFit) {
  World world{.mesh = {{.name = "dp", .size = 3}}};
  world.shape.hidden = 4;
  Trainer trainer(world, {.layers = 1, .batch = 3});
  trainer.run(fsdp);
  EXPECT_EQ(thrown_diagnostic([&] { (void)to_plan(trainer); }).code, "D622");
}

TEST(ToPlan, TheShardsOfAWeightAreExpressionsOfThePosition) {
  Trainer trainer(World{.mesh = {{.name = "dp", .size = 4}}}, {.layers = 1, .batch = 4});
  trainer.run(fsdp);
  const plan::Plan plan = to_plan(trainer);
  ASSERT_EQ(plan.programs.size(), 1U);
  EXPECT_NE(plan::to_text(plan).find("= W[0] shard dp +1"), std::string::npos);
}

TEST(ToPlan, ShardsAlongTwoAxesHaveADimensionForEach) {
  Trainer trainer(World{.mesh = {{.name = "dp", .size = 4}, {.name = "tp", .size = 2}}},
                  {.layers = 2, .batch = 4});
  trainer.run(tensor_parallel_fsdp);
  const plan::Plan plan = to_plan(trainer);
  ASSERT_EQ(plan.programs.size(), 1U);
  const std::string text = plan::to_text(plan);
  EXPECT_NE(text.find("tensor W0[2] Weight f1 2 shard 4"), std::string::npos) << text;
  EXPECT_NE(text.find("= W0[0] f1 tp +1 shard dp +1"), std::string::npos) << text;
  // What is computed with is whole along dp; activations are split along tp alone.
  EXPECT_NE(text.find("= W0[0] f1 tp +1\n"), std::string::npos) << text;
  EXPECT_NE(text.find("tensor A1[3] Activation f1 2 sample 4"), std::string::npos) << text;
}

TEST(Tensors, HaveWholeShardsOfTensorParallelismOrPartsOfOne) {
  const Tensors tensors({.layers = 2, .batch = 4}, {.weight = 8, .sample = 2});
  const auto shards_of = [&](std::int64_t begin, std::int64_t count) {
    std::vector<std::int64_t> all;
    const Weight weight{.layers = 2, .shards = IndexSet::range(begin, count), .num_shards = 8};
    for (const auto& run : tensors.value(weight).runs) {
      all.insert(all.end(), {static_cast<std::int64_t>(run.dimension.index()), run.begin.literal(),
                             run.count.literal()});
    }
    return all;
  };
  using Runs = std::vector<std::int64_t>;  // of each: dimension, begin, count
  EXPECT_EQ(shards_of(0, 8), Runs{});
  EXPECT_EQ(shards_of(4, 4), (Runs{0, 1, 1}));
  EXPECT_EQ(shards_of(5, 1), (Runs{0, 1, 1, 1, 1, 1}));
  EXPECT_EQ(shards_of(2, 2), (Runs{0, 0, 1, 1, 2, 2}));
  const Diagnostic found = thrown_diagnostic([&] { (void)shards_of(3, 2); });
  EXPECT_EQ(found.code, "D625");
  EXPECT_EQ(found.what, "shards 3, 4 of 8 belong to several tensor-parallel ranks");
}

TEST(ToPlan, NeighboursInAPipelineAreNamedByTheAxis) {
  Trainer trainer(World{.mesh = {{.name = "pp", .size = 4}}},
                  {.layers = 4, .batch = 4, .microbatches = 4});
  trainer.run(one_f_one_b);
  const std::string text = plan::to_text(to_plan(trainer));
  EXPECT_NE(text.find(" to pp+1 "), std::string::npos);
  EXPECT_NE(text.find(" from pp-1"), std::string::npos);
  EXPECT_EQ(text.find("rank 1"), std::string::npos);
}

}  // namespace
}  // namespace shiplap::strategy
