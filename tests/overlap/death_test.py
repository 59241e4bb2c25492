#!/usr/bin/env python3
"""One of four ranks dies, or stops, in the middle of an overlapped GEMM; the others must report it.

    tests/overlap/death_test.py VICTIM SHIPLAP [--on openmpi|mpich] [--attempts 20]

Every overlap method is tested with a killed and with a stopped rank. Open MPI names a killed rank
on all others; MPICH ends the job, and tools/ranks says which rank it was. A stopped rank is named
once the timeout of 3 s has passed. All must name the overlap and the step of it.
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
MAX_SECONDS = 25  # of a job


def attempt(given, number, name, fate):
    survive = ["--survive"] if given.on == "openmpi" else []
    begin = time.monotonic()
    lines, last = [], 0
    # A launcher may wait for a stopped process as long as it is let; that is not what is timed.
    with subprocess.Popen(
            [sys.executable, ROOT / "tools/ranks", "-n", "4", "--on", given.on,
             "--timeout", str(MAX_SECONDS), *survive, given.victim, str(number), fate],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as job:
        for line in job.stdout:
            lines.append(line)
            if re.match(r"rank \d+: ", line):
                last = time.monotonic() - begin
    out = "".join(lines)
    if fate == "kill" and given.on == "mpich":
        assert "ranks: rank 1 was ended by SIGKILL" in out, out
        last = time.monotonic() - begin
    else:
        reports = re.findall(r"^rank \d+: (.+) \| (.+)$", out, re.MULTILINE)
        assert len(reports) == 3, f"expected three reports:\n{out}"
        for what, where in reports:
            # A rank that learns of a stopped rank from one that timed out reports it as failed.
            allowed = ("failed 1",) if fate == "kill" else ("missing 1", "failed 1")
            assert what in allowed, f"expected rank 1 to be named:\n{out}"
            assert where.startswith(name + ", "), f"expected `{name}`:\n{out}"
    assert last < MAX_SECONDS - 2, f"the last report came after {last:.1f} s"
    print(f"{fate} in {name}: all know after {last:.1f} s", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("victim")
    parser.add_argument("shiplap")
    parser.add_argument("--on", default="openmpi", choices=["openmpi", "mpich"])
    parser.add_argument("--attempts", type=int, default=20)
    given = parser.parse_args()
    listed = json.loads(subprocess.check_output([given.shiplap, "overlap", "--list", "--json"]))
    hidden = [(number, ", ".join([one["type"], one["method"]] + ["atomic"] * one["atomic"]))
              for number, one in enumerate(listed["choices"]) if one["method"] != "none"]
    cases = [(number, name, fate) for number, name in hidden for fate in ("kill", "stop")]
    failed = 0
    for number, name, fate in cases[:given.attempts]:
        try:
            attempt(given, number, name, fate)
        except AssertionError as error:
            failed += 1
            print(f"{fate} in {name}: {error}", file=sys.stderr)
    print(f"{min(given.attempts, len(cases)) - failed} of {min(given.attempts, len(cases))}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
