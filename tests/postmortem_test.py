#!/usr/bin/env python3
"""Asks `shiplap postmortem` about hung jobs whose answers are known. Run by ctest.

Real jobs of data/hung_jobs/real and mpi, all of which must be right, and simulated ones, of
which 97 % must be; bench_postmortem measures more of them. A healthy job has no culprit, and
the order of the files does not matter. From what NCCL's RAS would say alone, no innocent rank
is named with confidence."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
JOBS = ROOT / "data/hung_jobs"
sys.path.insert(0, str(JOBS))

import ncclras  # pylint: disable=wrong-import-position


def ask(program, *words):
    done = subprocess.run([program, "postmortem", "--json", *map(str, words)],
                          capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        sys.exit(f"{' '.join(map(str, words))}: {done.stderr}")
    return json.loads(done.stdout)


def is_right(found, answer):
    """Whether the first suspect is a culprit, or nobody is one if nothing is wrong."""
    if not answer["hang"]:
        return found["status"] != "hung" or not found["suspects"]
    if not found["suspects"]:
        return False
    first = set(found["suspects"][0]["ranks"])
    accepted = [set(ranks) for fault in answer["faults"]
                for ranks in [fault["culprits"], *fault.get("acceptable", [])]]
    return any(first <= ranks for ranks in accepted)


def score(program, folder):
    """The jobs that are answered wrongly, and how many there are."""
    wrong, count = [], 0
    for job in sorted(path.parent for path in folder.glob("*/answer.json")):
        count += 1
        answer = json.loads((job / "answer.json").read_text(encoding="utf-8"))
        parts = [part for part in (job / "dumps", job / "stacks") if part.exists()]
        found = ask(program, *parts)
        if not is_right(found, answer):
            wrong.append(f"{job.name}: {[suspect['what'] for suspect in found['suspects']]}")
    return wrong, count


def depends_on_order(program, folder):
    """The jobs whose answer changes with the order of the files."""
    for job in sorted(path.parent for path in folder.glob("*/answer.json"))[:12]:
        files = sorted((job / "dumps").iterdir())
        if ask(program, *files) != ask(program, *reversed(files)):
            yield job.name


def misled_by_ras(program, folder):
    """Wrong verdicts from what ncclras would print, without dumps."""
    counts = ncclras.score(program, folder)
    for name, count in counts.items():
        if name.startswith("another") and name.endswith("more") or name == "healthy, blamed":
            yield f"ncclras alone: {count} jobs: {name}"
    if counts["the culprit is named first"] < 10:
        yield "ncclras alone names too few culprits"


def main():
    program = str(Path(os.environ["SHIPLAP_PROGRAM"]).resolve())
    wrong, real = score(program, JOBS / "real")
    wrong_mpi, mpi = score(program, JOBS / "mpi")
    wrong, real = wrong + wrong_mpi, real + mpi
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        subprocess.run([sys.executable, JOBS / "generate.py", "--out", folder, "--seed", "21",
                        "--jobs", "93", "--entries", "150", "--world-max", "32"],
                       check=True, capture_output=True)
        missed, simulated = score(program, folder)
        if len(missed) > 0.03 * simulated:
            wrong += missed
        wrong += [f"{job}: depends on the order of files"
                  for job in depends_on_order(program, folder)]
        wrong += misled_by_ras(program, folder)
    print("\n".join(wrong))
    print(f"{real} real jobs, {simulated} simulated ones, {len(missed)} of these missed")
    sys.exit(1 if wrong or real < 10 or simulated < 90 else 0)


if __name__ == "__main__":
    main()
