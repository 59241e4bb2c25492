// A training step of a large language model in the shape of Llama 3 405B, as the text of a plan:
// what the benchmarks of `check` are made of.
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

// One program for all ranks: what differs by `pp` is in lists, and `tp` and `dp` occur only in
// values. Promises that pp * chunks divides the layers.
[[nodiscard]] std::string llama_plan(const LlamaSize& size);

}  // namespace shiplap
