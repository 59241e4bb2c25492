#!/usr/bin/env python3
"""A second witness for expand(): the prototype in Python, which shares no code with ours.

Every rank of every example plan, and of the plans beside the prototype, is expanded by both; ours
through `shiplap show FILE --rank N --json`. Operations, streams, names, dependencies, regions,
peers, groups and values must be the same. Run by ctest; where the prototype is absent the test is
reported as skipped.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROTOTYPE = ROOT.parent / "shared" / "plan-prototype"
PROGRAM = os.environ.get("SHIPLAP_PROGRAM", "")
SKIPPED = 77


# ---- the two sides in one form: tuples and dictionaries of plain numbers

def our_region(region):
    if region is None:
        return None
    if "rows" in region:
        return region["buffer"], tuple(region["rows"])
    return region["buffer"], region["begin"], region["count"]


def their_region(region):
    return (region[0], region[3]) if len(region) > 3 else tuple(region)


def our_value(value):
    sets = {}
    for run in value["runs"]:
        coordinates = sets.setdefault(run["dimension"], [])
        coordinates += [run["begin"] + k * run["stride"] for k in range(run["count"])]
    return (value["tensor"], value["instance"], value["new"], tuple(value["scale"]),
            list(sets.items()))


def whole_or_named(dimensions, named):
    """The sets as named, then the dimensions that are not: the order in which cells lie in rows."""
    sets = [(d, list(coordinates)) for d, coordinates in named.items()]
    return sets + [(d, list(range(n))) for d, n in dimensions.items() if d not in named]


def their_value(value):
    tensor = value["T"]
    sets = whole_or_named(tensor["part"], value["part"])
    if value["sum"] is not None:
        sets += whole_or_named(tensor["sum"], value["sum"])
    index = list(value["idx"])
    new = bool(index.pop()) if tensor["kind"] in ("Weight", "OptState") else False
    scale = value["scale"]
    return (tensor["name"], index[0] if index else 0, new, (scale.numerator, scale.denominator),
            sets)


def our_operation(operation):
    name = operation["name"]
    common = {
        "action": operation["action"], "stream": operation["stream"], "batch": operation["batch"],
        "after": sorted(set(operation["after"])), "async": operation["async"],
        "name": None if name is None else (name["name"], *name["indices"]),
    }
    action = operation["action"]
    if action == "compute":
        common["kernel"] = operation["kernel"]
        common["accesses"] = [(a["kind"], our_region(a["region"]), our_value(a["value"]))
                              for a in operation["accesses"]]
    elif action in ("send", "receive"):
        region = our_region(operation["from" if action == "send" else "to"])
        common["message"] = region, operation["peer"], operation["tag"], operation["channel"]
        common["add"] = operation.get("add", False)
    elif action in ("allocate", "free"):
        common["rows"] = our_region(operation["rows"])
    elif action != "batch":
        if action != "barrier":
            common["moved"] = our_region(operation["from"]), our_region(operation["to"])
        if action != "copy":
            common["group"] = operation["group"]["ranks"], operation["group"]["channel"]
        if action in ("copy", "exchange"):
            common["add"] = operation["add"]
        if action == "exchange":
            common["table"] = operation["table"], operation["reversed"]
        elif action != "copy":
            common["how"] = (operation["operator"], tuple(operation["scale"]), operation["root"],
                             operation["split"])
    return common


def their_operation(op):
    common = {
        "action": op.action, "stream": op.stream, "batch": op.batch,
        "after": sorted(set(op.after)), "async": op.async_, "name": op.name,
    }
    if op.action == "compute":
        common["kernel"] = op.a["kernel"]
        common["accesses"] = [(kind, their_region(r), their_value(v)) for kind, r, v in op.acc]
    elif op.action in ("send", "receive"):
        common["message"] = their_region(op.a["region"]), op.a["peer"], op.a["tag"], op.a["ch"]
        common["add"] = op.a["add"]
    elif op.action in ("allocate", "free"):
        common["rows"] = their_region(op.a["rows"])
    elif op.action != "batch":
        if op.action != "barrier":
            common["moved"] = their_region(op.a["in"]), their_region(op.a["out"])
        if op.action != "copy":
            common["group"] = list(op.a["group"]), op.a["ch"]
        if op.action in ("copy", "exchange"):
            common["add"] = op.a["add"]
        if op.action == "exchange":
            common["table"] = op.a["table"]
        elif op.action != "copy":
            scale = op.a["scale"]
            common["how"] = (op.a["op"], (scale.numerator, scale.denominator), op.a["root"],
                             op.a["split"])
    return common


def facts(ours, theirs):
    """Pairs of what is given, or what is the goal."""
    yield [(our_region(f["region"]), our_value(f["value"])) for f in ours]
    yield [(their_region(r), their_value(v)) for r, v in theirs]


# ---- comparing

def differences(path, rank, expected, peak):
    """What the prototype says of one rank and we do not."""
    done = subprocess.run([PROGRAM, "show", path, "--rank", str(rank), "--json", "--limit", "0"],
                          capture_output=True, check=True, timeout=60)
    ours = json.loads(done.stdout)
    pairs = [("operations", len(ours["operations"]), len(expected.ops))]
    pairs += [(f"operation {k}", our_operation(a), their_operation(b))
              for k, (a, b) in enumerate(zip(ours["operations"], expected.ops))]
    pairs.append(("buffers", {b["name"]: (b["rows"], b["row_bytes"]) for b in ours["buffers"]},
                  {name: shape[:2] for name, shape in expected.buf.items()}))
    pairs.append(("peak", ours["peak_bytes"], peak))
    pairs.append(("given", *facts(ours["given"], expected.given)))
    pairs.append(("goal", *facts(ours["goal"], expected.goal)))
    for what, own, other in pairs:
        if own != other:
            yield f"{path.name}, rank {rank}, {what}:\n  ours   {own}\n  theirs {other}"


def main():
    if not PROTOTYPE.is_dir():
        print("SKIPPED: the prototype is not beside this checkout, so there is no second witness")
        sys.exit(SKIPPED)
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(PROTOTYPE))
    import proto  # pylint: disable=import-error,import-outside-toplevel

    found, ranks, refused = [], 0, []
    paths = sorted((ROOT / "examples/plans").glob("*.plan"))
    paths += sorted((PROTOTYPE.parent / "plans").glob("*.plan"))
    for path in paths:
        try:
            plan = proto.parse(path.read_text(encoding="utf-8"))
            expanded = [proto.expand(plan, rank) for rank in range(proto.world(plan))]
        except proto.Bad as error:
            refused.append(f"{path.name}: {error}")
            continue
        for rank, expected in enumerate(expanded):
            ranks += 1
            found += differences(path, rank, expected, proto.peak(expected))
    print("\n".join(found[:20]))
    for line in refused:
        print("the prototype refuses", line)
    print(f"{ranks} ranks of {len(paths) - len(refused)} plans, {len(found)} differences")
    sys.exit(1 if found or refused or ranks == 0 else 0)


if __name__ == "__main__":
    main()
