"""Strategies do not leak memory or objects: each is created and dropped a thousand times."""

import pytest
from leaks import assert_no_leak, growth, resident

import shiplap
from shiplap import RuntimePredictor
from shiplap.strategy import (Activation, ActivationGrad, Model, ModelShape, OptState,
                              Weight, WeightGrad)
from twins import TWINS

def train():
    """Coroutines, models, communications of both kinds, events."""
    training = shiplap.train(TWINS["fsdp"], ranks=2, layers=2, batch=2)
    return [(model.log, model.storage(), model.final_weights) for model in training.models]


def look():
    training = shiplap.train(TWINS["ddp"], ranks=2, layers=1, batch=2)
    return training.plan, training.trace, training.by_rank, training.to_dict()


async def hangs(model):
    if model.rank == 0:
        await model.receive(1)


async def forgets(model):
    weights = model.storage()[0]
    weights[0], _ = model.load_weights(0)
    model.start_all_gather(weights[0], 0)


def fail(strategy):
    try:
        shiplap.train(strategy, ranks=2, layers=1, batch=2)
    except shiplap.InputError as error:
        return error.diagnostics
    raise AssertionError("refused")


def shelves():
    model = Model()
    weights, opt_states, *others = model.storage()
    weights[0], opt_states[0] = model.load_weights(0)
    return [list(shelf) for shelf in (weights, opt_states, *others)]


MAKERS = {
    "Weight": lambda: Weight(0, 2).shard(0, 2).combine(Weight(0, 2).shard(1, 2)),
    "OptState": lambda: OptState(0, 2),
    "WeightGrad": lambda: WeightGrad(0, 2, [0, 5], 8) + WeightGrad(0, 2, [1, 7], 8),
    "Activation": lambda: Activation(0, 2, {0, 3, 4}, 8).samples,
    "ActivationGrad": lambda: ActivationGrad(0, 2, [0, 3], 8),
    "ModelShape": lambda: ModelShape(hidden=64),
    "RuntimePredictor": lambda: RuntimePredictor(8).get_comm_bytes(Weight(0, 2)),
    "Model": shelves,
    "Training": train,
    "its plan and trace": look,
    "a deadlock": lambda: fail(hangs),
    "what was forgotten": lambda: fail(forgets),
    "a strategy of the library": lambda: shiplap.train("1f1b", ranks=2, layers=2, batch=2),
    "a name that is none": lambda: pytest.raises(shiplap.InputError, shiplap.train, "ddpp"),
}


@pytest.mark.parametrize("name", MAKERS)
def test_a_thousand_cycles_leave_nothing(name):
    assert_no_leak(MAKERS[name])


def test_the_process_does_not_grow():
    for make in MAKERS.values():
        growth(make)
    before = resident()
    for make in MAKERS.values():
        growth(make)
    assert resident() - before < 4 << 20
