// Collective operations and reduction operators.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace shiplap {

enum class CollectiveKind : std::uint8_t {
  all_reduce,
  all_gather,
  reduce_scatter,
  all_to_all,
  broadcast,
  reduce,
  barrier,
};
inline constexpr std::array kCollectives = {
    CollectiveKind::all_reduce, CollectiveKind::all_gather, CollectiveKind::reduce_scatter,
    CollectiveKind::all_to_all, CollectiveKind::broadcast,  CollectiveKind::reduce,
    CollectiveKind::barrier,
};
[[nodiscard]] std::string_view name(CollectiveKind kind);
// Whether it has a reduction operator and a scale, a split into pieces, a root.
[[nodiscard]] bool reduces(CollectiveKind kind);
[[nodiscard]] bool has_pieces(CollectiveKind kind);
[[nodiscard]] bool has_root(CollectiveKind kind);

enum class ReduceOp : std::uint8_t { sum, max, min, product };
[[nodiscard]] std::string_view name(ReduceOp op);

}  // namespace shiplap
