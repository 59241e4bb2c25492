// The loops of quantize.h over contiguous values.
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

// Quantizes from * scale.
struct QuantizeStep {
  const void* from = nullptr;
  DType type = DType::f32;
  std::int64_t count = 0;
  float scale = 1;
  DType format = DType::fp8_e4m3;
  std::byte* to = nullptr;
};

// The same in blocks of 32; the scale of each block is computed and written.
struct QuantizeBlocksStep {
  const void* from = nullptr;
  DType type = DType::f32;
  std::int64_t count = 0;
  MxRule rule = MxRule::round_up;
  DType format = DType::fp8_e4m3;
  std::byte* to = nullptr;
  std::byte* scales = nullptr;
};

// Dequantizes with `factor`, or with block scales if they are set.
struct DequantizeStep {
  const std::byte* from = nullptr;
  DType format = DType::fp8_e4m3;
  std::int64_t count = 0;
  float factor = 1;
  const std::byte* scales = nullptr;
};

// The loops, compiled for one instruction set.
struct QuantizeLoops {
  float (*compute_amax)(const AmaxStep&);
  void (*quantize)(const QuantizeStep&);
  void (*quantize_blocks)(const QuantizeBlocksStep&);
  void (*dequantize_to_f32)(const DequantizeStep&, float*);
  void (*dequantize_to_bf16)(const DequantizeStep&, Bf16*);  // rounded once, from the exact product
  void (*dequantize_add)(const DequantizeStep&, float*);
};

// Returns all versions that this processor supports, the fastest first; tests compare them.
[[nodiscard]] std::span<const QuantizeLoops> quantize_loops();
[[nodiscard]] inline const QuantizeLoops& best_quantize_loops() { return quantize_loops().front(); }

}  // namespace shiplap::kernels
