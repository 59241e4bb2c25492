"""What `shiplap simulate --links shared` predicts for transfers that others have timed alone and
together (data/published/contention.csv). tools/accuracy shows it.
"""

import csv
import json
import os
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = os.environ.get("SHIPLAP_PROGRAM", ROOT / "build/release/bin/shiplap")
CASES = ROOT / "data" / "published" / "contention.csv"
BYTES = 1 << 30  # latencies are then too short to matter
TRANSFERS = ("send", "recv", "all_reduce")


def messages(pairs, distance=1):
    """Messages between ranks a multiple of `distance` apart, each on a stream of its own."""
    ranks = 1 + distance * max(max(pair) for pair in pairs)
    lines = ["shiplap-plan 1", f"mesh r={ranks}"]
    for rank in range(ranks):
        own = [(k, distance * a, distance * b) for k, (a, b) in enumerate(pairs)
               if rank in (distance * a, distance * b)]
        lines.append(f"program p{rank} on r={rank}")
        if own:
            lines.append("  streams " + ", ".join(f"s{k}" for k, _, _ in own))
        lines += [f"  buffer x{k} rows 1 row_bytes {BYTES} u8" for k, _, _ in own]
        for k, sender, receiver in own:
            lines.append(f"  @s{k} send x{k} to rank {receiver} tag {k}" if rank == sender else
                         f"  @s{k} receive x{k} from rank {sender} tag {k}")
    return "\n".join(lines) + "\n"


def all_reduces(number):
    """All-reduces of the same four ranks."""
    return "\n".join(["shiplap-plan 1", "mesh r=4", "program p on all", "  streams s0, s1",
                      *(f"  buffer x{k} rows 1 row_bytes {BYTES} u8" for k in range(number)),
                      *(f"  @s{k} all_reduce x{k} over r/s{k}" for k in range(number))]) + "\n"


def rails(number):
    """All-reduces between four nodes on each rail; second, a longer all-gather in each node."""
    return "\n".join(["shiplap-plan 1", "mesh node=4 gpu=8", "program p on all", "  streams s0, s1",
                      f"  buffer x rows 1 row_bytes {BYTES} u8",
                      f"  buffer y rows 8 row_bytes {64 * BYTES} u8",
                      "  @s0 all_reduce x over node",
                      *["  @s1 all_gather y[gpu +1] to y over gpu"][:number - 1]]) + "\n"


# By pattern: the plan with so many of its transfers at once. `node`: between nodes of 8 devices.
PATTERNS = {
    "into_one": lambda n: messages([(k + 1, 0) for k in range(n)]),
    "from_one": lambda n: messages([(0, k + 1) for k in range(n)]),
    "both_ways": lambda n: messages([(0, 1), (1, 0)][:n]),
    "all_pairs": lambda n: messages([(a, b) for a in range(8) for b in range(8) if a != b][:n]),
    "nodes_into_one": lambda n: messages([(k + 1, 0) for k in range(n)], 8),
    "nodes_from_one": lambda n: messages([(0, k + 1) for k in range(n)], 8),
    "two_all_reduces": all_reduces,
    "rails_beside_nodes": rails,
}


def seconds(plan, machine):
    """Of the longest transfer."""
    with tempfile.TemporaryDirectory() as folder:
        path, trace = Path(folder) / "case.plan", Path(folder) / "trace.json"
        path.write_text(plan)
        # Exit code 1: buffers of this size may not fit.
        subprocess.run([PROGRAM, "simulate", path, "--hardware", machine, "--links", "shared",
                        "--no-check", "--trace", trace], capture_output=True, check=False)
        made = json.loads(trace.read_text())
    kind, duration = (made["columns"].index(name) for name in ("kind", "duration_s"))
    return max(event[duration] for rank in made["ranks"] for event in rank["events"]
               if event[kind] in TRANSFERS)


def cases():
    """The published cases, each with its `measured` slowdown and, if a hardware file can describe
    the machine, the `predicted` one: the time together over the time alone."""
    with CASES.open(newline="") as file:
        rows = list(csv.DictReader(file))
    known = {}
    for row in rows:
        alone, together = float(row["alone"]), float(row["together"])
        row["measured"] = together / alone if row["unit"] == "us" else alone / together
        row["predicted"] = None
        if row["machine"]:
            key = row["pattern"], int(row["flows"]), row["machine"]
            if key not in known:
                plan = PATTERNS[row["pattern"]]
                known[key] = seconds(plan(key[1]), key[2]) / seconds(plan(1), key[2])
            row["predicted"] = known[key]
    return rows
