// Pipeline schedules: the order in which a stage runs its forwards and backwards, as plain values.
//
// A pipeline passes microbatches through its stages, forward and then backward. A stage holds one
// chunk of layers or several. If a chunk takes time f forward and b backward and messages take no
// time, gpipe, one_f_one_b and interleaved end after (chunks * microbatches + stages - 1) * (f +
// b), of which a stage is idle (the bubble) for (stages - 1) * (f + b). They differ in peak memory
// and in the length of a chunk. Zero-bubble schedules split a backward into its two halves, of
// times i and w, and fill the bubble with the second ones, for which nobody waits.
#pragma once

#include <cstdint>
#include <vector>

namespace shiplap::schedule {

// What a stage does with one chunk of layers and one microbatch.
enum class Pass : std::uint8_t {
  forward,
  backward,         // both halves
  backward_input,   // the gradient of the chunk's input, which the previous chunk needs
  backward_weight,  // the gradients of its weights, at any time after the other half
};

struct PipelineAction {
  Pass pass = Pass::forward;
  int chunk = 0;
  int microbatch = 0;
  friend bool operator==(const PipelineAction&, const PipelineAction&) = default;
};

// Which stage has which chunk: `loop` goes through the stages from the first to the last for each
// chunk, `v` back and forth, so that two chunks form a V.
enum class Placement : std::uint8_t { loop, v };

struct Pipeline {
  int stages = 1;
  int microbatches = 1;
  int chunks = 1;  // on each stage
  Placement placement = Placement::loop;
  friend bool operator==(const Pipeline&, const Pipeline&) = default;
};

// The position of a chunk in the order of the layers, from 0 to stages * chunks - 1, and the stage
// at a position.
[[nodiscard]] int position_of(const Pipeline& pipeline, int stage, int chunk);
[[nodiscard]] int stage_at(const Pipeline& pipeline, int position);

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

// 1F1B with the weight half of a backward put off, on stage s by s microbatches: a stage holds the
// activations of at most `stages` microbatches, as the first one of 1F1B does, and the bubble is
// (stages - 1) * (f + i - w) from `stages` microbatches on (ZB-H1 of Qi et al., "Zero Bubble
// Pipeline Parallelism", 2023, section 2). REQUIRES: pipeline.chunks == 1.
[[nodiscard]] std::vector<PipelineAction> zb_h1(const Pipeline& pipeline, int stage);

// Two chunks on each stage, in a V, so that the first stage also has the last layers; forwards of
// one chunk are next to backwards of the other, and only the last backwards are split (DualPipeV,
// half of DeepSeek's DualPipe: DeepSeek-V3 technical report, 2024, section 3.2.1). A stage holds at
// most 2 * stages + 1 chunk activations. If f = i = w, the bubble is (stages - 1) * f, from 2 *
// stages microbatches on; fewer are allowed. REQUIRES: pipeline.chunks == 2 and Placement::v.
[[nodiscard]] std::vector<PipelineAction> dualpipev(const Pipeline& pipeline, int stage);

}  // namespace shiplap::schedule
