// Wrong strategies, and the diagnostics of Trainer.
#include "shiplap/strategy/train.h"

#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "shiplap/base/error.h"
#include "shiplap/strategy/library.h"

namespace shiplap::strategy {
namespace {

using trace::EventKind;

World world(int ranks) {
  return {.mesh = {{.name = "dp", .size = ranks}},
          .shape = {.hidden = 512, .block = 256, .moments = 1}};
}
const Training kSmall{.layers = 2, .batch = 4};

Diagnostic thrown_diagnostic(int ranks, const Strategy& strategy) {
  Trainer trainer(world(ranks), kSmall);
  try {
    trainer.run(strategy);
  } catch (const InputError& error) {
    return error.diagnostics().front();
  }
  return {};
}

bool mentions(const Diagnostic& diagnostic, const std::string& words) {
  return (diagnostic.what + "\n" + diagnostic.why + "\n" + diagnostic.help).find(words) !=
         std::string::npos;
}

// Data parallel training with one mistake.
enum class Mistake {
  none,
  no_reduce,
  reduce_on_rank_0_only,
  other_layer_on_rank_1,
  other_kind_on_rank_1,
  same_samples,
  no_update,
  no_final_weight,
  final_weight_of_layer_0_only,
  fails_on_rank_1,
};

Task train(Model& model, Mistake mistake) {
  auto& [weights, opt_states, activations, grad_activations, grads] = model.storage();
  for (int l = 0; l < 2; ++l) std::tie(weights[l], opt_states[l]) = model.load_weights(l);
  const int part = mistake == Mistake::same_samples ? 0 : model.rank();
  activations[0] = model.get_input_activation(model.samples(part, model.ranks()));
  for (int l = 0; l < 2; ++l) activations[l + 1] = model.forward(l, activations[l], weights[l]);
  grad_activations[2] = model.loss(activations[2]);
  for (int l = 1; l >= 0; --l) {
    std::tie(grads[l], grad_activations[l]) =
        model.backward(l, activations[l], grad_activations[l + 1], weights[l]);
  }
  const bool odd = model.rank() == 1;
  if (mistake == Mistake::fails_on_rank_1 && odd) activations.erase(7);
  for (int i = 1; i >= 0; --i) {
    const int l = mistake == Mistake::other_layer_on_rank_1 && odd ? 1 - i : i;
    if (mistake == Mistake::no_reduce || (mistake == Mistake::reduce_on_rank_0_only && odd))
      continue;
    if (mistake == Mistake::other_kind_on_rank_1 && odd) {
      grads[l] = co_await model.reduce_scatter(grads[l], l);
    } else {
      grads[l] = co_await model.all_reduce(grads[l], l);
    }
  }
  if (mistake == Mistake::reduce_on_rank_0_only && odd) co_return;
  for (int l = 0; l < 2; ++l) {
    if (mistake != Mistake::no_update) {
      std::tie(weights[l], opt_states[l]) = model.update(l, grads[l], weights[l], opt_states[l]);
    }
    if (mistake == Mistake::final_weight_of_layer_0_only && l == 1) continue;
    if (mistake != Mistake::no_final_weight) model.set_final_weight(l, weights[l]);
  }
}

Diagnostic thrown_by(Mistake mistake, int ranks = 2) {
  return thrown_diagnostic(ranks, [mistake](Model& model) { return train(model, mistake); });
}

TEST(Trainer, AcceptsWhatIsRight) {
  for (const int ranks : {1, 2, 4}) {
    EXPECT_EQ(thrown_by(Mistake::none, ranks).code, "") << ranks;
    EXPECT_EQ(thrown_diagnostic(ranks, ddp).code, "") << ranks;
  }
}

TEST(Trainer, FindsAMissingAllReduce) {
  const Diagnostic found = thrown_by(Mistake::no_reduce);
  EXPECT_EQ(found.code, "D615");
  EXPECT_EQ(found.where.rank, 0);
  EXPECT_EQ(found.where.operation, "update(layer 0)");
  EXPECT_TRUE(mentions(found, "samples 0, 1 of 4 misses samples")) << render(found);
}

TEST(Trainer, FindsACollectiveThatSomeDoNotCall) {
  const Diagnostic found = thrown_by(Mistake::reduce_on_rank_0_only);
  EXPECT_EQ(found.code, "D617");
  EXPECT_EQ(found.where.rank, 0);
  EXPECT_EQ(found.where.operation, "all_reduce(layer 1)");
  EXPECT_TRUE(mentions(found, "1 of 2 ranks hang")) << render(found);
  EXPECT_TRUE(mentions(found, "rank 0 waits in all_reduce(layer 1) over all ranks for rank 1"))
      << render(found);
  EXPECT_TRUE(mentions(found, "have ended")) << render(found);
}

TEST(Trainer, FindsCollectivesOfDifferentLayers) {
  const Diagnostic found = thrown_by(Mistake::other_layer_on_rank_1);
  EXPECT_EQ(found.code, "D610");
  EXPECT_EQ(found.where.rank, 0);
  EXPECT_EQ(found.where.operation, "all_reduce(layer 1) over all ranks");
  EXPECT_TRUE(mentions(found, "rank 0 passes the weight gradient of layer 1")) << render(found);
  EXPECT_TRUE(mentions(found, "rank 1 passes the weight gradient of layer 0")) << render(found);
}

TEST(Trainer, FindsCollectivesOfDifferentKinds) {
  const Diagnostic found = thrown_by(Mistake::other_kind_on_rank_1);
  EXPECT_EQ(found.code, "D616");
  EXPECT_EQ(found.where.rank, 1);
  EXPECT_TRUE(found.where.operation.starts_with("reduce_scatter(")) << render(found);
  EXPECT_TRUE(mentions(found, "rank 1 is in reduce_scatter of the weight gradient of layer 1"));
  EXPECT_TRUE(mentions(found, "rank 0 in all_reduce")) << render(found);
}

TEST(Trainer, FindsSamplesThatAreCountedTwice) {
  const Diagnostic found = thrown_by(Mistake::same_samples);
  EXPECT_EQ(found.code, "D611");
  EXPECT_TRUE(mentions(found, "sample 0 is contributed by both rank 0 and rank 1"))
      << render(found);
}

TEST(Trainer, WantsEveryLayersFinalWeight) {
  Diagnostic found = thrown_by(Mistake::no_update);
  EXPECT_EQ(found.code, "D619");
  EXPECT_EQ(found.where.rank, 0);
  EXPECT_TRUE(mentions(found, "the weight of layer 0, step 0 is not a final weight"))
      << render(found);
  found = thrown_by(Mistake::no_final_weight);
  EXPECT_EQ(found.code, "D619");
  EXPECT_TRUE(mentions(found, "layer 0 has no final weight")) << render(found);
  found = thrown_by(Mistake::final_weight_of_layer_0_only);
  EXPECT_EQ(found.code, "D619");
  EXPECT_TRUE(mentions(found, "layer 1 has no final weight")) << render(found);
}

// The others wait for the rank that failed; its error is reported.
TEST(Trainer, TellsTheFailureNotTheWaitForIt) {
  const Diagnostic found = thrown_by(Mistake::fails_on_rank_1, 4);
  EXPECT_EQ(found.code, "D613");
  EXPECT_EQ(found.where.rank, 1);
}

// ---------------------------------------------------------------- shards of final weights

// Each rank updates and keeps the given shard.
Task keeps_shard(Model& model, int shard, int of) {
  auto& [weights, opt_states, activations, grad_activations, grads] = model.storage();
  for (int l = 0; l < 2; ++l) std::tie(weights[l], opt_states[l]) = model.load_weights(l);
  activations[0] = model.get_input_activation({0, 1, 2, 3});
  for (int l = 0; l < 2; ++l) activations[l + 1] = model.forward(l, activations[l], weights[l]);
  grad_activations[2] = model.loss(activations[2]);
  for (int l = 1; l >= 0; --l) {
    std::tie(grads[l], grad_activations[l]) =
        model.backward(l, activations[l], grad_activations[l + 1], weights[l]);
  }
  for (int l = 0; l < 2; ++l) {
    weights[l] = weights[l]->shard(shard, of);
    opt_states[l] = opt_states[l]->shard(shard, of);
    std::tie(weights[l], opt_states[l]) = model.update(l, grads[l], weights[l], opt_states[l]);
    model.set_final_weight(l, weights[l]);
  }
  co_return;
}

TEST(Trainer, PutsFinalShardsTogether) {
  EXPECT_EQ(thrown_diagnostic(2, [](Model& m) { return keeps_shard(m, m.rank(), 2); }).code, "");
  EXPECT_EQ(thrown_diagnostic(4, [](Model& m) { return keeps_shard(m, m.rank() / 2, 2); }).code,
            "");
  const Diagnostic found = thrown_diagnostic(2, [](Model& m) { return keeps_shard(m, 1, 2); });
  EXPECT_EQ(found.code, "D619");
  EXPECT_TRUE(mentions(found, "the final weight of layer 0 is incomplete: only shards 1 of 2"))
      << render(found);
}

TEST(Trainer, WantsEqualShardsOnAllRanksInWhateverOrder) {
  const Diagnostic up =
      thrown_diagnostic(2, [](Model& m) { return keeps_shard(m, m.rank(), 1 + m.rank()); });
  const Diagnostic down =
      thrown_diagnostic(2, [](Model& m) { return keeps_shard(m, 0, 2 - m.rank()); });
  EXPECT_EQ(up.code, "D619");
  EXPECT_EQ(down.code, "D619");
}

// ---------------------------------------------------------------- deadlocks

Task send_send(Model& model) {
  auto& activations = model.storage().activations;
  const int other = 1 - model.rank();
  activations[0] = model.get_input_activation({0});
  co_await model.send(other, activations[0]);
  activations[1] = co_await model.receive<Activation>(other);
}

TEST(Deadlock, OfTwoSendsNamesBothAndTheCure) {
  const Diagnostic found = thrown_diagnostic(2, send_send);
  EXPECT_EQ(found.code, "D617");
  EXPECT_EQ(found.where.rank, 0);
  EXPECT_EQ(found.where.operation, "send(layer 0)");
  EXPECT_TRUE(mentions(found, "2 of 2 ranks hang")) << render(found);
  EXPECT_TRUE(mentions(found, "with tag 0 for rank 1 to receive it")) << render(found);
  EXPECT_TRUE(mentions(found, "with tag 0 for rank 0 to receive it")) << render(found);
  EXPECT_TRUE(mentions(found, "start_send")) << render(found);
}

Task other_tag(Model& model) {
  auto& activations = model.storage().activations;
  activations[0] = model.get_input_activation({0});
  if (model.rank() == 0) {
    Pending<Activation> sent = model.start_send(1, activations[0], {.tag = 1});
    model.log_event(EventKind::loss, {});
    co_await sent;
  } else {
    activations[1] = co_await model.receive<Activation>(0, {.tag = 2});
  }
}

TEST(Deadlock, OfTagsNamesTheTags) {
  const Diagnostic found = thrown_diagnostic(2, other_tag);
  EXPECT_EQ(found.code, "D617");
  EXPECT_TRUE(mentions(found, "rank 0 waits in send(layer 0) with tag 1 for rank 1 to receive it"))
      << render(found);
  EXPECT_TRUE(mentions(found, "rank 1 waits in recv with tag 2 for rank 0 to send"))
      << render(found);
}

// Rank 0 waits for the second of two collectives on a stream; rank 1 is missing in the first.
Task queue(Model& model) {
  auto& [weights, opt_states, activations, grad_activations, grads] = model.storage();
  for (int l = 0; l < 2; ++l) weights[l] = model.load_weights(l, model.rank(), 3).first;
  if (model.rank() == 1) co_return;
  Pending<Weight> one = model.start_all_gather(weights[0], 0);
  Pending<Weight> two = model.start_all_gather(weights[1], 1);
  model.log_event(EventKind::loss, {});
  (void)co_await two;
  (void)co_await one;
}

TEST(Deadlock, OfAQueueNamesThoseWhoAreMissing) {
  const Diagnostic found = thrown_diagnostic(3, queue);
  EXPECT_EQ(found.code, "D617");
  EXPECT_EQ(found.where.operation, "all_gather(layer 1)");
  EXPECT_TRUE(mentions(found, "2 of 3 ranks hang")) << render(found);
  EXPECT_TRUE(
      mentions(found, "rank 0 waits in all_gather(layer 1) over all ranks on `net` for rank 1"))
      << render(found);
}

Task waits_at(Model& model, Barrier& barrier) {
  model.log_event(EventKind::loss, {});
  co_await barrier.wait(model.rank());
}

TEST(Deadlock, IsAlsoFoundOutsideTheModel) {
  Trainer trainer(world(2), kSmall);
  Barrier barrier(trainer.dist().scheduler(), 3);
  try {
    trainer.run([&](Model& model) { return waits_at(model, barrier); });
    FAIL();
  } catch (const InputError& error) {
    const Diagnostic& found = error.diagnostics().front();
    EXPECT_EQ(found.code, "D617");
    EXPECT_TRUE(mentions(found, "rank 1 is suspended after loss")) << render(found);
  }
}

Task starts_only(Model& model) {
  auto& activations = model.storage().activations;
  activations[0] = model.get_input_activation({0});
  if (model.rank() == 0) (void)model.start_send(1, activations[0], {.tag = 3});
  co_return;
}

TEST(Trainer, FindsWhatWasStartedAndNeverWaitedFor) {
  const Diagnostic found = thrown_diagnostic(2, starts_only);
  EXPECT_EQ(found.code, "D623");
  EXPECT_EQ(found.where.rank, 0);
  EXPECT_EQ(found.where.operation, "send");
  EXPECT_TRUE(mentions(found, "a send with rank 1, tag 3 was started")) << render(found);
}

TEST(Deadlock, OfManyIsToldInShort) {
  const Diagnostic found =
      thrown_diagnostic(4, [](Model& m) { return train(m, Mistake::reduce_on_rank_0_only); });
  EXPECT_EQ(found.code, "D617");
  EXPECT_TRUE(mentions(found, "3 of 4 ranks hang")) << render(found);
  EXPECT_LT(found.why.size(), 400U);
}

// ---------------------------------------------------------------- results

// Rank 0 uses streams a and b, the others b and a.
Task streams(Model& model) {
  auto& weights = model.storage().weights;
  weights[0] = model.load_weights(0, model.rank(), 4).first;
  std::vector<const char*> names{"a", "b"};
  if (model.rank() > 0) names = {"b", "a"};
  std::vector<Pending<Weight>> whole;
  for (const char* name : names) {
    whole.push_back(model.start_all_gather(weights[0], 0, {.stream = name}));
  }
  for (Pending<Weight>& gather : whole) (void)co_await gather;
}

TEST(Trace, HasOneNumberForAStreamOnAllRanks) {
  Trainer trainer(world(4), kSmall);
  EXPECT_THROW(trainer.run(streams), InputError);  // there are no final weights
  const trace::Trace& trace = trainer.trace();
  EXPECT_EQ(trace.streams, (std::vector<std::string>{"main", "a", "b"}));
  ASSERT_EQ(trace.ranks.size(), 4U);
  EXPECT_EQ(trace.ranks[0].events.back().stream, 2);
  EXPECT_EQ(trace.ranks[1].events.back().stream, 1);
  EXPECT_EQ(trace.ranks[2].events.back().stream, 1);
}

TEST(Trainer, IsReadWhenItHasRun) {
  Trainer trainer(world(2), kSmall);
  trainer.run(ddp);
  EXPECT_EQ(trainer.models().size(), 2U);
  EXPECT_EQ(trainer.model(1).rank(), 1);
  Seconds last;
  for (const auto& rank : trainer.trace().ranks) {
    for (const Event& event : rank.events) last = std::max(last, event.end());
  }
  EXPECT_EQ(trainer.time(), last);
  EXPECT_GT(last.value, 0);
  EXPECT_THROW(trainer.run(ddp), InternalError);
}

}  // namespace
}  // namespace shiplap::strategy
