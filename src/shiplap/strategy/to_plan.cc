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

plan::Plan to_plan(Trainer& trainer) {
  ensure(trainer.training().record, "what becomes a plan was recorded");
  Grain grain;
  for (const auto& model : trainer.models()) grain = common_grain(grain, model->recording());
  // Where layers are split, the features that a weight writes and an activation has are the same.
  if (grain.sample > 1) grain.weight = grain.sample = std::lcm(grain.weight, grain.sample);
  require_whole_rows(trainer.world().shape, grain);
  const Tensors tensors(trainer.training(), grain);
  plan::Plan plan;
  plan.mesh = trainer.dist().mesh();
  plan.tensors = tensors.all();
  ProgramSharing sharing(plan.mesh);
  const Lowering lowering{.trainer = trainer, .grain = grain, .tensors = tensors};
  for (const auto& model : trainer.models()) sharing.add(rank_program(lowering, *model));
  sharing.finish(plan);
  return plan;
}

}  // namespace shiplap::strategy
