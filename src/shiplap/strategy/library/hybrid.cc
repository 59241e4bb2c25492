// 3D parallelism: a 1F1B pipeline along `pp`, tensor-parallel layers along `tp`, and data-parallel
// replicas along `dp`. Gradients are reduced over `dp` at the end.
#include "shiplap/strategy/library.h"
#include "shiplap/strategy/library/pipeline_internal.h"

namespace shiplap::strategy {
namespace {

Task forward_split(Model& model, LayerMicrobatch item) {
  ValueMap<Activation>& activations = model.storage().activations;
  const auto [l, m] = item;
  co_await forward_layer(model, item);
  activations[{l + 1, m}] =
      co_await model.all_gather(activations[{l + 1, m}], l + 1, {.axes = "tp"});
}

Task backward_split(Model& model, LayerMicrobatch item) {
  ValueMap<ActivationGrad>& grad_activations = model.storage().grad_activations;
  const auto [l, m] = item;
  co_await backward_layer(model, item);
  // The gradient of the first layer's input is not needed.
  if (l == 0) co_return;
  grad_activations[{l, m}] =
      co_await model.all_reduce(grad_activations[{l, m}], l - 1, {.axes = "tp"});
}

}  // namespace

Task hybrid(Model& model) {
  auto& grad_weights = model.storage().grad_weights;
  Stage stage(model, {.forward = forward_split, .backward = backward_split});
  stage.load({.index = model.position("tp"), .of = model.size("tp")});
  const std::vector<PipelineAction> actions =
      schedule::one_f_one_b(stage.pipeline(), stage.index());
  for (const PipelineAction& action : actions) co_await stage.run(action);
  co_await stage.finish();
  const std::vector<int> layers = stage.layers();
  for (const int l : layers) {
    grad_weights[l] = co_await model.all_reduce(grad_weights[l], l, {.axes = "dp"});
  }
  stage.update();
}

}  // namespace shiplap::strategy
