#include "shiplap/schedule/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "shiplap/base/error.h"

namespace shiplap::schedule {
namespace {

void check_stage(const Pipeline& pipeline, int stage) {
  ensure(pipeline.stages >= 1 && pipeline.microbatches >= 1 && pipeline.chunks >= 1,
         "a pipeline has a stage, a microbatch and a chunk");
  ensure(stage >= 0 && stage < pipeline.stages, "the stage is in the pipeline");
}

// `warmup` forwards, then forwards and backwards alternately, then the remaining backwards.
std::vector<PipelineAction> alternate(const std::vector<PipelineAction>& forwards,
                                      const std::vector<PipelineAction>& backwards, int warmup) {
  const auto warmup_actions = std::min(static_cast<std::size_t>(warmup), forwards.size());
  std::vector<PipelineAction> order(forwards.begin(),
                                    forwards.begin() + static_cast<std::ptrdiff_t>(warmup_actions));
  order.reserve(2 * forwards.size());
  for (std::size_t i = 0; i < backwards.size(); ++i) {
    if (warmup_actions + i < forwards.size()) order.push_back(forwards[warmup_actions + i]);
    order.push_back(backwards[i]);
  }
  return order;
}

// All actions of one direction: groups of `stages` microbatches, each through one chunk after the
// other.
std::vector<PipelineAction> all_actions(const Pipeline& pipeline, Direction direction) {
  const int together = pipeline.chunks == 1 ? pipeline.microbatches : pipeline.stages;
  std::vector<PipelineAction> actions;
  for (int begin = 0; begin < pipeline.microbatches; begin += together) {
    for (int i = 0; i < pipeline.chunks; ++i) {
      const int chunk = direction == Direction::forward ? i : pipeline.chunks - 1 - i;
      for (int m = begin; m < begin + together; ++m) {
        actions.push_back({.direction = direction, .chunk = chunk, .microbatch = m});
      }
    }
  }
  return actions;
}

std::vector<PipelineAction> with_warmup(const Pipeline& pipeline, int warmup) {
  return alternate(all_actions(pipeline, Direction::forward),
                   all_actions(pipeline, Direction::backward), warmup);
}

}  // namespace

std::vector<PipelineAction> gpipe(const Pipeline& pipeline, int stage) {
  check_stage(pipeline, stage);
  ensure(pipeline.chunks == 1, "the layers of a stage are one chunk");
  return with_warmup(pipeline, pipeline.microbatches);
}

std::vector<PipelineAction> one_f_one_b(const Pipeline& pipeline, int stage) {
  check_stage(pipeline, stage);
  ensure(pipeline.chunks == 1, "the layers of a stage are one chunk");
  return with_warmup(pipeline, pipeline.stages - 1 - stage);
}

std::vector<PipelineAction> interleaved(const Pipeline& pipeline, int stage) {
  check_stage(pipeline, stage);
  const auto [stages, microbatches, chunks] = pipeline;
  if (chunks == 1) return one_f_one_b(pipeline, stage);
  if (microbatches % stages != 0) {
    const int below = microbatches / stages * stages;
    const std::string nearest =
        below == 0 ? fmt::format("{}", stages) : fmt::format("{} or {}", below, below + stages);
    throw InputError(Diagnostic{
        .code = "D622",
        .what =
            fmt::format("{} microbatches cannot be interleaved on {} stages", microbatches, stages),
        .why = "microbatches pass through the chunks in groups of one per stage",
        .help = fmt::format("take {} microbatches", nearest)});
  }
  return with_warmup(pipeline, 2 * (stages - 1 - stage) + (chunks - 1) * stages);
}

}  // namespace shiplap::schedule
