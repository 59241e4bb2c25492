#!/usr/bin/env python3
"""Runs the commands of README.md, docs/tour.md, docs/strategy.md, docs/museum.md and docs/overlap/
and compares their output with the pages. Run by ctest.

In a ```console block, a line that begins with `$ shiplap` is run in the root of the repository; the
lines after it, up to the next command or the end of the block, are its standard output or, if that
is empty, its standard error. A ```lanes block shows the picture that tests/overlap/lanes.py makes
of the same. The block ```plan is examples/plans/quick_start.plan. In the table of README.md, a row
has a command and a piece of its output, without regard to spaces.
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


def run(program, words):
    return subprocess.run([program, *words], capture_output=True, text=True, cwd=ROOT, timeout=60,
                          check=False)


def printed(program, words):
    done = run(program, words)
    return done.stdout or done.stderr


def table_errors(program, page):
    """Rows `| question | `shiplap ...` | `answer` |` whose answer the command does not print."""
    rows = re.findall(r"^\|[^|\n]*\| `shiplap ([^`]*)` \| `([^`]*)`[^|\n]*\|$", page, re.MULTILINE)
    if not rows:
        yield "README.md has no table of questions"
    for command, answer in rows:
        done = run(program, command.split())
        if answer not in " ".join((done.stdout + done.stderr).split()):
            yield f"README.md: `shiplap {command}` does not print `{answer}`"


def main():
    program = os.environ["SHIPLAP_PROGRAM"]
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    wrong = 0
    count = 0
    pages = {"README.md": text}
    for page in [ROOT / "docs" / "tour.md", ROOT / "docs" / "strategy.md",
                 ROOT / "docs" / "museum.md", *sorted(ROOT.glob("docs/overlap/*.md"))]:
        pages[str(page.relative_to(ROOT))] = page.read_text(encoding="utf-8")
    for name, kind, command, expected in shown(pages):
        count += 1
        words = command.split()[1:]
        found = lanes.picture(program, words) if kind == "lanes" else printed(program, words)
        if found != expected:
            wrong += 1
            print(f"{name}: `{command}` prints\n{found}")
    plan = (ROOT / "examples/plans/quick_start.plan").read_text(encoding="utf-8")
    if not any(block in plan for block in blocks(pages["docs/tour.md"], "plan")):
        wrong += 1
        print("docs/tour.md: the plan differs from examples/plans/quick_start.plan")
    for error in table_errors(program, text):
        wrong += 1
        print(error)
    if count == 0:
        sys.exit("README.md has no command to run")
    print(f"{count} commands, {wrong} differences")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
