#!/usr/bin/env python3
"""A second witness for the plan of a dispatch: the prototype of the plan's words, in Python, which
shares no code with ours, must find nothing wrong with it. It derives what every buffer holds, so a
key that does not arrive, a gradient that is lost, or an attention that sees too much is found.

Run by ctest; where the prototype is absent the test is reported as skipped.
"""
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROTOTYPE = ROOT.parent / "shared" / "plan-prototype"
SKIPPED = 77
TRIES = 24
MASKS = ["causal", "window:3", "causal", "prefix:4", "full"]


def run_from_file(program, file, flags):
    """The tables of a file on threads: every byte and every sum is compared."""
    written = subprocess.run([program, "dispatch", *flags, "--output", str(file)], check=True,
                             capture_output=True, text=True)
    ran = subprocess.run([program, "dispatch", "inspect", str(file), "--run", "threads", "--json"],
                         check=True, capture_output=True, text=True)
    run = json.loads(ran.stdout)
    assert run["run"]["wrong_bytes"] == run["run"]["wrong_sums"] == 0, written.stdout
    assert [run["mask"], run["shares_keys"]] == [flags[flags.index("--mask") + 1],
                                                 "--share-keys" in flags]


def main():
    if not PROTOTYPE.is_dir():
        print(f"skipped: {PROTOTYPE} is absent")
        return SKIPPED
    sys.path.insert(0, str(PROTOTYPE))
    import proto  # pylint: disable=import-error,import-outside-toplevel
    program = os.environ["SHIPLAP_PROGRAM"]
    numbers = random.Random(1)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(TRIES):
            plan = Path(folder) / "d.plan"
            mask = MASKS[number % len(MASKS)]
            # The prototype reads no list of several lines; other masks have longer numbers.
            most_ranks, most_tokens = (4, 9) if mask == "causal" else (3, 6)
            ranks = numbers.randint(1, most_ranks)
            flags = ["--ranks", str(ranks), "--tokens", str(numbers.randint(4, most_tokens)),
                     "--seqs", "2", "--cp", str(numbers.randint(1, ranks)), "--seed", str(number)]
            flags += ["--mask", mask]
            flags += ["--share-keys"] if number % 3 == 0 else []
            subprocess.run([program, "dispatch", *flags, "--plan", str(plan)], check=True,
                           stdout=subprocess.DEVNULL)
            run_from_file(program, Path(folder) / "d.json", flags)
            text = plan.read_text()
            found = proto.check(text)[0]
            wrong = [problem for problems in found.values() for problem in problems]
            assert not wrong, f"{' '.join(flags)}: {wrong[:3]}"
            # The witness can say no: without its last line gradients of keys stay away.
            cut = text[:text.rindex("  exchange")]
            assert any(proto.check(cut)[0].values()), "a plan without gradients passed"
    print(f"{TRIES} plans are sound, and none without its last exchange")
    return 0


if __name__ == "__main__":
    sys.exit(main())
