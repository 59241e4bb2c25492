// Lowers the recording of one rank to a program with literal numbers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shiplap/plan/plan.h"
#include "shiplap/strategy/model.h"
#include "shiplap/strategy/row_allocation_internal.h"

namespace shiplap::strategy {

// The tensors of a plan. With tensor parallelism, those of even and of odd layers have different
// dimension names, since a layer reads and writes different features.
class Tensors {
 public:
  Tensors(const Training& training, const Grain& grain);
  [[nodiscard]] const IdVector<plan::TensorId, plan::Tensor>& all() const { return tensors_; }
  // Translates a symbolic value into a value of the plan.
  [[nodiscard]] plan::Value value(const AnyValue& value) const;

 private:
  [[nodiscard]] plan::TensorId tensor(BufferKind buffer, std::int64_t layer) const;
  void add_shards(plan::Value& value, const IndexSet& shards, std::int64_t of) const;
  bool split_;
  std::int64_t inner_;  // shards of a tensor-parallel shard
  Grain grain_;
  IdVector<plan::TensorId, plan::Tensor> tensors_;
};

enum class LoweringPurpose : std::uint8_t {
  execution,   // the step must be complete and repeatable: else D625
  simulation,  // of the steps recorded so far
};

struct LoweringContext {
  const Dist& dist;
  Grain grain;
  const LayerClasses& classes;
  const Tensors& tensors;
  LoweringPurpose purpose = LoweringPurpose::execution;
};

// Every number is a literal, every peer an absolute rank. `steps` receives the recorded step of
// each operation.
[[nodiscard]] plan::Program rank_program(const LoweringContext& lowering, int rank,
                                         const Recording& recording,
                                         std::vector<std::int32_t>* steps = nullptr);

// Ranks with equal steps (Recorder::position).
struct RankClass {
  std::vector<std::int32_t> ranks;
  Recording first;                    // recording of the first rank
  std::vector<std::int32_t> step_of;  // by operation: its recorded step
};

struct LoweredRanks {
  plan::Plan plan;  // of all ranks, with deduplicated programs
  std::vector<RankClass> classes;
};
// Throws as to_plan does.
[[nodiscard]] LoweredRanks lower(const Dist& dist, LoweringPurpose purpose);

}  // namespace shiplap::strategy
