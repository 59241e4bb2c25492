"""Many calls, in any order that is the same on all ranks: there is no deadlock."""

from __future__ import annotations

import functools
import random
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import shiplap.jax as sj
from jax.sharding import PartitionSpec as P

from workers.jax_near import Near, compare_shards, gelu, summed
from workers.jax_products import parts

ROWS, COLUMNS = P("tp", None), P(None, "tp")


class Layers:
    """One that gathers, one that scatters, one that sums up: each with inputs and results."""

    def __init__(self, setting):
        rng = np.random.default_rng(setting.seed)
        ranks = self.ranks = setting.ranks
        self.setting = setting
        size = 8 * ranks
        self.of_depth = parts(size, ranks)
        self.w = {name: rng.standard_normal((size, size)).astype(np.float32)
                  for name in ("gathers", "scatters", "sums")}
        self.x = rng.standard_normal((6, size, size)).astype(np.float32)
        self.specs = {"gathers": (ROWS, COLUMNS, COLUMNS), "scatters": (COLUMNS, ROWS, ROWS),
                      "sums": (COLUMNS, ROWS, P(None, None))}
        self.laid_w = {name: setting.put(w, self.specs[name][1]) for name, w in self.w.items()}
        self.laid_x = {name: [setting.put(x, self.specs[name][0]) for x in self.x]
                       for name in self.w}
        self.results = {(name, k): self._result(name, k) for name in self.w
                        for k in range(len(self.x))}

    def act(self, name, x, w):
        if name == "gathers":
            return sj.gemm(x, w, comm_type="ag", chunks=2, group=self.setting.group)
        if name == "scatters":
            return sj.gemm(x, w, comm_type="rs", comm_overlap_method="pipeline", chunks=2,
                           activation="gelu", group=self.setting.group)
        return sj.gemm(x, w, comm_type="ar", group=self.setting.group)

    def mapped(self, name, checks=True):
        x_spec, w_spec, y_spec = self.specs[name]
        return jax.shard_map(functools.partial(self.act, name), mesh=self.setting.mesh,
                             in_specs=(x_spec, w_spec), out_specs=y_spec, check_vma=checks)

    def _result(self, name, k):
        x, w = Near(self.x[k]), Near(self.w[name])
        if name == "gathers":
            return (x @ w).rounded("float32")
        z = summed([x[:, d] @ w[d] for d in self.of_depth], "float32")
        return (gelu(z) if name == "scatters" else z).rounded("float32")

    def check(self, told, found):
        for (name, k), array in found:
            compare_shards(f"{told}: {name} of {k}", array, self.results[name, k])


def dispatched_one_by_one(layers):
    """200 asynchronous calls, while a rank is delayed now and then."""
    order = random.Random(layers.setting.seed + 1)
    naps = random.Random(1000 * layers.setting.seed + layers.setting.process)
    calls = {name: jax.jit(layers.mapped(name)) for name in ("gathers", "scatters")}
    found = []
    for _ in range(200):
        name, k = order.choice(tuple(calls)), order.randrange(len(layers.x))
        found.append(((name, k), calls[name](layers.laid_x[name][k], layers.laid_w[name])))
        if naps.random() < 0.1:
            time.sleep(naps.random() * 0.02)
    layers.check("one by one", found)


def within_one_program(layers):
    """Calls of which none needs the result of another; also one whose result nobody needs."""
    order = random.Random(layers.setting.seed + 2)
    for _ in range(3):
        picks = [(order.choice(tuple(layers.w)), order.randrange(len(layers.x)))
                 for _ in range(10)]

        @jax.jit
        def program(xs, ws, picks=picks):
            layers.mapped("gathers")(xs["gathers"][0], ws["gathers"])
            return [layers.mapped(name)(xs[name][k], ws[name]) for name, k in picks]

        for _ in range(5):
            made = program(layers.laid_x, layers.laid_w)
        layers.check("within one program", zip(picks, made))


def _late(x, rounds):
    """The same, after a while."""
    return jax.lax.fori_loop(0, rounds, lambda i, v: v + jnp.sin(v) * jnp.where(i < 0, 1, 0), x)


def with_factors_that_come_late(layers):
    """In one program: the operand of each call is ready last on a different rank. Calls in the
    order of readiness would have a different order on each rank."""
    size = layers.x.shape[-1]
    picks = list(range(len(layers.x))) * 2

    def late_layers(xs, w):
        me = jax.lax.axis_index("tp")
        made = []
        for number, k in enumerate(picks):
            rounds = jnp.where((me + number) % layers.ranks == 0, 10_000_000 // size**2, 0)
            made.append(layers.act("gathers", _late(xs[k], rounds), w))
        return made

    program = jax.jit(jax.shard_map(late_layers, mesh=layers.setting.mesh,
                                    in_specs=([ROWS] * len(layers.x), COLUMNS),
                                    out_specs=[COLUMNS] * len(picks), check_vma=False))
    for _ in range(2):
        made = program(layers.laid_x["gathers"], layers.laid_w["gathers"])
        layers.check("late factors", zip((("gathers", k) for k in picks), made))


def from_several_threads(layers):
    """One after the other; also the thread that they were first called from."""
    found = []

    def work(name, k):
        calls = jax.jit(layers.mapped(name))
        found.append(((name, k), jax.block_until_ready(
            calls(layers.laid_x[name][k], layers.laid_w[name]))))

    for k in range(4):
        thread = threading.Thread(target=work, args=(("gathers", "scatters")[k % 2], k))
        thread.start()
        thread.join()
        work("sums", k)
    assert len(found) == 8
    layers.check("threads", found)


# ---- a network of gathering and scattering layers, in loops


def _network(layers, depth=3):
    rng = np.random.default_rng(layers.setting.seed + 3)
    size = 4 * layers.ranks
    return (rng.standard_normal((size, size)).astype(np.float32),
            rng.standard_normal((depth, size, size)).astype(np.float32),
            rng.standard_normal((depth, size, size)).astype(np.float32),
            rng.standard_normal((size, size)).astype(np.float32))


def _expected(layers, x, ups, downs, c):
    """The result, and gradients of x, ups, downs."""
    ranks = parts(x.shape[0], layers.ranks)
    at, kept = Near(x), []
    for up, down in zip(ups, downs):
        wide = at @ Near(up)
        kept.append((at, wide))
        at = summed([wide[:, d] @ Near(down)[d] for d in ranks], "float32")
    result, back = at, Near(c)
    dups, ddowns = [], []
    for (before, wide), up, down in reversed(list(zip(kept, ups, downs))):
        ddowns.append((wide.T @ back).rounded("float32"))
        dwide = back @ Near(down).T
        dups.append((before.T @ dwide).rounded("float32"))
        back = summed([dwide[:, d] @ Near(up).T[d] for d in ranks], "float32")

    def stack(made):
        return Near(np.stack([m.value for m in made[::-1]]),
                    np.stack([m.error for m in made[::-1]]))

    return result, back, stack(dups), stack(ddowns)


def _block(layers, kind, x, up, down):
    group = layers.setting.group

    def both(x):
        wide = sj.gemm(x, up, comm_type="ag", group=group)
        return sj.gemm(wide, down, comm_type="rs", comm_overlap_method="pipeline", group=group)

    def other(x):
        wide = sj.gemm(x, up, comm_type="ag", comm_overlap_method="none", group=group)
        return sj.gemm(wide, down, comm_type="rs", group=group)

    if "checkpoint" in kind:
        return jax.checkpoint(both)(x)
    return both(x) if "cond" not in kind else (both, other)


def in_a_loop(layers, kind, checks):
    x, ups, downs, c = _network(layers)

    def network(which, x, ups, downs):
        def body(x, weights):
            block = _block(layers, kind, x, *weights)
            if "cond" in kind:
                return jax.lax.cond(which > 0, *block, x), None
            return block, None
        if "scan" in kind:
            return jax.lax.scan(body, x, (ups, downs))[0]
        for k in range(len(ups)):
            x, _ = body(x, (ups[k], downs[k]))
        return x

    specs = (P(), ROWS, P(None, None, "tp"), P(None, "tp", None))
    mapped = jax.shard_map(network, mesh=layers.setting.mesh, in_specs=specs, out_specs=ROWS,
                           check_vma=checks)

    @jax.jit
    def step(which, x, ups, downs, c):
        y, back = jax.vjp(functools.partial(mapped, which), x, ups, downs)
        return y, *back(c)

    put = layers.setting.put
    arrays = [put(a, spec) for a, spec in zip((x, ups, downs), specs[1:])]
    expected = _expected(layers, x, ups, downs, c)
    for which in (0, 1):
        found = step(put(np.int32(which), P()), *arrays, put(c, ROWS))
        for name, one, right in zip(("result", "gradient of x", "of ups", "of downs"), found,
                                    expected):
            compare_shards(f"{name}, {which}", one, right)


# ---- no copies


def addresses(layers, name):
    """What a product reads and writes are the arrays of JAX themselves."""
    x, w = layers.laid_x[name][0], layers.laid_w[name]
    call = jax.jit(layers.mapped(name))
    for _ in range(2):
        y = jax.block_until_ready(call(x, w))
        for device in jax.local_devices():
            lie = [next(s.data.unsafe_buffer_pointer() for s in array.addressable_shards
                        if s.device == device) for array in (x, w, y)]
            noted = layers.setting.group.addresses(device)
            assert noted == lie, f"{name} on {device}: {noted}, arrays {lie}"


def cases(setting):
    layers = Layers(setting)
    for function in (dispatched_one_by_one, within_one_program, with_factors_that_come_late,
                     from_several_threads):
        yield function.__name__, functools.partial(function, layers)
    for kind in setting.arguments["kinds"]:
        for checks in (True, False):
            yield f"{kind} check_vma={checks}", functools.partial(in_a_loop, layers, kind, checks)
    for name in layers.w:
        yield f"addresses {name}", functools.partial(addresses, layers, name)
