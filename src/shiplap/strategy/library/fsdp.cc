// Fully sharded data parallel, ZeRO stage 3: weights, gradients and optimizer state are sharded.
// While a layer computes, the next one is prefetched and the gradient of the previous one is
// reduced, each on its own stream. So at most two layers are unsharded at a time.
#include "shiplap/strategy/library.h"

namespace shiplap::strategy {

Task fsdp(Model& model) {
  auto& [weights, opt_states, activations, grad_activations, grad_weights] = model.storage();
  const int layers = model.layers();
  const int last = layers - 1;
  for (int l = 0; l < layers; ++l) {
    std::tie(weights[l], opt_states[l]) = model.load_weights(l, model.rank(), model.ranks());
  }

  activations[0] = model.get_input_activation(model.samples(model.rank(), model.ranks()));
  Pending<Weight> next = model.start_all_gather(weights[0], 0);
  for (int l = 0; l < layers; ++l) {
    weights[{l, 1}] = co_await next;
    if (l < last) next = model.start_all_gather(weights[l + 1], l + 1);
    activations[l + 1] = model.forward(l, activations[l], weights[{l, 1}]);
    // Backward starts with the last layer, which stays unsharded.
    if (l < last) weights.erase({l, 1});
  }
  grad_activations[layers] = model.loss(activations[layers]);
  activations.erase(layers);

  Pending<WeightGrad> reducing;
  for (int l = last; l >= 0; --l) {
    if (l < last) weights[{l, 1}] = co_await next;
    if (l > 0) next = model.start_all_gather(weights[l - 1], l - 1);
    std::tie(grad_weights[l], grad_activations[l]) =
        model.backward(l, activations[l], grad_activations[l + 1], weights[{l, 1}]);
    weights.erase({l, 1});
    grad_activations.erase(l + 1);
    activations.erase(l);
    if (l < last) grad_weights[l + 1] = co_await reducing;
    reducing = model.start_reduce_scatter(grad_weights[l], l, {.stream = "out"});
  }
  grad_activations.erase(0);
  grad_weights[0] = co_await reducing;

  for (int l = 0; l < layers; ++l) {
    std::tie(weights[l], opt_states[l]) =
        model.update(l, grad_weights[l], weights[l], opt_states[l]);
    grad_weights.erase(l);
    model.set_final_weight(l, weights[l]);
  }
}

}  // namespace shiplap::strategy
