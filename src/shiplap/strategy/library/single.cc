// One rank with all weights and all samples: the reference for all other strategies.
#include "shiplap/strategy/library.h"

namespace shiplap::strategy {

Task single(Model& model) {
  auto& [weights, opt_states, activations, grad_activations, grad_weights] = model.storage();
  const int layers = model.layers();
  for (int l = 0; l < layers; ++l) std::tie(weights[l], opt_states[l]) = model.load_weights(l);

  activations[0] = model.get_input_activation(model.samples(0, 1));
  for (int l = 0; l < layers; ++l) {
    activations[l + 1] = model.forward(l, activations[l], weights[l]);
  }
  grad_activations[layers] = model.loss(activations[layers]);
  activations.erase(layers);

  // A complete gradient is used immediately, so only one exists at a time.
  for (int l = layers - 1; l >= 0; --l) {
    std::tie(grad_weights[l], grad_activations[l]) =
        model.backward(l, activations[l], grad_activations[l + 1], weights[l]);
    grad_activations.erase(l + 1);
    activations.erase(l);
    std::tie(weights[l], opt_states[l]) =
        model.update(l, grad_weights[l], weights[l], opt_states[l]);
    grad_weights.erase(l);
    model.set_final_weight(l, weights[l]);
  }
  grad_activations.erase(0);
  co_return;
}

}  // namespace shiplap::strategy
