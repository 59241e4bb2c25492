// 1F1B: a pipeline that is as fast as GPipe and holds less. A stage takes a microbatch backward as
// soon as it can, so it never has more of them than there are stages from it to the end.
#include "shiplap/strategy/library.h"
#include "shiplap/strategy/library/pipeline_internal.h"

namespace shiplap::strategy {

Task one_f_one_b(Model& model) {
  Stage stage(model);
  stage.load();
  const std::vector<Turn> turns = schedule::one_f_one_b(stage.pipeline(), stage.index());
  for (const Turn& turn : turns) co_await stage.take(turn);
  co_await stage.finish();
  stage.update();
}

}  // namespace shiplap::strategy
