// The errors of Model: every rule, broken once.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <tuple>

#include "shiplap/base/error.h"
#include "shiplap/strategy/model.h"

namespace shiplap::strategy {
namespace {

// A model of two layers and four samples after its forward pass.
struct ModelErrors : testing::Test {
  ModelErrors() {
    for (int l = 0; l < 2; ++l) std::tie(weights[l], opt_states[l]) = model.load_weights(l);
    activations[0] = model.get_input_activation({0, 1, 2, 3});
    for (int l = 0; l < 2; ++l) activations[l + 1] = model.forward(l, activations[l], weights[l]);
    grad_activations[2] = model.loss(activations[2]);
    std::tie(grad_weights[1], grad_activations[1]) =
        model.backward(1, activations[1], grad_activations[2], weights[1]);
  }

  static void expect(const char* code, const std::string& call, const std::string& words,
                     const std::function<void()>& what) {
    Diagnostic found;
    try {
      what();
    } catch (const InputError& error) {
      found = error.diagnostics().front();
    }
    EXPECT_EQ(found.code, code) << render(found);
    EXPECT_EQ(found.where.rank, 0) << render(found);
    EXPECT_EQ(found.where.operation, call) << render(found);
    EXPECT_NE(found.what.find(words), std::string::npos) << render(found);
  }

  Dist dist{World{.shape = {.hidden = 512, .block = 256, .moments = 1}}};
  Model model{0, dist, 2, 4};
  ValueMap<Weight>& weights = model.storage().weights;
  ValueMap<OptState>& opt_states = model.storage().opt_states;
  ValueMap<Activation>& activations = model.storage().activations;
  ValueMap<ActivationGrad>& grad_activations = model.storage().grad_activations;
  ValueMap<WeightGrad>& grad_weights = model.storage().grad_weights;
};

// ---------------------------------------------------------------- D613: not in storage

TEST_F(ModelErrors, AResultThatWasNotStored) {
  const Activation loose = model.forward(0, activations[0], weights[0]);
  expect("D613", "forward(layer 1)", "the activation of layer 1, all 4 samples is not in storage",
         [&] { (void)model.forward(1, loose, weights[1]); });
  const auto [weight, opt] = model.load_weights(0);
  expect("D613", "forward(layer 0)", "the weight of layer 0, step 0 is not in storage",
         [&, w = weight] { (void)model.forward(0, activations[0], w); });
}

TEST_F(ModelErrors, AResultThatIsStoredTooLate) {
  const Activation late = model.forward(0, activations[0], weights[0]);
  (void)model.forward(0, activations[0], weights[0]);
  expect("D613", "after forward(layer 0)", "was not stored in time",
         [&] { activations[9] = late; });
  EXPECT_FALSE(activations.contains(9));
}

TEST_F(ModelErrors, AValueThatWasErased) {
  const Activation copy = activations[1];
  activations.erase(1);
  expect("D613", "forward(layer 1)", "is not in storage",
         [&] { (void)model.forward(1, copy, weights[1]); });
  expect("D613", "after forward(layer 1)", "nothing is stored under [1]",
         [&] { (void)model.forward(1, activations[1], weights[1]); });
  expect("D613", "after forward(layer 1)", "nothing is stored under [1]",
         [&] { activations.erase(1); });
  expect("D613", "after forward(layer 1)", "nothing is stored under [4, 2]",
         [&] { activations.erase({4, 2}); });
  expect("D613", "after forward(layer 1)", "not stored in time", [&] { activations[1] = copy; });
}

TEST_F(ModelErrors, AValueThatWasReplaced) {
  const WeightGrad copy = grad_weights[1];
  grad_weights[1] = grad_weights[1]->shard(0, 2);
  expect("D613", "update(layer 1)", "is not in storage",
         [&] { (void)model.update(1, copy, weights[1], opt_states[1]); });
}

TEST_F(ModelErrors, AValueFromNowhere) {
  expect("D613", "after backward(layer 1)", "was not computed by this rank",
         [&] { weights[3] = Weight{.layer = 1, .layers = 2}; });
  expect("D613", "forward(layer 0)", "is not in storage",
         [&] { (void)model.forward(0, activations[0], Weight{.layer = 0, .layers = 2}); });
  // A sum of three: the sum of the first two has to be stored first.
  const WeightGrad part{.layer = 1, .layers = 2, .samples = {}, .total_samples = 4};
  expect("D613", "after forward(layer 0)", "was not computed by this rank",
         [&] { grad_weights[1] = grad_weights[1] + part; });
}

// Value numbers of another rank may be out of range here and must not be looked up.
TEST_F(ModelErrors, AValueOfAnotherRank) {
  Dist other_dist(1);
  Model other(0, other_dist, 2, 4);
  Weight foreign;
  for (int i = 0; i < 100; ++i) {
    std::tie(other.storage().weights[i], other.storage().opt_states[i]) = other.load_weights(0);
    foreign = other.storage().weights[i];
  }
  expect("D613", "forward(layer 0)", "is not in storage",
         [&] { (void)model.forward(0, activations[0], foreign); });
  expect("D613", "after forward(layer 0)", "was not computed by this rank",
         [&] { weights[5] = foreign; });
}

// ---------------------------------------------------------------- D614: does not match

TEST_F(ModelErrors, ValuesOfAnotherLayer) {
  expect("D614", "forward(layer 1)", "the activation of layer 0",
         [&] { (void)model.forward(1, activations[0], weights[1]); });
  expect("D614", "forward(layer 1)", "the weight of layer 0",
         [&] { (void)model.forward(1, activations[1], weights[0]); });
  expect("D614", "loss", "the activation of layer 1", [&] { (void)model.loss(activations[1]); });
  expect("D614", "backward(layer 1)", "the activation of layer 0",
         [&] { (void)model.backward(1, activations[0], grad_activations[2], weights[1]); });
  expect("D614", "backward(layer 1)", "the activation gradient of layer 0",
         [&] { (void)model.backward(1, activations[1], grad_activations[1], weights[1]); });
  expect("D614", "backward_input(layer 1)", "the weight of layer 0",
         [&] { (void)model.backward_input(1, activations[1], grad_activations[2], weights[0]); });
  expect("D614", "backward_weight(layer 0)", "the activation of layer 1",
         [&] { (void)model.backward_weight(0, activations[1], grad_activations[1], weights[0]); });
  expect("D614", "update(layer 0)", "the weight gradient of layer 1",
         [&] { (void)model.update(0, grad_weights[1], weights[0], opt_states[0]); });
  expect("D614", "update(layer 1)", "the weight of layer 0",
         [&] { (void)model.update(1, grad_weights[1], weights[0], opt_states[1]); });
  expect("D614", "update(layer 1)", "the optimizer state of layer 0",
         [&] { (void)model.update(1, grad_weights[1], weights[1], opt_states[0]); });
  expect("D614", "set_final_weight(layer 0)", "the weight of layer 1",
         [&] { model.set_final_weight(0, weights[1]); });
  expect("D614", "all_reduce(layer 0)", "is not of layer 0",
         [&] { (void)model.all_reduce(grad_weights[1], 0); });
}

TEST_F(ModelErrors, LayersAndShardsAndSamplesThatAreNotThere) {
  expect("D614", "forward(layer 2)", "there is no layer 2",
         [&] { (void)model.forward(2, activations[2], weights[1]); });
  expect("D614", "load_weights", "there is no layer -1", [&] { (void)model.load_weights(-1); });
  expect("D614", "load_weights(layer 2)", "there is no layer 2",
         [&] { (void)model.load_weights(2); });
  expect("D614", "load_weights(layer 0)", "there is no shard 2 of 2",
         [&] { (void)model.load_weights(0, 2, 2); });
  expect("D614", "load_weights(layer 0)", "there is no shard 0 of 0",
         [&] { (void)model.load_weights(0, 0, 0); });
  expect("D614", "get_input_activation", "samples 3, 4 cannot be read",
         [&] { (void)model.get_input_activation({3, 4}); });
  expect("D614", "get_input_activation", "samples none cannot be read",
         [&] { (void)model.get_input_activation(IndexSet()); });
  expect("D614", "get_input_activation", "there is no sample -1",
         [&] { (void)model.get_input_activation({0, -1}); });
  expect("D614", "set_final_weight(layer 5)", "there is no layer 5",
         [&] { model.set_final_weight(5, weights[1]); });
}

TEST_F(ModelErrors, AStartOnTheStreamOfTheRankItself) {
  expect("D614", "all_reduce(layer 1)", "cannot be started on stream `main`",
         [&] { (void)model.start_all_reduce(grad_weights[1], 1, {.stream = "main"}); });
  expect("D614", "all_gather(layer 0)", "cannot be started on stream ``",
         [&] { (void)model.start_all_gather(weights[0], 0, {.stream = ""}); });
}

TEST_F(ModelErrors, SamplesThatDoNotMatch) {
  activations[{0, 1}] = model.get_input_activation({0, 1});
  activations[{1, 1}] = model.forward(0, activations[{0, 1}], weights[0]);
  expect("D614", "backward(layer 1)", "all 4 samples does not match",
         [&] { (void)model.backward(1, activations[{1, 1}], grad_activations[2], weights[1]); });
}

TEST_F(ModelErrors, ShardsAndStepsThatDoNotMatch) {
  expect("D614", "update(layer 1)", "optimizer state of layer 1, shard 0 of 2", [&] {
    opt_states[{1, 1}] = opt_states[1]->shard(0, 2);
    (void)model.update(1, grad_weights[1], weights[1], opt_states[{1, 1}]);
  });
  grad_weights[{1, 1}] = grad_weights[1]->shard(0, 2);
  expect("D614", "update(layer 1)", "weight gradient of layer 1, shard 0 of 2",
         [&] { (void)model.update(1, grad_weights[{1, 1}], weights[1], opt_states[1]); });
  std::tie(weights[1], opt_states[{1, 2}]) =
      model.update(1, grad_weights[1], weights[1], opt_states[1]);
  expect("D614", "update(layer 1)", "optimizer state of layer 1, step 0",
         [&] { (void)model.update(1, grad_weights[1], weights[1], opt_states[1]); });
}

// ---------------------------------------------------------------- D612, D615: not complete

TEST_F(ModelErrors, PartsWhereTheWholeIsNeeded) {
  weights[{0, 1}] = weights[0]->shard(0, 2);
  weights[{1, 1}] = weights[1]->shard(0, 2);
  activations[{1, 1}] = model.forward(0, activations[0], weights[{0, 1}]);
  expect("D612", "forward(layer 1)", "shard 0 of 2, all 4 samples is not complete",
         [&] { (void)model.forward(1, activations[{1, 1}], weights[1]); });
  activations[{2, 1}] = model.forward(1, activations[1], weights[{1, 1}]);
  expect("D612", "loss", "is not complete", [&] { (void)model.loss(activations[{2, 1}]); });
  try {
    activations[{0, 1}] = activations[0]->shard(0, 2);
    FAIL();
  } catch (const InputError& error) {
    EXPECT_EQ(error.diagnostics().front().code, "D610");
  }
  grad_activations[{1, 1}] =
      model.backward_input(1, activations[1], grad_activations[2], weights[{1, 1}]);
  expect("D612", "backward(layer 0)", "contributions 0 of 2",
         [&] { (void)model.backward(0, activations[0], grad_activations[{1, 1}], weights[0]); });
}

TEST_F(ModelErrors, AGradientThatMissesSamples) {
  activations[{0, 1}] = model.get_input_activation({0, 2});
  activations[{1, 1}] = model.forward(0, activations[{0, 1}], weights[0]);
  activations[{2, 1}] = model.forward(1, activations[{1, 1}], weights[1]);
  grad_activations[{2, 1}] = model.loss(activations[{2, 1}]);
  grad_weights[{1, 1}] =
      model.backward(1, activations[{1, 1}], grad_activations[{2, 1}], weights[1]).first;
  expect("D615", "update(layer 1)", "samples 0, 2 of 4 misses samples",
         [&] { (void)model.update(1, grad_weights[{1, 1}], weights[1], opt_states[1]); });
}

// The values themselves throw here, without a rank; Trainer adds it.
TEST_F(ModelErrors, ASampleThatIsCountedTwice) {
  std::tie(grad_weights[{1, 1}], grad_activations[{1, 1}]) =
      model.backward(1, activations[1], grad_activations[2], weights[1]);
  try {
    grad_weights[1] = grad_weights[1] + grad_weights[{1, 1}];
    FAIL();
  } catch (const InputError& error) {
    EXPECT_EQ(error.diagnostics().front().code, "D611");
  }
}

// ---------------------------------------------------------------- D621: no such rank

TEST_F(ModelErrors, MessagesToNobody) {
  expect("D621", "send(layer 1)", "rank 0 cannot send to rank 1",
         [&] { (void)model.send(1, activations[1]); });
  expect("D621", "send(layer 1)", "rank 0 cannot send to rank -1",
         [&] { (void)model.send(-1, activations[1]); });
  expect("D621", "send(layer 1)", "rank 0 cannot send to rank 0",
         [&] { (void)model.start_send(0, activations[1]); });
  expect("D621", "recv", "rank 0 cannot receive from rank 7",
         [&] { (void)model.receive<Activation>(7); });
}

}  // namespace
}  // namespace shiplap::strategy
