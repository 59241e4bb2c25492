// Interleaved 1F1B: every rank has several short chunks of layers, dealt out round robin. The
// pipeline is filled sooner, and microbatches pass through every rank several times.
#include "shiplap/strategy/library.h"
#include "shiplap/strategy/library/pipeline_internal.h"

namespace shiplap::strategy {

Task interleaved(Model& model) {
  Stage stage(model);
  stage.load();
  const std::vector<Turn> turns = schedule::interleaved(stage.pipeline(), stage.index());
  for (const Turn& turn : turns) co_await stage.take(turn);
  co_await stage.finish();
  stage.update();
}

}  // namespace shiplap::strategy
