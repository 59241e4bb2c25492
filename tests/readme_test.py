#!/usr/bin/env python3
"""Runs the commands of README.md, docs/strategy.md, docs/museum.md and docs/overlap/ and compares
what they print with what stands there. Run by ctest.

In a ```console block, a line that begins with `$ shiplap` is run in the root of the repository;
what follows, up to the next command or the end of the block, is its standard output or, if that is
empty, its standard error. In a ```lanes block it is the picture that tests/overlap/lanes.py makes
of the same. The block ```plan is examples/plans/quick_start.plan.
"""

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "overlap"))
lanes = importlib.import_module("lanes")


def blocks(text, kind):
    return re.findall(rf"^```{kind}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def commands(block):
    """Pairs of a command and what it must print."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        yield command, output


def shown(pages):
    """For every command of every page: the page, the kind of block, the command, its output."""
    for name, page in pages.items():
        for kind in ("console", "lanes"):
            for block in blocks(page, kind):
                for pair in commands(block):
                    yield name, kind, *pair


def printed(program, words):
    done = subprocess.run([program, *words], capture_output=True, text=True, cwd=ROOT, timeout=60,
                          check=False)
    return done.stdout or done.stderr


def main():
    program = os.environ["SHIPLAP_PROGRAM"]
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    wrong = 0
    count = 0
    pages = {"README.md": text}
    for page in [ROOT / "docs" / "strategy.md", ROOT / "docs" / "museum.md",
                 *sorted(ROOT.glob("docs/overlap/*.md"))]:
        pages[str(page.relative_to(ROOT))] = page.read_text(encoding="utf-8")
    for name, kind, command, expected in shown(pages):
        count += 1
        words = command.split()[1:]
        found = lanes.picture(program, words) if kind == "lanes" else printed(program, words)
        if found != expected:
            wrong += 1
            print(f"{name}: `{command}` prints\n{found}")
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
