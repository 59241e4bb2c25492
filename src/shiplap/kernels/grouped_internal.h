// Who multiplies for a GroupedLinear: the tiles of AMX, oneDNN, or plain loops.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "shiplap/kernels/grouped.h"

namespace shiplap::kernels {

// All strides are set, and there are rows and columns.
struct GroupedCall {
  Rows a;
  std::span<const GroupRows> runs;
  Result c;
  GroupedEpilogue epilogue;
};

class GroupedEngine {
 public:
  virtual ~GroupedEngine() = default;
  // The stride is set.
  virtual void prepare(std::int64_t group, const Weights& weights) = 0;
  virtual void multiply(const GroupedCall& call) = 0;
  [[nodiscard]] virtual std::string_view name() const = 0;
};

// For bf16 where there are tiles, and sizes of the weights that are not zero; null otherwise.
[[nodiscard]] std::unique_ptr<GroupedEngine> make_tiles_engine(const GroupedShape& shape);
// For any shape.
[[nodiscard]] std::unique_ptr<GroupedEngine> make_common_engine(const GroupedShape& shape);

}  // namespace shiplap::kernels
