// Sizes of the values of a strategy: every layer is one square matrix, every sample a block of
// tokens.
#pragma once

#include <cstdint>

#include "shiplap/base/dtype.h"
#include "shiplap/base/units.h"

namespace shiplap::workload {

struct ModelShape {
  std::int64_t hidden = 4096;  // a weight is hidden x hidden
  std::int64_t block = 1024;   // tokens of a sample
  DType datatype = DType::f16;
  int moments = 2;  // matrices of optimizer state: 2 for Adam, 1 as the puzzles count

  [[nodiscard]] Bytes weight() const { return {hidden * hidden * bytes_of(datatype)}; }
  [[nodiscard]] Bytes activation() const { return {hidden * block * bytes_of(datatype)}; }
  [[nodiscard]] Bytes opt_state() const { return moments * weight(); }
  friend bool operator==(const ModelShape&, const ModelShape&) = default;
};

}  // namespace shiplap::workload
