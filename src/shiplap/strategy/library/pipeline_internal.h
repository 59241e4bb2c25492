// Shared by the pipelines: one stage, and how microbatches pass through it.
//
//   Stage stage(model);
//   stage.load();
//   co_await stage.run(schedule::gpipe(stage.pipeline(), stage.index()));
//   stage.update();
//
// Sends are non-blocking, or two neighbours could deadlock. A sent value stays in storage until the
// send is complete. Receives are posted one action ahead, so that the next message arrives while
// this action computes; weight halves of backwards, which need no message, are passed over.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "shiplap/schedule/schedule.h"
#include "shiplap/strategy/model.h"

namespace shiplap::strategy {

using schedule::PipelineAction;

// One layer, for one microbatch.
struct LayerMicrobatch {
  int layer = 0;
  int microbatch = 0;
};

// The computation of a layer. Forward reads activations[{layer, microbatch}] and stores that of
// layer + 1. Backward reads that activation and grad_activations[{layer + 1, microbatch}], erases
// both, stores grad_activations[{layer, microbatch}] and accumulates into grad_weights[layer]. Of
// its two halves the first one stores and the second one erases and accumulates.
struct LayerWork {
  Task (*forward)(Model& model, LayerMicrobatch item);
  Task (*backward)(Model& model, LayerMicrobatch item);
  // Only for schedules that split backwards.
  Task (*backward_input)(Model& model, LayerMicrobatch item) = nullptr;
  Task (*backward_weight)(Model& model, LayerMicrobatch item) = nullptr;
};

// Use weights[layer].
Task forward_layer(Model& model, LayerMicrobatch item);
Task backward_layer(Model& model, LayerMicrobatch item);
Task backward_layer_input(Model& model, LayerMicrobatch item);
Task backward_layer_weight(Model& model, LayerMicrobatch item);

inline constexpr LayerWork kWholeLayers = {.forward = forward_layer,
                                           .backward = backward_layer,
                                           .backward_input = backward_layer_input,
                                           .backward_weight = backward_layer_weight};

// Gradient accumulation: a new gradient is stored under the key `fresh_gradient` returns, and
// `add_fresh_gradient` then adds it to grad_weights[layer].
[[nodiscard]] Key fresh_gradient(Model& model, int layer);
void add_fresh_gradient(Model& model, int layer);

// The shard of each weight that a rank holds.
struct Shard {
  int index = 0;
  int of = 1;
};

// The chunks of layers at this rank's position on axis `pp`. Its samples are those of its position
// on axis `dp`, if the mesh has one.
class Stage {
 public:
  // Throws InputError D622 if the layers cannot be divided among stages and chunks.
  explicit Stage(Model& model, const LayerWork& work = kWholeLayers,
                 schedule::Placement placement = schedule::Placement::loop);
  Stage(const Stage&) = delete;  // its coroutines refer to it
  Stage& operator=(const Stage&) = delete;
  ~Stage() = default;

  [[nodiscard]] const schedule::Pipeline& pipeline() const { return pipeline_; }
  [[nodiscard]] int index() const { return index_; }
  // All layers of all its chunks, in order.
  [[nodiscard]] std::vector<int> layers() const;

  void load(Shard shard = {});
  // Runs the actions in order, until all sends are complete.
  Task run(std::vector<PipelineAction> actions);
  // Updates with the complete gradients and erases them.
  void update();

 private:
  struct Chunk {
    int position = 0;  // over all stages, in the order of the layers
    int first = 0;     // layer
    int end = 0;
  };
  struct SentGrad {
    Pending<ActivationGrad> message;
    LayerMicrobatch item;
  };

  [[nodiscard]] Chunk chunk_at(int index) const;
  [[nodiscard]] bool message_before(int position) const;
  [[nodiscard]] int rank_at(int position) const;
  [[nodiscard]] MessageOptions tag(int position, PipelineAction action) const;
  [[nodiscard]] IndexSet samples(int microbatch) const;
  [[nodiscard]] int slot(PipelineAction action) const {
    return action.chunk * pipeline_.microbatches + action.microbatch;
  }

  // Posts the receive of an action, if it has one.
  void start_receive(PipelineAction action);
  Task run(PipelineAction action);
  Task forward(PipelineAction action);
  Task backward(PipelineAction action);
  Task backward_weight(PipelineAction action);
  Task begin_backward(PipelineAction action);
  Task wait_for_sent_gradient(int chunk);

  Model& model_;
  LayerWork work_;
  schedule::Pipeline pipeline_;
  int index_;
  int layers_each_;                                      // of a chunk
  std::vector<Pending<Activation>> sent_;                // by chunk and microbatch
  std::vector<Pending<Activation>> received_;            // the same
  std::vector<Pending<ActivationGrad>> received_grads_;  // the same
  std::vector<SentGrad> sent_grads_;                     // by chunk
  std::vector<std::string> channels_;                    // by chunk, direction, and rank order
};

}  // namespace shiplap::strategy
