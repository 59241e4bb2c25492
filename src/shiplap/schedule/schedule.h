// In which order does a stage of a pipeline do its work? Pipeline schedules as plain values.
//
// A pipeline passes microbatches through its stages, forward and then backward. A stage holds one
// chunk of layers or several; chunk c of stage s follows chunk c of stage s-1, and chunk c of stage
// 0 follows chunk c-1 of the last stage. Let a chunk take time f forward and b backward, and let
// messages be free; then all three orders end after (chunks * microbatches + stages - 1) * (f + b)
// and leave a stage idle for (stages - 1) * (f + b) of it. What they differ in is how much they
// hold, and how long a chunk is.
#pragma once

#include <cstdint>
#include <vector>

namespace shiplap::schedule {

enum class Direction : std::uint8_t { forward, backward };

// One chunk's work on one microbatch.
struct Turn {
  Direction direction = Direction::forward;
  int chunk = 0;
  int microbatch = 0;
  friend bool operator==(const Turn&, const Turn&) = default;
};

struct Pipeline {
  int stages = 1;
  int microbatches = 1;
  int chunks = 1;  // on each stage
  friend bool operator==(const Pipeline&, const Pipeline&) = default;
};

// Everything forward, then everything backward: a stage holds all microbatches at once (Huang et
// al., "GPipe", 2019). It promises, as the next does, that each stage has one chunk.
[[nodiscard]] std::vector<Turn> gpipe(const Pipeline& pipeline, int stage);

// One forward, one backward: stage s of p holds at most p - s microbatches (Narayanan et al.,
// "PipeDream", 2019; with one update per step, "Memory-Efficient Pipeline-Parallel DNN Training",
// 2021).
[[nodiscard]] std::vector<Turn> one_f_one_b(const Pipeline& pipeline, int stage);

// One forward, one backward in chunks: microbatches go in groups of as many as there are stages,
// each group through one chunk after the other, as Megatron-LM does it (Narayanan et al.,
// "Efficient Large-Scale Language Model Training on GPU Clusters", 2021, section 2.2). A chunk is
// short, and so is the time until the last stage has something to do. With one chunk it is
// one_f_one_b; with more, InputError D622 unless `stages` divides `microbatches`.
[[nodiscard]] std::vector<Turn> interleaved(const Pipeline& pipeline, int stage);

}  // namespace shiplap::schedule
