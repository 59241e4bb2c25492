#include "cases.h"

namespace shiplap::strategy {

std::vector<Case> all_cases(int ranks) {
  std::vector<Case> cases;
  for (const StrategyInfo& entry : strategies()) {
    if (entry.axes.empty() && ranks > 1) continue;  // for one rank
    if (!entry.axes.empty() && ranks == 1) continue;
    for (const int samples : {1, 2}) {
      cases.push_back({.strategy = entry.name,
                       .size = {.ranks = ranks, .layers = 16, .batch = ranks * samples}});
    }
    for (int stage = 1; entry.zero_stages && stage <= 3; ++stage) {
      cases.push_back(
          {.strategy = entry.name,
           .size = {.ranks = ranks, .layers = 16, .batch = 2 * ranks, .zero_stage = stage}});
    }
  }
  return cases;
}

std::unique_ptr<Trainer> trained(const Case& c, const hardware::System& system) {
  const StrategyInfo& entry = find_strategy(c.strategy);
  World world = world_for(entry, c.size);
  world.system = system;
  Training training = training_for(entry, c.size);
  auto trainer = std::make_unique<Trainer>(world, training);
  trainer->run(entry.strategy);
  return trainer;
}

}  // namespace shiplap::strategy
