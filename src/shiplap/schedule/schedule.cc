#include "shiplap/schedule/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "shiplap/base/error.h"

namespace shiplap::schedule {
namespace {

void promise(const Pipeline& pipeline, int stage) {
  ensure(pipeline.stages >= 1 && pipeline.microbatches >= 1 && pipeline.chunks >= 1,
         "a pipeline has a stage, a microbatch and a chunk");
  ensure(stage >= 0 && stage < pipeline.stages, "the stage is one of the pipeline");
}

// `first` forwards, then a forward and a backward in turn, then the backwards that are left.
std::vector<Turn> alternate(const std::vector<Turn>& forwards, const std::vector<Turn>& backwards,
                            int first) {
  const auto ahead = std::min(static_cast<std::size_t>(first), forwards.size());
  std::vector<Turn> order(forwards.begin(), forwards.begin() + static_cast<std::ptrdiff_t>(ahead));
  order.reserve(2 * forwards.size());
  for (std::size_t i = 0; i < backwards.size(); ++i) {
    if (ahead + i < forwards.size()) order.push_back(forwards[ahead + i]);
    order.push_back(backwards[i]);
  }
  return order;
}

// All turns of one direction: groups of `stages` microbatches, each through all chunks in turn.
std::vector<Turn> all_turns(const Pipeline& pipeline, Direction direction) {
  const int together = pipeline.chunks == 1 ? pipeline.microbatches : pipeline.stages;
  std::vector<Turn> turns;
  for (int begin = 0; begin < pipeline.microbatches; begin += together) {
    for (int i = 0; i < pipeline.chunks; ++i) {
      const int chunk = direction == Direction::forward ? i : pipeline.chunks - 1 - i;
      for (int m = begin; m < begin + together; ++m) {
        turns.push_back({.direction = direction, .chunk = chunk, .microbatch = m});
      }
    }
  }
  return turns;
}

std::vector<Turn> after_forwards(const Pipeline& pipeline, int first) {
  return alternate(all_turns(pipeline, Direction::forward),
                   all_turns(pipeline, Direction::backward), first);
}

}  // namespace

std::vector<Turn> gpipe(const Pipeline& pipeline, int stage) {
  promise(pipeline, stage);
  ensure(pipeline.chunks == 1, "the layers of a stage are one chunk");
  return after_forwards(pipeline, pipeline.microbatches);
}

std::vector<Turn> one_f_one_b(const Pipeline& pipeline, int stage) {
  promise(pipeline, stage);
  ensure(pipeline.chunks == 1, "the layers of a stage are one chunk");
  return after_forwards(pipeline, pipeline.stages - 1 - stage);
}

std::vector<Turn> interleaved(const Pipeline& pipeline, int stage) {
  promise(pipeline, stage);
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
        .why = "microbatches go through the chunks in groups of as many as there are stages",
        .help = fmt::format("take {} microbatches", nearest)});
  }
  return after_forwards(pipeline, 2 * (stages - 1 - stage) + (chunks - 1) * stages);
}

}  // namespace shiplap::schedule
