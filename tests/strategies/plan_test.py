#!/usr/bin/env python3
"""A second witness for the plans that strategies leave: the prototype of the plan's words, in
Python, which shares no code with ours, derives what every buffer holds and must find nothing wrong:
every gradient has every sample once, every weight is updated once, nothing races.

Run by ctest; where the prototype is absent the test is reported as skipped.
"""
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROTOTYPE = ROOT.parent / "shared" / "plan-prototype"
SKIPPED = 77
STRATEGIES = ("ddp", "ddp_overlap", "weight_sharded", "zero1", "zero2", "fsdp", "gpipe", "1f1b",
              "interleaved", "zb_h1", "dualpipev", "pipeline_fsdp", "tensor_parallel",
              "tensor_parallel_fsdp", "hybrid")


def recorded(program, folder, *flags):
    plan = Path(folder) / "s.plan"
    subprocess.run([program, "simulate", *flags, "--plan", str(plan)], check=True,
                   stdout=subprocess.DEVNULL)
    return plan.read_text()


def group_size(text, line):
    sizes = dict(re.findall(r"(\w+)=(\d+)", text.splitlines()[1]))
    axes = re.findall(r"\w+", line.split(" over ")[1].split(" after ")[0].split("/")[0])
    size = 1
    for axis in axes:
        size *= int(sizes[axis])
    return size


def problems(proto, text):
    # The prototype knows fewer element types (which it is decides nothing here) and no ranges.
    text = text.replace(" f16", " bf16")
    text = re.sub(r"(\d+)\.\.(\d+)",
                  lambda m: "|".join(map(str, range(int(m[1]), int(m[2]) + 1))), text)
    return [problem for found in proto.check(text)[0].values() for problem in found]


def main():
    if not PROTOTYPE.is_dir():
        print(f"skipped: {PROTOTYPE} is absent")
        return SKIPPED
    sys.path.insert(0, str(PROTOTYPE))
    import proto  # pylint: disable=import-error,import-outside-toplevel
    program = os.environ["SHIPLAP_PROGRAM"]
    tried = 0
    with tempfile.TemporaryDirectory() as folder:
        cases = [("single", 1), ("gradient_accumulation", 1)]
        cases += [(name, ranks) for name in STRATEGIES for ranks in (2, 4)]
        for name, ranks in cases:
            flags = ("--strategy", name, "--ranks", str(ranks), "--layers", "8",
                     "--global-batch", str(ranks * 2))
            text = recorded(program, folder, *flags)
            wrong = problems(proto, text)
            assert not wrong, f"{' '.join(flags)}: {len(wrong)} problems: {wrong[:3]}"
            # The witness can say no: without its reductions the gradients miss samples.
            # (Those with a name are waited for, and cannot just go.)
            reductions = [line for line in text.splitlines()
                          if re.match(r" +(all_reduce|reduce_scatter) ", line)]
            if reductions and group_size(text, reductions[0]) > 1:
                cut = text.replace(reductions[0] + "\n", "", 1)
                assert problems(proto, cut), f"{name} passed without {reductions[0].strip()}"
            tried += 1
    print(f"{tried} plans are sound")
    return 0


if __name__ == "__main__":
    sys.exit(main())
