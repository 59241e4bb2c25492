// Folded and unfolded replays of training steps agree.
#include <gtest/gtest.h>

#include <cstdlib>
#include <vector>

#include "random_layout.h"
#include "shiplap/hardware/system.h"
#include "shiplap/sim/folding_testing_internal.h"
#include "shiplap/step/step.h"
#include "shiplap/workload/model.h"

namespace shiplap::step {
namespace {

TEST(Folding, ChangesNoTimeOfTrainingSteps) {
  const char* const text = std::getenv("SHIPLAP_STEP_LAYOUTS");
  const int layouts = text == nullptr ? 200 : static_cast<int>(std::strtol(text, nullptr, 10));
  Random random(3);
  const std::vector<workload::Model> models = small_models();
  hardware::System system = hardware::find_system("h100_80g_nvl8");
  int folded = 0;
  for (int k = 0; k < layouts; ++k) {
    const workload::Model& model = models[k % models.size()];
    const layout::Layout layout = random_layout(model, random, 64);
    SCOPED_TRACE(testing::Message() << "layout " << k << " of " << model.name);
    system.networks[0].size = random.chance(0.8) ? 8 : random.between(2, 13);
    system.networks[1].leaf = {.nodes = random.between(1, 5), .oversubscription = 2};
    if (sim::compare_folded(step_plan(model, layout), {.system = system}) > 0) ++folded;
    if (HasFailure()) return;
  }
  EXPECT_GT(folded, layouts / 2);
}

}  // namespace
}  // namespace shiplap::step
