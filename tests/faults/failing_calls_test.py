#!/usr/bin/env python3
"""Fault injection: lets every system call fail once, and checks how commands handle it.

    failing_calls_test.py SHIPLAP LIBRARY [--dense FACTOR] [--only WORD]

For each command and each kind of call (tests/faults/fail_nth.cc) it runs once to count the
calls, then once for each of them, with that one failing: the first 40, then ever fewer, each FACTOR
further than the one before (1.5; 1 is every call); and with that one and all after it failing.
What must hold:

- it ends by itself, with exit code 0 to 3: no signal, no hang, no internal error;
- if the code is not the usual one, something was said;
- a file that it writes is the old or the new one, whole, and nothing else is left in its folder.
"""
import argparse
import collections
import concurrent.futures
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PLAN = ROOT / "examples/plans/quick_start.plan"
CALLS = ("malloc", "thread", "open", "read", "write")
SECONDS = 60
OLD = "what was there before\n"


class Command:
    """Words after `shiplap`; OUT is a file that it writes. With `threads`, ranks are threads."""

    def __init__(self, *words, threads=False):
        self.words = words
        self.threads = threads
        self.name = " ".join(str(word) for word in words)

    def run(self, given, folder, **environment):
        folder = pathlib.Path(folder)
        out = folder / "out"
        out.write_text(OLD)
        words = [str(out) if word == "OUT" else str(word) for word in self.words]
        try:
            done = subprocess.run(
                [given.shiplap, *words], cwd=ROOT, capture_output=True, timeout=SECONDS,
                check=False, env={**os.environ, **environment, "SHIPLAP_TIMEOUT": "5",
                                  "LD_PRELOAD": str(given.library)})
        except subprocess.TimeoutExpired:
            return "hangs", "", ""
        left = sorted(file.name for file in folder.iterdir() if file.name != "out")
        text = out.read_bytes() if out.exists() else b"no file"
        if left:
            text = b"left behind: " + " ".join(left).encode()
        return done.returncode, done.stdout + done.stderr, text


COMMANDS = [
    Command("--version"),
    Command("explain", "D701"),
    Command("show", PLAN),
    Command("check", PLAN),
    Command("check", PLAN, "--json"),
    Command("export", PLAN, "-o", "OUT"),
    Command("simulate", PLAN, "--hardware", "h200", "--report", "OUT"),
    Command("dispatch", "--ranks", "4", "--run", "threads", threads=True),
    Command("overlap", "--op", "ag", "--m", "64", "--n", "64", "--k", "64", "--tp", "2",
            "--hardware", "b200", "--report", "OUT"),
    Command("run", "--strategy", "1f1b", "--ranks", "2", "--steps", "1", "--report", "OUT",
            threads=True),
]


def numbers(count, factor):
    """Which calls are to fail."""
    number = 1
    while number <= count:
        yield number
        number = number + 1 if number < 40 else max(number + 1, int(number * factor))


def judge(outcome, usual):
    """The error in how it ended, or nothing."""
    code, said, text = outcome
    if code == "hangs":
        return "hangs"
    if code not in (0, 1, 2, 3):
        return f"ends with {code}"
    if code != usual[0] and not said:
        return f"ends with {code} and says nothing"
    if text not in (OLD.encode(), usual[2]) and usual[2] != OLD.encode():
        if text.startswith(b"left behind"):
            return text.decode()
        # A report has a time or a measurement in it: a whole one ends like a whole one.
        if not text.endswith(usual[2][-8:]):
            return f"leaves {len(text)} bytes of a file"
    return None


def campaign(given, command, call):
    """How many were tried, and what was wrong: by sentence, the first call of each."""
    tried, wrong = 0, collections.OrderedDict()
    with tempfile.TemporaryDirectory() as folder:
        counts = pathlib.Path(folder).parent / (pathlib.Path(folder).name + ".count")
        with tempfile.TemporaryDirectory() as usual_folder:
            usual = command.run(given, usual_folder, SHIPLAP_FAIL=f"{call}:0",
                                SHIPLAP_FAIL_COUNT=str(counts))
        if usual[0] not in (0, 1):
            sys.exit(f"{command.name} does not work: {usual[0]} {usual[1].decode()}")
        count = int(counts.read_text())
        counts.unlink()
        for number in numbers(count, given.dense):
            # A rank that cannot even say that it has no memory may end by a signal.
            hopeless = command.threads and call == "malloc"
            for rest in ("",) if hopeless else ("", "+"):
                with tempfile.TemporaryDirectory() as place:
                    outcome = command.run(given, place, SHIPLAP_FAIL=f"{call}:{number}{rest}")
                tried += 1
                if found := judge(outcome, usual):
                    said = outcome[1].decode(errors="replace") if outcome[1] else ""
                    wrong.setdefault(found, (f"{call}:{number}{rest}", said.strip()[-300:]))
    return tried, count, wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shiplap")
    parser.add_argument("library")
    parser.add_argument("--dense", type=float, default=1.5)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    all_tried = violations = 0
    jobs = [(command, call) for command in COMMANDS for call in CALLS
            if given.only in f"{call} {command.name}"]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        results = pool.map(lambda job: campaign(given, *job), jobs)
        for (command, call), (tried, count, wrong) in zip(jobs, results):
            all_tried += tried
            violations += len(wrong)
            print(f"{call} in `{command.name}`: {count} calls, {tried} runs", flush=True)
            for found, (where, said) in wrong.items():
                print(f"  WRONG: with {where} it {found}\n    {said}", flush=True)
    print(f"{all_tried} runs, {violations} violations")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
