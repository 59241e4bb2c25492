// Element types of tensors, buffers and messages.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace shiplap {

enum class DType : std::uint8_t {
  f64,
  f32,
  f16,
  bf16,
  fp8_e4m3,
  fp8_e5m2,
  i64,
  i32,
  i16,
  i8,
  u8,
};

inline constexpr std::array kDTypes{
    DType::f64, DType::f32, DType::f16, DType::bf16, DType::fp8_e4m3, DType::fp8_e5m2,
    DType::i64, DType::i32, DType::i16, DType::i8,   DType::u8,
};

[[nodiscard]] std::string_view name(DType type);       // "bf16"
[[nodiscard]] std::string_view long_name(DType type);  // "bfloat16"; "float8" for both FP8 formats

// Throws InternalError if `type` is not an enumerator.
[[nodiscard]] std::int64_t bytes_of(DType type);

[[nodiscard]] constexpr bool is_fp8(DType type) {
  return type == DType::fp8_e4m3 || type == DType::fp8_e5m2;
}

}  // namespace shiplap
