// Pipeline and FSDP: 1F1B along `pp`; along `dp` the weights of a stage are sharded, gathered for
// each use, and gradients are reduced and scattered microbatch by microbatch.
#include "shiplap/strategy/library.h"
#include "shiplap/strategy/library/pipeline_internal.h"

namespace shiplap::strategy {
namespace {

Task forward_gathered(Model& model, LayerMicrobatch item) {
  auto& [weights, opt_states, activations, grad_activations, grad_weights] = model.storage();
  const auto [l, m] = item;
  weights[{l, 1}] = co_await model.all_gather(weights[l], l, {.axes = "dp"});
  activations[{l + 1, m}] = model.forward(l, activations[{l, m}], weights[{l, 1}]);
  weights.erase({l, 1});
}

Task backward_gathered(Model& model, LayerMicrobatch item) {
  auto& [weights, opt_states, activations, grad_activations, grad_weights] = model.storage();
  const auto [l, m] = item;
  const Key fresh = fresh_gradient(model, l);
  weights[{l, 1}] = co_await model.all_gather(weights[l], l, {.axes = "dp"});
  std::tie(grad_weights[fresh], grad_activations[{l, m}]) =
      model.backward(l, activations[{l, m}], grad_activations[{l + 1, m}], weights[{l, 1}]);
  weights.erase({l, 1});
  grad_activations.erase({l + 1, m});
  activations.erase({l, m});
  grad_weights[fresh] = co_await model.reduce_scatter(grad_weights[fresh], l, {.axes = "dp"});
  add_fresh_gradient(model, l);
}

}  // namespace

Task pipeline_fsdp(Model& model) {
  Stage stage(model, {.forward = forward_gathered, .backward = backward_gathered});
  stage.load({.index = model.position("dp"), .of = model.size("dp")});
  const std::vector<PipelineAction> actions =
      schedule::one_f_one_b(stage.pipeline(), stage.index());
  co_await stage.run(actions);
  stage.update();
}

}  // namespace shiplap::strategy
