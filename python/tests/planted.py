"""Faults of record/faults.json, planted in copies of the scripts of record/."""

from __future__ import annotations

import json
import pathlib
from typing import Any

SCRIPTS = pathlib.Path(__file__).resolve().parent / "record"


def faults() -> list[dict[str, Any]]:
    """Those with ``"expect": "clean"`` are harmless."""
    found: list[dict[str, Any]] = json.loads((SCRIPTS / "faults.json").read_text())
    return found


def plant(fault: dict[str, Any], folder: pathlib.Path) -> tuple[pathlib.Path, set[int]]:
    """The script with its fault, and the lines where a finding is expected."""
    text = (SCRIPTS / fault["script"]).read_text()
    for edit in fault["edits"]:
        if text.count(edit["old"]) != 1:
            raise ValueError(f"{fault['name']}: an edit does not apply once")
        text = text.replace(edit["old"], edit["new"])
    parts = fault["line_of"] if isinstance(fault["line_of"], list) else [fault["line_of"]]
    lines = {
        number
        for number, line in enumerate(text.splitlines(), 1)
        if any(part in line for part in parts)
    }
    script = folder / f"{fault['name']}.py"
    script.write_text(text)
    return script, lines
