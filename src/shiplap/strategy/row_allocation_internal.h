// Memory layout of one rank: assigns rows of buffers to values, from their lifetimes.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "shiplap/strategy/record.h"
#include "shiplap/workload/shape.h"

namespace shiplap::strategy {

// One buffer per type of value, in this order.
enum class BufferKind : std::uint8_t {
  weights,
  opt_states,
  grad_weights,
  activations,
  grad_activations
};
inline constexpr std::size_t kBufferKinds = 5;

[[nodiscard]] BufferKind buffer_kind(const AnyValue& value);

struct Rows {
  BufferKind buffer = BufferKind::weights;
  std::int64_t begin = 0;
  std::int64_t count = 0;
  [[nodiscard]] std::int64_t end() const { return begin + count; }
};

// The number of rows of a whole weight, and of a sample: a multiple of every number of shards.
struct Grain {
  std::int64_t weight = 1;
  std::int64_t sample = 1;
};
[[nodiscard]] Grain common_grain(const Grain& so_far, const Recording& recording);

struct RowAllocation {
  std::vector<Rows> rows;                          // by value
  std::vector<Rows> storage;                       // by value: union of all values that alias it
  std::vector<bool> kept;                          // by value: loaded, so live from the start
  std::array<std::int64_t, kBufferKinds> total{};  // rows of each buffer
};
// First fit, in the order of the recording. Deterministic: equal recordings get equal rows.
[[nodiscard]] RowAllocation allocate_rows(const Recording& recording, const Grain& grain);

}  // namespace shiplap::strategy
