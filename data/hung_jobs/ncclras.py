#!/usr/bin/env python3
"""What ncclras would have said of a job: JSON made from its dumps, and how far that alone leads.

    SHIPLAP_PROGRAM=shiplap python3 data/hung_jobs/ncclras.py DIR       jobs of generate.py
    python3 data/hung_jobs/ncclras.py JOB --write ras.json              of one job

Counts of collectives are those that a rank has recorded, whether they completed or not. Messages
and all-to-alls are not counted, as in NCCL. A rank without a dump is dead. Jobs whose dumps have
lost calls are left out, because the counts are those of the whole job.
"""

import argparse
import collections
import json
import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path

KINDS = {"broadcast": "Broadcast", "reduce": "Reduce", "all_gather": "AllGather",
         "_all_gather_base": "AllGather", "reduce_scatter": "ReduceScatter",
         "_reduce_scatter_base": "ReduceScatter", "all_reduce": "AllReduce",
         "all_reduce_barrier": "AllReduce"}
NAMES = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")


def load(path):
    data = path.read_bytes()
    return pickle.loads(data) if data[:1] == b"\x80" else json.loads(data)


def counts_of(dump):
    """The members of each group, and how often each kind was called on it."""
    counts = {}
    for key, group in dump["pg_config"].items():
        counts[group.get("name", key)] = (tuple(json.loads(group["ranks"])), collections.Counter())
    for entry in dump.get("entries", []):
        kind = KINDS.get(entry["profiling_name"].split(":")[-1].split(" ")[0])
        group = counts.get(entry["process_group"][0])  # some dumps do not list it
        if kind and group:
            group[1][kind] += 1
    return counts


def place_of(rank, local):
    return {"rank": local, "host": f"10.0.0.{1 + rank // 8}", "pid": 1000 + rank,
            "cuda_dev": rank % 8, "nvml_dev": rank % 8}


def member(rank, local, counts):
    return place_of(rank, local) | {
        "status": {"init_state": 0, "async_error": 0, "finalize_called": False,
                   "destroy_flag": False, "abort_flag": False},
        "collective_counts": {name: counts[name] for name in NAMES}}


def missing(rank, local):
    return place_of(rank, local) | {"status": {"unresponsive": True, "considered_dead": True}}


def report_of(job, answer):
    """What ncclras -f json prints; None if the dumps have lost calls."""
    groups = {}
    for path in sorted((job / "dumps").iterdir()):
        if answer["file_ranks"][path.name] in answer.get("truncated_dumps", []):
            return None
        dump = load(path)
        if any(entry["record_id"] > 0 for entry in dump.get("entries", [])[:1]):
            return None
        for name, (ranks, counts) in counts_of(dump).items():
            groups.setdefault((name, ranks), {})[answer["file_ranks"][path.name]] = counts
    communicators = []
    for number, ((_, ranks), counts) in enumerate(sorted(groups.items()), 1):
        here = [member(rank, k, counts[rank]) for k, rank in enumerate(ranks) if rank in counts]
        lost = [missing(rank, k) for k, rank in enumerate(ranks) if rank not in counts]
        communicators.append({"hash": hex(number), "size": len(ranks), "ranks_count": len(here),
                              "missing_ranks_count": len(lost), "ranks": here,
                              "missing_ranks": lost})
    return {"nccl_version": "2.29.7", "timestamp": "", "communicators_count": len(communicators),
            "communicators": communicators}


def verdict(found, answer):
    """Whether the first suspect is a culprit."""
    suspects = found["suspects"]
    if not answer["hang"]:
        return "healthy, blamed" if found["status"] == "hung" else "healthy, not blamed"
    if not suspects or not suspects[0]["ranks"]:
        return "nobody is named"
    accepted = [set(ranks) for fault in answer["faults"]
                for ranks in [fault["culprits"], *fault.get("acceptable", [])]]
    if any(set(suspects[0]["ranks"]) <= ranks for ranks in accepted):
        return "the culprit is named first"
    is_sure = found["status"] == "hung" or suspects[0]["confidence"] >= 0.7
    return "another rank is named" + (", with 70 % or more" if is_sure else "")


def ask(program, report, world):
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(report, file)
        file.flush()
        done = subprocess.run([program, "postmortem", "--json", "--world", str(world), file.name],
                              capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        sys.exit(done.stderr)
    return json.loads(done.stdout)


def score(program, folder):
    """How many jobs have which verdict."""
    counts = collections.Counter()
    for path in sorted(folder.glob("*/answer.json")):
        answer = json.loads(path.read_text(encoding="utf-8"))
        report = report_of(path.parent, answer)
        if report is None:
            counts["left out"] += 1
        else:
            counts[verdict(ask(program, report, answer["world"]), answer)] += 1
    return counts


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("folder", type=Path, help="jobs, or with --write one job")
    parser.add_argument("--write", type=Path, help="a file for the JSON of one job")
    args = parser.parse_args()
    if args.write:
        answer = json.loads((args.folder / "answer.json").read_text(encoding="utf-8"))
        args.write.write_text(json.dumps(report_of(args.folder, answer)), encoding="utf-8")
        return
    for name, count in score(os.environ["SHIPLAP_PROGRAM"], args.folder).most_common():
        print(f"{count:5}  {name}")


if __name__ == "__main__":
    main()
