"""A tensor-parallel MLP whose GEMMs overlap their communication, beside the same MLP written with
jax.lax. Prints one JSON object.

    PYTHONPATH=build/release/python .deps/python/bin/python bench/python/jax_mlp.py

Two processes with one core each, on two hosts with a slow link (tools/testbed), which needs root;
with --here on this host, over loopback. Rows are gathered before the first GEMM, followed by gelu,
and reduced and scattered after the second:

    lax    jax.lax.all_gather (JAX's gloo), x @ up, jax.nn.gelu, h @ down, jax.lax.psum_scatter
    none   shiplap.jax.gemm twice, communication and GEMM one after the other
    ring   the same, overlapped: ring_exchange

`forward` is the layer, `gradient` the gradients of x and of both weights, which includes it. Each
call follows a barrier, and its time is that of the slower rank. Two variants are compared by rounds
of a, b, b, a. A round is discarded as noise if the two times of one of them differ. The result is
discarded if the link was faster than its limit.
"""

import argparse
import json
import os
import time

from two_hosts import (are_alike, end_ranks_on_sigterm, least_ms, run_on_testbed, run_ranks, spread)

SIZES = [(256, 256, 1024), (1024, 512, 2048), (2048, 1024, 4096)]  # rows, hidden, intermediate
COMPARED = [("ring", "lax"), ("none", "lax"), ("ring", "none")]
RANKS = 2


# ---- one process


class Bench:
    """This process, on a mesh of both."""

    def __init__(self, words):
        import jax
        import numpy as np
        from jax.sharding import PartitionSpec as P

        jax.distributed.initialize(words["coordinator"], RANKS, words["rank"])
        import shiplap.jax

        self.jax, self.np, self.gemm = jax, np, shiplap.jax.gemm
        self.rank, self.dtype, self.chunks = words["rank"], words["dtype"], words["chunks"]
        self.mesh = jax.sharding.Mesh(np.array(jax.devices()), ("tp",))
        self.group = shiplap.jax.initialize(self.mesh, timeout=60)
        self.specs = (P("tp"), P(None, "tp"), P("tp"))
        self.maximum = self.on_mesh(lambda value: jax.lax.pmax(value, "tp"), self.specs[:1],
                                    self.specs[0])

    def on_mesh(self, function, in_specs, out_specs):
        return self.jax.jit(self.jax.shard_map(function, mesh=self.mesh, in_specs=in_specs,
                                               out_specs=out_specs, check_vma=False))

    def array(self, shape, spec, values):
        sharding = self.jax.sharding.NamedSharding(self.mesh, spec)
        return self.jax.block_until_ready(
            self.jax.make_array_from_callback(shape, sharding, values.__getitem__))

    def slowest(self, own):
        values = self.np.full(RANKS, own, self.np.float32)
        return float(self.maximum(self.array((RANKS,), self.specs[0], values))
                     .addressable_data(0)[0])

    def ms(self, act):
        self.slowest(0)
        begin = time.perf_counter()
        self.jax.block_until_ready(act())
        return self.slowest(1e3 * (time.perf_counter() - begin))

    def lax(self, x, up, down):
        rows = self.jax.lax.all_gather(x, "tp", tiled=True)
        partial = self.jax.nn.gelu(rows @ up) @ down
        return self.jax.lax.psum_scatter(partial, "tp", tiled=True)

    def overlapped(self, method):
        chunks = self.chunks if method != "none" else 1

        def mlp(x, up, down):
            hidden = self.gemm(x, up, comm_type="all_gather", comm_overlap_method=method,
                               chunks=chunks, activation="gelu", group=self.group)
            return self.gemm(hidden, down, comm_type="reduce_scatter", comm_overlap_method=method,
                             chunks=chunks, group=self.group)

        return mlp

    def gradient(self, mlp):
        def loss(x, up, down):
            return (mlp(x, up, down).astype("float32") ** 2).sum()

        return self.jax.grad(loss, argnums=(0, 1, 2))

    def measure(self, size, rounds):
        rows, hidden, intermediate = size
        random = self.np.random.default_rng(1)
        shapes = ((rows, hidden), (hidden, intermediate), (intermediate, hidden))
        operands = [self.array(shape, spec, (random.standard_normal(shape) / shape[0] ** 0.5)
                               .astype(self.dtype))
                    for shape, spec in zip(shapes, self.specs, strict=True)]
        layers = {"lax": self.lax, "none": self.overlapped("none"),
                  "ring": self.overlapped("ring_exchange")}
        result = {"rows": rows, "hidden": hidden, "intermediate": intermediate}
        for what, out, of in (("forward", self.specs[0], lambda layer: layer),
                              ("gradient", self.specs, self.gradient)):
            calls = {name: self.on_mesh(of(layer), self.specs, out)
                     for name, layer in layers.items()}
            result[what] = {"difference": self.difference(calls, operands),
                            **self.compare({name: (lambda call=call: call(*operands))
                                            for name, call in calls.items()}, rounds)}
        return result

    def difference(self, calls, operands):
        """The largest, over the largest result."""
        def local(call):
            leaves = self.jax.tree.leaves(call(*operands))
            return [self.np.asarray(leaf.addressable_data(0), self.np.float32) for leaf in leaves]

        wanted = local(calls["lax"])
        return max(float(abs(a - b).max() / abs(b).max()) for name in ("none", "ring")
                   for a, b in zip(local(calls[name]), wanted, strict=True))

    def compare(self, acts, rounds):
        for act in acts.values():
            self.ms(act)
        found = {name: [] for name in acts}
        ratios = {pair: [] for pair in COMPARED}
        for _ in range(rounds):
            for above, below in COMPARED:
                times = [self.ms(acts[each]) for each in (below, above, above, below)]
                found[above] += times[1:3]
                found[below] += [times[0], times[3]]
                if are_alike(times[1:3]) and are_alike((times[0], times[3])):
                    ratios[above, below].append((times[1] + times[2]) / (times[0] + times[3]))
        return {"ms": {name: spread(values) for name, values in found.items()},
                **{f"{above}_over_{below}": {"counted": len(values), "of": rounds,
                                             **(spread(values) if values else {})}
                   for (above, below), values in ratios.items()}}


def work(words):
    bench = Bench(words)
    layers = [bench.measure(size, words["rounds"]) for size in words["sizes"]]
    if bench.rank == 0:
        print(json.dumps(layers), flush=True)
    bench.group.close()


# ---- both


def result_of(given):
    words = {"size": RANKS, "rounds": given.rounds, "dtype": given.dtype, "chunks": given.chunks,
             "sizes": SIZES[:given.sizes]}
    layers = run_ranks(__file__, words, on_hosts=not given.here, timeout=given.timeout, pinned=True,
                       env={"JAX_PLATFORMS": "cpu"})
    item = 4 if given.dtype == "float32" else 2
    for layer in layers:
        # Every rank sends half of the rows before the first GEMM and after the second.
        layer["least_ms"] = 2 * least_ms(layer["rows"] // 2 * layer["hidden"] * item,
                                         given.megabits)
        for what in () if given.here else ("forward", "gradient"):
            fastest = min(times["min"] for times in layer[what]["ms"].values())
            assert fastest >= layer["least_ms"], f"void: the link was not throttled: {fastest} ms"
    return {"bench": "python/jax_mlp", "dtype": given.dtype, "chunks": given.chunks,
            "megabits": 0 if given.here else given.megabits, "load": os.getloadavg()[0],
            "layers": layers}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--megabits", type=int, default=200)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--chunks", type=int, default=4)
    parser.add_argument("--sizes", type=int, default=len(SIZES), help="only the first ones")
    parser.add_argument("--timeout", type=int, default=1200)
    parser.add_argument("--here", action="store_true", help="over loopback, without root")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    parser.add_argument("--on-hosts", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        return work(json.loads(given.work))
    end_ranks_on_sigterm()
    if given.here or given.on_hosts:
        result = result_of(given)
    else:
        words = [f"--{name}={getattr(given, name)}"
                 for name in ("rounds", "megabits", "dtype", "chunks", "sizes", "timeout")]
        result = run_on_testbed(__file__, ["--on-hosts", *words], megabits=given.megabits,
                                timeout=given.timeout + 60)
    print(json.dumps(result, indent=1))
    return None


if __name__ == "__main__":
    main()
