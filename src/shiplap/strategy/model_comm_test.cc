// Communication of models: results, times and memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "shiplap/base/error.h"
#include "shiplap/strategy/model.h"

namespace shiplap::strategy {
namespace {

using trace::EventKind;

const workload::ModelShape kPuzzles{.hidden = 512, .block = 256, .moments = 1};
const Bytes kWeight{std::int64_t{512} * 512 * 2};
const Bytes kSample{std::int64_t{512} * 256 * 2};

// Ranks of one program, without the final checks of Trainer.
struct Ranks {
  explicit Ranks(World world, int batch = 4) : dist(std::move(world)) {
    for (int rank = 0; rank < dist.size(); ++rank) {
      models.push_back(std::make_unique<Model>(rank, dist, 2, batch));
    }
  }
  explicit Ranks(int ranks, int batch = 4)
      : Ranks(World{.mesh = {{.name = "dp", .size = ranks}}, .shape = kPuzzles}, batch) {}

  void run(Task (*program)(Model&)) {
    engine::Scheduler& scheduler = dist.scheduler();
    for (const auto& model : models) scheduler.spawn(program(*model));
    scheduler.run();
    if (scheduler.first_failed() < models.size()) {
      std::rethrow_exception(scheduler.tasks()[scheduler.first_failed()].failure());
    }
    if (dist.problem()) throw InputError(*dist.problem());
    for (const Task& task : scheduler.tasks()) EXPECT_TRUE(task.done());
  }
  Diagnostic thrown_diagnostic(Task (*program)(Model&)) {
    try {
      run(program);
    } catch (const InputError& error) {
      return error.diagnostics().front();
    }
    return {};
  }
  [[nodiscard]] const Model& operator[](int rank) const { return *models[rank]; }
  [[nodiscard]] Seconds collective(const char* name, Bytes whole) const {
    const auto kind = std::string(name) == "all_gather"   ? CollectiveKind::all_gather
                      : std::string(name) == "all_reduce" ? CollectiveKind::all_reduce
                                                          : CollectiveKind::reduce_scatter;
    return cost::collective_time(dist.world().system, kind, whole, dist.predictor().world());
  }

  Dist dist;
  std::vector<std::unique_ptr<Model>> models;
};

const Event& last_of(const Model& model, EventKind kind, int nth_from_end = 0) {
  for (std::size_t i = model.log().size(); i-- > 0;) {
    if (model.log()[i].kind == kind && nth_from_end-- == 0) return model.log()[i];
  }
  throw InternalError("there is no such event");
}

// Gradients of both layers, of this rank's samples.
void make_gradients(Model& model) {
  auto& [weights, opt_states, activations, grad_activations, grad_weights] = model.storage();
  for (int l = 0; l < 2; ++l) std::tie(weights[l], opt_states[l]) = model.load_weights(l);
  activations[0] = model.get_input_activation(model.samples(model.rank(), model.ranks()));
  for (int l = 0; l < 2; ++l) activations[l + 1] = model.forward(l, activations[l], weights[l]);
  grad_activations[2] = model.loss(activations[2]);
  for (int l = 1; l >= 0; --l) {
    std::tie(grad_weights[l], grad_activations[l]) =
        model.backward(l, activations[l], grad_activations[l + 1], weights[l]);
  }
}

// ---------------------------------------------------------------- collectives

Task reduces(Model& model) {
  make_gradients(model);
  model.log_event(EventKind::forward,
                  {.layer = 0, .samples = IndexSet::range(0, 1 + model.rank())});
  auto& grads = model.storage().grad_weights;
  const Bytes before = model.memory();
  grads[1] = co_await model.all_reduce(grads[1], 1);
  EXPECT_TRUE(grads[1]->samples.covers(4));
  EXPECT_EQ(model.memory(), before);
}

TEST(AllReduce, SumsInPlaceWhenTheLastHasCome) {
  Ranks ranks(2);
  ranks.run(reduces);
  const Event& first = last_of(ranks[0], EventKind::all_reduce);
  const Event& second = last_of(ranks[1], EventKind::all_reduce);
  EXPECT_LT(last_of(ranks[0], EventKind::forward).end(),
            last_of(ranks[1], EventKind::forward).end());
  EXPECT_EQ(first.time, last_of(ranks[1], EventKind::forward).end());
  EXPECT_EQ(first.time, second.time);
  EXPECT_EQ(first.duration.value, ranks.collective("all_reduce", kWeight).value);
  EXPECT_EQ(first.bytes, kWeight);
  EXPECT_EQ(first.layer, 1);
  EXPECT_EQ(first.peer, -1);
  EXPECT_EQ(first.match, -1);
  EXPECT_TRUE(first.samples.empty());
  EXPECT_EQ(first.memory, ranks[0].memory());
  EXPECT_EQ(ranks[0].time(), first.end());
  EXPECT_EQ(ranks[1].time(), first.end());
}

Task reduces_elsewhere(Model& model) {
  make_gradients(model);
  auto& grads = model.storage().grad_weights;
  grads[9] = co_await model.all_reduce(grads[1], 1);
}

TEST(AllReduce, ThatIsStoredElsewhereHoldsBoth) {
  Ranks ranks(2);
  ranks.run(reduces_elsewhere);
  const Event& event = last_of(ranks[0], EventKind::all_reduce);
  EXPECT_EQ(event.memory, ranks[0].memory());
  EXPECT_EQ(event.memory, last_of(ranks[0], EventKind::backward).memory + kWeight);
}

Task shards(Model& model) {
  make_gradients(model);
  auto& grads = model.storage().grad_weights;
  grads[0] = co_await model.reduce_scatter(grads[0], 0);
  EXPECT_TRUE(grads[0]->samples.covers(4));
  EXPECT_EQ(grads[0]->shards, IndexSet(model.rank()));
  const Bytes before = model.memory();
  grads[0] = co_await model.all_gather(grads[0], 0);
  EXPECT_TRUE(grads[0]->is_complete());
  EXPECT_EQ(model.memory(), before - Bytes{kWeight.count / 2} + kWeight);
}

TEST(ReduceScatterAndAllGather, CutAndPutTogether) {
  Ranks ranks(2);
  ranks.run(shards);
  const Event& scatter = last_of(ranks[1], EventKind::reduce_scatter);
  const Event& gather = last_of(ranks[1], EventKind::all_gather);
  EXPECT_EQ(scatter.bytes, kWeight);
  EXPECT_EQ(gather.bytes, kWeight);
  EXPECT_EQ(scatter.duration.value, ranks.collective("reduce_scatter", kWeight).value);
  EXPECT_EQ(gather.duration.value, ranks.collective("all_gather", kWeight).value);
  // In place: the shard is a part of what is gathered.
  EXPECT_EQ(gather.memory, ranks[1].memory());
  EXPECT_EQ(scatter.memory, gather.memory);
}

Task gathers_elsewhere(Model& model) {
  auto& weights = model.storage().weights;
  weights[0] = model.load_weights(0, model.rank(), model.ranks()).first;
  weights[{0, 1}] = co_await model.all_gather(weights[0], 0);
  model.log_event(EventKind::loss, {});
}

TEST(AllGather, ThatIsStoredElsewhereHoldsTheShardToo) {
  Ranks ranks(4);
  ranks.run(gathers_elsewhere);
  const Event& gather = last_of(ranks[2], EventKind::all_gather);
  EXPECT_EQ(gather.memory.count * 4, 5 * kWeight.count);
  EXPECT_EQ(last_of(ranks[2], EventKind::loss).memory, gather.memory);
  EXPECT_EQ(ranks[2].memory(), gather.memory);
}

Task along_an_axis(Model& model) {
  auto& weights = model.storage().weights;
  weights[0] = model.load_weights(0, model.position("tp"), model.size("tp")).first;
  weights[0] = co_await model.all_gather(weights[0], 0, {.axes = "tp"});
  EXPECT_TRUE(weights[0]->is_complete());
  EXPECT_EQ(weights[0]->num_shards, 2);
}

TEST(Collective, RunsAlongTheAxesItIsAskedFor) {
  Ranks ranks(
      World{.mesh = {{.name = "dp", .size = 3}, {.name = "tp", .size = 2}}, .shape = kPuzzles});
  ranks.run(along_an_axis);
  EXPECT_EQ(last_of(ranks[5], EventKind::all_gather).bytes, kWeight);
}

// ---------------------------------------------------------------- messages

Task pipeline(Model& model) {
  auto& [weights, opt_states, activations, grad_activations, grad_weights] = model.storage();
  if (model.rank() == 0) {
    activations[0] = model.get_input_activation({0, 1, 2});
    weights[0] = model.load_weights(0).first;
    activations[1] = model.forward(0, activations[0], weights[0]);
    (void)co_await model.send(1, activations[1]);
  } else {
    activations[1] = co_await model.receive<Activation>(0);
    EXPECT_EQ(activations[1]->samples, IndexSet::range(0, 3));
    EXPECT_EQ(activations[1]->layer, 1);
  }
}

TEST(Message, SetsBothClocksToItsEnd) {
  Ranks ranks(2);
  ranks.run(pipeline);
  const Event& sent = last_of(ranks[0], EventKind::send);
  const Event& received = last_of(ranks[1], EventKind::recv);
  EXPECT_EQ(sent.time, last_of(ranks[0], EventKind::forward).end());
  EXPECT_EQ(received.time, sent.time);
  EXPECT_EQ(received.duration, sent.duration);
  EXPECT_EQ(sent.duration,
            cost::message_time(ranks.dist.world().system, 3 * kSample, Rank(0), Rank(1)));
  EXPECT_EQ(ranks[0].time(), sent.end());
  EXPECT_EQ(ranks[1].time(), sent.end());
  EXPECT_EQ(sent.match, received.match);
  EXPECT_EQ(sent.peer, 1);
  EXPECT_EQ(received.peer, 0);
  EXPECT_EQ(sent.bytes, 3 * kSample);
  EXPECT_EQ(received.bytes, 3 * kSample);
  EXPECT_EQ(received.layer, 1);
  EXPECT_EQ(received.samples, IndexSet::range(0, 3));
  EXPECT_EQ(received.memory, 3 * kSample);
  EXPECT_EQ(ranks[1].memory(), 3 * kSample);
}

TEST(Message, ThatIsEagerLetsTheSenderGoOn) {
  Ranks ranks(
      World{.mesh = {{.name = "dp", .size = 2}}, .shape = kPuzzles, .eager_limit = 3 * kSample});
  ranks.run(pipeline);
  const Event& sent = last_of(ranks[0], EventKind::send);
  const Event& received = last_of(ranks[1], EventKind::recv);
  EXPECT_EQ(sent.duration, Seconds{0});
  EXPECT_EQ(sent.bytes, 3 * kSample);
  EXPECT_EQ(ranks[0].time(), last_of(ranks[0], EventKind::forward).end());
  EXPECT_EQ(received.time, ranks[0].time());
  EXPECT_GT(received.duration.value, 0);
  EXPECT_EQ(received.match, sent.match);
}

Task tags(Model& model) {
  auto& activations = model.storage().activations;
  if (model.rank() == 0) {
    for (int i = 0; i < 3; ++i) activations[i] = model.get_input_activation({i});
    Pending<Activation> one = model.start_send(1, activations[0], {.tag = 5});
    Pending<Activation> two = model.start_send(1, activations[1], {.tag = 6});
    Pending<Activation> three = model.start_send(1, activations[2], {.tag = 5});
    co_await one;
    co_await two;
    co_await three;
  } else {
    activations[0] = co_await model.receive<Activation>(0, {.tag = 6});
    activations[1] = co_await model.receive<Activation>(0, {.tag = 5});
    activations[2] = co_await model.receive<Activation>(0, {.tag = 5});
    EXPECT_EQ(activations[0]->samples, IndexSet(1));
    EXPECT_EQ(activations[1]->samples, IndexSet(0));
    EXPECT_EQ(activations[2]->samples, IndexSet(2));
  }
}

TEST(Message, IsFoundByItsTag) {
  Ranks ranks(2);
  ranks.run(tags);
  std::vector<std::int64_t> matches;
  for (const Event& event : ranks[1].log()) matches.push_back(event.match);
  EXPECT_EQ(matches, (std::vector<std::int64_t>{1, 0, 2}));
}

Task expects_a_weight(Model& model) {
  if (model.rank() == 0) {
    model.storage().activations[0] = model.get_input_activation({0});
    co_await model.send(1, model.storage().activations[0]);
  } else {
    model.storage().weights[0] = co_await model.receive<Weight>(0);
  }
}

TEST(Message, OfAnotherKindIsRefusedWhereItIsReceived) {
  const Diagnostic found = Ranks(2).thrown_diagnostic(expects_a_weight);
  EXPECT_EQ(found.code, "D616");
  EXPECT_EQ(found.where.rank, 1);
  EXPECT_EQ(found.where.operation, "recv");
  EXPECT_EQ(found.what, "rank 0 sent the activation of layer 0, sample 0 of 4");
}

// ---------------------------------------------------------------- non-blocking

Task overlaps(Model& model) {
  make_gradients(model);
  auto& grads = model.storage().grad_weights;
  Pending<WeightGrad> sum = model.start_all_reduce(grads[1], 1);
  EXPECT_TRUE(sum.in_flight());
  model.log_event(EventKind::forward, {.layer = 0, .samples = IndexSet::range(0, 4)});
  grads[1] = co_await sum;
  EXPECT_FALSE(sum.in_flight());
  EXPECT_TRUE(grads[1]->samples.covers(4));
}

TEST(Started, OverlapTakesTheLongerOfBothNotTheSum) {
  // Small weights: the reduction is the shorter one. Large weights: the longer one.
  for (const int block : {16'384, 16}) {
    Ranks ranks(
        World{.mesh = {{.name = "dp", .size = 2}}, .shape = {.hidden = 2048, .block = block}});
    ranks.run(overlaps);
    const Event& reduce = last_of(ranks[0], EventKind::all_reduce);
    const Event& forward = last_of(ranks[0], EventKind::forward);
    EXPECT_EQ(reduce.duration < forward.duration, block > 16);
    EXPECT_EQ(reduce.time, forward.time);
    EXPECT_EQ(ranks[0].time(), std::max(reduce.end(), forward.end()));
    EXPECT_EQ(reduce.stream, 1);
    EXPECT_EQ(forward.stream, 0);
    EXPECT_EQ(ranks[0].streams(), (std::vector<std::string>{"main", "net"}));
  }
}

Task one_stream(Model& model) {
  make_gradients(model);
  auto& grads = model.storage().grad_weights;
  Pending<WeightGrad> one = model.start_all_reduce(grads[1], 1);
  Pending<WeightGrad> two = model.start_all_reduce(grads[0], 0);
  grads[0] = co_await two;  // in any order
  grads[1] = co_await one;
  Pending<WeightGrad> three = model.start_reduce_scatter(grads[0], 0);
  (void)co_await three;
}

Task two_streams(Model& model) {
  make_gradients(model);
  auto& grads = model.storage().grad_weights;
  Pending<WeightGrad> one = model.start_all_reduce(grads[1], 1, {.stream = "a"});
  Pending<WeightGrad> two = model.start_all_reduce(grads[0], 0, {.stream = "b"});
  grads[0] = co_await two;
  grads[1] = co_await one;
}

Task only_grads_twice(Model& model) {
  make_gradients(model);
  auto& grads = model.storage().grad_weights;
  Pending<WeightGrad> one = model.start_all_reduce(grads[1], 1);
  grads[1] = co_await one;
  model.log_event(EventKind::forward, {.layer = 0, .samples = IndexSet::range(0, 4)});
  Pending<WeightGrad> two = model.start_all_reduce(grads[0], 0);
  grads[0] = co_await two;
}

TEST(Started, OnOneStreamTheyFollowEachOther) {
  Ranks ranks(2);
  // The sum of all samples cannot be summed again.
  EXPECT_EQ(ranks.thrown_diagnostic(one_stream).code, "D611");
  const Event& second = last_of(ranks[1], EventKind::all_reduce);
  const Event& first = last_of(ranks[1], EventKind::all_reduce, 1);
  EXPECT_EQ(first.layer, 1);
  EXPECT_EQ(second.time, first.end());
  EXPECT_EQ(ranks[1].time(), second.end());
}

TEST(Started, OnTwoStreamsTheyRunSideBySide) {
  Ranks ranks(2);
  ranks.run(two_streams);
  const Event& second = last_of(ranks[1], EventKind::all_reduce);
  const Event& first = last_of(ranks[1], EventKind::all_reduce, 1);
  EXPECT_EQ(first.time, second.time);
  EXPECT_EQ(first.end(), second.end());
  EXPECT_NE(first.stream, second.stream);
}

TEST(Started, OnAFreeStreamOneBeginsAtOnce) {
  Ranks ranks(2);
  ranks.run(only_grads_twice);
  EXPECT_EQ(last_of(ranks[0], EventKind::all_reduce).time,
            last_of(ranks[0], EventKind::forward).end());
}

// Ranks may wait in different orders.
Task waits_in_its_own_order(Model& model) {
  make_gradients(model);
  auto& grads = model.storage().grad_weights;
  Pending<WeightGrad> one = model.start_all_reduce(grads[1], 1);
  Pending<WeightGrad> two = model.start_all_reduce(grads[0], 0);
  if (model.rank() == 0) {
    grads[0] = co_await two;
    grads[1] = co_await one;
  } else {
    grads[1] = co_await one;
    model.log_event(EventKind::forward, {.layer = 0, .samples = IndexSet::range(0, 4)});
    grads[0] = co_await two;
  }
}

TEST(Started, CanBeWaitedForInAnyOrder) {
  Ranks ranks(2);
  ranks.run(waits_in_its_own_order);
  EXPECT_EQ(last_of(ranks[0], EventKind::all_reduce).end(),
            last_of(ranks[1], EventKind::all_reduce).end());
}

Task receives_early(Model& model) {
  auto& [weights, opt_states, activations, grad_activations, grad_weights] = model.storage();
  weights[0] = model.load_weights(0).first;
  if (model.rank() == 0) {
    activations[0] = model.get_input_activation({0, 1});
    model.log_event(EventKind::forward, {.layer = 1, .samples = IndexSet::range(0, 4)});
    co_await model.send(1, activations[0]);
    co_return;
  }
  Pending<Activation> coming = model.start_receive<Activation>(0);
  model.log_event(EventKind::forward, {.layer = 0, .samples = IndexSet(0)});
  model.log_event(EventKind::forward, {.layer = 1, .samples = IndexSet(0)});
  EXPECT_EQ(model.memory(), kWeight);  // what is on its way is not stored
  activations[0] = co_await coming;
  EXPECT_EQ(model.memory(), kWeight + 2 * kSample);
  model.log_event(EventKind::loss, {});
}

TEST(Started, AReceiveHoldsItsMemoryFromItsStartOn) {
  Ranks ranks(2);
  ranks.run(receives_early);
  std::vector<Bytes> found;
  for (const Event& event : ranks[1].log()) found.push_back(event.memory);
  const Bytes loaded = kWeight;  // the optimizer state is not used, and so not loaded
  ASSERT_EQ(ranks[1].log()[0].kind, EventKind::load_weights);
  EXPECT_EQ(found, (std::vector<Bytes>{loaded, kWeight + 2 * kSample, kWeight + 2 * kSample,
                                       kWeight + 2 * kSample, kWeight + 2 * kSample}));
  EXPECT_EQ(ranks[1].log()[1].kind, EventKind::recv);
  EXPECT_EQ(ranks[1].log()[1].time, last_of(ranks[0], EventKind::send).time);
}

Task gathers_early(Model& model) {
  auto& weights = model.storage().weights;
  weights[0] = model.load_weights(0, model.rank(), 2).first;
  Pending<Weight> whole = model.start_all_gather(weights[0], 0);
  model.log_event(EventKind::loss, {});
  weights[{0, 1}] = co_await whole;
  model.log_event(EventKind::loss, {});
  weights.erase({0, 1});
  model.log_event(EventKind::loss, {});
}

TEST(Started, AGatherHoldsItsMemoryFromItsStartOn) {
  Ranks ranks(2);
  ranks.run(gathers_early);
  std::vector<std::int64_t> halves;
  for (const Event& event : ranks[0].log())
    halves.push_back(2 * event.memory.count / kWeight.count);
  // Half a weight is loaded; its optimizer state is not used, and so not loaded.
  EXPECT_EQ(halves, (std::vector<std::int64_t>{1, 3, 3, 3, 1}));
}

// ---------------------------------------------------------------- errors

Task waits_twice(Model& model) {
  make_gradients(model);
  auto& grads = model.storage().grad_weights;
  Pending<WeightGrad> sum = model.start_all_reduce(grads[1], 1);
  grads[1] = co_await sum;
  grads[1] = co_await sum;
}
Task waits_for_what_was_moved(Model& model) {
  make_gradients(model);
  auto& grads = model.storage().grad_weights;
  Pending<WeightGrad> sum = model.start_all_reduce(grads[1], 1);
  Pending<WeightGrad> other = std::move(sum);
  grads[1] = co_await other;
  grads[1] = co_await sum;  // NOLINT(bugprone-use-after-move)
}
Task waits_for_nothing(Model& model) {
  Pending<WeightGrad> nothing;
  model.storage().grad_weights[0] = co_await nothing;
}

TEST(Pending, IsWaitedForOnce) {
  for (const auto program : {waits_twice, waits_for_what_was_moved, waits_for_nothing}) {
    const Diagnostic found = Ranks(2).thrown_diagnostic(program);
    EXPECT_EQ(found.code, "D623");
    EXPECT_EQ(found.what, "nothing is in flight here");
  }
}
static_assert(!std::is_copy_constructible_v<Pending<Weight>>);

// A blocking call can only be awaited as a temporary.
template <class T>
concept AwaitedLater = requires(T& kept) { kept.operator co_await(); };
static_assert(!AwaitedLater<Awaitable<Weight>> && AwaitedLater<Pending<Weight>>);

// Each does something to grads[1] while it is being reduced.
Task uses_while_reduced(Model& model, int how) {
  make_gradients(model);
  auto& [weights, opt_states, activations, grad_activations, grads] = model.storage();
  Pending<WeightGrad> sum = model.start_all_reduce(grads[1], 1);
  if (how == 0) grads.erase(1);
  if (how == 1) grads[1] = grads[0];
  if (how == 2) (void)model.update(1, grads[1], weights[1], opt_states[1]);
  if (how == 3) (void)model.start_reduce_scatter(grads[1], 1, {.stream = "other"});
  if (how == 4) (void)model.start_send(1 - model.rank(), grads[1]);
  if (how == 5) grads[7] = grads[1];
  if (how == 6) grads[7] = grads[1]->shard(0, 2);
  grads[1] = co_await sum;
}
template <int kHow>
Task uses(Model& model) {
  return uses_while_reduced(model, kHow);
}

TEST(Started, WhatIsBeingReducedIsLeftAlone) {
  const std::vector<Task (*)(Model&)> programs{uses<0>, uses<1>, uses<2>, uses<3>,
                                               uses<4>, uses<5>, uses<6>};
  for (std::size_t i = 0; i < programs.size(); ++i) {
    const Diagnostic found = Ranks(2).thrown_diagnostic(programs[i]);
    EXPECT_EQ(found.code, "D620") << "use " << i << "\n" << render(found);
    EXPECT_EQ(found.where.rank, 0) << "use " << i;
    EXPECT_FALSE(found.where.operation.empty()) << "use " << i;
  }
  EXPECT_EQ(Ranks(2).thrown_diagnostic(uses<7>).code, "");
}

// Reading is shared; writing is not.
Task uses_while_sent(Model& model, int how) {
  make_gradients(model);
  auto& grads = model.storage().grad_weights;
  const int other = 1 - model.rank();
  Pending<WeightGrad> sent = model.start_send(other, grads[1]);
  Pending<WeightGrad> coming = model.start_receive<WeightGrad>(other);
  if (how == 0) grads.erase(1);
  if (how == 1) grads[1] = grads[0];
  if (how == 2) grads[1] = co_await model.all_reduce(grads[1], 1);
  if (how == 3) {
    Pending<WeightGrad> again = model.start_send(other, grads[1], {.tag = 1});
    grads[8] = co_await model.receive<WeightGrad>(other, {.tag = 1});
    grads[7] = grads[1];
    (void)co_await again;
  }
  (void)co_await sent;
  grads[9] = co_await coming;
}
template <int kHow>
Task uses_sent(Model& model) {
  return uses_while_sent(model, kHow);
}

TEST(Started, WhatIsBeingSentIsRead) {
  EXPECT_EQ(Ranks(2).thrown_diagnostic(uses_sent<0>).code, "D620");
  EXPECT_EQ(Ranks(2).thrown_diagnostic(uses_sent<1>).code, "D620");
  EXPECT_EQ(Ranks(2).thrown_diagnostic(uses_sent<2>).code, "D620");
  EXPECT_EQ(Ranks(2).thrown_diagnostic(uses_sent<3>).code, "");
}

}  // namespace
}  // namespace shiplap::strategy
