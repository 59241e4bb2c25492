// Sizes of the values of a strategy: every sample is a block of tokens; every layer is one square
// matrix, or a list of named parts.
#pragma once

#include <cstdint>
#include <vector>

#include "shiplap/base/dtype.h"
#include "shiplap/base/units.h"
#include "shiplap/workload/model.h"

namespace shiplap::workload {

struct ModelShape {
  std::int64_t hidden = 4096;  // a square weight is hidden x hidden
  std::int64_t block = 1024;   // tokens of a sample
  DType datatype = DType::f16;
  int moments = 2;  // matrices of optimizer state: 2 for Adam, 1 as the puzzles count

  std::vector<Layer> layers = {};  // empty: all are square

  [[nodiscard]] std::int64_t parameters(std::size_t layer = 0) const {
    return layers.empty() ? hidden * hidden : layers.at(layer).parameters();
  }
  [[nodiscard]] Bytes weight(std::size_t layer = 0) const {
    return {parameters(layer) * bytes_of(datatype)};
  }
  [[nodiscard]] Bytes opt_state(std::size_t layer = 0) const { return moments * weight(layer); }
  // Between two layers.
  [[nodiscard]] Bytes activation() const { return {hidden * block * bytes_of(datatype)}; }
  friend bool operator==(const ModelShape&, const ModelShape&) = default;
};

// The layers of a model: the first one has the embedding, the last one the head. For a type of two
// bytes the optimizer holds three numbers of four bytes for each parameter: a copy of the weight,
// and the moments of Adam.
[[nodiscard]] ModelShape shape_of(const Model& model, std::int64_t seq_length);

}  // namespace shiplap::workload
