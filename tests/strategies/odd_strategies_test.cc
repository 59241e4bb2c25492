// Unusual strategies that must be recorded correctly: waits taken by an asynchronous message, sums
// stored in addition to their terms, gathers in steps, results that are not stored, layers sharded
// in different ways. The replay agrees, the text round-trips, and what cannot be a plan is
// rejected.
#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "agreement.h"
#include "shiplap/base/error.h"
#include "shiplap/check/check.h"
#include "shiplap/plan/text.h"
#include "shiplap/strategy/library.h"
#include "shiplap/strategy/to_plan.h"

namespace shiplap::strategy {
namespace {

void load_all(Model& model) {
  Storage& storage = model.storage();
  for (int l = 0; l < model.layers(); ++l) {
    std::tie(storage.weights[l], storage.opt_states[l]) = model.load_weights(l);
  }
}

// Forward and backward with whole weights: gradients of `samples`.
void to_gradients(Model& model, const IndexSet& samples, int microbatch = -1) {
  auto& [weights, opt_states, activations, grad_activations, grad_weights] = model.storage();
  const int layers = model.layers();
  activations[0] = model.get_input_activation(samples);
  for (int l = 0; l < layers; ++l) {
    activations[l + 1] = model.forward(l, activations[l], weights[l]);
  }
  grad_activations[layers] = model.loss(activations[layers]);
  for (int l = layers - 1; l >= 0; --l) {
    std::tie(grad_weights[{l, microbatch}], grad_activations[l]) =
        model.backward(l, activations[l], grad_activations[l + 1], weights[l]);
  }
}

void update(Model& model, int l) {
  auto& [weights, opt_states, activations, grad_activations, grad_weights] = model.storage();
  std::tie(weights[l], opt_states[l]) = model.update(l, grad_weights[l], weights[l], opt_states[l]);
  model.set_final_weight(l, weights[l]);
}

// A non-blocking send takes the waits; then a collective uses the received value.
Task waits_before_a_stream(Model& model) {
  auto& [weights, opt_states, activations, grad_activations, grad_weights] = model.storage();
  const int other = model.rank() ^ 1;
  load_all(model);
  to_gradients(model, model.samples(model.rank(), model.ranks()));
  auto sent0 = model.start_send(other, grad_weights[0], {.tag = 0});
  auto sent1 = model.start_send(other, grad_weights[1], {.tag = 1});
  auto came0 = model.start_receive<WeightGrad>(other, {.tag = 0});
  auto came1 = model.start_receive<WeightGrad>(other, {.tag = 1});
  auto back = model.start_receive<WeightGrad>(other, {.tag = 2});
  grad_weights[{0, 1}] = co_await came0;
  grad_weights[{1, 1}] = co_await came1;
  auto again = model.start_send(other, grad_weights[{0, 1}], {.tag = 2});
  auto sum = model.start_all_reduce(grad_weights[{1, 1}], 1);
  grad_weights[{1, 1}] = co_await sum;
  grad_weights[{0, 2}] = co_await back;
  co_await again;
  co_await sent0;
  co_await sent1;
  grad_weights[0] = grad_weights[{0, 1}] + grad_weights[0];
  grad_weights[1] = grad_weights[{1, 1}];
  for (int l = 0; l < 2; ++l) update(model, l);
}

Task sums_beside_their_terms(Model& model) {
  auto& [weights, opt_states, activations, grad_activations, grad_weights] = model.storage();
  load_all(model);
  for (int m = 0; m < 2; ++m) {
    to_gradients(model, model.samples(2 * model.rank() + m, 2 * model.ranks()), m);
  }
  for (int l = 0; l < model.layers(); ++l) {
    grad_weights[l] = grad_weights[{l, 1}] + grad_weights[{l, 0}];
    grad_weights.erase({l, 1});
    grad_weights.erase({l, 0});
    grad_weights[l] = co_await model.all_reduce(grad_weights[l], l);
    update(model, l);
    grad_weights.erase(l);
  }
}

// Sharded weights, gathered along one axis and then the other.
Task gathers_in_steps(Model& model, std::string first, std::string second) {
  auto& [weights, opt_states, activations, grad_activations, grad_weights] = model.storage();
  const int layers = model.layers();
  for (int l = 0; l < layers; ++l) {
    std::tie(weights[l], opt_states[l]) = model.load_weights(l, model.rank(), model.ranks());
  }
  activations[0] = model.get_input_activation(model.samples(model.rank(), model.ranks()));
  for (int l = 0; l < layers; ++l) {
    weights[{l, 1}] = weights[l];
    weights[{l, 1}] = co_await model.all_gather(weights[{l, 1}], l, {.axes = first});
    weights[{l, 2}] = co_await model.all_gather(weights[{l, 1}], l, {.axes = second});
    weights.erase({l, 1});
    activations[l + 1] = model.forward(l, activations[l], weights[{l, 2}]);
  }
  grad_activations[layers] = model.loss(activations[layers]);
  for (int l = layers - 1; l >= 0; --l) {
    std::tie(grad_weights[l], grad_activations[l]) =
        model.backward(l, activations[l], grad_activations[l + 1], weights[{l, 2}]);
    grad_weights[l] =
        (co_await model.all_reduce(grad_weights[l], l)).shard(model.rank(), model.ranks());
    update(model, l);
  }
}
Task inner_first(Model& model) { return gathers_in_steps(model, "b", "a"); }
Task outer_first(Model& model) { return gathers_in_steps(model, "a", "b"); }

// Results that are not stored.
Task wasteful(Model& model) {
  auto& [weights, opt_states, activations, grad_activations, grad_weights] = model.storage();
  load_all(model);
  to_gradients(model, model.samples(model.rank(), model.ranks()));
  for (int l = 0; l < model.layers(); ++l) {
    (void)co_await model.all_reduce(grad_weights[l], l);
    grad_weights[l] = co_await model.all_reduce(grad_weights[l], l);
    (void)model.update(l, grad_weights[l], weights[l], opt_states[l]);
    update(model, l);
  }
}

// Layer 0 is split over axis a, layer 1 sharded over all.
Task cut_two_ways(Model& model) {
  auto& [weights, opt_states, activations, grad_activations, grad_weights] = model.storage();
  std::tie(weights[0], opt_states[0]) = model.load_weights(0, model.position("a"), model.size("a"));
  std::tie(weights[1], opt_states[1]) = model.load_weights(1, model.rank(), model.ranks());
  activations[0] = model.get_input_activation(model.samples(model.position("b"), model.size("b")));
  activations[1] = model.forward(0, activations[0], weights[0]);
  activations[1] = co_await model.all_gather(activations[1], 1, {.axes = "a"});
  weights[{1, 1}] = co_await model.all_gather(weights[1], 1);
  activations[2] = model.forward(1, activations[1], weights[{1, 1}]);
  grad_activations[2] = model.loss(activations[2]);
  std::tie(grad_weights[1], grad_activations[1]) =
      model.backward(1, activations[1], grad_activations[2], weights[{1, 1}]);
  weights.erase({1, 1});
  std::tie(grad_weights[0], grad_activations[0]) =
      model.backward(0, activations[0], grad_activations[1], weights[0]);
  for (int l = 1; l >= 0; --l) {
    grad_weights[l] = co_await model.all_reduce(grad_weights[l], l, {.axes = "b"});
    update(model, l);
  }
}

// ZeRO stage 1 along b of layers split along a, whose gradients are not scattered: an update reads
// a part of the gradient.
Task sums_of_split_layers(Model& model) {
  auto& [weights, opt_states, activations, grad_activations, grad_weights] = model.storage();
  const int b = model.position("b");
  const int parts = model.size("b");
  for (int l = 0; l < 2; ++l) {
    std::tie(weights[l], opt_states[l]) =
        model.load_weights(l, model.position("a") * parts + b, model.size("a") * parts);
    weights[l] = co_await model.all_gather(weights[l], l, {.axes = "b"});
  }
  activations[0] = model.get_input_activation(model.samples(b, parts));
  for (int l = 0; l < 2; ++l) {
    activations[l + 1] = model.forward(l, activations[l], weights[l]);
    activations[l + 1] = co_await model.all_gather(activations[l + 1], l + 1, {.axes = "a"});
  }
  grad_activations[2] = model.loss(activations[2]);
  for (int l = 1; l >= 0; --l) {
    std::tie(grad_weights[l], grad_activations[l]) =
        model.backward(l, activations[l], grad_activations[l + 1], weights[l]);
    if (l > 0) {
      grad_activations[l] = co_await model.all_reduce(grad_activations[l], l - 1, {.axes = "a"});
    }
    grad_weights[l] = co_await model.all_reduce(grad_weights[l], l, {.axes = "b"});
    weights[l] = weights[l]->shard(b, parts);
    update(model, l);
  }
}

// Layer 0 is split over axis b; layer 1 is sharded over all, and gathered in steps: in the middle a
// rank has shards that are parts of both halves.
Task straddles(Model& model) {
  auto& [weights, opt_states, activations, grad_activations, grad_weights] = model.storage();
  std::tie(weights[0], opt_states[0]) = model.load_weights(0, model.position("b"), model.size("b"));
  std::tie(weights[1], opt_states[1]) = model.load_weights(1, model.rank(), model.ranks());
  activations[0] = model.get_input_activation(model.samples(model.position("a"), model.size("a")));
  activations[1] = model.forward(0, activations[0], weights[0]);
  activations[1] = co_await model.all_gather(activations[1], 1, {.axes = "b"});
  weights[{1, 1}] = co_await model.all_gather(weights[1], 1, {.axes = "b"});
  weights[{1, 2}] = co_await model.all_gather(weights[{1, 1}], 1, {.axes = "a"});
  activations[2] = model.forward(1, activations[1], weights[{1, 2}]);
  grad_activations[2] = model.loss(activations[2]);
  std::tie(grad_weights[1], grad_activations[1]) =
      model.backward(1, activations[1], grad_activations[2], weights[{1, 2}]);
  std::tie(grad_weights[0], grad_activations[0]) =
      model.backward(0, activations[0], grad_activations[1], weights[0]);
  for (int l = 1; l >= 0; --l) {
    grad_weights[l] = co_await model.all_reduce(grad_weights[l], l, {.axes = "a"});
    update(model, l);
  }
}

Task shards_in_another_order(Model& model) {
  auto& weights = model.storage().weights;
  auto& opt_states = model.storage().opt_states;
  std::tie(weights[0], opt_states[0]) =
      model.load_weights(0, model.ranks() - 1 - model.rank(), model.ranks());
  weights[{0, 1}] = co_await model.all_gather(weights[0], 0);
}

Task only_logs(Model& model) {
  load_all(model);
  model.log_event(trace::EventKind::forward, {.layer = 0, .samples = IndexSet(0)});
  to_gradients(model, model.samples(0, 1));
  for (int l = 0; l < model.layers(); ++l) update(model, l);
  co_return;
}

World world_of(const std::vector<plan::Axis>& mesh) {
  World world{.mesh = mesh};
  world.shape.hidden = 96;
  world.shape.block = 16;
  return world;
}

TEST(OddStrategies, AreRecordedRightly) {
  const std::vector<std::tuple<std::string, Strategy, std::vector<plan::Axis>>> all{
      {"waits_before_a_stream", waits_before_a_stream, {{.name = "dp", .size = 2}}},
      {"sums_beside_their_terms", sums_beside_their_terms, {{.name = "dp", .size = 2}}},
      {"inner_first", inner_first, {{.name = "a", .size = 2}, {.name = "b", .size = 2}}},
      {"wasteful", wasteful, {{.name = "dp", .size = 3}}},
      {"cut_two_ways", cut_two_ways, {{.name = "a", .size = 2}, {.name = "b", .size = 2}}},
      {"sums_of_split_layers",
       sums_of_split_layers,
       {{.name = "a", .size = 2}, {.name = "b", .size = 2}}},
      {"straddles", straddles, {{.name = "a", .size = 3}, {.name = "b", .size = 2}}}};
  for (const auto& [name, strategy, mesh] : all) {
    SCOPED_TRACE(name);
    Trainer trainer(world_of(mesh), {.layers = 2, .batch = 12});
    trainer.run(strategy);
    const plan::Plan plan = to_plan(trainer);
    EXPECT_EQ(plan::parse_text(plan::to_text(plan), name), plan);
    expect_agreement(trainer,
                     sim::replay(plan, {.system = trainer.world().system, .eager_limit = {}}));
    // They are about recording, not about NCCL: some send both ways over one channel.
    const check::Report report = check::check(plan, {.rules = check::Rules::gloo});
    EXPECT_TRUE(report.sound()) << render(report.findings.front().diagnostic);
  }
}

std::string thrown_by(const Strategy& strategy, const std::vector<plan::Axis>& mesh) {
  try {
    Trainer trainer(world_of(mesh), {.layers = 2, .batch = 12});
    trainer.run(strategy);
    (void)to_plan(trainer);
  } catch (const InputError& error) {
    return error.diagnostics().front().code;
  }
  return "accepted";
}

TEST(OddStrategies, ThatCannotBeAPlanAreRefused) {
  EXPECT_EQ(thrown_by(shards_in_another_order, {{.name = "dp", .size = 2}}), "D610");
  EXPECT_EQ(thrown_by(outer_first, {{.name = "a", .size = 2}, {.name = "b", .size = 2}}), "D610");
  EXPECT_EQ(thrown_by(only_logs, {{.name = "dp", .size = 1}}), "D625");
  EXPECT_EQ(thrown_by(ddp, {{.name = "my axis", .size = 2}}), "D622");
  EXPECT_EQ(thrown_by(ddp, {{.name = "rank", .size = 2}}), "D622");
}

}  // namespace
}  // namespace shiplap::strategy
