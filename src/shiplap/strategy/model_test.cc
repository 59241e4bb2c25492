// Computation and memory of one rank: a Model in a world of one.
#include "shiplap/strategy/model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "shiplap/base/error.h"

namespace shiplap::strategy {
namespace {

using trace::EventKind;

const workload::ModelShape kPuzzles{.hidden = 512, .block = 256, .moments = 1};
const Bytes kWeight{std::int64_t{512} * 512 * 2};
const Bytes kSample{std::int64_t{512} * 256 * 2};

World puzzle_world() { return {.shape = kPuzzles}; }

// Expects an error with this code, on rank 0, in this call.
void expect_error(const char* code, const std::string& call, const std::string& words,
                  const std::function<void()>& what) {
  Diagnostic found;
  try {
    what();
  } catch (const InputError& error) {
    found = error.diagnostics().front();
  }
  EXPECT_EQ(found.code, code) << found.what;
  EXPECT_EQ(found.where.rank, 0) << found.what;
  EXPECT_EQ(found.where.operation, call) << found.what;
  EXPECT_NE(found.what.find(words), std::string::npos) << found.what;
}

// Loaded, and the batch run forward through all layers. activations[l] is what layer l reads.
void run_forward(Model& model) {
  auto& [weights, opt_states, activations, grad_activations, grad_weights] = model.storage();
  for (int l = 0; l < model.layers(); ++l) {
    std::tie(weights[l], opt_states[l]) = model.load_weights(l);
  }
  activations[0] = model.get_input_activation(IndexSet::range(0, model.batch()));
  for (int l = 0; l < model.layers(); ++l) {
    activations[l + 1] = model.forward(l, activations[l], weights[l]);
  }
}

// A whole step, without erasing anything.
void run_step(Model& model) {
  auto& [weights, opt_states, activations, grad_activations, grad_weights] = model.storage();
  run_forward(model);
  grad_activations[model.layers()] = model.loss(activations[model.layers()]);
  for (int l = model.layers() - 1; l >= 0; --l) {
    std::tie(grad_weights[l], grad_activations[l]) =
        model.backward(l, activations[l], grad_activations[l + 1], weights[l]);
  }
  for (int l = 0; l < model.layers(); ++l) {
    std::tie(weights[l], opt_states[l]) =
        model.update(l, grad_weights[l], weights[l], opt_states[l]);
    model.set_final_weight(l, weights[l]);
  }
}

std::vector<EventKind> kinds(const Model& model) {
  std::vector<EventKind> result;
  for (const Event& event : model.log()) result.push_back(event.kind);
  return result;
}

// ---------------------------------------------------------------- position

TEST(Model, IsAloneUnlessToldOtherwise) {
  Model model;
  EXPECT_EQ(model.rank(), 0);
  EXPECT_EQ(model.ranks(), 1);
  EXPECT_EQ(model.layers(), 2);
  EXPECT_EQ(model.batch(), 1);
  EXPECT_EQ(model.memory(), Bytes{0});
  EXPECT_EQ(model.time(), Seconds{0});
  EXPECT_TRUE(model.log().empty());
  EXPECT_EQ(model.streams(), (std::vector<std::string>{"main"}));
  EXPECT_EQ(model.waiting_for(), nullptr);
  EXPECT_EQ(model.dist().world().shape, workload::ModelShape{});
}

TEST(Model, TrainsAStepByDefault) {
  Model model;
  run_step(model);
  for (int l = 0; l < 2; ++l) {
    ASSERT_TRUE(model.final_weights().contains(l));
    const Weight& weight = model.final_weights().at(l);
    EXPECT_EQ(weight.step, 1);
    EXPECT_EQ(weight.layer, l);
    EXPECT_TRUE(weight.is_complete());
    EXPECT_EQ(model.storage().opt_states[l]->step, 1);
  }
}

TEST(Model, KnowsItsPlaceInTheMesh) {
  Dist dist(World{
      .mesh = {{.name = "dp", .size = 2}, {.name = "pp", .size = 3}, {.name = "tp", .size = 2}}});
  const Model model(9, dist);  // dp 1, pp 1, tp 1
  EXPECT_EQ(model.position("dp"), 1);
  EXPECT_EQ(model.position("pp"), 1);
  EXPECT_EQ(model.position("tp"), 1);
  EXPECT_EQ(model.size("pp"), 3);
  EXPECT_EQ(model.peer("pp", 2), 11);
  EXPECT_EQ(model.peer("dp", 0), 3);
  EXPECT_EQ(model.peer("dp", 1), 9);
  // Along several axes the last varies fastest, as ranks do.
  EXPECT_EQ(model.position("dp tp"), 3);
  EXPECT_EQ(model.size("dp tp"), 4);
  EXPECT_EQ(model.peer("dp tp", 0), 2);
  EXPECT_EQ(model.peer("dp tp", 2), 8);
  EXPECT_EQ(model.peer("", 5), 5);
}

std::string code_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const InputError& error) {
    return error.diagnostics().front().code;
  }
  return "";
}

TEST(Model, IsARankOfItsWorld) {
  Dist dist(2);
  EXPECT_EQ(code_of([] { const Model model(1); }), "D621");
  EXPECT_EQ(code_of([&] { const Model model(2, dist); }), "D621");
  EXPECT_EQ(code_of([&] { const Model model(-1, dist); }), "D621");
  const Model model(1, dist);
  EXPECT_EQ(code_of([&] { (void)model.peer("dp", 2); }), "D621");
  EXPECT_EQ(code_of([&] { (void)model.peer("dp", -1); }), "D621");
  EXPECT_EQ(code_of([&] { (void)model.position("up"); }), "D621");
  EXPECT_EQ(code_of([&] { (void)model.size("up"); }), "D621");
}

TEST(Model, HasSomethingToTrain) {
  Dist dist(1);
  for (const Training& none : {Training{.layers = 0}, Training{.batch = 0},
                               Training{.microbatches = 0}, Training{.chunks = -1}}) {
    EXPECT_EQ(code_of([&] { const Model model(0, dist, none); }), "D622");
  }
}

TEST(Samples, AreCutIntoEqualParts) {
  Dist dist(1);
  const Model model(0, dist, 2, 12);
  for (const int parts : {1, 2, 3, 4, 6, 12}) {
    IndexSet all;
    for (int part = 0; part < parts; ++part) {
      const IndexSet mine = model.samples(part, parts);
      EXPECT_EQ(mine.size(), 12 / parts);
      EXPECT_FALSE(all.overlaps(mine));
      all = all.united(mine);
    }
    EXPECT_TRUE(all.covers(12));
  }
  for (const auto& [part, parts] : {std::pair(0, 5), {0, 0}, {-1, 2}, {2, 2}, {0, 24}}) {
    EXPECT_EQ(code_of([&, p = part, of = parts] { (void)model.samples(p, of); }), "D622");
  }
}

// ---------------------------------------------------------------- computation

TEST(Model, GivesTheValuesOfTheSeed) {
  Dist dist(puzzle_world());
  Model model(0, dist, 3, 4);
  auto& [weights, opt_states, activations, grad_activations, grad_weights] = model.storage();
  std::tie(weights[1], opt_states[1]) = model.load_weights(1, 2, 4);
  EXPECT_EQ(weights[1].value(),
            (Weight{.layer = 1, .layers = 3, .shards = IndexSet(2), .num_shards = 4}));
  EXPECT_EQ(opt_states[1].value(),
            (OptState{.layer = 1, .layers = 3, .shards = IndexSet(2), .num_shards = 4}));
  std::tie(weights[2], opt_states[2]) = model.load_weights(2);
  activations[0] = model.get_input_activation({3, 1});
  EXPECT_EQ(activations[0].value(),
            (Activation{.layers = 3, .samples = IndexSet::range(1, 2, 2), .total_samples = 4}));
  std::tie(weights[0], opt_states[0]) = model.load_weights(0);
  activations[1] = model.forward(0, activations[0], weights[0]);
  EXPECT_EQ(activations[1].value(),
            (Activation{
                .layer = 1, .layers = 3, .samples = IndexSet::range(1, 2, 2), .total_samples = 4}));
}

TEST(Model, GivesTheGradientsOfTheSeed) {
  Dist dist(puzzle_world());
  Model model(0, dist, 2, 4);
  auto& [weights, opt_states, activations, grad_activations, grad_weights] = model.storage();
  run_forward(model);
  grad_activations[2] = model.loss(activations[2]);
  const IndexSet all = IndexSet::range(0, 4);
  EXPECT_EQ(grad_activations[2].value(),
            (ActivationGrad{.layer = 1, .layers = 2, .samples = all, .total_samples = 4}));
  std::tie(grad_weights[1], grad_activations[1]) =
      model.backward(1, activations[1], grad_activations[2], weights[1]);
  EXPECT_EQ(grad_weights[1].value(),
            (WeightGrad{.layer = 1, .layers = 2, .samples = all, .total_samples = 4}));
  EXPECT_EQ(grad_activations[1].value(),
            (ActivationGrad{.layer = 0, .layers = 2, .samples = all, .total_samples = 4}));
  std::tie(weights[1], opt_states[1]) = model.update(1, grad_weights[1], weights[1], opt_states[1]);
  EXPECT_EQ(weights[1].value(), (Weight{.layer = 1, .layers = 2, .step = 1}));
  EXPECT_EQ(opt_states[1].value(), (OptState{.layer = 1, .layers = 2, .step = 1}));
}

TEST(Backward, IsItsTwoHalves) {
  Dist dist(puzzle_world());
  Model model(0, dist, 2, 4);
  auto& [weights, opt_states, activations, grad_activations, grad_weights] = model.storage();
  run_forward(model);
  grad_activations[2] = model.loss(activations[2]);
  std::tie(grad_weights[1], grad_activations[1]) =
      model.backward(1, activations[1], grad_activations[2], weights[1]);
  grad_activations[{1, 7}] =
      model.backward_input(1, activations[1], grad_activations[2], weights[1]);
  grad_weights[{1, 7}] = model.backward_weight(1, activations[1], grad_activations[2], weights[1]);
  EXPECT_EQ((grad_activations[{1, 7}].value()), grad_activations[1].value());
  EXPECT_EQ((grad_weights[{1, 7}].value()), grad_weights[1].value());
  const std::vector<Event>& log = model.log();
  const Event& weight_half = log.back();
  const Event& input_half = log[log.size() - 2];
  const Event& whole = log[log.size() - 3];
  EXPECT_EQ(weight_half.kind, EventKind::backward_weight);
  EXPECT_EQ(input_half.kind, EventKind::backward_input);
  EXPECT_EQ(weight_half.duration, input_half.duration);
  EXPECT_EQ(weight_half.duration, dist.predictor().get_forward_backward_time(4));
  // Larger work may be done at a higher efficiency, so this is all that is sure.
  EXPECT_LE(whole.duration, weight_half.duration + input_half.duration);
}

// A layer whose weight is split among ranks writes some of the features, and its input gradient is
// one of as many contributions.
TEST(Forward, WithAShardOfTheWeightMakesAShardOfTheOutput) {
  Dist dist(puzzle_world());
  Model model(0, dist, 2, 4);
  auto& [weights, opt_states, activations, grad_activations, grad_weights] = model.storage();
  std::tie(weights[0], opt_states[0]) = model.load_weights(0, 1, 2);
  std::tie(weights[1], opt_states[1]) = model.load_weights(1);
  activations[0] = model.get_input_activation(IndexSet::range(0, 4));
  activations[1] = model.forward(0, activations[0], weights[0]);
  EXPECT_EQ(activations[1]->shards, IndexSet(1));
  EXPECT_EQ(activations[1]->num_shards, 2);
  EXPECT_EQ(2 * activations[1]->memory(kPuzzles), activations[0]->memory(kPuzzles));
  expect_error("D612", "forward(layer 1)", "is not complete",
               [&] { (void)model.forward(1, activations[1], weights[1]); });
}

TEST(Log, TellsEveryCallInOrderAndInTime) {
  Dist dist(puzzle_world());
  Model model(0, dist, 2, 4);
  run_step(model);
  using enum EventKind;
  EXPECT_EQ(kinds(model), (std::vector{load_weights, load_weights, forward, forward, loss, backward,
                                       backward, update, update}));
  const cost::RuntimePredictor& predictor = dist.predictor();
  Seconds now;
  for (const Event& event : model.log()) {
    EXPECT_EQ(event.time, now);
    now = now + event.duration;
    EXPECT_EQ(event.rank, 0);
    EXPECT_EQ(event.stream, 0);
    EXPECT_EQ(event.bytes, Bytes{0});
    const bool of_samples = event.kind == forward || event.kind == backward || event.kind == loss;
    EXPECT_EQ(event.samples, of_samples ? IndexSet::range(0, 4) : IndexSet());
  }
  EXPECT_EQ(model.time(), now);
  EXPECT_EQ(model.log()[0].duration, predictor.get_weight_load_time(1, 1));
  EXPECT_EQ(model.log()[2].duration, predictor.get_forward_backward_time(4));
  EXPECT_EQ(model.log()[4].duration, Seconds{0});
  EXPECT_EQ(model.log()[5].duration, predictor.time(predictor.backward_work(4)));
  EXPECT_EQ(model.log()[8].duration, predictor.get_update_step_time(1, 1));
  std::vector<int> layers;
  for (const Event& event : model.log()) layers.push_back(event.layer);
  EXPECT_EQ(layers, (std::vector{0, 1, 0, 1, -1, 1, 0, 0, 1}));
}

TEST(LogEvent, LetsTimePassAsTheCallWould) {
  Dist dist(puzzle_world());
  Model model(0, dist, 2, 4);
  const cost::RuntimePredictor& predictor = dist.predictor();
  model.log_event(EventKind::forward, {.layer = 1, .samples = IndexSet::range(0, 3)});
  EXPECT_EQ(model.log().back().duration, predictor.get_forward_backward_time(3));
  EXPECT_EQ(model.log().back().samples, IndexSet::range(0, 3));
  EXPECT_EQ(model.log().back().layer, 1);
  model.log_event(EventKind::update,
                  {.layer = 1, .samples = {}, .shards_on_device = 1, .num_shards = 4});
  EXPECT_EQ(model.log().back().duration, predictor.get_update_step_time(1, 4));
  model.log_event(EventKind::load_weights, {.layer = 0, .samples = {}});
  EXPECT_EQ(model.log().back().duration, predictor.get_weight_load_time(1, 1));
  model.log_event(EventKind::backward, {.layer = 0, .samples = IndexSet(0)});
  EXPECT_EQ(model.log().back().duration, predictor.time(predictor.backward_work(1)));
  model.log_event(EventKind::loss, {});
  EXPECT_EQ(model.time(), model.log().back().end());
  EXPECT_EQ(model.memory(), Bytes{0});
  expect_error("D614", "all_reduce(layer 1)", "cannot be logged alone",
               [&] { model.log_event(EventKind::all_reduce, {.layer = 1, .samples = {}}); });
}

// ---------------------------------------------------------------- memory

// Puzzle 0 of LLM-Training-Puzzles: 2 layers, 4 samples. Its own figure is 2.6 M, the largest that
// `model.memory()` is before a call.
TEST(Memory, OfTheFirstPuzzlePeaksWhereThePuzzleSays) {
  Dist dist(puzzle_world());
  Model model(0, dist, 2, 4);
  auto& [weights, opt_states, activations, grad_activations, grad_weights] = model.storage();
  Bytes peak;
  const auto look = [&] { peak = std::max(peak, model.memory()); };
  for (int l = 0; l < 2; ++l) {
    look();
    std::tie(weights[l], opt_states[l]) = model.load_weights(l);
  }
  look();
  activations[0] = model.get_input_activation({0, 1, 2, 3});
  for (int l = 0; l < 2; ++l) {
    look();
    activations[l + 1] = model.forward(l, activations[l], weights[l]);
  }
  look();
  grad_activations[2] = model.loss(activations[2]);
  activations.erase(2);
  for (int l = 1; l >= 0; --l) {
    look();
    std::tie(grad_weights[l], grad_activations[l]) =
        model.backward(l, activations[l], grad_activations[l + 1], weights[l]);
    grad_activations.erase(l + 1);
    activations.erase(l);
  }
  grad_activations.erase(0);
  for (int l = 0; l < 2; ++l) {
    look();
    std::tie(weights[l], opt_states[l]) =
        model.update(l, grad_weights[l], weights[l], opt_states[l]);
    grad_weights.erase(l);
    model.set_final_weight(l, weights[l]);
  }
  constexpr std::int64_t kUnit = 131'072;  // elements: 512 * 256
  EXPECT_EQ(peak.count / 2, 20 * kUnit);
  EXPECT_EQ(peak.count / 2, 2'621'440);
  EXPECT_EQ(model.memory(), Bytes{16 * kUnit});  // weights and optimizer state
}

TEST(Memory, IsTheSumOfWhatIsStored) {
  Dist dist(puzzle_world());
  Model model(0, dist, 2, 4);
  run_step(model);
  auto& [weights, opt_states, activations, grad_activations, grad_weights] = model.storage();
  Bytes sum;
  const auto add = [&](const auto& shelf) {
    shelf.for_each([&](Key, const auto& slot) {
      if (!slot.empty()) sum += slot->memory(kPuzzles);
    });
  };
  add(weights);
  add(opt_states);
  add(activations);
  add(grad_activations);
  add(grad_weights);
  EXPECT_EQ(model.memory(), sum);
  EXPECT_EQ(sum, 6 * kWeight + 24 * kSample);
}

TEST(Memory, OfACopyCounts) {
  Dist dist(puzzle_world());
  Model model(0, dist, 2, 4);
  auto& weights = model.storage().weights;
  weights[0] = model.load_weights(0).first;
  EXPECT_EQ(model.memory(), kWeight);
  weights[1] = weights[0];
  EXPECT_EQ(model.memory(), 2 * kWeight);
  weights[1] = weights[0]->shard(0, 4);
  EXPECT_EQ(4 * model.memory().count, 5 * kWeight.count);
  weights[0] = weights[0]->shard(3, 4);
  EXPECT_EQ(2 * model.memory().count, kWeight.count);
  weights.erase(0);
  weights.erase(1);
  EXPECT_EQ(model.memory(), Bytes{0});
}

TEST(EventMemory, IsWhatIsStoredAndWhatTheCallLeaves) {
  Dist dist(puzzle_world());
  Model model(0, dist, 2, 4);
  run_step(model);
  const Bytes loaded = 4 * kWeight;  // from the first event on, as a step is repeated
  std::vector<Bytes> expected{loaded,
                              loaded,
                              loaded + 8 * kSample,  // forward: A0, and A1 is made
                              loaded + 12 * kSample,
                              loaded + 16 * kSample,  // loss: D2 is made
                              loaded + 20 * kSample + kWeight,
                              loaded + 24 * kSample + 2 * kWeight,
                              loaded + 24 * kSample + 2 * kWeight,  // updates are in place
                              loaded + 24 * kSample + 2 * kWeight};
  std::vector<Bytes> found;
  for (const Event& event : model.log()) found.push_back(event.memory);
  EXPECT_EQ(found, expected);
}

TEST(EventMemory, OfAnUpdateThatIsStoredElsewhereHoldsBoth) {
  Dist dist(puzzle_world());
  Model model(0, dist, 1, 1);
  auto& [weights, opt_states, activations, grad_activations, grad_weights] = model.storage();
  run_forward(model);
  grad_activations[1] = model.loss(activations[1]);
  std::tie(grad_weights[0], grad_activations[0]) =
      model.backward(0, activations[0], grad_activations[1], weights[0]);
  const Bytes before = model.memory();
  std::tie(weights[9], opt_states[0]) = model.update(0, grad_weights[0], weights[0], opt_states[0]);
  EXPECT_EQ(model.log().back().memory, before + kWeight);
  EXPECT_EQ(model.memory(), before + kWeight);
}

TEST(EventMemory, OfALateLoadCountsFromTheFirstEventOn) {
  Dist dist(puzzle_world());
  Model model(0, dist, 2, 1);
  auto& [weights, opt_states, activations, grad_activations, grad_weights] = model.storage();
  std::tie(weights[0], opt_states[0]) = model.load_weights(0);
  activations[0] = model.get_input_activation({0});
  activations[1] = model.forward(0, activations[0], weights[0]);
  std::tie(weights[1], opt_states[1]) = model.load_weights(1);
  std::vector<Bytes> found;
  for (const Event& event : model.log()) found.push_back(event.memory);
  EXPECT_EQ(found, (std::vector<Bytes>{4 * kWeight, 4 * kWeight + 2 * kSample,
                                       4 * kWeight + 2 * kSample}));
}

// A result that is not stored is dropped at the next call.
TEST(EventMemory, ForgetsWhatWasNotStored) {
  Dist dist(puzzle_world());
  Model model(0, dist, 2, 4);
  auto& [weights, opt_states, activations, grad_activations, grad_weights] = model.storage();
  run_forward(model);
  grad_activations[2] = model.loss(activations[2]);
  const Bytes before = model.memory();
  grad_weights[1] = model.backward(1, activations[1], grad_activations[2], weights[1]).first;
  EXPECT_EQ(model.log().back().memory, before + kWeight + 4 * kSample);
  EXPECT_EQ(model.memory(), before + kWeight);
  (void)model.loss(activations[2]);
  EXPECT_EQ(model.log().back().memory, before + kWeight + 4 * kSample);
}

TEST(Status, ListsWhatIsStored) {
  Dist dist(puzzle_world());
  Model model(0, dist, 2, 4);
  auto& [weights, opt_states, activations, grad_activations, grad_weights] = model.storage();
  std::tie(weights[0], opt_states[0]) = model.load_weights(0);
  activations[{0, 3}] = model.get_input_activation({1});
  (void)weights[1];
  const std::string status = model.status();
  EXPECT_TRUE(status.starts_with("rank 0 at ")) << status;
  EXPECT_NE(status.find("weights[0] the weight of layer 0, step 0, 512 KiB"), std::string::npos)
      << status;
  EXPECT_NE(status.find("opt_states[0] the optimizer state of layer 0"), std::string::npos);
  EXPECT_NE(status.find("activations[0, 3] "), std::string::npos);
  EXPECT_EQ(status.find("weights[1]"), std::string::npos);
  EXPECT_EQ(std::ranges::count(status, '\n'), 4);
}

}  // namespace
}  // namespace shiplap::strategy
