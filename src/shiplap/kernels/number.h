// The types of numbers that matrices are stored in. Sums are float whatever the type.
#pragma once

#include <cstddef>
#include <cstdint>

#include "shiplap/base/error.h"

namespace shiplap::kernels {

enum class Number : std::uint8_t { f32, bf16, f16 };

[[nodiscard]] inline std::size_t bytes_of(Number type) {
  switch (type) {
    case Number::f32:
      return 4;
    case Number::bf16:
    case Number::f16:
      return 2;
  }
  throw InternalError("unknown type of number");
}

}  // namespace shiplap::kernels
