// Tensor parallel: every rank has a shard of each weight and computes with it alone, on all
// samples. Forward computes some features of the output, which are gathered; backward computes a
// partial sum of the input gradient, which is reduced.
#include "shiplap/strategy/library.h"

namespace shiplap::strategy {

Task tensor_parallel(Model& model) {
  auto& [weights, opt_states, activations, grad_activations, grad_weights] = model.storage();
  const int layers = model.layers();
  for (int l = 0; l < layers; ++l) {
    std::tie(weights[l], opt_states[l]) =
        model.load_weights(l, model.position("tp"), model.size("tp"));
  }

  activations[0] = model.get_input_activation(model.samples(0, 1));
  for (int l = 0; l < layers; ++l) {
    activations[l + 1] = model.forward(l, activations[l], weights[l]);
    activations[l + 1] = co_await model.all_gather(activations[l + 1], l + 1, {.axes = "tp"});
  }
  grad_activations[layers] = model.loss(activations[layers]);
  activations.erase(layers);

  for (int l = layers - 1; l >= 0; --l) {
    std::tie(grad_weights[l], grad_activations[l]) =
        model.backward(l, activations[l], grad_activations[l + 1], weights[l]);
    grad_activations.erase(l + 1);
    activations.erase(l);
    std::tie(weights[l], opt_states[l]) =
        model.update(l, grad_weights[l], weights[l], opt_states[l]);
    grad_weights.erase(l);
    model.set_final_weight(l, weights[l]);
    // The gradient of the first layer's input is not needed.
    if (l == 0) continue;
    grad_activations[l] = co_await model.all_reduce(grad_activations[l], l - 1, {.axes = "tp"});
  }
  grad_activations.erase(0);
}

}  // namespace shiplap::strategy
