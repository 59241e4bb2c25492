// Zero bubble, ZB-H1: 1F1B whose backwards are split. The gradient of the input is computed when
// the previous stage waits for it, those of the weights later, where the stage would be idle.
#include "shiplap/strategy/library.h"
#include "shiplap/strategy/library/pipeline_internal.h"

namespace shiplap::strategy {

Task zb_h1(Model& model) {
  Stage stage(model);
  stage.load();
  co_await stage.run(schedule::zb_h1(stage.pipeline(), stage.index()));
  stage.update();
}

}  // namespace shiplap::strategy
