// One rank's record as a program in plain numbers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shiplap/plan/plan.h"
#include "shiplap/strategy/places_internal.h"
#include "shiplap/strategy/train.h"

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

struct Lowering {
  const Trainer& trainer;
  Grain grain;
  const Tensors& tensors;
};

// Every number in it is a literal; a peer is named by its rank.
[[nodiscard]] plan::Program rank_program(const Lowering& lowering, const Model& model);

}  // namespace shiplap::strategy
