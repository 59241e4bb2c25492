// What becomes of sums that were made elsewhere: the epilogue of a product whose parts were added
// up over ranks.
//
//   finish({.data = sums, .type = DType::bf16, .rows = m, .columns = n},
//          {.data = y, .type = DType::bf16}, {.bias = {b, DType::f32}});
#pragma once

#include <cstdint>

#include "shiplap/kernels/linear.h"

namespace shiplap::kernels {

// By rows, without gaps.
struct Sums {
  const void* data = nullptr;
  DType type = DType::f32;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
};

// before = alpha * sums + beta * c + bias; c = activation(before), in float, rounded when stored.
// `c` and the input of the activation are rows x columns. `c` may be the sums themselves if their
// types are the same.
void finish(const Sums& sums, const Result& c, const Epilogue& epilogue);

// Whether it leaves sums as they are.
[[nodiscard]] bool is_identity(const Epilogue& epilogue);

// The same result from a later row on, of `columns` numbers each.
[[nodiscard]] Result from_row(const Result& result, std::int64_t row, std::int64_t columns);

}  // namespace shiplap::kernels
