// Fully sharded data parallel, ZeRO stage 3: weights, gradients and optimizer state are sharded.
// While a layer computes, the next one is prefetched and the gradient of the previous one is
// reduced, each on its own stream. So at most two layers are unsharded at a time.
//
// With tensor parallelism along `tp`, a rank computes with its `tp` shard of each weight, on the
// samples of its position on `dp`, and stores one of the shards of that shard. Activations are
// gathered and their gradients reduced over `tp`, on `main`, because the next layer needs them at
// once.
#include <cstdint>

#include "shiplap/strategy/library.h"

namespace shiplap::strategy {
namespace {

enum class Along : std::uint8_t { dp, dp_and_tp };

Task fully_sharded(Model& model, Along along) {
  auto& [weights, opt_states, activations, grad_activations, grad_weights] = model.storage();
  const int layers = model.layers();
  const int last = layers - 1;
  const bool splits_layers = along == Along::dp_and_tp;
  const int replica = model.position("dp");
  const int replicas = model.size("dp");
  const int shard = splits_layers ? model.position("tp") * replicas + replica : replica;
  const int shards = splits_layers ? model.size("tp") * replicas : replicas;
  for (int l = 0; l < layers; ++l) {
    std::tie(weights[l], opt_states[l]) = model.load_weights(l, shard, shards);
  }

  activations[0] = model.get_input_activation(model.samples(replica, replicas));
  Pending<Weight> next = model.start_all_gather(weights[0], 0, {.axes = "dp"});
  for (int l = 0; l < layers; ++l) {
    weights[{l, 1}] = co_await next;
    if (l < last) next = model.start_all_gather(weights[l + 1], l + 1, {.axes = "dp"});
    activations[l + 1] = model.forward(l, activations[l], weights[{l, 1}]);
    // Backward starts with the last layer, which stays gathered.
    if (l < last) weights.erase({l, 1});
    if (!splits_layers) continue;
    activations[l + 1] = co_await model.all_gather(activations[l + 1], l + 1, {.axes = "tp"});
  }
  grad_activations[layers] = model.loss(activations[layers]);
  activations.erase(layers);

  Pending<WeightGrad> reducing;
  for (int l = last; l >= 0; --l) {
    if (l < last) weights[{l, 1}] = co_await next;
    if (l > 0) next = model.start_all_gather(weights[l - 1], l - 1, {.axes = "dp"});
    std::tie(grad_weights[l], grad_activations[l]) =
        model.backward(l, activations[l], grad_activations[l + 1], weights[{l, 1}]);
    weights.erase({l, 1});
    grad_activations.erase(l + 1);
    activations.erase(l);
    if (l < last) grad_weights[l + 1] = co_await reducing;
    reducing = model.start_reduce_scatter(grad_weights[l], l, {.axes = "dp", .stream = "out"});
    // The gradient of the first layer's input is not needed.
    if (l == 0 || !splits_layers) continue;
    grad_activations[l] = co_await model.all_reduce(grad_activations[l], l - 1, {.axes = "tp"});
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

}  // namespace

Task fsdp(Model& model) { return fully_sharded(model, Along::dp); }
Task tensor_parallel_fsdp(Model& model) { return fully_sharded(model, Along::dp_and_tp); }

}  // namespace shiplap::strategy
