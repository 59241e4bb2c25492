// What the pipelines share: a rank's part of the layers, and how microbatches pass through it.
//
//   Stage stage(model);
//   stage.load();
//   for (const Turn& turn : schedule::gpipe(stage.pipeline(), stage.index())) {
//     co_await stage.take(turn);
//   }
//   co_await stage.finish();
//   stage.update();
//
// Nobody waits for what he sends, or two neighbours would wait for each other: what is sent stays
// in storage until it has surely arrived.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "shiplap/schedule/schedule.h"
#include "shiplap/strategy/model.h"

namespace shiplap::strategy {

using schedule::Turn;

// One layer's work on one microbatch.
struct Part {
  int layer = 0;
  int microbatch = 0;
};

// How a layer is done. Forward reads activations[{layer, microbatch}] and leaves the one of layer +
// 1. Backward reads that activation and grad_activations[{layer + 1, microbatch}], erases both, and
// leaves grad_activations[{layer, microbatch}] and its share in grad_weights[layer].
struct LayerWork {
  Task (*forward)(Model& model, Part part);
  Task (*backward)(Model& model, Part part);
};

// With weights[layer].
Task forward_layer(Model& model, Part part);
Task backward_layer(Model& model, Part part);

// A layer's gradients of several microbatches become one sum. A fresh one goes where
// `fresh_gradient` says; `add_fresh_gradient` then adds it to grad_weights[layer].
[[nodiscard]] Key fresh_gradient(Model& model, int layer);
void add_fresh_gradient(Model& model, int layer);

// Which part of each weight a rank has.
struct Shard {
  int index = 0;
  int of = 1;
};

// The chunks of layers at this rank's position on axis `pp`. Its samples are those of its position
// on axis `dp`, if the mesh has one.
class Stage {
 public:
  // Throws InputError D622 if the layers cannot be divided among stages and chunks.
  explicit Stage(Model& model,
                 const LayerWork& work = {.forward = forward_layer, .backward = backward_layer});
  Stage(const Stage&) = delete;  // its coroutines refer to it
  Stage& operator=(const Stage&) = delete;
  ~Stage() = default;

  [[nodiscard]] const schedule::Pipeline& pipeline() const { return pipeline_; }
  [[nodiscard]] int index() const { return index_; }
  // All layers of all its chunks, in order.
  [[nodiscard]] std::vector<int> layers() const;

  void load(Shard shard = {});
  Task take(Turn turn);
  // Until all that it sent has arrived.
  Task finish();
  // With gradients that are complete. They are gone then.
  void update();

 private:
  struct Chunk {
    int number = 0;  // among the chunks of all stages, in the order of the layers
    int first = 0;   // layer
    int end = 0;
  };
  struct SentGrad {
    Pending<ActivationGrad> message;
    Part part;
  };

  [[nodiscard]] Chunk chunk_at(int index) const;
  [[nodiscard]] bool message_before(int chunk_number) const;
  [[nodiscard]] int rank_of(int chunk_number) const;
  [[nodiscard]] Tagged tag(int chunk_number, Turn turn) const;
  [[nodiscard]] IndexSet samples(int microbatch) const;
  [[nodiscard]] Pending<Activation>& sent(Turn turn);

  Task forward(Turn turn);
  Task backward(Turn turn);
  Task begin_backward(Turn turn);
  Task until_gradient_arrived(int chunk);

  Model& model_;
  LayerWork work_;
  schedule::Pipeline pipeline_;
  int index_;
  int layers_each_;                        // of a chunk
  std::vector<Pending<Activation>> sent_;  // by chunk and microbatch
  std::vector<SentGrad> sent_grads_;       // by chunk
  std::vector<std::string> channels_;      // by chunk, direction, and whether it goes up
};

}  // namespace shiplap::strategy
