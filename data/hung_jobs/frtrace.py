#!/usr/bin/env python3
"""Scores torchfrtrace (torch.distributed.flight_recorder) on the jobs of this benchmark.

Run with a Python that has torch:  python frtrace.py DIR [--json results.json] [--max N]
DIR holds job folders as written by generate.py or real/collect.py.

torchfrtrace gets all the help it needs: files are named nccl_trace_rank_N, JSON dumps are converted
to pickles (it reads no JSON), truncated files are removed, and --allow-incomplete-ranks is given
when a dump is missing. Read from its output: "Culprit rank N" and "missing ranks: {...}", in the
order printed.

  first      the first message names the culprits, an acceptable answer, or a part of the culprits,
             and no other rank
  anywhere   all culprits (or an acceptable answer) are named somewhere
  innocents  a rank is named that is in no acceptable answer
  silent     no rank is named; for a job that does not hang this is right (so is naming the slow
             rank alone)
  right      first, or rightly silent
  refuses    it ends with its own check (missing dumps, versions differ)
  crashes    it ends with another exception, or takes more than --seconds
"""

import argparse
import collections
import io
import json
import logging
import os
import pickle
import re
import shutil
import signal
import sys
import tempfile


def rank_of(name, answer):
    ranks = answer.get("file_ranks")
    return ranks[name] if ranks else int(re.search(r"(\d+)\D*$", name.replace(".pkl", "")).group(1))


def repaired(dumps, world):
    """Fills in the groups that the entries name (--repair-groups).

    gloo writes one wrong group into pg_config.
    """
    groups = {}
    for rank, dump in dumps.items():
        for e in dump["entries"]:
            groups.setdefault(tuple(e["process_group"]), set()).add(rank)
    for rank, dump in dumps.items():
        dump["pg_config"] = {
            name: {"name": name, "desc": desc,
                   "ranks": str(list(range(world)) if desc == "default_pg" else sorted(ranks))}
            for (name, desc), ranks in groups.items() if rank in ranks}


def prepare(job, answer, folder, repair):
    """Writes the dumps as torchfrtrace wants them. Returns the number of files."""
    count, loaded = 0, {}
    source = os.path.join(job, "dumps")
    for name in sorted(os.listdir(source)):
        rank = rank_of(name, answer)
        if rank in answer["truncated_dumps"]:
            continue
        path = os.path.join(source, name)
        target = os.path.join(folder, f"nccl_trace_rank_{rank}")
        with open(path, "rb") as f:
            data = f.read()
        if data[:1] == b"{":
            dump = json.loads(data)
            dump.setdefault("entries", [])
            for e in dump["entries"]:
                e["frames"] = []
                e["process_group"] = tuple(e["process_group"])
            data = pickle.dumps(dump, protocol=2)
        with open(target, "wb") as f:
            f.write(data)
        count += 1
        if repair and answer["backend"] == "gloo":
            loaded[target] = (rank, pickle.loads(data))
    repaired({rank: dump for rank, dump in loaded.values()}, answer["world"])
    for target, (rank, dump) in loaded.items():
        with open(target, "wb") as f:
            pickle.dump(dump, f, protocol=2)
    return count


def run(job, answer, seconds, repair):
    """Returns (text, outcome) of torchfrtrace in a child process.

    The outcome is "ok", "refuses: ..." or "crashes: ...".
    """
    folder = tempfile.mkdtemp()
    result = tempfile.NamedTemporaryFile(delete=False)
    try:
        count = prepare(job, answer, folder, repair)
        args = [folder, "-p", "nccl_trace_rank_"]
        if count < answer["world"]:
            args.append("--allow-incomplete-ranks")
        child = os.fork()
        if child == 0:
            outcome = "ok"
            signal.alarm(seconds)
            text = io.StringIO()
            log = logging.getLogger("Flight Recorder")
            log.handlers = [logging.StreamHandler(text)]
            sys.stdout = sys.stderr = text
            try:
                from torch.distributed.flight_recorder.components import utils
                from torch.distributed.flight_recorder.fr_trace import main as fr_main
                if not hasattr(utils, "tabulate"):  # an optional dependency it cannot do without
                    utils.tabulate = lambda rows, headers=(): "\n".join(str(r) for r in rows)
                fr_main(args)
            except AssertionError as e:
                own = str(e).startswith(("Missing dump", "Rank ", "no files"))
                outcome = f"{'refuses' if own else 'crashes'}: AssertionError {str(e)[:100]}"
            except BaseException as e:  # the outcome is the score
                outcome = f"crashes: {type(e).__name__} {str(e)[:100]}"
            with open(result.name, "w", encoding="utf-8") as f:
                json.dump([text.getvalue(), outcome], f)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            return "", f"crashes: signal {os.WTERMSIG(status)} (time limit {seconds} s)"
        with open(result.name, encoding="utf-8") as f:
            return tuple(json.load(f))
    finally:
        shutil.rmtree(folder)
        os.unlink(result.name)


def named(text):
    """The ranks named by each message, in the order printed."""
    out = []
    for line in text.splitlines():
        ranks = {int(r) for r in re.findall(r"Culprit rank (\d+)", line)}
        m = re.match(r"missing ranks: \{([^}]*)\}", line)
        if m:
            ranks |= {int(r) for r in m.group(1).split(",") if r.strip()}
        if ranks:
            out.append(ranks)
    return out


def score(answer, text, outcome):
    s = dict.fromkeys(("first", "anywhere", "innocents", "silent", "refuses", "crashes", "right"),
                      False)
    if outcome != "ok":
        s[outcome.split(":")[0]] = True
    messages = named(text)
    everyone = set().union(*messages) if messages else set()
    good = set()
    for f in answer["faults"]:
        good |= set(f["culprits"])
        for a in f["acceptable"]:
            good |= set(a)
    s["silent"] = outcome == "ok" and not messages
    s["innocents"] = bool(everyone - good) if answer["hang"] else bool(everyone)
    if answer["hang"]:
        options = [[set(f["culprits"])] + [set(a) for a in f["acceptable"]]
                   for f in answer["faults"]]
        if messages:
            s["first"] = any(messages[0] in o or messages[0] <= o[0] for o in options)
        s["anywhere"] = all(any(a and a <= everyone for a in o) for o in options)
        s["right"] = s["first"] or (s["silent"] and all(set() in o for o in options))
    else:
        slow = set().union(*(set(x["culprits"]) for x in answer["faults"]))
        s["first"] = bool(slow) and bool(messages) and messages[0] == slow
        s["innocents"] = bool(everyone - slow)
        s["right"] = s["silent"] or (s["first"] and not s["innocents"])
    return s


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("dir")
    parser.add_argument("--json")
    parser.add_argument("--max", type=int, default=0, help="at most this many jobs")
    parser.add_argument("--seconds", type=int, default=60, help="time limit per job")
    parser.add_argument("--repair-groups", action="store_true",
                        help="give gloo dumps the groups they lack")
    args = parser.parse_args()
    import torch.distributed.flight_recorder.fr_trace  # noqa: F401 (loaded once, before the forks)
    table = collections.defaultdict(collections.Counter)
    results = {}
    jobs = sorted(j for j in os.listdir(args.dir)
                  if os.path.exists(os.path.join(args.dir, j, "answer.json")))
    for job in jobs[:args.max or None]:
        path = os.path.join(args.dir, job)
        with open(os.path.join(path, "answer.json"), encoding="utf-8") as f:
            answer = json.load(f)
        text, outcome = run(path, answer, args.seconds, args.repair_groups)
        s = score(answer, text, outcome)
        results[job] = {"kind": answer["kind"], "outcome": outcome, "lines": text.count("\n"),
                        "named": [sorted(m) for m in named(text)[:20]], **s}
        for kind in (answer["kind"], "all"):
            table[kind]["jobs"] += 1
            for k, v in s.items():
                table[kind][k] += v
    columns = ("jobs", "right", "first", "anywhere", "innocents", "silent", "refuses", "crashes")
    print(f"{'kind':26s}" + "".join(f"{c:>10s}" for c in columns))
    for kind in sorted(table, key=lambda k: (k == "all", k)):
        print(f"{kind:26s}" + "".join(f"{table[kind][c]:10d}" for c in columns))
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump({"table": {k: dict(v) for k, v in table.items()}, "jobs": results}, f,
                      indent=1)
            f.write("\n")


if __name__ == "__main__":
    main()
