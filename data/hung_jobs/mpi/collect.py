#!/usr/bin/env python3
"""Runs jobs of Shiplap's own MPI ranks that hang, and collects their dumps.

    python3 data/hung_jobs/mpi/collect.py build/release/bin/shiplap

Each job is a plan that is run on four Open MPI processes without being checked. Its fault is in the
plan, or a rank is killed from outside. When a call times out, every rank writes what it has called
(`shiplap run --dump`).
"""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
RANKS = 4

# name, signal, culprits, also acceptable, class, divergence, line of the culprit, words
JOBS = [
    ("skips_a_gradient", None, [2], [], "divergence", ["skipped"], 20,
     "Rank 2 leaves out the gradient of layer 2."),
    ("extra_barrier", None, [0], [], "divergence", ["extra", "operation"], 13,
     "Rank 0 calls a barrier alone, as a checkpoint on rank 0 does."),
    ("other_order", None, [3], [], "divergence", ["order", "skipped"], 19,
     "Rank 3 reduces the norm of all ranks before its gradients."),
    ("missing_send", None, [1], [3], "divergence", ["peer", "skipped"], None,
     "Rank 1 does not send what rank 3 receives."),
    ("killed", signal.SIGKILL, [2], [], "absent", [], None, "Rank 2 is killed."),
]


def ranks_of(launcher):
    """The processes of the job by rank, from their environment."""
    found = {}
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes().split(b"\0")
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        values = dict(each.split(b"=", 1) for each in environment if b"=" in each)
        if values.get(b"SHIPLAP_HUNG_JOB") == str(launcher).encode() and b"run" in command:
            if b"OMPI_COMM_WORLD_RANK" in values:
                found[int(values[b"OMPI_COMM_WORLD_RANK"])] = int(folder.name)
    return found


def run(program, name, how, dumps):
    plan = HERE / "jobs" / f"{'healthy' if how else name}.plan"
    token = os.getpid()
    environment = {**os.environ, "SHIPLAP_TIMEOUT": "3", "SHIPLAP_HUNG_JOB": str(token)}
    job = subprocess.Popen(
        [ROOT / "tools/ranks", "-n", str(RANKS), "--timeout", "60", "--on", "openmpi", "--survive",
         program, "run", plan.relative_to(ROOT), "--no-check", "--backend", "mpi",
         "--steps", "10000000" if how else "3", "--dump", dumps],
        cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if how:
        time.sleep(4)
        rank = next(each[2][0] for each in JOBS if each[0] == name)
        victim = ranks_of(token)[rank]
        os.kill(victim, how)
    return job.communicate(timeout=90)[1]


def main():
    program = pathlib.Path(sys.argv[1]).resolve()
    for name, how, culprits, acceptable, kind, divergence, line, why in JOBS:
        folder = HERE / name
        shutil.rmtree(folder, ignore_errors=True)
        dumps = folder / "dumps"
        dumps.mkdir(parents=True)
        errors = run(program, name, how, dumps)
        fault = {"kind": name, "culprits": culprits, "acceptable": [[each] for each in acceptable],
                 "class": kind, "identifiable": "pair" if acceptable else "unique",
                 "line": f"{name}.plan:{line}" if line else None,
                 "waiting_line": None, "why": why}
        if divergence:
            fault.update(divergence=divergence[0], divergence_also=divergence[1:])
        answer = {"name": name, "kind": name, "hang": True, "world": RANKS,
                  "mesh": {"dp": 2, "tp": 2}, "backend": "mpi", "faults": [fault], "why": why,
                  "missing_dumps": [], "truncated_dumps": []}
        (folder / "answer.json").write_text(json.dumps(answer, indent=1) + "\n")
        print(f"{name}: {len(list(dumps.iterdir()))} dumps")
        if not list(dumps.iterdir()):
            sys.exit(errors)


if __name__ == "__main__":
    main()
