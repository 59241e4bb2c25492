#!/usr/bin/env python3
"""Ranks that were given different things do not train together, and a plan that nobody checked is.

    tests/run/job_consistency_test.py SHIPLAP --on openmpi|mpich|sockets
"""
import argparse
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
RANK = "${SHIPLAP_RANK:-${OMPI_COMM_WORLD_RANK:-$PMI_RANK}}"
UNSOUND = """shiplap-plan 1
mesh dp=2
tensor A Activation sample 1
program all on all
  buffer x rows 1 row_bytes 4 f32
  given x = A
  when dp=0
    receive x from rank 1
  end
  compute other
    reads x = A
  goal x = A
"""


class Job:
    """`shiplap run` on ranks, each with words of its own."""

    def __init__(self, shiplap, kind):
        self.shiplap = shiplap
        self.kind = kind
        self.backend = ["--backend", "sockets" if kind == "sockets" else "mpi"]

    def run(self, ranks, usual, odd=None):
        """The exit code and all output; the last rank has the words `odd`, if there are any."""
        words = [" ".join([str(self.shiplap), "run", *one, *self.backend])
                 for one in (usual, odd or usual)]
        script = f"if [ {RANK} -eq {ranks - 1} ]; then exec {words[1]}; else exec {words[0]}; fi"
        done = subprocess.run(
            [sys.executable, ROOT / "tools/ranks", "-n", str(ranks), "--on", self.kind,
             "--timeout", "60", "sh", "-c", script],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120, check=False)
        return done.returncode, done.stdout


def expect(outcome, code, *texts):
    """Ends the test unless this is how the job ended."""
    found, out = outcome
    for text in texts:
        if text not in out:
            sys.exit(f"expected {text!r} in:\n{out}")
    if found != code:
        sys.exit(f"expected exit code {code}, found {found}:\n{out}")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shiplap")
    parser.add_argument("--on", default="openmpi", choices=["openmpi", "mpich", "sockets"])
    given = parser.parse_args()
    job = Job(pathlib.Path(given.shiplap).resolve(), given.on)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for layers in (4, 8):
            subprocess.run([job.shiplap, "run", "--strategy", "1f1b", "--ranks", "2", "--layers",
                            str(layers), "--steps", "1", "--plan", folder / f"{layers}.plan"],
                           check=True, capture_output=True, timeout=60)
        short, long = str(folder / "4.plan"), str(folder / "8.plan")
        unsound = folder / "unsound.plan"
        unsound.write_text(UNSOUND)
        expect(job.run(2, [short]), 0, "checked: sound", "loss")
        expect(job.run(2, [short], [long]), 2, "error[D644]: rank 1 of this job differs",
               "in the plan")
        fsdp = ["--strategy", "fsdp", "--ranks", "4"]
        expect(job.run(4, [*fsdp, "--seed", "1"], [*fsdp, "--seed", "2"]), 2,
               "error[D644]: rank 3 of this job differs from the others in the seed",
               "rank 3 has `2`, where others have `1`")
        expect(job.run(4, [*fsdp, "--steps", "2"], [*fsdp, "--steps", "3"]), 2,
               "in the number of steps")
        expect(job.run(2, [str(unsound)]), 1, "error[D711]")
    print("all jobs ended as expected")
    return 0


if __name__ == "__main__":
    sys.exit(main())
