// The plan text of a training step of the size of Llama 3 405B, for the benchmarks of `check`.
#pragma once

#include <string>

namespace shiplap {

struct LlamaSize {
  int tp = 8;             // tensor parallel, with sequence parallelism
  int pp = 16;            // pipeline stages, interleaved 1F1B
  int dp = 64;            // data parallel, ZeRO-1
  int microbatches = 16;  // of each pipeline
  int layers = 128;
  int chunks = 2;  // of each rank
};

// One program for all ranks: values that depend on `pp` are in lists, and `tp` and `dp` occur only
// in values. REQUIRES: pp * chunks divides the number of layers.
[[nodiscard]] std::string llama_plan(const LlamaSize& size);

}  // namespace shiplap
