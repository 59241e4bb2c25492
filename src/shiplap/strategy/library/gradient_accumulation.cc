// Data parallel with gradient accumulation: a rank processes one microbatch at a time, which holds
// the activations of only one, and accumulates the gradients. They are reduced once, at the end.
#include "shiplap/strategy/library.h"

namespace shiplap::strategy {

Task gradient_accumulation(Model& model) {
  auto& [weights, opt_states, activations, grad_activations, grad_weights] = model.storage();
  const int layers = model.layers();
  const int microbatches = model.microbatches();
  for (int l = 0; l < layers; ++l) std::tie(weights[l], opt_states[l]) = model.load_weights(l);

  for (int m = 0; m < microbatches; ++m) {
    activations[0] = model.get_input_activation(
        model.samples(model.rank() * microbatches + m, model.ranks() * microbatches));
    for (int l = 0; l < layers; ++l) {
      activations[l + 1] = model.forward(l, activations[l], weights[l]);
    }
    grad_activations[layers] = model.loss(activations[layers]);
    activations.erase(layers);

    for (int l = layers - 1; l >= 0; --l) {
      const Key fresh = m == 0 ? Key(l) : Key(l, m);
      std::tie(grad_weights[fresh], grad_activations[l]) =
          model.backward(l, activations[l], grad_activations[l + 1], weights[l]);
      grad_activations.erase(l + 1);
      activations.erase(l);
      if (m == 0) continue;
      grad_weights[l] = grad_weights[l] + grad_weights[fresh];
      grad_weights.erase(fresh);
    }
    grad_activations.erase(0);
  }

  for (int l = 0; l < layers; ++l) {
    grad_weights[l] = co_await model.all_reduce(grad_weights[l], l);
    std::tie(weights[l], opt_states[l]) =
        model.update(l, grad_weights[l], weights[l], opt_states[l]);
    grad_weights.erase(l);
    model.set_final_weight(l, weights[l]);
  }
}

}  // namespace shiplap::strategy
