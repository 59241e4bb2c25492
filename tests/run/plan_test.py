#!/usr/bin/env python3
"""Plans that train give the same bits as processes and as threads.

    plan_test.py PROGRAM --on openmpi FILE.plan ..

PROGRAM is run_plan_ranks. Each plan runs on as many ranks as its mesh has.
"""

import argparse
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def ranks_of(plan):
    """How many ranks the mesh of a plan has."""
    mesh = re.search(r"^mesh (.*)$", plan.read_text(), re.MULTILINE).group(1)
    ranks = 1
    for size in re.findall(r"=(\d+)", mesh):
        ranks *= int(size)
    return ranks


def output_of(command):
    """What a command prints; the end of this test if it fails."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120,
                          check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("plans", nargs="+")
    parser.add_argument("--on", default="openmpi")
    arguments = parser.parse_args()
    failed = 0
    for name in arguments.plans:
        plan = ROOT / name
        threads = output_of([arguments.program, str(plan)])
        ranks = str(ranks_of(plan))
        processes = output_of(["tools/ranks", "-n", ranks, "--on", arguments.on, "--timeout", "100",
                               arguments.program, str(plan)])
        lines = [line for line in processes.splitlines() if line.startswith(("step", "weights"))]
        same = lines == threads.splitlines() and len(lines) == 6
        good = same and lines[-1].endswith(" 0 copies differ")
        print(f"{name} on {ranks} ranks: {'same bits' if good else 'DIFFERENT'}")
        if not good:
            failed += 1
            print(f"threads:\n{threads}{arguments.on}:\n{processes}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
