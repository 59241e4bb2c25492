// 3D parallelism: a 1F1B pipeline along `pp`, tensor-parallel layers along `tp`, and data-parallel
// replicas along `dp`. Stages of ZeRO shard the `tp` shard of each weight further, along `dp`:
//
//   stage   0                1                    2                  3
//   sharded nothing          optimizer states     + gradients        + weights
//   gather  -                once a step          once a step        for each use
//   reduce  once a step      once a step, and     each microbatch    each microbatch
//                            scatter
#include "shiplap/strategy/library.h"
#include "shiplap/strategy/library/pipeline_internal.h"

namespace shiplap::strategy {
namespace {

constexpr int kShardedGradients = 2;
constexpr int kShardedWeights = 3;

// Where the weight to compute with is stored.
Key used_weight(const Model& model, int layer) {
  return model.zero_stage() >= kShardedWeights ? Key(layer, 1) : Key(layer);
}

Task gather_for_use(Model& model, int layer) {
  if (model.zero_stage() < kShardedWeights) co_return;
  ValueMap<Weight>& weights = model.storage().weights;
  weights[{layer, 1}] = co_await model.all_gather(weights[layer], layer, {.axes = "dp"});
}

void drop_after_use(Model& model, int layer) {
  if (model.zero_stage() >= kShardedWeights) model.storage().weights.erase({layer, 1});
}

Task forward_split(Model& model, LayerMicrobatch item) {
  auto& [weights, opt_states, activations, grad_activations, grad_weights] = model.storage();
  const auto [l, m] = item;
  co_await gather_for_use(model, l);
  activations[{l + 1, m}] = model.forward(l, activations[{l, m}], weights[used_weight(model, l)]);
  drop_after_use(model, l);
  activations[{l + 1, m}] =
      co_await model.all_gather(activations[{l + 1, m}], l + 1, {.axes = "tp"});
}

Task backward_split(Model& model, LayerMicrobatch item) {
  auto& [weights, opt_states, activations, grad_activations, grad_weights] = model.storage();
  const auto [l, m] = item;
  const Key fresh = fresh_gradient(model, l);
  co_await gather_for_use(model, l);
  std::tie(grad_weights[fresh], grad_activations[{l, m}]) = model.backward(
      l, activations[{l, m}], grad_activations[{l + 1, m}], weights[used_weight(model, l)]);
  drop_after_use(model, l);
  grad_activations.erase({l + 1, m});
  activations.erase({l, m});
  if (model.zero_stage() >= kShardedGradients) {
    grad_weights[fresh] = co_await model.reduce_scatter(grad_weights[fresh], l, {.axes = "dp"});
  }
  add_fresh_gradient(model, l);
  // The gradient of the first layer's input is not needed.
  if (l == 0) co_return;
  grad_activations[{l, m}] =
      co_await model.all_reduce(grad_activations[{l, m}], l - 1, {.axes = "tp"});
}

Shard loaded_shard(const Model& model) {
  const Shard of_tp{.index = model.position("tp"), .of = model.size("tp")};
  if (model.zero_stage() == 0) return of_tp;
  const int replicas = model.size("dp");
  return {.index = of_tp.index * replicas + model.position("dp"), .of = of_tp.of * replicas};
}

// Of stages 1 and 2: weights are gathered from the start of a step until their update.
Task gather_for_step(Model& model, int layer) {
  if (model.zero_stage() == 0 || model.zero_stage() >= kShardedWeights) co_return;
  ValueMap<Weight>& weights = model.storage().weights;
  weights[layer] = co_await model.all_gather(weights[layer], layer, {.axes = "dp"});
}

// Leaves the gradient, and the part of the weight, that this rank updates.
Task reduce_for_update(Model& model, int layer) {
  auto& [weights, opt_states, activations, grad_activations, grad_weights] = model.storage();
  if (model.zero_stage() == 0) {
    grad_weights[layer] = co_await model.all_reduce(grad_weights[layer], layer, {.axes = "dp"});
  } else if (model.zero_stage() < kShardedGradients) {
    grad_weights[layer] = co_await model.reduce_scatter(grad_weights[layer], layer, {.axes = "dp"});
  }
  if (model.zero_stage() == 0 || model.zero_stage() >= kShardedWeights) co_return;
  weights[layer] = weights[layer]->shard(model.position("dp"), model.size("dp"));
}

}  // namespace

Task hybrid(Model& model) {
  Stage stage(model, {.forward = forward_split, .backward = backward_split});
  stage.load(loaded_shard(model));
  const std::vector<int> layers = stage.layers();
  for (const int l : layers) co_await gather_for_step(model, l);
  const std::vector<PipelineAction> actions =
      schedule::one_f_one_b(stage.pipeline(), stage.index());
  co_await stage.run(actions);
  for (const int l : layers) co_await reduce_for_update(model, l);
  stage.update();
}

}  // namespace shiplap::strategy
