// Three ways at once: along `pp` a 1F1B pipeline, whose layers are split along `tp`, and along `dp`
// copies of all that, each with samples of its own. Gradients are summed over `dp` at the end.
#include "shiplap/strategy/library.h"
#include "shiplap/strategy/library/pipeline_internal.h"

namespace shiplap::strategy {
namespace {

Task forward_split(Model& model, Part part) {
  Shelf<Activation>& activations = model.storage().activations;
  const auto [l, m] = part;
  co_await forward_layer(model, part);
  activations[{l + 1, m}] =
      co_await model.all_gather(activations[{l + 1, m}], l + 1, {.axes = "tp"});
}

Task backward_split(Model& model, Part part) {
  Shelf<ActivationGrad>& grad_activations = model.storage().grad_activations;
  const auto [l, m] = part;
  co_await backward_layer(model, part);
  // Nobody needs the gradient of the input of the first layer.
  if (l == 0) co_return;
  grad_activations[{l, m}] =
      co_await model.all_reduce(grad_activations[{l, m}], l - 1, {.axes = "tp"});
}

}  // namespace

Task hybrid(Model& model) {
  auto& grad_weights = model.storage().grad_weights;
  Stage stage(model, {.forward = forward_split, .backward = backward_split});
  stage.load({.index = model.position("tp"), .of = model.size("tp")});
  const std::vector<Turn> turns = schedule::one_f_one_b(stage.pipeline(), stage.index());
  for (const Turn& turn : turns) co_await stage.take(turn);
  co_await stage.finish();
  const std::vector<int> layers = stage.layers();
  for (const int l : layers) {
    grad_weights[l] = co_await model.all_reduce(grad_weights[l], l, {.axes = "dp"});
  }
  stage.update();
}

}  // namespace shiplap::strategy
