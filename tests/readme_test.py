#!/usr/bin/env python3
"""Runs the commands of README.md, docs/strategy.md, docs/museum.md and docs/overlap.md and
compares what they print with what stands there. Run by ctest.

In a ```console block, a line that begins with `$ shiplap` is run in the root of the repository;
what follows, up to the next command or the end of the block, is its standard output or, if that is
empty, its standard error. The block ```plan is examples/plans/quick_start.plan.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def blocks(text, kind):
    return re.findall(rf"^```{kind}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def commands(block):
    """Pairs of a command and what it must print."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        yield command, output


def main():
    program = os.environ["SHIPLAP_PROGRAM"]
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    wrong = 0
    count = 0
    pages = {"README.md": text}
    for name in ("strategy.md", "museum.md", "overlap.md"):
        pages[name] = (ROOT / "docs" / name).read_text(encoding="utf-8")
    pairs = [(name, *pair) for name, page in pages.items()
             for block in blocks(page, "console") for pair in commands(block)]
    for name, command, expected in pairs:
        count += 1
        done = subprocess.run([program, *command.split()[1:]], capture_output=True, text=True,
                              cwd=ROOT, timeout=60, check=False)
        if (done.stdout or done.stderr) != expected:
            wrong += 1
            print(f"{name}: `{command}` prints\n{done.stdout or done.stderr}")
    plan = (ROOT / "examples/plans/quick_start.plan").read_text(encoding="utf-8")
    if not any(block in plan for block in blocks(text, "plan")):
        wrong += 1
        print("README.md: the plan differs from examples/plans/quick_start.plan")
    if count == 0:
        sys.exit("README.md has no command to run")
    print(f"{count} commands, {wrong} differences")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
