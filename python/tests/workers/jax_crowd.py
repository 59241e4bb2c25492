"""Programs in which products and sums of XLA's own and calls of ours get ready in any order, so
that XLA's few threads are wanted by all of them. Who kept one of them while it waits for another
rank would block tasks queued behind it, which that rank may need."""

from __future__ import annotations

import functools
import random

import jax
import jax.numpy as jnp
import numpy as np
import shiplap.jax as sj
from jax.sharding import PartitionSpec as P

GIVEN = 4  # values to begin with
NAPS = 8


def _steps(seed, count):
    """What is done with which earlier values, the same on all ranks."""
    draw = random.Random(seed)
    steps = []
    for there in range(GIVEN, GIVEN + count):
        what = draw.choices(("product", "sum", "ours", "late"), (6, 3, 3, 2))[0]
        method = draw.choice(("none", "pipeline", "ring_exchange"))
        # One of them from long ago, so that many steps are ready at the same time.
        steps.append((what, draw.randrange(there), draw.randrange(there // 2), method))
    return steps


def _late(value, rounds):
    return jax.lax.fori_loop(0, rounds, lambda _, v: jnp.tanh(v @ v), value)


def _program(setting, steps, has_ours):
    def step(values, rounds, number):
        what, a, b, method = steps[number]
        x, y = values[a], values[b]
        if what == "product":
            return x @ y
        if what == "sum":
            return jax.lax.psum(x, "tp")
        if what == "late":  # the same value on all ranks that have it, only later on some
            return x + 0 * _late(y, rounds[number % NAPS])
        if has_ours:
            return sj.gemm(x, y, comm_type="ar", comm_overlap_method=method, group=setting.group)
        return jax.lax.psum(x @ y, "tp")

    def work(first, rounds):
        values = [jnp.roll(first, k, axis=1) for k in range(GIVEN)]
        for number in range(len(steps)):
            new = step(values, rounds, number)
            values.append(new / (0.01 + jnp.sqrt(jnp.mean(new * new))))
        return values[GIVEN:]

    return jax.jit(jax.shard_map(work, mesh=setting.mesh, in_specs=(P("tp", None), P("tp")),
                                 out_specs=[P("tp", None)] * len(steps), check_vma=False))


def crowd(setting, seed, steps, size, calls):
    plan = _steps(seed, steps)
    rng = np.random.default_rng(seed)
    first = setting.put(rng.standard_normal((size * setting.ranks, size)).astype(np.float32),
                        P("tp", None))
    own = np.random.default_rng([seed, setting.process])

    def naps(most):
        return setting.put(own.integers(0, most + 1, NAPS * setting.ranks).astype(np.int32),
                           P("tp"))

    program = _program(setting, plan, True)
    for _ in range(calls):
        found = jax.block_until_ready(program(first, naps(6)))
    expected = _program(setting, plan, False)(first, naps(0))
    for step, one, right in zip(plan, found, expected):
        for mine, good in zip(one.addressable_shards, right.addressable_shards):
            off = np.max(np.abs(np.asarray(mine.data) - np.asarray(good.data)))
            assert off < 1e-2, f"{step}: {off}"  # of values that are about 1


def cases(setting):
    words = setting.arguments
    for k in range(words["programs"]):
        seed = 1000 * setting.seed + k
        yield f"seed={seed}", functools.partial(crowd, setting, seed, words["steps"],
                                                words["size"], words["calls"])
