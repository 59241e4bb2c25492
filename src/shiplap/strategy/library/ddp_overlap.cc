// Data parallel with overlapped gradient reduction: the all-reduces of a bucket of layers start as
// soon as its backward is complete. Only the reduction of the last bucket is exposed.
#include <algorithm>

#include "shiplap/strategy/library.h"

namespace shiplap::strategy {

Task ddp_overlap(Model& model) {
  constexpr int kBucket = 2;  // layers
  auto& [weights, opt_states, activations, grad_activations, grad_weights] = model.storage();
  const int layers = model.layers();
  for (int l = 0; l < layers; ++l) std::tie(weights[l], opt_states[l]) = model.load_weights(l);

  activations[0] = model.get_input_activation(model.samples(model.rank(), model.ranks()));
  for (int l = 0; l < layers; ++l) {
    activations[l + 1] = model.forward(l, activations[l], weights[l]);
  }
  grad_activations[layers] = model.loss(activations[layers]);
  activations.erase(layers);

  std::vector<Pending<WeightGrad>> sums(layers);
  for (int l = layers - 1; l >= 0; --l) {
    std::tie(grad_weights[l], grad_activations[l]) =
        model.backward(l, activations[l], grad_activations[l + 1], weights[l]);
    grad_activations.erase(l + 1);
    activations.erase(l);
    const bool lowest_of_bucket = l % kBucket == 0;
    if (!lowest_of_bucket) continue;
    for (int k = std::min(l + kBucket, layers) - 1; k >= l; --k) {
      sums[k] = model.start_all_reduce(grad_weights[k], k);
    }
  }
  grad_activations.erase(0);

  for (int l = layers - 1; l >= 0; --l) {
    grad_weights[l] = co_await sums[l];
    std::tie(weights[l], opt_states[l]) =
        model.update(l, grad_weights[l], weights[l], opt_states[l]);
    grad_weights.erase(l);
    model.set_final_weight(l, weights[l]);
  }
}

}  // namespace shiplap::strategy
