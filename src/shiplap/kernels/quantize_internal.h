// The loops of quantize.h over numbers that lie one after another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "shiplap/kernels/bf16.h"
#include "shiplap/kernels/quantize.h"

namespace shiplap::kernels {

struct AmaxStep {
  const void* from = nullptr;
  DType type = DType::f32;
  std::int64_t count = 0;
};

// Codes of from * scale.
struct RoundStep {
  const void* from = nullptr;
  DType type = DType::f32;
  std::int64_t count = 0;
  float scale = 1;
  DType format = DType::fp8_e4m3;
  std::byte* to = nullptr;
};

// The same in blocks of 32, each with a scale of its own, which is written too.
struct RoundBlocksStep {
  const void* from = nullptr;
  DType type = DType::f32;
  std::int64_t count = 0;
  MxRule rule = MxRule::round_up;
  DType format = DType::fp8_e4m3;
  std::byte* to = nullptr;
  std::byte* scales = nullptr;
};

// Numbers of codes, times `factor`, or if there are scales times those of blocks.
struct WidenCodesStep {
  const std::byte* from = nullptr;
  DType format = DType::fp8_e4m3;
  std::int64_t count = 0;
  float factor = 1;
  const std::byte* scales = nullptr;
};

// The loops, compiled for one kind of processor.
struct QuantizeLoops {
  float (*largest_absolute)(const AmaxStep&);
  void (*round_to_codes)(const RoundStep&);
  void (*round_to_blocks)(const RoundBlocksStep&);
  void (*widen_to_floats)(const WidenCodesStep&, float*);
  void (*widen_to_bf16)(const WidenCodesStep&, Bf16*);  // rounded once, from the exact product
  void (*add_codes)(const WidenCodesStep&, float*);
};

// All that this processor can run, the best first; tests compare them.
[[nodiscard]] std::span<const QuantizeLoops> quantize_loops();
[[nodiscard]] inline const QuantizeLoops& best_quantize_loops() { return quantize_loops().front(); }

}  // namespace shiplap::kernels
