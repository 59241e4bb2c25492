"""Benchmark of a GEMM called from a jitted function. Prints one JSON object.

    PYTHONPATH=build/release/python python bench/python/jax_gemm.py [--json]
        [--part overhead|overlap|bench] [--rounds N] [--megabits 200] [--columns N]
        [--worker build/release/bin/bench_overlap_worker]

Overhead: tiny GEMMs, many in a loop of one jitted function, against as many calls of the C++
function in a loop of C++; on one process and on two. The time of XLA's loop counts as overhead.

Overlap: two processes on two hosts with a slow link, which needs root (tools/testbed). Rows of X
are gathered behind a GEMM that takes about as long; the jitted layer against the C++ function
with the same arrays in the same processes, each after a barrier. The result is discarded if the
link was faster than its limit.

A round of either is: C++, jitted, jitted, C++. It is discarded as noise if the two times of one
of them differ.

Bench: the same layer against the worker of bench_overlap with the same shape and chunks, which is
pure C++, over Open MPI, with prepacked weights. They are separate programs, so they alternate, each
on separate hosts: worker, jitted, worker, jitted, .. A jitted one is compared with the workers
before and after it, and is discarded if those differ. Without --part, all.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time

from two_hosts import (ROOT, are_alike, end_ranks_on_sigterm, least_ms, run_on_testbed, run_ranks,
                       spread)

ROWS, DEPTH, CHUNKS = 1024, 2048, 4  # as bench_overlap has them
COLUMNS = (2048, 3072, 4096, 6144, 9216, 12288, 20480, 28672)
LOOPS, TINY = 200, 16


# ---- one process


class Rank:
    """This process, its group, and GEMMs of both kinds."""

    def __init__(self, words):
        import jax
        import numpy as np
        from jax.sharding import Mesh

        self.size, self.rank = words["size"], words["rank"]
        if self.size > 1:
            jax.distributed.initialize(words["coordinator"], self.size, self.rank)
        import shiplap.jax

        self.mesh = Mesh(np.array(jax.devices()), ("tp",))
        self.group = shiplap.jax.initialize(self.mesh, timeout=60)
        self.device = jax.local_devices()[0]

    def array(self, shape, spec, dtype):
        """Of all ranks."""
        import jax
        import numpy as np
        from jax.sharding import NamedSharding

        values = np.random.default_rng(1).standard_normal(shape).astype(dtype) / shape[0]
        return jax.block_until_ready(jax.make_array_from_callback(
            shape, NamedSharding(self.mesh, spec), values.astype(dtype).__getitem__))

    def jitted(self, function, specs, out):
        import jax

        return jax.jit(jax.shard_map(function, mesh=self.mesh, in_specs=specs, out_specs=out,
                                     check_vma=False))

    def direct(self, kind, method, arrays, calls, chunks=1, dtype="f32"):
        """Seconds of a call. The arrays are JAX's own."""
        from shiplap import _shiplap

        places = []
        for array in arrays:
            own = array.addressable_data(0)
            places.append((own.unsafe_buffer_pointer(), *own.shape))
        return _shiplap.jax.time_direct(self.group.number, self.device.id, kind, method, chunks,
                                        dtype, *places, calls)

    def agree(self, key, value):
        """The value of rank 0."""
        from jax._src import distributed

        client = distributed.global_state.client
        if self.rank == 0:
            client.key_value_set(key, json.dumps(value))
        return json.loads(client.blocking_key_value_get(key, 60_000))


def timed(act):
    import jax

    begin = time.perf_counter()
    jax.block_until_ready(act())
    return time.perf_counter() - begin


def overhead_of(rank, kind, rounds):
    """Microseconds of a tiny GEMM: from XLA, directly, and the difference."""
    import jax
    import numpy as np
    from jax.sharding import PartitionSpec as P

    import shiplap.jax

    method = "none" if kind == "none" else "ring_exchange"
    x = rank.array((TINY * rank.size, TINY), P("tp", None), np.float32)
    w = rank.array((TINY, TINY * rank.size), P(None, "tp"), np.float32)
    gathered = rank.size if kind == "all_gather" else 1
    y = rank.array((TINY * gathered * rank.size, TINY), P("tp", None), np.float32)

    def loop(x, w):
        def once(_, rows):  # each depends on the previous result, so none is optimized away
            return shiplap.jax.gemm(rows, w, comm_type=kind, comm_overlap_method=method,
                                    group=rank.group)[:TINY]

        return jax.lax.fori_loop(0, LOOPS, once, x)

    run = rank.jitted(loop, (P("tp", None), P(None, "tp")), P("tp", None))

    def direct():
        return rank.direct(kind, method, (x, w, y), LOOPS) * 1e6

    def jitted():
        return timed(lambda: run(x, w)) / LOOPS * 1e6

    direct(), jitted()  # warm-up
    found, counted = {"direct_us": [], "jitted_us": []}, []
    for _ in range(rounds):
        first, second, third, fourth = direct(), jitted(), jitted(), direct()
        found["direct_us"] += [first, fourth]
        found["jitted_us"] += [second, third]
        if are_alike((first, fourth)) and are_alike((second, third)):
            counted.append((second + third - first - fourth) / 2)
    result = {"counted": len(counted), "of": rounds}
    for name, values in [*found.items(), ("overhead_us", counted)]:
        result.update(spread(values, name) if values else {})
    return result


def overhead(rank, words):
    kinds = ("none", "all_gather") if rank.size == 1 else ("all_gather",)
    return {kind: overhead_of(rank, kind, 5 * words["rounds"]) for kind in kinds}


class Layer:
    """The GEMM of an overlap, in all variants."""

    def __init__(self, rank, columns):
        import jax.numpy as jnp
        from jax.sharding import PartitionSpec as P

        import shiplap.jax

        self.rank, self.columns = rank, columns
        cut, kept = P("tp", None), P(None, "tp")
        self.x = rank.array((ROWS, DEPTH), cut, jnp.bfloat16)
        self.w = rank.array((DEPTH, columns * rank.size), kept, jnp.bfloat16)
        self.all_rows = rank.array((ROWS * rank.size, DEPTH), cut, jnp.bfloat16)
        self.narrow = rank.array((DEPTH, rank.size), kept, jnp.bfloat16)
        self.thin = rank.array((ROWS, rank.size), kept, jnp.bfloat16)
        self.tiny = rank.array((rank.size, 1), cut, jnp.bfloat16)
        self.one = rank.array((1, rank.size), kept, jnp.bfloat16)

        def layer(x, w):
            return shiplap.jax.gemm(x, w, comm_type="all_gather", chunks=CHUNKS,
                                    comm_overlap_method="ring_exchange", group=rank.group)

        self.run = rank.jitted(layer, (cut, kept), kept)
        self.meet = rank.jitted(layer, (cut, kept), kept)
        self.y = self.run(self.x, self.w)  # as large as results are

    def barrier(self):
        timed(lambda: self.meet(self.tiny, self.one))

    def ms(self, what):
        self.barrier()
        direct = self.rank.direct
        if what == "jitted":
            return timed(lambda: self.run(self.x, self.w)) * 1e3
        if what == "direct":
            return direct("all_gather", "ring_exchange", (self.x, self.w, self.y), 1, CHUNKS,
                          "bf16") * 1e3
        if what == "gemm":
            return direct("none", "none", (self.all_rows, self.w, self.y), 1, 1, "bf16") * 1e3
        return direct("all_gather", "none", (self.x, self.narrow, self.thin), 1, 1, "bf16") * 1e3


def columns_for(rank):
    """The value of N for which the GEMM takes about as long as the communication."""
    layer = Layer(rank, COLUMNS[2])
    for what in ("jitted", "direct", "communication", "gemm"):
        layer.ms(what)
    usual = {what: min(layer.ms(what) for _ in range(5)) for what in ("communication", "gemm")}
    wanted = usual["communication"] / usual["gemm"] * layer.columns
    return rank.agree("columns", min(COLUMNS, key=lambda c: abs(c - wanted)))


def overlap(rank, words):
    layer = Layer(rank, words["columns"] or columns_for(rank))
    found = {"communication": [], "gemm": [], "direct": [], "jitted": []}
    ratios, balance = [], []
    for what in found:
        layer.ms(what)
    for _ in range(words["rounds"]):
        this = {what: [] for what in found}
        for what in ("communication", "gemm", "direct", "jitted", "jitted", "direct"):
            this[what].append(layer.ms(what))
        for what in found:
            found[what] += this[what]
        if are_alike(this["direct"]) and are_alike(this["jitted"]):
            ratios.append(sum(this["jitted"]) / sum(this["direct"]))
            balance.append(this["communication"][0] / this["gemm"][0])
    least = least_ms(ROWS // rank.size * DEPTH * 2, words["megabits"])
    for what in ("communication", "direct", "jitted"):
        assert min(found[what]) >= least, f"void: the link was not throttled: {what} {found[what]}"
    result = {"rows": ROWS, "depth": DEPTH, "columns": layer.columns, "chunks": CHUNKS,
              "megabits": words["megabits"], "lower_bound_ms": least, "counted": len(ratios),
              "of": words["rounds"]}
    for what, values in found.items():
        result.update(spread(values, f"{what}_ms"))
    if ratios:
        result.update(spread(balance, "C_over_G"))
        result.update(spread(ratios, "jitted_over_direct"))
    return result


def work(words):
    rank = Rank(words)
    found = {"overhead": overhead, "overlap": overlap}[words["part"]](rank, words)
    if rank.rank == 0:
        print(json.dumps(found), flush=True)
    rank.group.close()


# ---- all of them


def on_ranks(words, timeout):
    """The result of rank 0."""
    return run_ranks(__file__, words, on_hosts=words["part"] == "overlap", timeout=timeout,
                     pinned=words["pinned"], env={"JAX_PLATFORMS": "cpu"})


def on_hosts(given):
    return run_on_testbed(
        __file__, ["--on-hosts", "--rounds", str(given.rounds), "--megabits", str(given.megabits),
                   "--columns", str(given.columns), *(["--pinned"] if given.pinned else [])],
        megabits=given.megabits, timeout=500)


def worker_ms(given, columns):
    """The times of a layer in the worker of bench_overlap."""
    made = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "ranks"), "-n", "2", "--on", "hosts", "--hosts", "2",
         "--rate", f"{given.megabits}mbit", "--timeout", "200", given.worker, "ag", str(ROWS),
         str(2 * columns), str(DEPTH), str(given.rounds), str(CHUNKS)],
        stdout=subprocess.PIPE, text=True, timeout=300, check=True)
    rounds = json.loads(made.stdout[made.stdout.index("{"):])["rounds"]
    return [each["ms"] for each in rounds if each["what"] == f"T_{CHUNKS}"]


def against_bench(given):
    columns = given.columns or COLUMNS[2]
    workers = [statistics.median(worker_ms(given, columns))]
    jitted, products, ratios = [], [], []
    for _ in range(given.turns):
        found = on_hosts(argparse.Namespace(**{**vars(given), "columns": columns}))
        jitted.append(found["jitted_ms"])
        products.append(found["gemm_ms"])
        workers.append(statistics.median(worker_ms(given, columns)))
        if are_alike(workers[-2:]):
            ratios.append(2 * jitted[-1] / sum(workers[-2:]))
    result = {"rows": ROWS, "depth": DEPTH, "columns": columns, "chunks": CHUNKS,
              "megabits": given.megabits, "counted": len(ratios), "of": given.turns,
              **spread(workers, "worker_ms"), **spread(jitted, "jitted_ms"),
              **spread(products, "gemm_with_packing_ms")}
    if ratios:
        result.update(spread(ratios, "jitted_over_worker"))
    return result


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true", help="as it does anyway")
    parser.add_argument("--part", action="append", choices=["overhead", "overlap", "bench"])
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--megabits", type=int, default=200)
    parser.add_argument("--columns", type=int, default=0, help="0: so that C is about G")
    parser.add_argument("--pinned", action="store_true",
                        help="each process keeps to a core, as the worker does")
    parser.add_argument("--turns", type=int, default=5, help="of the part bench")
    parser.add_argument("--worker", default=str(ROOT / "build/release/bin/bench_overlap_worker"))
    parser.add_argument("--work", help=argparse.SUPPRESS)
    parser.add_argument("--on-hosts", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        return work(json.loads(given.work))
    end_ranks_on_sigterm()
    words = {"rounds": given.rounds, "megabits": given.megabits, "columns": given.columns,
             "pinned": given.pinned}
    if given.on_hosts:
        print(json.dumps(on_ranks({**words, "part": "overlap", "size": 2}, 450)))
        return None
    import shiplap

    result = {"bench": "python/jax_gemm", "version": shiplap.__version__}
    for part in given.part or ["overhead", "overlap", "bench"]:
        if part == "bench":
            result[part] = against_bench(given)
            continue
        if part == "overlap":
            result[part] = on_hosts(given)
            continue
        for size in (1, 2):
            result[f"overhead_{size}"] = on_ranks({**words, "part": part, "size": size}, 200)
    print(json.dumps(result, indent=1))
    return None


if __name__ == "__main__":
    main()
