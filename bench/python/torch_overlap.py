"""What shiplap.torch.OverlappedLinear gains: a column-parallel layer whose rows are gathered over a
slow link, against the same layer without overlap and against torch's own collectives. Prints one
JSON object.

    PYTHONPATH=build/release/python .deps/python/bin/python bench/python/torch_overlap.py

Two processes on two hosts with a slow link (tools/testbed), which needs root; with --here on this
host, over loopback, which shows the overhead but no gain. Each call comes after a barrier:

    torch        all_gather_into_tensor by gloo, then torch.nn.functional.linear
    none         the layer with overlap="none": the engine, one after the other
    layer        the layer, overlapped
    direct       the C++ function of the engine with the same matrices, overlapped
    direct_none  the same without overlap
    step_torch, step_none, step
                 the forward and backward pass of the first three

Two of them are compared by rounds of a, b, b, a. A round is discarded as noise if the two times of
one of them differ. The result is discarded if the link was faster than its limit.
"""

import argparse
import json
import os
import time

from two_hosts import (are_alike, end_ranks_on_sigterm, least_ms, run_on_testbed, run_ranks, spread)

ROWS, DEPTH, COLUMNS, CHUNKS = 1024, 2048, 4096, 4  # of all ranks, but for COLUMNS, of one
COMPARED = {"T_over_serial": ("layer", "none"), "T_over_serial_of_cpp": ("direct", "direct_none"),
            "T_over_T_of_cpp": ("layer", "direct"), "T_over_torch": ("layer", "torch"),
            "none_over_torch": ("none", "torch"), "step_over_none": ("step", "step_none"),
            "step_over_torch": ("step", "step_torch")}


# ---- one process


class Bench:
    """This process, and the layer in all variants."""

    def __init__(self, words):
        import torch
        import torch.distributed as dist

        from shiplap import _shiplap
        from shiplap.torch import OverlappedLinear

        self.torch, self.dist, self.cpp = torch, dist, _shiplap.jax
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=f"tcp://{words['coordinator']}",
                                rank=words["rank"], world_size=2)
        torch.manual_seed(1)
        self.x = (torch.randn(ROWS // 2, DEPTH) / 32).bfloat16()
        options = {"parallel_mode": "column", "bias": False, "dtype": torch.bfloat16}
        self.layer = OverlappedLinear(DEPTH, 2 * COLUMNS, chunks=CHUNKS, **options)
        self.none = OverlappedLinear(DEPTH, 2 * COLUMNS, overlap="none", **options)
        self.none.load_state_dict(self.layer.state_dict())
        self.weight = self.layer.weight.detach()
        self.w = self.weight.t().contiguous()  # as the C++ function takes it
        self.y = torch.empty(ROWS, COLUMNS, dtype=torch.bfloat16)
        self.all_rows = torch.empty(ROWS, DEPTH, dtype=torch.bfloat16)
        self.dy = torch.randn(ROWS, COLUMNS).bfloat16()

    def by_torch(self):
        self.dist.all_gather_into_tensor(self.all_rows, self.x)
        return self.torch.nn.functional.linear(self.all_rows, self.weight)

    def step_by_torch(self):
        self.by_torch()
        partial = self.dy @ self.weight
        dx = self.torch.empty_like(self.x)
        self.dist.reduce_scatter_tensor(dx, partial)
        return self.dy.t() @ self.all_rows, dx

    def forward(self, layer):
        with self.torch.no_grad():
            return layer(self.x)

    @staticmethod
    def step(layer, x, dy):
        layer.weight.grad = None
        layer(x.detach().requires_grad_()).backward(dy)

    def direct(self, kind, method, chunks=1):
        number = self.layer._group._connect()
        x = self.x if kind == "all_gather" else self.all_rows
        places = [(one.data_ptr(), *one.shape) for one in (x, self.w, self.y)]
        self.cpp.time_direct(number, 0, kind, method, chunks, "bf16", *places, 1)

    def parts(self):
        return {"torch": self.by_torch, "none": lambda: self.forward(self.none),
                "layer": lambda: self.forward(self.layer),
                "direct": lambda: self.direct("all_gather", "ring_exchange", CHUNKS),
                "direct_none": lambda: self.direct("all_gather", "none"),
                "step_torch": self.step_by_torch,
                "step_none": lambda: self.step(self.none, self.x, self.dy),
                "step": lambda: self.step(self.layer, self.x, self.dy)}

    def ms(self, act):
        self.dist.barrier()
        begin = time.perf_counter()
        act()
        return (time.perf_counter() - begin) * 1e3


def work(words):
    bench = Bench(words)
    parts = bench.parts()
    difference = (bench.forward(bench.layer) - bench.by_torch()).abs().max()
    for act in parts.values():
        bench.ms(act)
    found = {name: [] for name in parts}
    rounds = {name: [] for name in COMPARED}
    for _ in range(words["rounds"]):
        for name, (above, below) in COMPARED.items():
            times = [bench.ms(parts[each]) for each in (below, above, above, below)]
            found[above] += times[1:3]
            found[below] += [times[0], times[3]]
            if are_alike(times[1:3]) and are_alike((times[0], times[3])):
                rounds[name].append((times[1] + times[2]) / (times[0] + times[3]))
    if words["rank"] == 0:
        print(json.dumps({"ms": found, "ratios": rounds, "difference": float(difference)}),
              flush=True)
    bench.dist.barrier()
    os._exit(0)  # a process group has nothing to put in order


# ---- all of them


def summary(given, found):
    ms = found["ms"]
    least = least_ms(ROWS // 2 * DEPTH * 2, given.megabits)
    if not given.here:
        fastest = min(min(ms[name]) for name in ("torch", "none", "layer", "direct"))
        assert fastest >= least, f"void: the link was not throttled: {fastest} ms"

    ratios = {name: {"counted": len(values), **spread(values)}
              for name, values in found["ratios"].items() if values}
    result = {"bench": "python/torch_overlap", "rows": ROWS, "depth": DEPTH, "columns": COLUMNS,
              "chunks": CHUNKS, "dtype": "bf16", "megabits": 0 if given.here else given.megabits,
              "lower_bound_ms": least, "rounds": given.rounds,
              "largest_difference": found["difference"],
              "ms": {name: spread(values) for name, values in ms.items()}, **ratios}
    if {"T_over_serial", "T_over_serial_of_cpp"} <= ratios.keys():
        result["T_over_serial_over_that_of_cpp"] = (
            ratios["T_over_serial"]["median"] / ratios["T_over_serial_of_cpp"]["median"])
    return result


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true", help="as it does anyway")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--megabits", type=int, default=200)
    parser.add_argument("--here", action="store_true", help="over loopback, without root")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    parser.add_argument("--on-hosts", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        return work(json.loads(given.work))
    end_ranks_on_sigterm()
    if given.here or given.on_hosts:
        found = run_ranks(__file__, {"size": 2, "rounds": given.rounds},
                          on_hosts=not given.here, timeout=900, pinned=True,
                          env={"GLOO_SOCKET_IFNAME": "lo" if given.here else "eth0"})
        result = summary(given, found)
    else:
        result = run_on_testbed(__file__, ["--on-hosts", "--rounds", str(given.rounds),
                                           "--megabits", str(given.megabits)],
                                megabits=given.megabits, timeout=1000)
    print(json.dumps(result, indent=1))
    return None


if __name__ == "__main__":
    main()
