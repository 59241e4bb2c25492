// Pipeline schedules: the order in which a stage runs its forwards and backwards, as plain values.
//
// A pipeline passes microbatches through its stages, forward and then backward. A stage holds one
// chunk of layers or several; chunk c of stage s follows chunk c of stage s-1, and chunk c of stage
// 0 follows chunk c-1 of the last stage. If a chunk takes time f forward and b backward and
// messages take no time, all three schedules end after (chunks * microbatches + stages - 1) * (f +
// b), of which a stage is idle (the bubble) for (stages - 1) * (f + b). They differ in peak memory
// and in the length of a chunk.
#pragma once

#include <cstdint>
#include <vector>

namespace shiplap::schedule {

enum class Direction : std::uint8_t { forward, backward };

// The forward or backward of one chunk for one microbatch.
struct PipelineAction {
  Direction direction = Direction::forward;
  int chunk = 0;
  int microbatch = 0;
  friend bool operator==(const PipelineAction&, const PipelineAction&) = default;
};

struct Pipeline {
  int stages = 1;
  int microbatches = 1;
  int chunks = 1;  // on each stage
  friend bool operator==(const Pipeline&, const Pipeline&) = default;
};

// All forwards, then all backwards: a stage holds the activations of all microbatches (Huang et
// al., "GPipe", 2019). REQUIRES, as one_f_one_b does: pipeline.chunks == 1.
[[nodiscard]] std::vector<PipelineAction> gpipe(const Pipeline& pipeline, int stage);

// One forward, one backward: stage s of p holds at most p - s microbatches (Narayanan et al.,
// "PipeDream", 2019; with one update per step, "Memory-Efficient Pipeline-Parallel DNN Training",
// 2021).
[[nodiscard]] std::vector<PipelineAction> one_f_one_b(const Pipeline& pipeline, int stage);

// Interleaved 1F1B (virtual pipeline stages): groups of `stages` microbatches pass through one
// chunk after the other, as in Megatron-LM (Narayanan et al., "Efficient Large-Scale Language Model
// Training on GPU Clusters", 2021, section 2.2). Chunks are shorter, so the pipeline fills sooner.
// Equals one_f_one_b if chunks == 1; else throws InputError D622 unless `stages` divides
// `microbatches`.
[[nodiscard]] std::vector<PipelineAction> interleaved(const Pipeline& pipeline, int stage);

}  // namespace shiplap::schedule
