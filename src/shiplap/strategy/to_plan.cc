#include "shiplap/strategy/to_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "shiplap/base/error.h"
#include "shiplap/strategy/rank_program_internal.h"
#include "shiplap/strategy/share_internal.h"

namespace shiplap::strategy {
namespace {

void require_whole_rows(const workload::ModelShape& shape, const Grain& grain) {
  const bool fits = shape.weight().count % grain.weight == 0 && shape.hidden % grain.sample == 0;
  if (fits) return;
  throw InputError(Diagnostic{
      .code = "D622",
      .what = fmt::format("a weight of {} x {} cannot be cut into {} equal shards", shape.hidden,
                          shape.hidden, std::max(grain.weight, grain.sample)),
      .why = "every shard has the same number of bytes",
      .help = "take a hidden size that is a multiple of the number of shards"});
}

}  // namespace

plan::Plan lower(const Dist& dist, std::span<const Recording> recordings, Lowered purpose,
                 std::vector<std::vector<std::int32_t>>* steps) {
  Grain grain;
  for (const Recording& recording : recordings) grain = common_grain(grain, recording);
  // Where layers are split, the features that a weight writes and an activation has are the same.
  if (grain.sample > 1) grain.weight = grain.sample = std::lcm(grain.weight, grain.sample);
  if (purpose == Lowered::to_be_repeated) require_whole_rows(dist.world().shape, grain);
  Training training;
  for (const Model* model : dist.models()) {
    if (model != nullptr) training = model->training();
  }
  const Tensors tensors(training, grain);
  plan::Plan plan;
  plan.mesh = dist.mesh();
  plan.tensors = tensors.all();
  ProgramSharing sharing(plan.mesh);
  const Lowering lowering{.dist = dist, .grain = grain, .tensors = tensors, .purpose = purpose};
  if (steps != nullptr) steps->resize(recordings.size());
  for (std::size_t rank = 0; rank < recordings.size(); ++rank) {
    sharing.add(rank_program(lowering, static_cast<int>(rank), recordings[rank],
                             steps == nullptr ? nullptr : &(*steps)[rank]));
  }
  sharing.finish(plan);
  return plan;
}

plan::Plan to_plan(const Trainer& trainer) {
  std::vector<Recording> recordings;
  for (const auto& model : trainer.models()) recordings.push_back(model->recording());
  return lower(trainer.dist(), recordings, Lowered::to_be_repeated);
}

}  // namespace shiplap::strategy
