// Pipelines that differ in nothing but their schedule. Every rank has some of the layers.
#include "shiplap/strategy/library.h"
#include "shiplap/strategy/library/pipeline_internal.h"

namespace shiplap::strategy {
namespace {

using Schedule = std::vector<PipelineAction> (*)(const schedule::Pipeline&, int stage);

Task scheduled(Model& model, Schedule schedule,
               schedule::Placement placement = schedule::Placement::loop) {
  Stage stage(model, kWholeLayers, placement);
  stage.load();
  co_await stage.run(schedule(stage.pipeline(), stage.index()));
  stage.update();
}

}  // namespace

// All microbatches pass through the ranks, first forward, then backward.
Task gpipe(Model& model) { return scheduled(model, schedule::gpipe); }

// As fast as GPipe, with less memory: a stage runs the backward of a microbatch as early as
// possible, so it never holds more of them than there are stages from it to the end.
Task one_f_one_b(Model& model) { return scheduled(model, schedule::one_f_one_b); }

// Every rank has several short chunks of layers (virtual stages), assigned round robin. The
// pipeline fills sooner, and microbatches pass through every rank several times.
Task interleaved(Model& model) { return scheduled(model, schedule::interleaved); }

// 1F1B whose backwards are split. The gradient of the input is computed when the previous stage
// waits for it, those of the weights later, where the stage would be idle.
Task zb_h1(Model& model) { return scheduled(model, schedule::zb_h1); }

// Two chunks of layers per stage in a V, so that the first stage also has the last layers and both
// ends of the model are busy at once.
Task dualpipev(Model& model) {
  return scheduled(model, schedule::dualpipev, schedule::Placement::v);
}

}  // namespace shiplap::strategy
