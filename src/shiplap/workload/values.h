// Symbolic values of a training step: layer, shards, and the samples that contributed. They hold no
// tensor data, only the metadata in which a wrong strategy shows.
//
// Weights, optimizer states and weight gradients can be sharded along several axes of the mesh,
// such as tp and, inside, dp: shard j of m of shard i of n is shard i*m + j of n*m. Gathering along
// the innermost axis returns shard i of n as the m consecutive shards i*m .. i*m + m-1 of n*m.
//
// Invalid combinations throw InputError: D610 two values that do not match, D611 a sample counted
// twice, D612 a value that is not complete.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>

#include "shiplap/base/index_set.h"
#include "shiplap/base/units.h"
#include "shiplap/workload/shape.h"

namespace shiplap::workload {

// How a value was derived, for storage tracking. It does not take part in comparisons.
struct Provenance {
  enum class Kind : std::uint8_t { none, result, shard, sum };
  Kind kind = Kind::none;
  std::int32_t first = -1;   // value number: the result itself, or the first operand
  std::int32_t second = -1;  // the second operand of a sum
  friend bool operator==(Provenance, Provenance) { return true; }
};

// Values that can be summed: gradients.
template <class T>
concept Reduceable = requires(const T& a, const T& b) {
  { a + b } -> std::same_as<T>;
};

// Values that can be sharded and gathered.
template <class T>
concept Gatherable = requires(const T& a, const T& b) {
  { a.shard(0, 1) } -> std::same_as<T>;
  { a.is_complete() } -> std::same_as<bool>;
  { a.combine(b) } -> std::same_as<T>;
};

template <class T>
concept ReduceableGatherable = Reduceable<T> && Gatherable<T>;

struct Weight {
  std::int32_t layer = 0;
  std::int32_t layers = 1;
  std::int32_t step = 0;  // how often it was updated
  IndexSet shards{0};     // of `num_shards`
  std::int32_t num_shards = 1;
  Provenance provenance;

  // One of `of` equal parts of this value. Throws D612 if its shards are not consecutive.
  [[nodiscard]] Weight shard(int index, int of) const;
  [[nodiscard]] bool is_complete() const { return shards.covers(num_shards); }
  [[nodiscard]] Weight combine(const Weight& other) const;
  [[nodiscard]] Bytes memory(const ModelShape& shape = {}) const;
  friend bool operator==(const Weight&, const Weight&) = default;
};

// The state of the optimizer for a weight. Counts as ModelShape::moments weights.
struct OptState {
  std::int32_t layer = 0;
  std::int32_t layers = 1;
  std::int32_t step = 0;
  IndexSet shards{0};
  std::int32_t num_shards = 1;
  Provenance provenance;

  [[nodiscard]] OptState shard(int index, int of) const;
  [[nodiscard]] bool is_complete() const { return shards.covers(num_shards); }
  [[nodiscard]] OptState combine(const OptState& other) const;
  [[nodiscard]] Bytes memory(const ModelShape& shape = {}) const;
  friend bool operator==(const OptState&, const OptState&) = default;
};

// The gradient of a weight, summed over `samples`.
struct WeightGrad {
  std::int32_t layer = 0;
  std::int32_t layers = 1;
  IndexSet samples;  // of `total_samples`
  std::int32_t total_samples = 1;
  IndexSet shards{0};
  std::int32_t num_shards = 1;
  Provenance provenance;

  // REQUIRES: same layer and shards (else D610), disjoint samples (else D611).
  friend WeightGrad operator+(const WeightGrad& a, const WeightGrad& b);
  [[nodiscard]] WeightGrad shard(int index, int of) const;
  [[nodiscard]] bool is_complete() const { return shards.covers(num_shards); }
  [[nodiscard]] WeightGrad combine(const WeightGrad& other) const;
  [[nodiscard]] Bytes memory(const ModelShape& shape = {}) const;
  friend bool operator==(const WeightGrad&, const WeightGrad&) = default;
};

// The input of layer `layer` for `samples`: the features that the listed shards of the previous
// weight computed (all, unless the layer is tensor parallel).
struct Activation {
  std::int32_t layer = 0;
  std::int32_t layers = 1;
  IndexSet samples;
  std::int32_t total_samples = 1;
  IndexSet shards{0};
  std::int32_t num_shards = 1;
  Provenance provenance;

  // Throws D612 if the value is not complete.
  [[nodiscard]] Activation shard(int index, int of) const;
  [[nodiscard]] bool is_complete() const { return shards.covers(num_shards); }
  [[nodiscard]] Activation combine(const Activation& other) const;
  [[nodiscard]] Bytes memory(const ModelShape& shape = {}) const;
  friend bool operator==(const Activation&, const Activation&) = default;
};

// The gradient of the output of layer `layer`, for `samples`: a sum over the shards of the weight
// behind it. `summed` lists the shards already added (all, unless the layer is tensor parallel).
struct ActivationGrad {
  std::int32_t layer = 0;
  std::int32_t layers = 1;
  IndexSet samples;
  std::int32_t total_samples = 1;
  IndexSet summed{0};
  std::int32_t num_summed = 1;
  Provenance provenance;

  friend ActivationGrad operator+(const ActivationGrad& a, const ActivationGrad& b);
  [[nodiscard]] bool is_complete() const { return summed.covers(num_summed); }
  [[nodiscard]] Bytes memory(const ModelShape& shape = {}) const;
  friend bool operator==(const ActivationGrad&, const ActivationGrad&) = default;
};

static_assert(Gatherable<Weight> && Gatherable<OptState> && Gatherable<Activation>);
static_assert(ReduceableGatherable<WeightGrad> && Reduceable<ActivationGrad>);

// The features that a weight computes, in as few parts as possible: with shards 2, 3 of 4, part 1
// of
// 2. So layers that are sharded along another axis only to save memory write the same activations.
struct Features {
  IndexSet parts{0};
  std::int32_t num_parts = 1;
};
[[nodiscard]] Features features_of(const Weight& weight);

// Returns a readable text: "the weight of layer 3, shard 1 of 4, step 0".
[[nodiscard]] std::string describe(const Weight& value);
[[nodiscard]] std::string describe(const OptState& value);
[[nodiscard]] std::string describe(const WeightGrad& value);
[[nodiscard]] std::string describe(const Activation& value);
[[nodiscard]] std::string describe(const ActivationGrad& value);

}  // namespace shiplap::workload
