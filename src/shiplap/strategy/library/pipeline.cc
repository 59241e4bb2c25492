#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <tuple>

#include "shiplap/strategy/library/divide_internal.h"
#include "shiplap/strategy/library/pipeline_internal.h"

namespace shiplap::strategy {

using schedule::Pass;

// ---------------------------------------------------------------- one layer

Task forward_layer(Model& model, LayerMicrobatch item) {
  const auto [l, m] = item;
  Storage& at = model.storage();
  at.activations[{l + 1, m}] = model.forward(l, at.activations[{l, m}], at.weights[l]);
  co_return;
}

Task backward_layer(Model& model, LayerMicrobatch item) {
  const auto [l, m] = item;
  Storage& at = model.storage();
  std::tie(at.grad_weights[fresh_gradient(model, l)], at.grad_activations[{l, m}]) =
      model.backward(l, at.activations[{l, m}], at.grad_activations[{l + 1, m}], at.weights[l]);
  at.grad_activations.erase({l + 1, m});
  at.activations.erase({l, m});
  add_fresh_gradient(model, l);
  co_return;
}

Task backward_layer_input(Model& model, LayerMicrobatch item) {
  const auto [l, m] = item;
  Storage& at = model.storage();
  at.grad_activations[{l, m}] = model.backward_input(
      l, at.activations[{l, m}], at.grad_activations[{l + 1, m}], at.weights[l]);
  co_return;
}

Task backward_layer_weight(Model& model, LayerMicrobatch item) {
  const auto [l, m] = item;
  Storage& at = model.storage();
  at.grad_weights[fresh_gradient(model, l)] = model.backward_weight(
      l, at.activations[{l, m}], at.grad_activations[{l + 1, m}], at.weights[l]);
  at.grad_activations.erase({l + 1, m});
  at.activations.erase({l, m});
  add_fresh_gradient(model, l);
  co_return;
}

Key fresh_gradient(Model& model, int layer) {
  return model.storage().grad_weights.contains(layer) ? Key(layer, 1) : Key(layer);
}

void add_fresh_gradient(Model& model, int layer) {
  ValueMap<WeightGrad>& gradients = model.storage().grad_weights;
  if (!gradients.contains({layer, 1})) return;
  gradients[layer] = gradients[layer] + gradients[{layer, 1}];
  gradients.erase({layer, 1});
}

// ---------------------------------------------------------------- a stage

Stage::Stage(Model& model, const LayerWork& work, schedule::Placement placement)
    : model_(model),
      work_(work),
      pipeline_{.stages = model.size("pp"),
                .microbatches = model.microbatches(),
                .chunks = model.chunks(),
                .placement = placement},
      index_(model.position("pp")),
      layers_each_(divide({.number = model.layers(),
                           .things = "layers",
                           .parts = std::int64_t{pipeline_.stages} * pipeline_.chunks,
                           .by = format_stages(pipeline_.stages, pipeline_.chunks)})),
      sent_(static_cast<std::size_t>(pipeline_.chunks * pipeline_.microbatches)),
      received_(sent_.size()),
      received_grads_(sent_.size()),
      sent_grads_(static_cast<std::size_t>(pipeline_.chunks)) {
  for (int chunk = 0; chunk < pipeline_.chunks; ++chunk) {
    const std::string end = pipeline_.chunks > 1 ? fmt::format("_{}", chunk) : "";
    for (const char* name : {"forward_up", "forward_down", "backward_up", "backward_down"}) {
      channels_.push_back(name + end);
    }
  }
}

std::vector<int> Stage::layers() const {
  std::vector<int> result;
  for (int c = 0; c < pipeline_.chunks; ++c) {
    const Chunk chunk = chunk_at(c);
    for (int l = chunk.first; l < chunk.end; ++l) result.push_back(l);
  }
  return result;
}

Stage::Chunk Stage::chunk_at(int index) const {
  const int position = schedule::position_of(pipeline_, index_, index);
  return {
      .position = position, .first = position * layers_each_, .end = (position + 1) * layers_each_};
}

IndexSet Stage::samples(int microbatch) const {
  const auto& axes = model_.dist().mesh().axes;
  const bool replicated = std::ranges::any_of(axes, [](const auto& a) { return a.name == "dp"; });
  const int position = replicated ? model_.position("dp") : 0;
  const int parts = replicated ? model_.size("dp") : 1;
  return model_.samples(position * pipeline_.microbatches + microbatch,
                        parts * pipeline_.microbatches);
}

void Stage::load(Shard shard) {
  Storage& at = model_.storage();
  for (const int l : layers()) {
    std::tie(at.weights[l], at.opt_states[l]) = model_.load_weights(l, shard.index, shard.of);
  }
}

void Stage::update() {
  Storage& at = model_.storage();
  for (const int l : layers()) {
    std::tie(at.weights[l], at.opt_states[l]) =
        model_.update(l, at.grad_weights[l], at.weights[l], at.opt_states[l]);
    at.grad_weights.erase(l);
    model_.set_final_weight(l, at.weights[l]);
  }
}

// ---------------------------------------------------------------- its neighbours

// Whether a chunk receives from the previous one. If both are on one stage they share storage.
bool Stage::message_before(int position) const {
  return position > 0 && position < pipeline_.stages * pipeline_.chunks &&
         schedule::stage_at(pipeline_, position) != schedule::stage_at(pipeline_, position - 1);
}

int Stage::rank_at(int position) const {
  return model_.peer("pp", schedule::stage_at(pipeline_, position));
}

// Messages between a chunk and the previous one have tags that are unique between their ranks. Each
// combination of chunk, direction (forward, backward) and rank order (up, down) has a channel of
// its own: on NCCL a channel is a communicator, so these messages never block each other.
MessageOptions Stage::tag(int position, PipelineAction action) const {
  const int chunk = position / pipeline_.stages;
  const int passage = chunk * pipeline_.microbatches + action.microbatch;
  const bool forward = action.pass == Pass::forward;
  const bool up = (rank_at(position) > rank_at(position - 1)) == forward;
  const int channel = 4 * chunk + (forward ? 0 : 2) + (up ? 0 : 1);
  return {.tag = 2 * passage + (forward ? 0 : 1), .channel = channels_[channel]};
}

// ---------------------------------------------------------------- its actions

Task Stage::run(std::vector<PipelineAction> actions) {
  std::size_t posted = 0;
  for (std::size_t k = 0; k < actions.size(); ++k) {
    std::size_t next = k + 1;
    while (next < actions.size() && actions[next].pass == Pass::backward_weight) ++next;
    for (; posted < actions.size() && posted <= next; ++posted) start_receive(actions[posted]);
    co_await run(actions[k]);
  }
  for (int c = 0; c < pipeline_.chunks; ++c) co_await wait_for_sent_gradient(c);
}

void Stage::start_receive(PipelineAction action) {
  const int position = chunk_at(action.chunk).position;
  if (action.pass == Pass::backward_weight) return;
  if (action.pass == Pass::forward) {
    if (!message_before(position)) return;
    received_[slot(action)] =
        model_.start_receive<Activation>(rank_at(position - 1), tag(position, action));
  } else if (message_before(position + 1)) {
    received_grads_[slot(action)] =
        model_.start_receive<ActivationGrad>(rank_at(position + 1), tag(position + 1, action));
  }
}

Task Stage::run(PipelineAction action) {
  switch (action.pass) {
    case Pass::forward:
      return forward(action);
    case Pass::backward:
    case Pass::backward_input:
      return backward(action);
    case Pass::backward_weight:
      return backward_weight(action);
  }
  throw InternalError("unknown pass");
}

Task Stage::forward(PipelineAction action) {
  ValueMap<Activation>& activations = model_.storage().activations;
  const Chunk chunk = chunk_at(action.chunk);
  const int m = action.microbatch;
  if (chunk.position == 0) {
    activations[{0, m}] = model_.get_input_activation(samples(m));
  } else if (message_before(chunk.position)) {
    activations[{chunk.first, m}] = co_await received_[slot(action)];
  }
  for (int l = chunk.first; l < chunk.end; ++l) {
    co_await work_.forward(model_, {.layer = l, .microbatch = m});
  }
  const int next = chunk.position + 1;
  if (message_before(next)) {
    sent_[slot(action)] =
        model_.start_send(rank_at(next), activations[{chunk.end, m}], tag(next, action));
  }
}

// Obtains the output gradient of the chunk, from the loss or from the next chunk. The next chunk
// has received the activation by then.
Task Stage::begin_backward(PipelineAction action) {
  auto& [weights, opt_states, activations, grad_activations, grad_weights] = model_.storage();
  const Chunk chunk = chunk_at(action.chunk);
  const Key end{chunk.end, action.microbatch};
  const int next = chunk.position + 1;
  if (chunk.end == model_.layers()) {
    grad_activations[end] = model_.loss(activations[end]);
    activations.erase(end);
  } else if (message_before(next)) {
    co_await sent_[slot(action)];
    activations.erase(end);
    grad_activations[end] = co_await received_grads_[slot(action)];
  }
}

Task Stage::backward(PipelineAction action) {
  ValueMap<ActivationGrad>& grad_activations = model_.storage().grad_activations;
  const Chunk chunk = chunk_at(action.chunk);
  const LayerMicrobatch first{.layer = chunk.first, .microbatch = action.microbatch};
  co_await wait_for_sent_gradient(action.chunk);
  co_await begin_backward(action);
  const auto work = action.pass == Pass::backward ? work_.backward : work_.backward_input;
  for (int l = chunk.end - 1; l >= chunk.first; --l) {
    co_await work(model_, {.layer = l, .microbatch = action.microbatch});
  }
  const Key key{first.layer, first.microbatch};
  if (chunk.position == 0) {
    grad_activations.erase(key);
  } else if (message_before(chunk.position)) {
    sent_grads_[action.chunk] = {
        .message = model_.start_send(rank_at(chunk.position - 1), grad_activations[key],
                                     tag(chunk.position, action)),
        .item = first};
  }
}

Task Stage::backward_weight(PipelineAction action) {
  const Chunk chunk = chunk_at(action.chunk);
  for (int l = chunk.end - 1; l >= chunk.first; --l) {
    co_await work_.backward_weight(model_, {.layer = l, .microbatch = action.microbatch});
  }
}

Task Stage::wait_for_sent_gradient(int chunk) {
  auto& [message, part] = sent_grads_[chunk];
  if (!message.in_flight()) co_return;
  co_await message;
  model_.storage().grad_activations.erase({part.layer, part.microbatch});
}

}  // namespace shiplap::strategy
