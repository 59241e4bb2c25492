// ZeRO stage 1: the optimizer state is sharded. Every rank updates its shard of the weights; they
// are whole from the start of a step, where they are gathered, until its updates. Stage 2:
// gradients are reduce-scattered too, so a rank keeps only the shard that it updates with.
#include "shiplap/strategy/library.h"

namespace shiplap::strategy {
namespace {

Task zero_sharded(Model& model, int stage) {
  auto& [weights, opt_states, activations, grad_activations, grad_weights] = model.storage();
  const int layers = model.layers();
  const int rank = model.rank();
  const int ranks = model.ranks();
  for (int l = 0; l < layers; ++l) {
    std::tie(weights[l], opt_states[l]) = model.load_weights(l, rank, ranks);
  }

  for (int l = 0; l < layers; ++l) weights[l] = co_await model.all_gather(weights[l], l);
  activations[0] = model.get_input_activation(model.samples(rank, ranks));
  for (int l = 0; l < layers; ++l) {
    activations[l + 1] = model.forward(l, activations[l], weights[l]);
  }
  grad_activations[layers] = model.loss(activations[layers]);
  activations.erase(layers);

  for (int l = layers - 1; l >= 0; --l) {
    std::tie(grad_weights[l], grad_activations[l]) =
        model.backward(l, activations[l], grad_activations[l + 1], weights[l]);
    grad_activations.erase(l + 1);
    activations.erase(l);
    if (stage == 1) grad_weights[l] = co_await model.all_reduce(grad_weights[l], l);
    if (stage == 2) grad_weights[l] = co_await model.reduce_scatter(grad_weights[l], l);
  }
  grad_activations.erase(0);

  for (int l = 0; l < layers; ++l) {
    weights[l] = weights[l]->shard(rank, ranks);
    std::tie(weights[l], opt_states[l]) =
        model.update(l, grad_weights[l], weights[l], opt_states[l]);
    grad_weights.erase(l);
    model.set_final_weight(l, weights[l]);
  }
}

}  // namespace

Task zero1(Model& model) { return zero_sharded(model, 1); }
Task zero2(Model& model) { return zero_sharded(model, 2); }

}  // namespace shiplap::strategy
