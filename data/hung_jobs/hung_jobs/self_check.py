"""Reads generated jobs back, and checks that dumps and answers do not contradict each other."""

import argparse
import hashlib
import json
import os
import pickle
import shutil
import tempfile

from hung_jobs.jobs import generate


def read_dumps(folder, answer):
    """{rank: dump} of the files that are not cut; None if their names do not hold the ranks."""
    dumps = {}
    for file in sorted(os.listdir(folder)):
        if answer["names"] == "host":
            return None
        digits = file.split("rank")[1].lstrip("_").split(".")[0].split("_")[0]
        with open(os.path.join(folder, file), "rb") as f:
            data = f.read()
        if int(digits) in answer["truncated_dumps"]:
            continue
        dumps[int(digits)] = json.loads(data) if data[:1] == b"{" else pickle.loads(data)
    return dumps


def check_job(path):
    """The contradictions of one job, and how many completed collectives were checked."""
    with open(os.path.join(path, "answer.json"), encoding="utf-8") as f:
        answer = json.load(f)
    dumps = read_dumps(os.path.join(path, "dumps"), answer)
    if dumps is None:
        return [], 0
    problems = check_record_ids(dumps)
    table = collectives(dumps) if answer["backend"] == "nccl" else {}
    found, checked = check_completed(dumps, table, answer["hang"])
    problems += found
    if answer["hang"]:
        if not any(e["state"] != "completed" and not e["retired"]
                   for d in dumps.values() for e in d.get("entries", [])):
            problems.append("nothing waits in a hung job")
    else:
        for key, es in table.items():
            if len({(e["profiling_name"], str(e["input_dtypes"])) for e in es.values()}) > 1:
                problems.append(f"{key}: mismatch in a healthy job")
    return problems + check_culprits(dumps, answer), checked


def check_record_ids(dumps):
    """Record ids increase."""
    problems = []
    for r, d in dumps.items():
        last = -1
        for e in d.get("entries", []):
            if e["record_id"] <= last:
                problems.append(f"rank {r}: record_id does not increase")
            last = e["record_id"]
    return problems


def collectives(dumps):
    """{(group name, its ranks as text, sequence number): {rank: entry}}."""
    table = {}
    for r, d in dumps.items():
        for e in d.get("entries", []):
            if not e["is_p2p"]:
                name = e["process_group"][0]
                key = (name, d["pg_config"][name]["ranks"], e["collective_seq_id"])
                table.setdefault(key, {})[r] = e
    return table


def check_completed(dumps, table, hang):
    """A collective that completed anywhere was started by all members with equal arguments."""
    problems, checked = [], 0
    for (name, ranks, seq), es in table.items():
        if not any(e["state"] == "completed" for e in es.values()):
            continue
        checked += 1
        what = f"group {name} seq {seq}: completed"
        some = next(iter(es.values()))
        for r in json.loads(ranks):
            if r not in dumps:
                continue
            e = es.get(r)
            if not hang and (e is None or e["state"] == "scheduled"):
                continue  # the ranks of a moving job do not dump at the same instant
            if e is None:
                if not evicted(dumps[r].get("entries", []), name, seq):
                    problems.append(f"{what}, but rank {r} did not call it")
                continue
            if e["state"] == "scheduled":
                problems.append(f"{what}, but rank {r} did not start it")
            if not same_arguments(e, some):
                problems.append(f"{what} with different arguments on rank {r}")
    return problems, checked


def evicted(entries, name, seq):
    """Whether the entry of this collective may have been overwritten by later ones."""
    kept = [e["collective_seq_id"] for e in entries
            if e["process_group"][0] == name and not e["is_p2p"]]
    if kept:
        return min(kept) >= seq
    return bool(entries) and entries[0]["record_id"] != 0


def same_arguments(e, other):
    """Whether two entries can be of one collective; all_to_all may have different sizes."""
    return (e["profiling_name"] == other["profiling_name"] and
            e["input_dtypes"] == other["input_dtypes"] and
            (e["input_sizes"] == other["input_sizes"] or "all_to_all" in e["profiling_name"]))


def check_culprits(dumps, answer):
    """A culprit has a dump unless it died; one that is stuck on its CPU waits for nobody."""
    problems = []
    for f in answer["faults"]:
        for c in f["culprits"]:
            if (c in dumps) == (f["class"] == "absent") and c not in answer["truncated_dumps"]:
                state = "present" if c in dumps else "missing"
                problems.append(f"culprit {c} of class {f['class']}: dump {state}")
            if f["class"] == "cpu_stuck" and answer["backend"] == "nccl" and any(
                    e["state"] != "completed" and e["profiling_name"] != "nccl:coalesced" and
                    not e["is_p2p"] for e in dumps[c].get("entries", [])):
                problems.append(f"culprit {c} is stuck on its CPU but waits in a collective")
    return problems


def digest(folder):
    """A hash of the names and contents of all files."""
    h = hashlib.sha256()
    for root, dirs, files in os.walk(folder):
        dirs.sort()
        for name in sorted(files):
            h.update(name.encode())
            with open(os.path.join(root, name), "rb") as f:
                h.update(f.read())
    return h.hexdigest()


def self_check(args):
    """Generates and checks jobs of each setting; returns the exit code."""
    bad = checked = total = 0
    temp = tempfile.mkdtemp()
    try:
        for label, changes in (("faults 1", {}),
                               ("faults 1, missing 0.1, last 50", {"missing": 0.1, "last": 50}),
                               ("faults 2", {"faults": 2}), ("faults 0", {"faults": 0})):
            a = argparse.Namespace(**{**vars(args), **changes})
            out = os.path.join(temp, label.replace(" ", "_").replace(",", ""))
            generate(a, out, args.jobs, args.seed, quiet=True)
            for name in sorted(os.listdir(out)):
                problems, n = check_job(os.path.join(out, name))
                checked += n
                total += 1
                for p in problems[:3]:
                    print(f"{name}: {p}")
                bad += bool(problems)
        first = digest(out)
        shutil.rmtree(out)
        generate(a, out, args.jobs, args.seed, quiet=True)
        same = digest(out) == first
    finally:
        shutil.rmtree(temp)
    print(f"{total} jobs, {checked} completed collectives checked, {bad} jobs with contradictions, "
          f"same seed gives {'the same' if same else 'DIFFERENT'} bytes")
    return 0 if not bad and same and checked else 1
