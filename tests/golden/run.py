#!/usr/bin/env python3
"""Runs the commands of the case files and compares what they print. Run by ctest as `golden`.

    tests/golden/run.py [--update] [CASE.txt | FOLDER]...    all of tests/golden if none is named

A case file holds commands, each with what it must print and its exit code:

    Anything before the first command, or after an exit code, is a remark.

    $ shiplap show examples/plans/ddp.plan
    a line of standard output
    ! a line of standard error
    ? 0

    $ shiplap show - < examples/plans/ddp.plan
    ? 0

Commands run in the root of the repository, without a shell, with the program that the environment
variable SHIPLAP_PROGRAM names. A line of output that begins with `$`, `!`, `?` or a backslash gets
a backslash before it; a last line without a newline is followed by the line `\\ no newline`.
`--update` writes what the commands print now into the files: look at the difference before you
commit it. The exit code is 0 if all is as expected, 1 if not, 2 if a case file makes no sense.
"""

import argparse
import difflib
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
MARKS = ("$", "!", "?", "\\")
NO_NEWLINE = "\\ no newline"
SECONDS = 60


class WrongCase(Exception):
    """A case file that makes no sense."""


@dataclass
class Case:
    """One command and what it must print, as in the file."""
    command: str
    expected: list = field(default_factory=list)  # all lines, the exit code last
    remark: list = field(default_factory=list)  # what follows, up to the next command


def read_cases(path):
    """The remark at the top, and the cases."""
    top, cases, ended = [], [], True
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("$ "):
            if not ended:
                raise WrongCase(f"{path}:{number}: the command before has no exit code, `? 0`")
            cases.append(Case(line[2:]))
            ended = False
        elif not cases:
            top.append(line)
        elif ended:
            cases[-1].remark.append(line)
        else:
            cases[-1].expected.append(line)
            ended = line.startswith("? ")
    if not ended and not any(line.strip() for line in cases[-1].expected):
        cases[-1].expected.clear()  # a new case, to be filled in by --update
    elif not ended:
        raise WrongCase(f"{path}: the last command has no exit code, `? 0`")
    if not cases:
        raise WrongCase(f"{path}: there is no line that begins with `$ `")
    return top, cases


def marked_lines(data, mark):
    """Output as it stands in a case file."""
    text = data.decode("utf-8", errors="backslashreplace")
    lines = text.split("\n")
    last = lines.pop()
    marked = [mark_line(line, mark) for line in lines]
    return marked + [mark_line(last, mark), NO_NEWLINE] if last else marked


def mark_line(line, mark):
    if mark:
        return f"{mark} {line}".rstrip() if not line else f"{mark} {line}"
    return "\\" + line if line.startswith(MARKS) else line


def words_of(command):
    """The arguments, and the file that is standard input."""
    words = shlex.split(command)
    stdin = os.devnull
    if "<" in words:
        at = words.index("<")
        if at + 2 != len(words):
            raise WrongCase(f"{command}: one file name, and nothing else, follows `<`")
        stdin = words[-1]
        words = words[:at]
    if words[:1] != ["shiplap"]:
        raise WrongCase(f"{command}: only `shiplap` can be run")
    return words[1:], stdin


def run(command, program):
    """What the command prints, as lines of a case file."""
    words, stdin = words_of(command)
    kept = {name: value for name, value in os.environ.items()
            if name in ("PATH", "HOME", "TMPDIR") or name.endswith("SAN_OPTIONS")}
    environment = kept | {"COLUMNS": "100", "LC_ALL": "C.UTF-8", "TERM": "dumb"}
    with open(ROOT / stdin, "rb") as input_file:
        try:
            done = subprocess.run([program, *words], stdin=input_file, capture_output=True,
                                  cwd=ROOT, env=environment, timeout=SECONDS, check=False)
        except subprocess.TimeoutExpired:
            return [f"! took more than {SECONDS} seconds", "? none"]
    return [*marked_lines(done.stdout, ""), *marked_lines(done.stderr, "!"),
            f"? {done.returncode}"]


def in_order(lines):
    """Standard output, then standard error, whatever the order in the file."""
    return sorted(lines, key=lambda line: line.startswith("!") + 2 * line.startswith("? "))


def difference(path, case, got):
    expected = in_order(case.expected)
    if got == expected:
        return None
    shown = difflib.unified_diff(expected, got, "expected", "printed", lineterm="", n=3)
    return "\n".join([f"{path.relative_to(ROOT)}: $ {case.command}", *shown, ""])


def run_file(path, program, update):
    """The differences that were found; none after an update."""
    top, cases = read_cases(path)
    found = []
    for case in cases:
        got = run(case.command, program)
        if problem := difference(path, case, got):
            found.append(problem)
            case.expected = got
    if not update:
        return found
    if found:
        lines = list(top)
        for case in cases:
            lines += [f"$ {case.command}", *case.expected, *case.remark]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(f"updated {path.relative_to(ROOT)}")
    return []


def files_of(names):
    for name in names or [HERE]:
        path = Path(name).resolve()
        if path.is_dir():
            yield from sorted(path.rglob("*.txt"))
        else:
            yield path


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--update", action="store_true", help="rewrite the expectations")
    parser.add_argument("case", nargs="*", help="case files or folders of them")
    arguments = parser.parse_args()
    program = os.environ.get("SHIPLAP_PROGRAM")
    if not program or not Path(program).is_file():
        sys.exit(f"SHIPLAP_PROGRAM must name the program; it is {program!r}")
    program = str(Path(program).resolve())
    found = []
    files = [path for path in files_of(arguments.case) if path.name != "CMakeLists.txt"]
    try:
        for path in files:
            found += run_file(path, program, arguments.update)
    except (WrongCase, OSError) as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    print("\n".join(found), end="")
    print(f"{len(files)} files, {len(found)} differences")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
