// 1F1B: a pipeline as fast as GPipe that needs less memory. A stage runs the backward of a
// microbatch as early as possible, so it never holds more of them than there are stages from it to
// the end.
#include "shiplap/strategy/library.h"
#include "shiplap/strategy/library/pipeline_internal.h"

namespace shiplap::strategy {

Task one_f_one_b(Model& model) {
  Stage stage(model);
  stage.load();
  const std::vector<PipelineAction> actions =
      schedule::one_f_one_b(stage.pipeline(), stage.index());
  co_await stage.run(actions);
  stage.update();
}

}  // namespace shiplap::strategy
