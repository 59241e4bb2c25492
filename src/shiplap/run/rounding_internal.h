// Conversions between f32, the accumulation type, and storage types.
#pragma once

#include "shiplap/kernels/bf16.h"
#include "shiplap/kernels/f16.h"

namespace shiplap::run {

inline float widen(float number) { return number; }
inline float widen(kernels::Bf16 number) { return kernels::to_float(number); }
inline float widen(kernels::F16 number) { return kernels::to_float(number); }

inline void store(float number, float& into) { into = number; }
inline void store(float number, kernels::Bf16& into) { into = kernels::to_bf16(number); }
inline void store(float number, kernels::F16& into) { into = kernels::to_f16(number); }

}  // namespace shiplap::run
