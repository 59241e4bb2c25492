#!/usr/bin/env python3
"""Predicts the steps of training on this machine and measures them: prints one JSON object.

    bench/closed_loop.py [--on socket-hosts] [--rate 200mbit] [--rounds 3] [--shiplap PROGRAM]

Two ranks on a core each, one on each of two hosts of tools/testbed, whose links are throttled.
`shiplap calibrate --here` measures them once. Then each strategy runs with `shiplap run`, in turns,
and `shiplap simulate` predicts the same plan for the calibrated machine. A figure is the median
over all steps but the first two of each run. Without the rights to make a testbed the ranks are
processes of this host, which is said.

With --on sockets, openmpi or mpich there are no hosts and no throttled links.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTBED = ROOT / "tools" / "testbed"
RANKS = ROOT / "tools" / "ranks"
WARM_UP = 2  # steps of each run
# A core for each rank: the kernel may leave two of them on one.
PIN = ('rank=${SHIPLAP_RANK:-${OMPI_COMM_WORLD_RANK:-$PMI_RANK}}; '
       'exec taskset -c $((rank % $(nproc))) "$0" "$@"')
ON_HOSTS = ("socket-hosts", "hosts")

# Sizes for which computation and communication both take a good part of a step.
SHAPE = ["--ranks", "2", "--hidden", "512", "--seq-length", "128"]
STRATEGIES = {
    "ddp": ["--layers", "4", "--global-batch", "32"],
    "ddp_overlap": ["--layers", "4", "--global-batch", "32"],
    "fsdp": ["--layers", "4", "--global-batch", "64"],
    "1f1b": ["--layers", "12", "--global-batch", "16", "--microbatches", "8"],
    "tensor_parallel": ["--layers", "4", "--global-batch", "8"],
}


def say(text):
    print(f"closed_loop: {text}", file=sys.stderr, flush=True)


def output_of(command, **how):
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, text=True, **how)
    if done.returncode != 0:
        sys.exit(f"closed_loop: failed with {done.returncode}: {' '.join(map(str, command))}")
    return done.stdout


class Loop:
    def __init__(self, given, folder):
        self.given = given
        self.folder = folder
        self.backend = "sockets" if "socket" in given.on else "mpi"

    def on_ranks(self, *words):
        return output_of([RANKS, "-n", 2, "--on", self.given.on, "--timeout", 300, "sh", "-c", PIN,
                          self.given.shiplap, *words, "--backend", self.backend])

    def calibrate(self, name):
        here = self.folder / name
        self.on_ranks("calibrate", "--here", *SHAPE, "-o", here)
        return here

    def plan(self, strategy):
        return self.folder / f"{strategy}.plan"

    def run(self, strategy):
        """The times of the steps, after the warm-up, in seconds."""
        text = self.on_ranks("run", "--strategy", strategy, *SHAPE, *STRATEGIES[strategy],
                             "--steps", self.given.steps + WARM_UP, "--no-check", "--json",
                             "--plan", self.plan(strategy))
        return json.loads(text)["step_s"][WARM_UP:]

    def predict(self, strategy, here, links):
        text = output_of([self.given.shiplap, "simulate", self.plan(strategy), "--hardware", here,
                          "--links", links, "--no-check", "--json"])
        return json.loads(text)["step_s"]


def link_rates():
    """What the links of the testbed reach, in bit/s. Ends the program if they are not throttled."""
    result = json.loads(output_of([TESTBED, "check", "--json"]))
    return [link["bit_per_s"] for link in result["links"]]


def drift(before, after):
    """Rates of a later calibration over those of the first."""
    first, last = (json.loads(path.read_text()) for path in (before, after))
    rate = lambda machine: machine["matrix"]["float32"]["tflops"]
    bandwidth = lambda machine: machine["networks"][-1]["bandwidth"]
    return {"gemm": rate(last) / rate(first), "bandwidth": bandwidth(last) / bandwidth(first)}


def measure(given, folder):
    loop = Loop(given, folder)
    throttled = given.on in ON_HOSTS
    result = {"on": given.on, "rate_bit_per_s": os.environ.get("SHIPLAP_TESTBED_RATE"),
              "load_before": os.getloadavg()[0]}
    if throttled:
        result["links_bit_per_s"] = link_rates()
    here = loop.calibrate("here.json")
    times = {strategy: [] for strategy in given.strategies}
    for number in range(given.rounds):
        for strategy in given.strategies:
            times[strategy] += loop.run(strategy)
        say(f"round {number + 1} of {given.rounds}, load {os.getloadavg()[0]:.1f}")
    if throttled:
        result["links_bit_per_s_after"] = link_rates()
    # Not used: how much the machine itself changed meanwhile.
    result["drift"] = drift(here, loop.calibrate("after.json"))
    result["load_after"] = os.getloadavg()[0]
    result["strategies"] = {}
    for strategy, all_steps in times.items():
        predicted = loop.predict(strategy, here, "shared")
        measured = statistics.median(all_steps)
        result["strategies"][strategy] = {
            "predicted_s": predicted, "measured_s": measured, "measured_min_s": min(all_steps),
            "measured_max_s": max(all_steps), "steps": len(all_steps),
            "error": predicted / measured - 1,
            "error_with_separate_links": loop.predict(strategy, here, "separate") / measured - 1}
    result["closed_loop_worst_error"] = max(
        abs(row["error"]) for row in result["strategies"].values())
    result["machine"] = json.loads(here.read_text())
    return result


def inside_testbed(given):
    """Starts this program again within a testbed; returns only if there can be none."""
    command = [TESTBED, "run", "--hosts", "2", "--rate", given.rate, "--", sys.executable,
               __file__, *sys.argv[1:]]
    code = subprocess.run([str(word) for word in command]).returncode
    if code != 3:
        sys.exit(code)
    say("NO TESTBED: without the rights for network namespaces the links are not throttled; "
        "the ranks are processes of this host")
    given.on = {"socket-hosts": "sockets", "hosts": "openmpi"}[given.on]


def parse():
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--on", default="socket-hosts",
                        choices=(*ON_HOSTS, "sockets", "openmpi", "mpich"),
                        help="as of tools/ranks (socket-hosts)")
    parser.add_argument("--rate", default="200mbit", help="of each link (200mbit)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each strategy (3)")
    parser.add_argument("--steps", type=int, default=8, help="of each run, after two (8)")
    parser.add_argument("--strategies", nargs="+", choices=STRATEGIES, default=list(STRATEGIES))
    parser.add_argument("--keep", type=Path, help="a folder for the plans and the hardware file")
    parser.add_argument("--shiplap", type=Path, default=ROOT / "build/release/bin/shiplap")
    given = parser.parse_args()
    given.shiplap = given.shiplap.resolve()
    return given


def main():
    given = parse()
    if given.on in ON_HOSTS and "SHIPLAP_TESTBED" not in os.environ:
        inside_testbed(given)
    with tempfile.TemporaryDirectory(prefix="shiplap-loop-") as name:
        folder = given.keep or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        print(json.dumps(measure(given, folder), indent=2))


if __name__ == "__main__":
    main()
