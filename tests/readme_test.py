#!/usr/bin/env python3
"""Runs the commands of README.md, docs/tour.md, docs/strategy.md, docs/museum.md, docs/models.md,
docs/layouts.md and docs/overlap/ and compares their output with the pages. Run by ctest. With
--update, it writes the output of whole blocks into the pages instead.

In a ```console block, a line that begins with `$ shiplap` is run in the root of the repository; the
lines after it, up to the next command or the end of the block, are its standard output or, if that
is empty, its standard error. A ```lanes block shows the picture that tests/overlap/lanes.py makes
of the same. In docs/postmortem.md, the commands about the real jobs are in indented blocks, and
`..` stands for lines that are left out. The block ```plan is examples/plans/quick_start.plan. In
the table of README.md, a row has a command and a piece of its output, without regard to spaces.
"""

import importlib
import os
import re
import shlex
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


def indented_commands(page):
    """Commands of indented blocks about files of the repository, and what they print, in pieces."""
    for block in re.findall(r"(?:^    .*\n|^\n(?=    ))+", page, re.MULTILINE):
        for command, output in commands(re.sub(r"^    ", "", block, flags=re.MULTILINE)):
            is_ours = command.startswith("shiplap postmortem data/") and "--plan" not in command
            if is_ours:
                yield command, [piece.rstrip() for piece in re.split(r"^\.\.$", output,
                                                                    flags=re.MULTILINE)]


def excerpt_errors(program, name):
    count = 0
    for command, pieces in indented_commands((ROOT / name).read_text(encoding="utf-8")):
        count += 1
        found = printed(program, command.split()[1:])
        for piece in pieces:
            if piece.strip("\n") not in found:
                yield f"{name}: `{command}` prints\n{found}"
                break
    if count < 5:
        yield f"{name}: only {count} commands were found"


def table_errors(program, page):
    """Rows `| question | `shiplap ...` | `answer` |` whose answer the command does not print."""
    rows = re.findall(r"^\|[^|\n]*\| `shiplap ([^`]*)` \| `([^`]*)`[^|\n]*\|$", page, re.MULTILINE)
    if not rows:
        yield "README.md has no table of questions"
    for command, answer in rows:
        if command.startswith("record"):
            continue  # needs torch: python/tests/test_record.py
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
                 ROOT / "docs" / "museum.md", ROOT / "docs" / "models.md",
                 ROOT / "docs" / "layouts.md", *sorted(ROOT.glob("docs/overlap/*.md"))]:
        pages[str(page.relative_to(ROOT))] = page.read_text(encoding="utf-8")
    for name, kind, command, expected in shown(pages):
        count += 1
        words = shlex.split(command)[1:]
        found = lanes.picture(program, words) if kind == "lanes" else printed(program, words)
        if found != expected and "--update" in sys.argv[1:]:
            path = ROOT / name
            page = path.read_text(encoding="utf-8")
            path.write_text(page.replace(f"$ {command}\n{expected}", f"$ {command}\n{found}"),
                            encoding="utf-8")
        elif found != expected:
            wrong += 1
            print(f"{name}: `{command}` prints\n{found}")
    plan = (ROOT / "examples/plans/quick_start.plan").read_text(encoding="utf-8")
    if not any(block in plan for block in blocks(pages["docs/tour.md"], "plan")):
        wrong += 1
        print("docs/tour.md: the plan differs from examples/plans/quick_start.plan")
    for error in [*table_errors(program, text), *excerpt_errors(program, "docs/postmortem.md")]:
        wrong += 1
        print(error)
    if count == 0:
        sys.exit("README.md has no command to run")
    print(f"{count} commands, {wrong} differences")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
