// DualPipeV: two chunks of layers per stage in a V, so that the first stage also has the last
// layers and both ends of the model are busy at once.
#include "shiplap/strategy/library.h"
#include "shiplap/strategy/library/pipeline_internal.h"

namespace shiplap::strategy {

Task dualpipev(Model& model) {
  Stage stage(model, kWholeLayers, schedule::Placement::v);
  stage.load();
  co_await stage.run(schedule::dualpipev(stage.pipeline(), stage.index()));
  stage.update();
}

}  // namespace shiplap::strategy
