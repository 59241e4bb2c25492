// A strategy of one's own: data parallel on several nodes, where gradients are summed within each
// node first, so that the slow network between nodes carries an eighth. docs/write-a-strategy.md
// walks through it.
#include <cstdio>
#include <fstream>
#include <tuple>

#include "shiplap/base/error.h"
#include "shiplap/plan/text.h"
#include "shiplap/strategy/library.h"
#include "shiplap/strategy/to_plan.h"
#include "shiplap/trace/summary.h"

using namespace shiplap;
using strategy::CollectiveOptions;
using strategy::Model;
using strategy::Task;

// [strategy]
Task two_level(Model& model) {
  auto& [weights, opt_states, activations, grad_activations, grad_weights] = model.storage();
  const int layers = model.layers();
  const CollectiveOptions within{.axes = "gpu"};   // the ranks of this node
  const CollectiveOptions across{.axes = "node"};  // the same gpu index on all nodes

  for (int l = 0; l < layers; ++l) std::tie(weights[l], opt_states[l]) = model.load_weights(l);
  activations[0] = model.get_input_activation(model.samples(model.rank(), model.ranks()));
  for (int l = 0; l < layers; ++l) {
    activations[l + 1] = model.forward(l, activations[l], weights[l]);
  }
  grad_activations[layers] = model.loss(activations[layers]);
  activations.erase(layers);

  for (int l = layers - 1; l >= 0; --l) {
    std::tie(grad_weights[l], grad_activations[l]) =
        model.backward(l, activations[l], grad_activations[l + 1], weights[l]);
    grad_activations.erase(l + 1);
    activations.erase(l);

    grad_weights[l] = co_await model.reduce_scatter(grad_weights[l], l, within);
    grad_weights[l] = co_await model.all_reduce(grad_weights[l], l, across);
    grad_weights[l] = co_await model.all_gather(grad_weights[l], l, within);
  }
  grad_activations.erase(0);

  for (int l = 0; l < layers; ++l) {
    std::tie(weights[l], opt_states[l]) =
        model.update(l, grad_weights[l], weights[l], opt_states[l]);
    grad_weights.erase(l);
    model.set_final_weight(l, weights[l]);
  }
}
// [/strategy]

// The same, without the reduction across nodes.
Task one_level_only(Model& model) {
  auto& [weights, opt_states, activations, grad_activations, grad_weights] = model.storage();
  std::tie(weights[0], opt_states[0]) = model.load_weights(0);
  activations[0] = model.get_input_activation(model.samples(model.rank(), model.ranks()));
  activations[1] = model.forward(0, activations[0], weights[0]);
  grad_activations[1] = model.loss(activations[1]);
  std::tie(grad_weights[0], grad_activations[0]) =
      model.backward(0, activations[0], grad_activations[1], weights[0]);
  grad_weights[0] = co_await model.all_reduce(grad_weights[0], 0, {.axes = "gpu"});
  std::tie(weights[0], opt_states[0]) = model.update(0, grad_weights[0], weights[0], opt_states[0]);
  model.set_final_weight(0, weights[0]);
}

void print(const char* name, const strategy::Trainer& trainer) {
  const trace::Summary summary = trace::summarize(trainer.trace());
  std::printf("%-10s step %s, peak %s on rank %d, %.1f %% of it exposed communication\n", name,
              to_string(summary.step_time()).c_str(), to_string(summary.all.peak).c_str(),
              summary.peak_rank, 100 * summary.fraction_of_step(summary.all.exposed));
}

// [main]
int main(int argc, char** argv) try {
  const strategy::World world{.mesh = {{.name = "node", .size = 4}, {.name = "gpu", .size = 8}},
                              .system = hardware::find_system("h100_80g_nvl8")};
  const strategy::Training training{.layers = 8, .batch = 128};

  strategy::Trainer flat(world, training);
  flat.run(strategy::ddp);
  print("ddp", flat);

  strategy::Trainer trainer(world, training);
  trainer.run(two_level);
  print("two_level", trainer);

  if (argc == 2) std::ofstream(argv[1]) << plan::to_text(strategy::to_plan(trainer));
  // [/main]

  strategy::Trainer wrong(world, {.layers = 1, .batch = 128});
  try {
    wrong.run(one_level_only);
  } catch (const InputError& error) {
    std::printf("\n%s", render(error.diagnostics()).c_str());
  }
  return 0;
} catch (const InputError& error) {
  std::fprintf(stderr, "%s", render(error.diagnostics()).c_str());
  return 2;
}
