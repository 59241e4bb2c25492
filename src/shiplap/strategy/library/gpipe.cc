// GPipe: every rank has some of the layers, and all microbatches pass through them, first forward,
// then backward.
#include "shiplap/strategy/library.h"
#include "shiplap/strategy/library/pipeline_internal.h"

namespace shiplap::strategy {

Task gpipe(Model& model) {
  Stage stage(model);
  stage.load();
  const std::vector<Turn> turns = schedule::gpipe(stage.pipeline(), stage.index());
  for (const Turn& turn : turns) co_await stage.take(turn);
  co_await stage.finish();
  stage.update();
}

}  // namespace shiplap::strategy
