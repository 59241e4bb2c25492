// One rank's record as a program in plain numbers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shiplap/plan/plan.h"
#include "shiplap/strategy/model.h"
#include "shiplap/strategy/places_internal.h"

namespace shiplap::strategy {

// The tensors of a plan. Where layers are split among ranks, those of even and of odd layers differ
// in the names of their dimensions: what a layer writes and what it reads are different features.
class Tensors {
 public:
  Tensors(const Training& training, const Grain& grain);
  [[nodiscard]] const IdVector<plan::TensorId, plan::Tensor>& all() const { return tensors_; }
  // What a rank holds, in the words of a plan.
  [[nodiscard]] plan::Value value(const AnyValue& value) const;

 private:
  [[nodiscard]] plan::TensorId tensor(Place place, std::int64_t layer) const;
  bool split_;
  Grain grain_;
  IdVector<plan::TensorId, plan::Tensor> tensors_;
};

enum class Lowered : std::uint8_t {
  to_be_repeated,  // it must be possible to do the step again: else D625
  to_be_timed,     // whatever was done so far
};

struct Lowering {
  const Dist& dist;
  Grain grain;
  const Tensors& tensors;
  Lowered purpose = Lowered::to_be_repeated;
};

// Every number in it is a literal; a peer is named by its rank. `steps` gets the step of each
// operation.
[[nodiscard]] plan::Program rank_program(const Lowering& lowering, int rank,
                                         const Recording& recording,
                                         std::vector<std::int32_t>* steps = nullptr);

// The plan of all ranks, shared by those that did the same.
struct LoweredRanks {
  // Ranks with equal steps (Recorder::position).
  struct Kind {
    std::vector<std::int32_t> ranks;
    Recording first;                    // of the first of them
    std::vector<std::int32_t> step_of;  // of each operation
  };
  plan::Plan plan;
  std::vector<Kind> kinds;
};
// Throws what to_plan throws.
[[nodiscard]] LoweredRanks lower(const Dist& dist, Lowered purpose);

}  // namespace shiplap::strategy
