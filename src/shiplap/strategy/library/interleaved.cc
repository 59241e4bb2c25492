// Interleaved 1F1B: every rank has several short chunks of layers (virtual stages), assigned round
// robin. The pipeline fills sooner, and microbatches pass through every rank several times.
#include "shiplap/strategy/library.h"
#include "shiplap/strategy/library/pipeline_internal.h"

namespace shiplap::strategy {

Task interleaved(Model& model) {
  Stage stage(model);
  stage.load();
  const std::vector<PipelineAction> actions =
      schedule::interleaved(stage.pipeline(), stage.index());
  co_await stage.run(actions);
  stage.update();
}

}  // namespace shiplap::strategy
