#!/usr/bin/env python3
"""In the trace of a real run nothing ends before what it needs begins, whatever its ranks are.

    tests/run/clocks_test.py SHIPLAP [--runs 50]

Strategies on 4 ranks: half of the runs on threads, half as processes of Open MPI and over sockets.
Every other job of processes has a clock of its own for each rank, hundreds of seconds apart (a time
namespace of Linux), if this user may create one.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
RANK = "${SHIPLAP_RANK:-${OMPI_COMM_WORLD_RANK:-$PMI_RANK}}"
# Their collectives are of all ranks, or along the last axis of a mesh.
STRATEGIES = ("1f1b", "fsdp", "gpipe", "ddp", "zero_bubble", "interleaved")
NEED_ALL = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
TOLERANCE_S = 1e-9
MAX_UNCERTAINTY_S = 0.1


def may_shift_clocks():
    """Whether this user may create a time namespace."""
    probe = ["unshare", "--time", "--fork", "--monotonic", "1", "true"]
    try:
        return subprocess.run(probe, capture_output=True, timeout=20, check=False).returncode == 0
    except FileNotFoundError:
        return False


def trace_of(shiplap, strategy, kind, skewed, seed, folder):
    """The trace and the answer of one run."""
    file = folder / "trace.json"
    words = ["run", "--strategy", strategy, "--ranks", "4", "--steps", "2", "--seed", str(seed),
             "--no-check", "--json", "--trace", str(file)]
    command = [str(shiplap), *words]
    if kind != "threads":
        program = [str(shiplap), *words, "--backend", "sockets" if kind == "sockets" else "mpi"]
        shift = f"unshare --time --fork --kill-child --monotonic $(({RANK} * 321)) --"
        script = f"exec {shift if skewed else ''} {' '.join(program)}"
        command = [sys.executable, str(ROOT / "tools/ranks"), "-n", "4", "--on", kind,
                   "--timeout", "100", "sh", "-c", script]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=150,
                          check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return json.loads(file.read_text()), json.loads(done.stdout)


def acausal(trace):
    """How many pairs of events were compared, and those in which the effect precedes its cause."""
    ranks = [[dict(zip(trace["columns"], event), rank=rank) for event in one["events"]]
             for rank, one in enumerate(trace["ranks"])]
    sends = {event["match"]: event for rank in ranks for event in rank if event["kind"] == "send"}
    pairs = [(event, sends[event["match"]]) for rank in ranks for event in rank
             if event["kind"] == "recv"]
    for kind in NEED_ALL:
        calls = [[event for event in rank if event["kind"] == kind] for rank in ranks]
        for same in zip(*calls):
            pairs += [(a, b) for a in same for b in same if a is not b]
    wrong = [f"{effect['kind']} of rank {effect['rank']} ends {early:.3g} s before "
             f"{cause['kind']} of rank {cause['rank']} begins"
             for effect, cause in pairs
             if (early := cause["time_s"] - effect["time_s"] - effect["duration_s"]) > TOLERANCE_S]
    return len(pairs), wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shiplap")
    parser.add_argument("--runs", type=int, default=50)
    given = parser.parse_args()
    shiplap = pathlib.Path(given.shiplap).resolve()
    shifts = may_shift_clocks()
    failed = compared = skewed_runs = 0
    widest = 0.0
    for run in range(given.runs):
        kind = "threads" if run % 2 == 0 else ("openmpi", "sockets")[run // 2 % 2]
        skewed = shifts and kind != "threads" and run // 4 % 2 == 0
        strategy = STRATEGIES[run // 2 % len(STRATEGIES)]
        with tempfile.TemporaryDirectory() as folder:
            trace, answer = trace_of(shiplap, strategy, kind, skewed, run, pathlib.Path(folder))
        count, wrong = acausal(trace)
        uncertainty = answer["clock_uncertainty_s"]
        if skewed != (uncertainty > 0) or uncertainty > MAX_UNCERTAINTY_S:
            wrong.append(f"the clocks are aligned to {uncertainty} s")
        if uncertainty != trace.get("clock_uncertainty_s", 0):
            wrong.append("the trace states another uncertainty than the answer")
        compared += count
        skewed_runs += skewed
        widest = max(widest, uncertainty)
        if wrong or count == 0:
            failed += 1
            clocks = "a clock for each rank" if skewed else "one clock"
            print(f"run {run}, {strategy} on {kind}, {clocks}, {count} pairs:", *wrong[:5],
                  sep="\n  ")
    print(f"{given.runs} runs, {skewed_runs} with a clock for each rank, aligned to {widest:.3g} s "
          f"or less; {compared} pairs of events; {failed} runs failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
