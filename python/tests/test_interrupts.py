"""Ctrl-C ends every long call at once.

A timer stands in for the key. Unlike a thread it needs no GIL, so calls that hold it are tried too,
and it counts the time of the process, in which a busy machine has no part.
"""

import random
import signal
import time

import pytest

import shiplap
from shiplap import dispatch

MOMENTS = 10
LIMIT_S = 0.2


def once(made):
    """Makes an argument of several calls on first use."""
    kept = []

    def get():
        if not kept:
            kept.append(made())
        return kept[0]

    return get


def train(**sizes):
    return shiplap.train("interleaved", ranks=16, microbatches=64, batch=64, **sizes)


training = once(lambda: train(layers=256))
plan = once(lambda: training().plan)
parsed = once(lambda: shiplap.Plan.parse(plan().to_text()))
simulation = once(lambda: shiplap.simulate(plan()))
small = once(lambda: shiplap.train("ddp", ranks=2, batch=2, for_run=True).plan)
routing = once(
    lambda: dispatch.Routing(
        dispatch.pack_documents([64] * 40_000, 64),
        dispatch.assign_randomly(dispatch.cut_documents([64] * 40_000, 4), 64, seed=1),
    )
)
tables = once(lambda: dispatch.compute_qkv_dispatch(routing()))


def schedule(stages=64, microbatches=512):
    rows = []
    for stage in range(stages):
        forward = [f"{stage}F{i}" for i in range(microbatches)]
        backward = [f"{stage}B{i}" for i in range(microbatches)]
        rows.append(",".join(forward + backward))
    return "\n".join(rows) + "\n"


text = once(lambda: plan().to_text())
csv = once(schedule)


async def own(model):
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    for l in range(model.layers):
        weights[l], opt_states[l] = model.load_weights(l)
    activations[0] = model.get_input_activation(model.samples(model.rank, model.ranks))
    for l in range(model.layers):
        activations[l + 1] = model.forward(l, activations[l], weights[l])
        model.set_final_weight(l, weights[l])


CALLS = {
    "train": lambda: train(layers=1024),
    "train, own": lambda: shiplap.train(own, ranks=128, layers=64, batch=128),
    "plan of a training": lambda: train(layers=256).plan,
    "trace of a training": lambda: train(layers=256).trace,
    "check": lambda: shiplap.check(plan(), symmetry=False),
    "check, with symmetry": lambda: shiplap.check(parsed()),
    "simulate": lambda: shiplap.simulate(plan()),
    "simulation as a dict": lambda: simulation().trace.to_dict(),
    "simulation as a picture": lambda: simulation()._repr_html_(),
    "plan as text": lambda: plan().to_text(),
    "plan as a dict": lambda: plan().to_dict(),
    "parse": lambda: shiplap.Plan.parse(text()),
    "schedule": lambda: shiplap.check(shiplap.Plan.from_schedule(csv())),
    "run": lambda: shiplap.run(small(), steps=10**7),
    "overlap, run": lambda: shiplap.overlap(
        op="ag", m=512, n=512, k=512, tp=2, method="ring_exchange", run=True, rounds=10**5
    ),
    "dispatch": lambda: dispatch.compute_qkv_dispatch(routing()),
    "validate": lambda: dispatch.validate(tables()),
    "dense tables": lambda: tables().kv.forward.to_dense().to_sparse(),
    "dispatch as a dict": lambda: tables().to_dict(),
    "dispatch as a plan": lambda: dispatch.lower(routing(), tables()),
}


class Interrupted(KeyboardInterrupt):
    """As KeyboardInterrupt, but not of a key that somebody presses."""


def interrupt(*_):
    raise Interrupted


def delay_of(call, moment: float) -> float | None:
    """The seconds from the signal to the exception; None if the call ended before."""
    before = signal.signal(signal.SIGPROF, interrupt)
    begin = time.process_time()
    try:
        signal.setitimer(signal.ITIMER_PROF, moment)
        call()
        return None
    except Interrupted:
        return time.process_time() - begin - moment
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@pytest.mark.parametrize("name", CALLS)
def test_a_signal_ends_a_long_call(name):
    call = CALLS[name]
    first = delay_of(call, 3.0)  # also makes the arguments
    begin = time.process_time()
    if first is None:
        call()
    length = min(1.0, time.process_time() - begin) if first is None else 1.0
    rng = random.Random(name)
    delays = [delay_of(call, rng.uniform(0.005, max(0.006, 0.8 * length))) for _ in range(MOMENTS)]
    found = [delay for delay in delays if delay is not None]
    assert len(found) >= MOMENTS // 2, f"the call takes {length:.3f} s"
    assert max(found) < LIMIT_S, sorted(found)


def test_what_was_interrupted_can_be_called_again():
    assert delay_of(lambda: shiplap.check(plan(), symmetry=False), 0.01) is not None
    assert shiplap.check(plan())
    assert delay_of(lambda: shiplap.run(small(), steps=10**7), 0.3) is not None
    assert shiplap.run(small(), steps=2).good
