#!/usr/bin/env python3
"""Runs the conformance suite on 64 simulated ranks, each group of its checks as a job of its own.

    tests/comm/simulated_test.py CONFORMANCE SIMULATED [RANKS]

CONFORMANCE lists the checks, SIMULATED is the same program built for SMPI. One job for all of them
would be five times slower: SimGrid 3.32 keeps state for every message, so long jobs become slow.
"""
import concurrent.futures
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
SECONDS = 300


def groups(conformance):
    names = subprocess.run([conformance, "--list"], capture_output=True, text=True, check=True)
    return sorted({name.split("/")[0] + "/" for name in names.stdout.split()})


def run(simulated, ranks, group):
    job = subprocess.run([sys.executable, ROOT / "tools/ranks", "-n", str(ranks), "--on", "smpi",
                          "--timeout", str(SECONDS), simulated, "--only", group],
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    passed = len(re.findall(r"^ok \d+ ", job.stdout, re.MULTILINE))
    good = job.returncode == 0 and passed > 0 and "not ok" not in job.stdout
    print(f"{group} {passed} passed" if good else f"{group} FAILED\n{job.stdout}", flush=True)
    return passed, good


def main():
    conformance, simulated, *rest = sys.argv[1:]
    ranks = int(rest[0]) if rest else 64
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda group: run(simulated, ranks, group), groups(conformance)))
    print(f"{sum(passed for passed, _ in results)} checks passed on {ranks} ranks")
    return 0 if all(good for _, good in results) else 1


if __name__ == "__main__":
    sys.exit(main())
