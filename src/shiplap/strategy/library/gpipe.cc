// GPipe: every rank has some of the layers, and all microbatches pass through them, first forward,
// then backward.
#include "shiplap/strategy/library.h"
#include "shiplap/strategy/library/pipeline_internal.h"

namespace shiplap::strategy {

Task gpipe(Model& model) {
  Stage stage(model);
  stage.load();
  const std::vector<PipelineAction> actions = schedule::gpipe(stage.pipeline(), stage.index());
  co_await stage.run(actions);
  stage.update();
}

}  // namespace shiplap::strategy
