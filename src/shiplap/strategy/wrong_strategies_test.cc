// Strategies with a mistake, and their diagnostics.
#include <gtest/gtest.h>

#include "shiplap/strategy/library_testing_internal.h"

namespace shiplap::strategy {
namespace {

using testing::diagnostic_of;
using testing::kPuzzle;

// Data parallel on one layer, without reducing the gradients.
Task without_all_reduce(Model& model) {
  auto& [weights, opt_states, activations, grad_activations, grad_weights] = model.storage();
  std::tie(weights[0], opt_states[0]) = model.load_weights(0);
  activations[0] = model.get_input_activation(model.samples(model.rank(), model.ranks()));
  activations[1] = model.forward(0, activations[0], weights[0]);
  grad_activations[1] = model.loss(activations[1]);
  std::tie(grad_weights[0], grad_activations[0]) =
      model.backward(0, activations[0], grad_activations[1], weights[0]);
  std::tie(weights[0], opt_states[0]) = model.update(0, grad_weights[0], weights[0], opt_states[0]);
  model.set_final_weight(0, weights[0]);
  co_return;
}

// A weight is sharded, and only rank 1 gathers it.
Task gathers_alone(Model& model) {
  auto& [weights, opt_states, activations, grad_activations, grad_weights] = model.storage();
  std::tie(weights[0], opt_states[0]) = model.load_weights(0, model.rank(), model.ranks());
  if (model.rank() != 1) co_return;
  weights[0] = co_await model.all_gather(weights[0], 0);
}

// A ring in which every rank sends before it receives.
Task sends_first(Model& model) {
  auto& activations = model.storage().activations;
  const int ranks = model.ranks();
  activations[0] = model.get_input_activation(model.samples(0, 1));
  co_await model.send((model.rank() + 1) % ranks, activations[0]);
  activations[1] = co_await model.receive<Activation>((model.rank() + ranks - 1) % ranks);
}

Diagnostic error_of(Task (*strategy)(Model&), int ranks, Bytes eager = {}) {
  return diagnostic_of([&] {
    Trainer trainer(World{.mesh = {{"dp", ranks}}, .shape = kPuzzle, .eager_limit = eager},
                    {.layers = 1, .batch = 4});
    trainer.run(strategy);
  });
}

TEST(WrongStrategy, ThatDoesNotSumGradientsIsRefusedAtTheUpdate) {
  const Diagnostic d = error_of(without_all_reduce, 4);
  EXPECT_EQ(d.code, "D615");
  EXPECT_EQ(d.where.rank, 0);
  EXPECT_EQ(d.where.operation, "update(layer 0)");
  EXPECT_EQ(d.what, "the weight gradient of layer 0, sample 0 of 4 misses samples");
}

TEST(WrongStrategy, ThatDoesNotSumGradientsIsRightOnOneRank) {
  Trainer alone(World{.mesh = {{"dp", 1}}, .shape = kPuzzle}, {.layers = 1, .batch = 4});
  EXPECT_NO_THROW(alone.run(without_all_reduce));
}

TEST(WrongStrategy, WhereOneRankGathersAloneSaysForWhomItWaits) {
  const Diagnostic d = error_of(gathers_alone, 4);
  EXPECT_EQ(d.code, "D617");
  EXPECT_EQ(d.where.rank, 1);
  EXPECT_EQ(d.where.operation, "all_gather(layer 0)");
  EXPECT_EQ(d.what, "deadlock: 1 of 4 ranks hang");
  EXPECT_EQ(d.why, "rank 1 waits in all_gather(layer 0) over all ranks for ranks 0 and 2, 3");
}

TEST(WrongStrategy, WhereAllSendFirstSaysWhoWaitsForWhom) {
  const Diagnostic two = error_of(sends_first, 2);
  EXPECT_EQ(two.code, "D617");
  EXPECT_EQ(two.where.rank, 0);
  EXPECT_EQ(two.where.operation, "send(layer 0)");
  EXPECT_NE(two.why.find("rank 0 waits in send(layer 0) with tag 0 for rank 1 to receive it"),
            std::string::npos)
      << two.why;
  EXPECT_NE(two.help.find("start_send"), std::string::npos) << two.help;
  EXPECT_EQ(error_of(sends_first, 4).what, "deadlock: 4 of 4 ranks hang");
}

// Eager messages hide the cycle; the remaining error is that nothing is trained.
TEST(WrongStrategy, WhereAllSendFirstEndsIfMessagesAreEager) {
  EXPECT_EQ(error_of(sends_first, 2, Bytes{1 << 30}).code, "D619");
}

}  // namespace
}  // namespace shiplap::strategy
