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
import pathlib
import signal
import socket
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
TESTBED = ROOT / "tools" / "testbed"
ROWS, DEPTH, COLUMNS, CHUNKS = 1024, 2048, 4096, 4  # of all ranks, but for COLUMNS, of one
BURST = 65536
MAX_RATIO = 1.1  # of two times of the same call
COMPARED = {"T_over_serial": ("layer", "none"), "T_over_serial_of_cpp": ("direct", "direct_none"),
            "T_over_T_of_cpp": ("layer", "direct"), "T_over_torch": ("layer", "torch"),
            "none_over_torch": ("none", "torch"), "step_over_none": ("step", "step_none"),
            "step_over_torch": ("step", "step_torch")}
HOST = "192.0.2.1"


def spread(values):
    values = sorted(values)
    return {"median": statistics.median(values), "min": values[0], "max": values[-1]}


def are_alike(times):
    return max(times) < MAX_RATIO * min(times)


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


def free_port():
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


def started(given):
    """Starts the ranks and returns what rank 0 found."""
    host = "127.0.0.1" if given.here else HOST
    words = {"rounds": given.rounds, "coordinator": f"{host}:{free_port()}"}
    processes = []
    try:
        for rank in range(2):
            prefix = [] if given.here else [str(TESTBED), "exec", f"h{rank}", "--"]
            processes.append(subprocess.Popen(
                [*prefix, sys.executable, __file__, "--work", json.dumps({**words, "rank": rank})],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                preexec_fn=lambda core=rank: os.sched_setaffinity(0, {core}),
                env={**os.environ, "GLOO_SOCKET_IFNAME": "lo" if given.here else "eth0"}))
        texts = [process.communicate(timeout=900)[0] for process in processes]
        if any(process.returncode for process in processes):
            raise SystemExit("torch_overlap: a process failed")
        return json.loads(texts[0])
    finally:
        for process in processes:
            process.kill()
            process.wait()


def summary(given, found):
    ms = found["ms"]
    least = (ROWS // 2 * DEPTH * 2 - BURST) * 8 / given.megabits / 1e3
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
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that processes are ended
    if given.here or given.on_hosts:
        print(json.dumps(summary(given, started(given)), indent=1))
        return None
    made = subprocess.run(
        [str(TESTBED), "run", "--hosts", "2", "--rate", f"{given.megabits}mbit", "--",
         sys.executable, __file__, "--on-hosts", "--rounds", str(given.rounds),
         "--megabits", str(given.megabits)], stdout=subprocess.PIPE, text=True, timeout=1000,
        check=False)
    if made.returncode:
        raise SystemExit(made.returncode)
    print(made.stdout[made.stdout.index("{"):], end="")
    return None


if __name__ == "__main__":
    main()
