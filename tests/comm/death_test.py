#!/usr/bin/env python3
"""Kills or stops one of four ranks in the middle of an exchange of 64 MiB, and checks the failures
of the others.

    tests/comm/death_test.py VICTIM [--on openmpi|mpich|sockets] [--times N]

Open MPI and sockets must name a killed rank on all others within 2 s; MPICH ends the job, and
tools/ranks reports the rank. A stopped rank must be named by all others when they time out.
"""
import argparse
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
RANKS = 4
TIMEOUT = 2.0
WITHIN = 2.0  # from the death to the last report
PROBES = 1.5  # time for probes after a timeout, on a busy host
JOB = 60


class Job:
    """The victim on four ranks; what it prints is in `out`."""

    def __init__(self, victim, library):
        self.log = tempfile.NamedTemporaryFile("w+", suffix=".log")
        survive = ["--survive"] if library != "mpich" else []
        self.process = subprocess.Popen(
            [sys.executable, ROOT / "tools/ranks", "-n", str(RANKS), "--on", library,
             "--timeout", str(JOB), *survive, victim, str(TIMEOUT)],
            stdout=self.log, stderr=subprocess.STDOUT)

    @property
    def out(self):
        return pathlib.Path(self.log.name).read_text()

    def processes(self):
        """The processes by rank, once all have begun."""
        for _ in range(JOB * 20):
            found = dict(re.findall(r"rank (\d+) process (\d+) begins", self.out))
            if len(found) == RANKS:
                return {int(rank): int(process) for rank, process in found.items()}
            time.sleep(0.05)
        raise AssertionError(f"the job did not begin:\n{self.out}")

    def reports(self):
        """The failures of the ranks."""
        return re.findall(r"^rank \d+: (.+)$", self.out, re.MULTILINE)

    def wait(self):
        """Until all others have reported, or the job is over."""
        while len(self.reports()) < RANKS - 1 and self.process.poll() is None:
            time.sleep(0.01)

    def end(self):
        self.process.wait(JOB + 20)
        return self.out


def attempt(victim, library, number, killed):
    job = Job(victim, library)
    processes = job.processes()
    rank = number % RANKS
    time.sleep(0.3 + 0.05 * (number % 7))
    begin = time.monotonic()
    os.kill(processes[rank], signal.SIGKILL if killed else signal.SIGSTOP)
    job.wait()
    last = time.monotonic() - begin
    if library == "sockets" and not killed:
        os.kill(processes[rank], signal.SIGKILL)  # no launcher of MPI ends it
    out = job.end()
    if killed and library == "mpich":
        assert f"ranks: rank {rank} was ended by SIGKILL" in out, out
        return None
    expected = f"failed {rank}" if killed else f"missing {rank}"
    assert job.reports() == [expected] * (RANKS - 1), f"expected `{expected}` three times:\n{out}"
    limit = WITHIN if killed else TIMEOUT + PROBES + 1
    assert last <= limit, f"the last report came after {last:.2f} s:\n{out}"
    return last


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("victim")
    parser.add_argument("--on", default="openmpi", choices=["openmpi", "mpich", "sockets"])
    parser.add_argument("--times", type=int, default=3)
    given = parser.parse_args()
    failed = False
    for killed in (True, False):
        times = []
        for number in range(given.times):
            try:
                times.append(attempt(given.victim, given.on, number, killed))
            except AssertionError as error:
                failed = True
                print(f"attempt {number}: {error}", file=sys.stderr)
        known = sorted(one for one in times if one is not None)
        spread = f", last report after {known[0]:.2f} to {known[-1]:.2f} s" if known else ""
        print(f"{'killed' if killed else 'stopped'}: {len(times)} of {given.times}{spread}",
              flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
