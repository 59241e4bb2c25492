// Weight-sharded data parallel: every rank keeps a shard of each weight and of its optimizer state,
// and gathers a layer only while it computes with it. Gradients are not sharded.
#include "shiplap/strategy/library.h"

namespace shiplap::strategy {

Task weight_sharded(Model& model) {
  auto& [weights, opt_states, activations, grad_activations, grad_weights] = model.storage();
  const int layers = model.layers();
  for (int l = 0; l < layers; ++l) {
    std::tie(weights[l], opt_states[l]) = model.load_weights(l, model.rank(), model.ranks());
  }

  activations[0] = model.get_input_activation(model.samples(model.rank(), model.ranks()));
  for (int l = 0; l < layers; ++l) {
    weights[{l, 1}] = co_await model.all_gather(weights[l], l);
    activations[l + 1] = model.forward(l, activations[l], weights[{l, 1}]);
    weights.erase({l, 1});
  }
  grad_activations[layers] = model.loss(activations[layers]);
  activations.erase(layers);

  for (int l = layers - 1; l >= 0; --l) {
    weights[{l, 1}] = co_await model.all_gather(weights[l], l);
    std::tie(grad_weights[l], grad_activations[l]) =
        model.backward(l, activations[l], grad_activations[l + 1], weights[{l, 1}]);
    weights.erase({l, 1});
    grad_activations.erase(l + 1);
    activations.erase(l);
    grad_weights[l] = co_await model.all_reduce(grad_weights[l], l);
  }
  grad_activations.erase(0);

  for (int l = 0; l < layers; ++l) {
    std::tie(weights[l], opt_states[l]) =
        model.update(l, grad_weights[l], weights[l], opt_states[l]);
    grad_weights.erase(l);
    model.set_final_weight(l, weights[l]);
  }
}

}  // namespace shiplap::strategy
