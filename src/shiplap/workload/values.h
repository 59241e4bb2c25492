// The values that training is made of, known symbolically: which layer, which shards of it, which
// samples went into it. They carry no numbers; what they carry is what a wrong strategy gets wrong.
//
// What does not fit together throws InputError: D610 two values that do not belong together, D611 a
// sample counted twice, D612 a value that is not complete.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>

#include "shiplap/base/index_set.h"
#include "shiplap/base/units.h"
#include "shiplap/workload/shape.h"

namespace shiplap::workload {

// Where a value came from, for those who keep book of it. It tells no two values apart.
struct Trail {
  enum class How : std::uint8_t { none, made, shard, sum };
  How how = How::none;
  std::int32_t first = -1;   // the value that was made, cut or added to
  std::int32_t second = -1;  // the other one of a sum
  friend bool operator==(Trail, Trail) { return true; }
};

// Values that can be summed: gradients.
template <class T>
concept Reduceable = requires(const T& a, const T& b) {
  { a + b } -> std::same_as<T>;
};

// Values that can be cut into shards and put together again.
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
  Trail trail;

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
  Trail trail;

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
  Trail trail;

  // Both must be of the same layer and shards, and no sample may be in both.
  friend WeightGrad operator+(const WeightGrad& a, const WeightGrad& b);
  [[nodiscard]] WeightGrad shard(int index, int of) const;
  [[nodiscard]] bool is_complete() const { return shards.covers(num_shards); }
  [[nodiscard]] WeightGrad combine(const WeightGrad& other) const;
  [[nodiscard]] Bytes memory(const ModelShape& shape = {}) const;
  friend bool operator==(const WeightGrad&, const WeightGrad&) = default;
};

// What layer `layer` reads: of `samples`, the features that the listed shards of the weight before
// it made (all, unless the layer is split among ranks).
struct Activation {
  std::int32_t layer = 0;
  std::int32_t layers = 1;
  IndexSet samples;
  std::int32_t total_samples = 1;
  IndexSet shards{0};
  std::int32_t num_shards = 1;
  Trail trail;

  [[nodiscard]] Activation shard(int index, int of) const;
  [[nodiscard]] bool is_complete() const { return shards.covers(num_shards); }
  [[nodiscard]] Activation combine(const Activation& other) const;
  [[nodiscard]] Bytes memory(const ModelShape& shape = {}) const;
  friend bool operator==(const Activation&, const Activation&) = default;
};

// The gradient of what layer `layer` wrote, for `samples`: a sum over the shards of the weight that
// it came through, of which `summed` are in it (all, unless the layer is split among ranks).
struct ActivationGrad {
  std::int32_t layer = 0;
  std::int32_t layers = 1;
  IndexSet samples;
  std::int32_t total_samples = 1;
  IndexSet summed{0};
  std::int32_t num_summed = 1;
  Trail trail;

  friend ActivationGrad operator+(const ActivationGrad& a, const ActivationGrad& b);
  [[nodiscard]] bool is_complete() const { return summed.covers(num_summed); }
  [[nodiscard]] Bytes memory(const ModelShape& shape = {}) const;
  friend bool operator==(const ActivationGrad&, const ActivationGrad&) = default;
};

static_assert(Gatherable<Weight> && Gatherable<OptState> && Gatherable<Activation>);
static_assert(ReduceableGatherable<WeightGrad> && Reduceable<ActivationGrad>);

// "the weight of layer 3, shard 1 of 4, step 0"; for people.
[[nodiscard]] std::string describe(const Weight& value);
[[nodiscard]] std::string describe(const OptState& value);
[[nodiscard]] std::string describe(const WeightGrad& value);
[[nodiscard]] std::string describe(const Activation& value);
[[nodiscard]] std::string describe(const ActivationGrad& value);

}  // namespace shiplap::workload
