#!/usr/bin/env python3
"""A rank that stops before MPI has started: the others say so within their deadline, and end.

    tests/run/start_test.py SHIPLAP --on openmpi|mpich
"""
import argparse
import os
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
RANK = "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}"
WITHIN = 4  # seconds for MPI to start
MAX_SECONDS = 20


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shiplap")
    parser.add_argument("--on", default="openmpi", choices=["openmpi", "mpich"])
    given = parser.parse_args()
    shiplap = pathlib.Path(given.shiplap).resolve()
    script = (f"if [ {RANK} -eq 1 ]; then kill -STOP $$; fi; exec {shiplap} run --strategy ddp "
              "--ranks 3 --backend mpi --no-check")
    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, ROOT / "tools/ranks", "-n", "3", "--on", given.on, "--timeout",
         str(2 * MAX_SECONDS), "sh", "-c", script], stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, timeout=3 * MAX_SECONDS, check=False,
        env={**os.environ, "SHIPLAP_CONNECT_TIMEOUT": str(WITHIN)})
    took = time.monotonic() - begin
    assert f"error[D301]: MPI_Init timed out after {WITHIN}.00 s" in done.stdout, done.stdout
    assert done.returncode not in (0, 124), done.returncode
    assert took < MAX_SECONDS, f"it took {took:.1f} s"
    print(f"told after {took:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
