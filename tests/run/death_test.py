#!/usr/bin/env python3
"""One of four ranks dies, or stops, when a stage of a dispatch begins; the others must say so.

    tests/run/death_test.py VICTIM [--on openmpi|mpich]

Open MPI names a killed rank on all others; MPICH ends the job, and tools/ranks says which rank it
was. A stopped rank is named once the deadline of 3 s has passed.
"""
import argparse
import pathlib
import re
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
MAX_SECONDS = 20  # of a job


def attempt(victim, library, stage, fate):
    survive = ["--survive"] if library == "openmpi" else []
    begin = time.monotonic()
    lines, last = [], None
    # A launcher may wait for a stopped process as long as it is let; that is not what is timed.
    with subprocess.Popen(
            [sys.executable, ROOT / "tools/ranks", "-n", "4", "--on", library,
             "--timeout", str(MAX_SECONDS), *survive, victim, stage, fate],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as job:
        for line in job.stdout:
            lines.append(line)
            if re.match(r"rank \d+: ", line):
                last = time.monotonic() - begin
    out = "".join(lines)
    reports = re.findall(r"^rank \d+: (.+)$", out, re.MULTILINE)
    if fate == "kill" and library == "mpich":
        assert "ranks: rank 1 was ended by SIGKILL" in out, out
        last = time.monotonic() - begin
    else:
        expected = "failed 1" if fate == "kill" else "missing 1"
        assert reports == [expected] * 3, f"expected `{expected}` three times:\n{out}"
    assert last < MAX_SECONDS - 2, f"the last report came after {last:.1f} s"
    print(f"{fate} in {stage}: all know after {last:.1f} s", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("victim")
    parser.add_argument("--on", default="openmpi", choices=["openmpi", "mpich"])
    given = parser.parse_args()
    failed = 0
    for stage in ("pack", "exchange", "unpack"):
        for fate in ("kill", "stop") if stage == "exchange" else ("kill",):
            try:
                attempt(given.victim, given.on, stage, fate)
            except AssertionError as error:
                failed += 1
                print(f"{fate} in {stage}: {error}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
