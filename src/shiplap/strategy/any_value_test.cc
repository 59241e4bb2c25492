// Communication of values whose type is known only at run time equals that of typed values.
#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "shiplap/base/error.h"
#include "shiplap/strategy/to_plan.h"
#include "shiplap/strategy/train.h"

namespace shiplap::strategy {
namespace {

using trace::EventKind;

const workload::ModelShape kSmall{.hidden = 512, .block = 256};

struct Result {
  plan::Plan plan;
  trace::Trace trace;
};

Result result_of(Task (*strategy)(Model&)) {
  Trainer trainer({.mesh = {{.name = "dp", .size = 2}}, .shape = kSmall},
                  {.layers = 2, .batch = 4});
  trainer.run(strategy);
  return {.plan = to_plan(trainer), .trace = trainer.trace()};
}

Diagnostic thrown_by(Task (*strategy)(Model&)) {
  Trainer trainer({.mesh = {{.name = "dp", .size = 2}}, .shape = kSmall},
                  {.layers = 2, .batch = 4});
  try {
    trainer.run(strategy);
  } catch (const InputError& error) {
    return error.diagnostics().front();
  }
  return {};
}

// Backward with a gathered weight, and all that comes before it.
void until_gradients(Model& model) {
  auto& [weights, opt_states, activations, grad_activations, grad_weights] = model.storage();
  activations[0] = model.get_input_activation(model.samples(model.rank(), model.ranks()));
  for (int l = 0; l < 2; ++l) {
    activations[l + 1] = model.forward(l, activations[l], weights[{l, 1}]);
  }
  grad_activations[2] = model.loss(activations[2]);
  for (int l = 1; l >= 0; --l) {
    std::tie(grad_weights[l], grad_activations[l]) =
        model.backward(l, activations[l], grad_activations[l + 1], weights[{l, 1}]);
  }
}

void update(Model& model) {
  auto& [weights, opt_states, activations, grad_activations, grad_weights] = model.storage();
  for (int l = 0; l < 2; ++l) {
    std::tie(weights[l], opt_states[l]) =
        model.update(l, grad_weights[l], weights[l], opt_states[l]);
    model.set_final_weight(l, weights[l]);
  }
}

void load(Model& model) {
  Storage& at = model.storage();
  for (int l = 0; l < 2; ++l) {
    std::tie(at.weights[l], at.opt_states[l]) = model.load_weights(l, model.rank(), model.ranks());
  }
}

// All kinds of communication, by type: weights gathered, gradients reduced, an activation passed.
Task typed(Model& model) {
  Storage& at = model.storage();
  load(model);
  at.weights[{0, 1}] = co_await model.all_gather(at.weights[0], 0);
  Pending<Weight> next = model.start_all_gather(at.weights[1], 1);
  at.weights[{1, 1}] = co_await next;
  until_gradients(model);
  at.grad_weights[1] = co_await model.all_reduce(at.grad_weights[1], 1);
  at.grad_weights[1] = at.grad_weights[1]->shard(model.rank(), 2);
  at.grad_weights[0] = co_await model.reduce_scatter(at.grad_weights[0], 0, {.axes = "dp"});
  const int other = 1 - model.rank();
  if (model.rank() == 0) {
    (void)co_await model.send(other, at.activations[1], {.tag = 3});
    Pending<Activation> coming = model.start_receive<Activation>(other);
    at.activations[9] = co_await coming;
  } else {
    at.activations[9] = co_await model.receive<Activation>(other, {.tag = 3});
    Pending<Activation> sent = model.start_send(other, at.activations[1]);
    (void)co_await sent;
  }
  update(model);
}

Task untyped(Model& model) {
  Storage& at = model.storage();
  load(model);
  at.weights[{0, 1}] =
      std::get<Weight>(co_await model.collective(EventKind::all_gather, at.weights[0].value(), 0));
  Pending<AnyValue> next = model.start_collective(EventKind::all_gather, at.weights[1].value(), 1);
  at.weights[{1, 1}] = std::get<Weight>(co_await next);
  until_gradients(model);
  at.grad_weights[1] = std::get<WeightGrad>(
      co_await model.collective(EventKind::all_reduce, at.grad_weights[1].value(), 1));
  at.grad_weights[1] = at.grad_weights[1]->shard(model.rank(), 2);
  at.grad_weights[0] = std::get<WeightGrad>(co_await model.collective(
      EventKind::reduce_scatter, at.grad_weights[0].value(), 0, {.axes = "dp"}));
  const int other = 1 - model.rank();
  if (model.rank() == 0) {
    const AnyValue sent = co_await model.send_any(other, at.activations[1].value(), {.tag = 3});
    EXPECT_TRUE(std::holds_alternative<Activation>(sent));
    Pending<AnyValue> coming = model.start_receive<AnyValue>(other);
    at.activations[9] = std::get<Activation>(co_await coming);
  } else {
    at.activations[9] = std::get<Activation>(co_await model.receive<AnyValue>(other, {.tag = 3}));
    Pending<AnyValue> sent = model.start_send_any(other, at.activations[1].value());
    (void)co_await sent;
  }
  update(model);
}

TEST(AnyValue, GivesThePlanAndTheTimesThatTypedValuesGive) {
  const Result expected = result_of(typed);
  const Result found = result_of(untyped);
  EXPECT_EQ(found.plan, expected.plan);
  ASSERT_EQ(found.trace.ranks.size(), expected.trace.ranks.size());
  for (std::size_t rank = 0; rank < found.trace.ranks.size(); ++rank) {
    EXPECT_EQ(found.trace.ranks[rank].events, expected.trace.ranks[rank].events);
  }
}

Task sums_weights(Model& model) {
  load(model);
  (void)co_await model.collective(EventKind::all_reduce, model.storage().weights[0].value(), 0);
}
Task scatters_optimizer(Model& model) {
  load(model);
  (void)model.start_collective(EventKind::reduce_scatter, model.storage().opt_states[0].value(), 0);
  co_return;
}
Task gathers_nothing(Model& model) {
  (void)co_await model.collective(EventKind::all_gather, AnyValue{}, 0);
}

TEST(AnyValue, WhatTypesWouldNotAllowIsRefused) {
  for (const auto& strategy : {sums_weights, scatters_optimizer, gathers_nothing}) {
    const Diagnostic found = thrown_by(strategy);
    EXPECT_EQ(found.code, "D614") << render(found);
    EXPECT_EQ(found.where.rank, 0);
    EXPECT_EQ(found.where.operation.substr(found.where.operation.find('(')), "(layer 0)");
  }
}

}  // namespace
}  // namespace shiplap::strategy
