"""Benchmark of shiplap.record: false alarms, planted faults, many ranks. Prints one JSON object.

    PYTHONPATH=build/release/python python bench/python/record.py --json [--world 8] [NAME ..]

healthy: records every script of python/tests/record. faults: those of its faults.json, planted in a
copy; one counts as found if the recording is not sound, and as found at the line if a finding names
an expected one. real: healthy scripts whose plan is the same with real ranks (--mode gloo). scale:
64 and 1,024 ranks of tensor parallelism within FSDP2, and the check of their plan. --torch PYTHON
repeats the healthy scripts with another interpreter, that has another version of torch.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time
from typing import Any

import torch

from shiplap.record import RecordingError, record_script

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python" / "tests"))

from planted import SCRIPTS, faults, plant  # noqa: E402


def record(script: pathlib.Path, world: int) -> tuple[bool, set[tuple[str, int]], float]:
    """Whether it is sound, the codes and lines of the findings, and seconds."""
    start = time.monotonic()
    try:
        recorded = record_script(str(script), world=world, steps=0)
    except RecordingError as error:
        print(f"{script.name}: {error}", file=sys.stderr)
        lines = re.findall(rf"{re.escape(script.name)}:(\d+)$", str(error), re.MULTILINE)
        found = {("script failed", int(line)) for line in (0, *lines)}
        return False, found, time.monotonic() - start
    report = recorded.check()
    found = set()
    for finding in report.findings:
        found |= {(finding.code, one.line) for one in (finding, *finding.notes)}
    for error in recorded.group_errors:
        found.add(("group order", int(error.split(": ")[0].rsplit(":", 1)[1])))
    return report.sound and not recorded.group_errors, found, time.monotonic() - start


def measure_scale(result: dict[str, Any]) -> None:
    for world in (64, 1024):
        recorded = record_script(str(SCRIPTS / "tp_fsdp2.py"), world=world)
        start = time.monotonic()
        sound = recorded.check().sound
        result[f"s_{world}_ranks"] = round(recorded.seconds, 1)
        result[f"s_check_{world}_ranks"] = round(time.monotonic() - start, 3)
        result[f"recorded_of_{world}_ranks"] = recorded.recorded
        if not sound:
            result["alarms"].append(f"tp_fsdp2 on {world} ranks")


def is_like_real(script: pathlib.Path, world: int) -> bool:
    fake, real = (
        record_script(str(script), world=world, steps=0, mode=mode) for mode in ("fake", "gloo")
    )
    return fake.plan.to_text() == real.plan.to_text()


def healthy_with(python: str, world: int) -> dict[str, Any]:
    words = [python, __file__, "--json", "--only", "healthy", "--world", str(world)]
    found: dict[str, Any] = json.loads(subprocess.run(words, stdout=subprocess.PIPE).stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--world", type=int, default=8)
    parser.add_argument("--only", choices=["healthy", "faults", "real", "scale"])
    parser.add_argument("--torch", action="append", default=[], metavar="PYTHON")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    wanted = set(options.names)
    result: dict[str, Any] = {
        "torch_versions": [torch.__version__],
        "world": options.world,
        "healthy": 0,
        "false_alarms": 0,
        "faults": 0,
        "faults_found": 0,
        "faults_at_line": 0,
        "clean_variants": 0,
        "missed": [],
        "alarms": [],
        "failed": [],
        "like_real": 0,
        "seconds": {},
    }
    for script in sorted(SCRIPTS.glob("*.py")):
        if wanted and script.stem not in wanted:
            continue
        if options.only in (None, "real"):
            result["like_real"] += is_like_real(script, options.world)
        if options.only not in (None, "healthy"):
            continue
        sound, found, seconds = record(script, options.world)
        result["healthy"] += 1
        result["seconds"][script.stem] = round(seconds, 1)
        if not sound:
            failed = ("script failed", 0) in found
            result["failed" if failed else "alarms"].append(script.stem)
    if options.only in (None, "scale"):
        measure_scale(result)
    with tempfile.TemporaryDirectory() as folder:
        for fault in faults():
            if (wanted and fault["name"] not in wanted) or options.only not in (None, "faults"):
                continue
            script, lines = plant(fault, pathlib.Path(folder))
            sound, found, _ = record(script, fault["world"])
            at_line = any(line in lines for _, line in found)
            print(
                f"{fault['name']}: sound={sound} found={sorted(found)} expected={sorted(lines)}",
                file=sys.stderr,
            )
            if fault["expect"] == "clean":
                result["clean_variants"] += 1
                if not sound:
                    result["alarms"].append(fault["name"])
                continue
            result["faults"] += 1
            result["faults_found"] += not sound
            result["faults_at_line"] += not sound and at_line
            if sound:
                result["missed"].append(fault["name"])
    for python in options.torch:
        other = healthy_with(python, options.world)
        result["torch_versions"] += other["torch_versions"]
        result[f"healthy_{other['torch_versions'][0]}"] = {
            key: other[key] for key in ("healthy", "alarms", "failed")
        }
    result["false_alarms"] = len(result["alarms"])
    print(json.dumps(result, indent=2 if not options.json else None))


if __name__ == "__main__":
    main()
