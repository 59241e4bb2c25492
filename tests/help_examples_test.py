#!/usr/bin/env python3
"""Runs every example of every command's --help. Run by ctest.

Each command has a temporary folder of its own with the files that the examples name, and its
examples run there in order, in bash, so that one may read what an earlier one wrote. All must end
with exit code 0. Examples that need a program that is not installed (fish, mpirun, the Python
package) are skipped.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 120


def help_page(program, *words):
    return subprocess.run([program, *words, "--help"], capture_output=True, text=True, check=True,
                          env=os.environ | {"COLUMNS": "100"}).stdout


def verbs(page):
    """The commands that the first page lists."""
    section = page.split("\ncommands\n")[1].split("\n\n")[0]
    return [name for name in re.findall(r"^  (\w+)", section, re.MULTILINE) if name != "help"]


def examples(page):
    """The examples come before the usage; a description follows after two spaces or below."""
    return re.findall(r"^  ((?:shiplap|source)\b.*?)(?:  .*)?$", page.split("\nusage\n")[0],
                      re.MULTILINE)


def missing_program(command):
    """The program that this example needs and that is not installed, or None."""
    if "completion fish" in command:
        return None if shutil.which("fish") else "fish"
    if "--backend mpi" in command:
        return None if shutil.which("mpirun") else "mpirun"
    if command.startswith("shiplap record"):
        found = subprocess.run([os.environ.get("SHIPLAP_PYTHON", "python3"), "-c",
                                "import shiplap, torch"], capture_output=True, check=False)
        return "Python package of shiplap, with torch" if found.returncode else None
    return None


def prepare(program, folder):
    """The files that the examples name."""
    def shiplap(*words):
        subprocess.run([program, *words], cwd=folder, check=True, capture_output=True)

    shiplap("simulate", "--strategy", "hybrid", "--ranks", "8", "--plan", "step.plan")
    shiplap("export", "step.plan", "-o", "step.json")
    shiplap("dispatch", "--ranks", "4", "-o", "metadata.json")
    healthy = ROOT / "data/hung_jobs/real/healthy"
    written = json.loads((healthy / "answer.json").read_text())["dumped_at_ns"]
    (folder / "dumps").mkdir()
    for rank, dump in enumerate(sorted((healthy / "dumps").iterdir())):
        for copy in (folder / "dumps" / dump.name, folder / f"nccl_trace_rank_{rank}"):
            shutil.copy(dump, copy)
            os.utime(copy, ns=(written[dump.name], written[dump.name]))
    for name in ("ras_1.txt", "ras_2.txt"):
        shutil.copy(ROOT / "data/hung_jobs/ncclras/running.txt", folder / name)
    shutil.copy(ROOT / "examples/dispatch/lengths.txt", folder)
    shutil.copy(ROOT / "examples/layouts/llama3-70b.sh", folder / "train.sh")
    shutil.copy(ROOT / "examples/record/train.py", folder)
    shutil.copy(ROOT / "tests/golden/formats/schedule-torch-2.15.csv", folder / "schedule.csv")


def run(command, program, folder):
    """The problem with this example, or None."""
    shell = ["fish", "-c"] if "completion fish" in command else ["bash", "-o", "pipefail", "-c"]
    path = f"{Path(program).parent}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "OMPI_ALLOW_RUN_AS_ROOT": "1",
                                "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                                "OMPI_MCA_rmaps_base_oversubscribe": "1"}
    done = subprocess.run([*shell, command], cwd=folder, capture_output=True, text=True,
                          timeout=SECONDS, env=environment, check=False)
    if done.returncode == 0:
        return None
    return f"`{command}` ends with exit code {done.returncode}\n{done.stderr}"


def main():
    program = str(Path(os.environ["SHIPLAP_PROGRAM"]).resolve())
    wrong, count = [], 0
    for verb in verbs(help_page(program)):
        commands = examples(help_page(program, verb))
        if not commands:
            wrong.append(f"`shiplap {verb} --help` has no example")
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            prepare(program, folder)
            for command in commands:
                if missing := missing_program(command):
                    print(f"skipped, there is no {missing}: {command}")
                    continue
                count += 1
                if problem := run(command, program, folder):
                    wrong.append(problem)
    print("\n".join(wrong))
    print(f"{count} examples, {len(wrong)} fail")
    sys.exit(1 if wrong or count < 20 else 0)


if __name__ == "__main__":
    main()
