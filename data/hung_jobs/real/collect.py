#!/usr/bin/env python3
"""Runs the jobs of `jobs/` with torch.distributed (gloo) until they hang, and collects their dumps.

Run with a Python that has torch:  python collect.py [--only NAME] [--out DIR]
Each rank is one process with the flight recorder on, and talks to the others over the loopback. The
ranks dump themselves (run_rank.py); this script ends the processes by their ids, replaces the paths
of this machine in the dumps (byte by byte: no other change), and writes DIR/NAME/dumps/rank_N.pkl,
DIR/NAME/json/rank_N.json, DIR/NAME/stacks/rank_N.stacks.txt and DIR/NAME/answer.json.
"""

import argparse
import json
import os
import pickletools
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))


def line_of(job, text, nth=1):
    """JOB.py:LINE of the nth line of the job that contains `text`."""
    with open(os.path.join(HERE, "jobs", job + ".py"), encoding="utf-8") as f:
        hits = [n for n, line in enumerate(f, 1) if text in line]
    return f"{job}.py:{hits[nth - 1]}"


def fault(job, culprits, cls, why, line=None, waiting=None, divergence=None, also=(), acceptable=(),
          identifiable="unique", **more):
    f = {"kind": job, "culprits": culprits, "acceptable": [list(a) for a in acceptable],
         "class": cls, "identifiable": identifiable, "line": line, "waiting_line": waiting,
         "why": why}
    if divergence:
        f.update(divergence=divergence, divergence_also=list(also))
    f.update(more)
    return f


def jobs():
    """{name: (world, mesh, seconds after the first entry or 0, fault)}"""
    L = line_of
    mismatch = ["operation", "size", "dtype", "order", "skipped", "extra"]
    return {
        "skips_operation": (4, {"dp": 4}, 0, fault(
            "skips_operation", [2], "divergence",
            "Rank 2 skips the gradient all_reduce of step 5 and calls reduce.",
            L("skips_operation", "dist.reduce(loss"),
            L("skips_operation", "dist.all_reduce(weight.grad"), "skipped", mismatch)),
        "extra_operation": (4, {"dp": 4}, 0, fault(
            "extra_operation", [1], "divergence",
            "Rank 1 calls an all_reduce of its own before the common one.",
            L("extra_operation", "dist.all_reduce(statistics"),
            L("extra_operation", "dist.barrier"), "extra", mismatch)),
        "extra_operation_aborts": (4, {"dp": 4}, 0, fault(
            "extra_operation_aborts", [1], "absent",
            "Rank 1 calls an all_reduce of 3 elements of its own; gloo aborts it on the size "
            "mismatch, so it has no dump.", None,
            L("extra_operation_aborts", "dist.all_reduce(weight.grad"))),
        "dies": (4, {"dp": 4}, 0, fault(
            "dies", [3], "absent", "Rank 3 was killed and left no dump.", None,
            L("dies", "dist.all_reduce(weight.grad"))),
        "stopped": (4, {"dp": 4}, 0, fault(
            "stopped", [1], "absent", "Rank 1 is stopped and cannot dump.", None,
            L("stopped", "dist.all_reduce(weight.grad"))),
        "wrong_size": (4, {"dp": 4}, 0, fault(
            "wrong_size", [3], "absent",
            "Rank 3 gathers 5 elements, the others 8; gloo aborts rank 3 because it receives more "
            "than its buffer holds, so it has no dump.", None,
            L("wrong_size", "dist.all_gather(gathered"))),
        "wrong_dtype": (4, {"dp": 4}, 0, fault(
            "wrong_dtype", [2], "divergence",
            "Rank 2 reduces Double, the others Float. Its neighbour rank 1 receives more than its "
            "buffer holds: gloo aborts rank 1, which has no dump.",
            L("wrong_dtype", "dist.all_reduce(gradient"),
            L("wrong_dtype", "dist.all_reduce(gradient"), "dtype", acceptable=[[1, 2]])),
        "wrong_order": (8, {"dp": 2, "tp": 4}, 0, fault(
            "wrong_order", [5], "order_across_groups",
            "Rank 5 enters the world group before its tp group; ranks 4, 6, 7 do the opposite.",
            L("wrong_order", "dist.all_reduce(tokens"),
            L("wrong_order", "dist.all_reduce(activation"), "order")),
        "data_loader_sleeps": (8, {"dp": 4, "tp": 2}, 0, fault(
            "data_loader_sleeps", [6], "cpu_stuck",
            "Rank 6 sleeps in its data loader; all its calls are complete.",
            None, L("data_loader_sleeps", "dist.broadcast"),
            stuck_line=L("data_loader_sleeps", "time.sleep"))),
        "save_on_rank_0": (4, {"dp": 4}, 0, fault(
            "save_on_rank_0", [0], "divergence",
            "Rank 0 calls an all_gather in a branch of its own.",
            L("save_on_rank_0", "dist.all_gather(norms"),
            L("save_on_rank_0", "dist.all_reduce(loss"), "extra", mismatch)),
        "healthy": (8, {"dp": 2, "tp": 4}, 2.0, fault(
            "healthy", [], "none", "A dump in the middle of a step; all ranks move.",
            identifiable="none")),
        "message_cycle": (4, {"ring": 4}, 0, fault(
            "message_cycle", [0, 1, 2, 3], "message_cycle",
            "All ranks receive before they send. gloo records no sends or receives: only the "
            "stacks show it.",
            L("message_cycle", "dist.recv(received"), L("message_cycle", "dist.recv(received"),
            identifiable="stacks", acceptable=[[]])),
        "uneven_microbatches": (4, {"pp": 4}, 0, fault(
            "uneven_microbatches", [1], "divergence",
            "Rank 1 runs 3 microbatches, the others 4. gloo records no sends or receives.",
            None, None, "microbatches", mismatch, identifiable="stacks",
            acceptable=[[], [0], [0, 1], [1, 2], [0, 1, 2]])),
    }


def rewrite_pickle(data, substitute):
    """Replaces text in the strings of a protocol-2 pickle; all other bytes stay as they are."""
    out, ops = [], list(pickletools.genops(data))
    for (op, arg, pos), end in zip(ops, [p for _, _, p in ops[1:]] + [len(data)]):
        if op.name == "BINUNICODE":
            text = substitute(arg).encode()
            out.append(b"X" + struct.pack("<I", len(text)) + text)
        else:
            out.append(data[pos:end])
    return b"".join(out)


def substitute(text):
    """Replaces the paths of this machine."""
    text = re.sub(r"/[^\s\"':]*/site-packages/", "/usr/local/lib/python3.11/site-packages/", text)
    text = re.sub(r"/[^\s\"':]*/real/(jobs/)?", "/app/", text)
    return re.sub(r"/[^\s\"':]*/lib/python3\.11/(?!site-packages)", "/usr/lib/python3.11/", text)


def run(name, world, mesh, after, f, out):
    """Runs one job and writes its folder."""
    temp = tempfile.mkdtemp()
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    children = []
    for rank in range(world):
        env = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1",
                   MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo", TORCH_FR_BUFFER_SIZE="2000",
                   HUNG_OUT=temp, HUNG_QUIET="3", HUNG_AFTER=str(after), OMP_NUM_THREADS="1")
        if after:
            env["TORCH_FR_BUFFER_SIZE"] = "30"  # the history is evicted
        children.append(subprocess.Popen([sys.executable, os.path.join(HERE, "run_rank.py"),
                                          os.path.join(HERE, "jobs", name + ".py")], env=env,
                                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
    absent = f["culprits"] if f["class"] == "absent" else []
    deadline = time.time() + 90
    while time.time() < deadline:
        done = [r for r in range(world) if os.path.exists(os.path.join(temp, f"rank_{r}.done"))]
        ended = [r for r, c in enumerate(children) if c.poll() is not None]
        if set(done) | set(ended) | set(absent) == set(range(world)):
            break
        time.sleep(0.1)
    before_kill = set(os.listdir(temp))
    exits = {str(r): c.returncode for r, c in enumerate(children) if c.poll() is not None}
    for child in children:
        if child.poll() is None:
            child.send_signal(signal.SIGKILL)
        child.wait()
    target = os.path.join(out, name)
    shutil.rmtree(target, ignore_errors=True)
    for folder in ("dumps", "json", "stacks"):
        os.makedirs(os.path.join(target, folder))
    errors, dumped_at = {}, {}
    for file in sorted(os.listdir(temp)):
        with open(os.path.join(temp, file), "rb") as g:
            data = g.read()
        if file.endswith(".pkl"):
            dumped_at[file] = os.stat(os.path.join(temp, file)).st_mtime_ns
            with open(os.path.join(target, "dumps", file), "wb") as g:
                g.write(rewrite_pickle(data, substitute))
        elif file.endswith(".json") or file.endswith(".stacks.txt"):
            folder = "json" if file.endswith(".json") else "stacks"
            with open(os.path.join(target, folder, file), "wb") as g:
                g.write(substitute(data.decode()).encode())
        elif file.endswith(".error.txt") and file in before_kill:
            # Only the message: the ports and paths of this machine say nothing.
            text = re.sub(r"\[.*?\]|127\.0\.0\.1:\d+|\bin .*?/[^ ]*", "",
                          data.decode().split("\n")[0])
            errors[file.split("_")[1].split(".")[0]] = " ".join(text.split())[:160]
    shutil.rmtree(temp)
    answer = {"name": name, "kind": name, "hang": f["class"] != "none", "world": world,
              "mesh": mesh, "backend": "gloo", "faults": [f], "why": f["why"], "missing_dumps": [],
              "truncated_dumps": [], "errors": errors, "exits": exits, "dumped_at_ns": dumped_at}
    with open(os.path.join(target, "answer.json"), "w", encoding="utf-8") as g:
        json.dump(answer, g, indent=1)
        g.write("\n")
    dumps = sorted(os.listdir(os.path.join(target, "dumps")))
    size = sum(os.path.getsize(os.path.join(r, x)) for r, _, fs in os.walk(target) for x in fs)
    print(f"{name:22s} {len(dumps)} of {world} dumps, {size // 1024} KB, exits: {exits}, "
          f"errors: {list(errors)}",
          flush=True)


def restore_times(out):
    """Sets the modification times of the dumps to when each was written; a checkout loses them."""
    for name in jobs():
        with open(os.path.join(out, name, "answer.json"), encoding="utf-8") as f:
            times = json.load(f)["dumped_at_ns"]
        for file, ns in times.items():
            os.utime(os.path.join(out, name, "dumps", file), ns=(ns, ns))
            os.utime(os.path.join(out, name, "json", file.replace(".pkl", ".json")), ns=(ns, ns))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only")
    parser.add_argument("--out", default=HERE)
    parser.add_argument("--restore-times", action="store_true",
                        help="only set the file times of the dumps")
    args = parser.parse_args()
    if args.restore_times:
        restore_times(args.out)
        return
    for name, (world, mesh, after, f) in jobs().items():
        if args.only in (None, name):
            run(name, world, mesh, after, f, args.out)


if __name__ == "__main__":
    main()
