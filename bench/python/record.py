"""Benchmark of shiplap.record: false alarms and planted faults. Prints one JSON object.

    PYTHONPATH=build/release/python python bench/python/record.py --json [--world 8] [NAME ..]

Records every healthy script of python/tests/record, and every fault of its faults.json, planted in
a copy. A fault counts as found if the recording is not sound, and as found at the line if a finding
names an expected one.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re
import sys
import tempfile
import time

import torch

from shiplap.record import RecordingError, record_script

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "python" / "tests" / "record"


def record(script: pathlib.Path, world: int) -> tuple[bool, set[tuple[str, int]], float]:
    """Whether it is sound, the codes and lines of the findings, and seconds."""
    start = time.monotonic()
    try:
        recorded = record_script(str(script), world=world, steps=0)
    except RecordingError as error:
        print(f"{script.name}: {error}", file=sys.stderr)
        lines = re.findall(rf"{re.escape(script.name)}:(\d+)$", str(error), re.MULTILINE)
        return False, {("script failed", int(line)) for line in lines}, time.monotonic() - start
    report = recorded.check()
    found = {(finding.code, finding.line) for finding in report.findings}
    for error in recorded.group_errors:
        found.add(("group order", int(error.split(": ")[0].rsplit(":", 1)[1])))
    return report.sound and not recorded.group_errors, found, time.monotonic() - start


def plant(fault: dict, folder: pathlib.Path) -> tuple[pathlib.Path, set[int]]:
    """The script with its fault, and the lines where a finding is expected."""
    text = (SCRIPTS / pathlib.Path(fault["script"]).name).read_text()
    for edit in fault["edits"]:
        if text.count(edit["old"]) != 1:
            raise ValueError(f"{fault['name']}: an edit does not apply once")
        text = text.replace(edit["old"], edit["new"])
    parts = fault["line_of"] if isinstance(fault["line_of"], list) else [fault["line_of"]]
    lines = {
        k for k, line in enumerate(text.splitlines(), 1) if any(part in line for part in parts)
    }
    script = folder / f"{fault['name']}.py"
    script.write_text(text)
    return script, lines


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--world", type=int, default=8)
    parser.add_argument("--only", choices=["healthy", "faults"])
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    wanted = set(options.names)
    result = {
        "torch": torch.__version__,
        "world": options.world,
        "healthy": 0,
        "false_alarms": 0,
        "faults": 0,
        "faults_found": 0,
        "faults_at_line": 0,
        "clean_variants": 0,
        "missed": [],
        "alarms": [],
        "seconds": {},
    }
    for script in sorted(SCRIPTS.glob("*.py")):
        if (wanted and script.stem not in wanted) or options.only == "faults":
            continue
        sound, found, seconds = record(script, options.world)
        result["healthy"] += 1
        result["seconds"][script.stem] = round(seconds, 1)
        if not sound:
            result["alarms"].append(script.stem)
    with tempfile.TemporaryDirectory() as folder:
        for fault in json.loads((SCRIPTS / "faults.json").read_text()):
            if (wanted and fault["name"] not in wanted) or options.only == "healthy":
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
    result["false_alarms"] = len(result["alarms"])
    print(json.dumps(result, indent=2 if not options.json else None))


if __name__ == "__main__":
    main()
