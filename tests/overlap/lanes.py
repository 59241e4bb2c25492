#!/usr/bin/env python3
"""Draws what one rank does when, as lines of text: the pictures of docs/overlap.

    lanes.py PROGRAM overlap --op ag .. --hardware NAME    run it with --json, print the picture

tests/readme_test.py compares every ```lanes block of a page with what this prints.
"""

import json
import subprocess
import sys

WIDTH = 84
LANES = {"cast": "add", "add": "add"}


def box(label, begin, end):
    """A box of end - begin characters, as much of its label as there is room for."""
    room = end - begin
    if room < 3:
        return "|" * room
    return "[" + label[:room - 2].ljust(room - 2, "-") + "]"


def draw(answer):
    """What `shiplap overlap --json` says of the rank that ends last."""
    steps = answer["steps"]
    last = max(step["end_s"] for step in steps)
    lanes = {}
    for step in steps:
        lanes.setdefault(LANES.get(step["what"], step["what"]), []).append(step)
    name = max(map(len, lanes))
    lines = []
    for what, boxes in lanes.items():
        line = ""
        for step in boxes:
            begin, end = (round(step[key] / last * WIDTH) for key in ("start_s", "end_s"))
            if end <= len(line):
                continue
            begin = max(begin, len(line))
            line = line.ljust(begin, ".") + box(step["chunk"], begin, end)
        lines.append(f"{what:{name}}  {line.ljust(WIDTH, '.')}")
    lines.append(f"{'':{name}}  0{f'{last * 1e6:.0f} us':>{WIDTH - 1}}")
    return "\n".join(lines) + "\n"


def picture(program, words):
    done = subprocess.run([program, *words, "--json"], capture_output=True, text=True, timeout=60,
                          check=True)
    return draw(json.loads(done.stdout))


if __name__ == "__main__":
    print(picture(sys.argv[1], sys.argv[2:]), end="")
