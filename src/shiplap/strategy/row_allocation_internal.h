// Memory layout of one rank: assigns rows of buffers to values, from their lifetimes.
#pragma once

#include <compare>
#include <cstdint>
#include <set>
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

// The layers of a model by the size of their weights. Each class has buffers of its own for
// weights, optimizer states and gradients, since all rows of a buffer have the same size; class 0
// also has those of activations.
class LayerClasses {
 public:
  explicit LayerClasses(const workload::ModelShape& shape);
  [[nodiscard]] std::int32_t of(const AnyValue& value) const;
  [[nodiscard]] std::size_t count() const { return weights_.size(); }
  [[nodiscard]] Bytes weight(std::size_t layer_class) const { return weights_[layer_class]; }

 private:
  std::vector<std::int32_t> class_of_;  // by layer; empty: all are equal
  std::vector<Bytes> weights_;          // by class
};

// A buffer of a rank.
struct BufferKey {
  BufferKind kind = BufferKind::weights;
  std::int32_t layer_class = 0;
  [[nodiscard]] std::size_t index() const {
    return layer_class * kBufferKinds + static_cast<std::size_t>(kind);
  }
};

struct Rows {
  BufferKey buffer;
  std::int64_t begin = 0;
  std::int64_t count = 0;
  [[nodiscard]] std::int64_t end() const { return begin + count; }
};

// The number of rows of a whole weight, and of a sample: a multiple of every number of shards. A
// sample has more than one row only with tensor parallelism. Then a weight has as many rows or a
// multiple: a row of a sample is computed by `weight / sample` consecutive rows of a weight.
struct Grain {
  std::int64_t weight = 1;
  std::int64_t sample = 1;
};
class GrainBuilder {
 public:
  void add(const Recording& recording);
  [[nodiscard]] Grain build() const;

 private:
  struct Shards {
    std::int64_t count = 1;
    std::int64_t of = 1;
    friend auto operator<=>(const Shards&, const Shards&) = default;
  };
  std::set<Shards> shards_;    // of weights
  std::int64_t features_ = 1;  // common multiple of the numbers of shards of activations
};

struct RowAllocation {
  std::vector<Rows> rows;           // by value
  std::vector<Rows> storage;        // by value: union of all values that alias it
  std::vector<bool> kept;           // by value: loaded, so live from the start
  std::vector<std::int64_t> total;  // rows by BufferKey::index()
};
// First fit, in the order of the recording. Deterministic: equal recordings get equal rows.
[[nodiscard]] RowAllocation allocate_rows(const Recording& recording, const Grain& grain,
                                          const LayerClasses& classes);

}  // namespace shiplap::strategy
