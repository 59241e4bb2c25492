"""Starts the two processes of a benchmark: on this host, or on two hosts with a slow link
(tools/testbed), which needs root. A process is the benchmark itself, with `--work WORDS`.
"""

import json
import os
import pathlib
import signal
import socket
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
TESTBED = ROOT / "tools" / "testbed"
HOST = "192.0.2.1"  # of rank 0
BURST = 65536  # bytes that pass a link at once, after a pause
MAX_RATIO = 1.1  # of two times of the same call


def are_alike(times):
    return max(times) < MAX_RATIO * min(times)


def spread(values, name=""):
    prefix = f"{name}_" if name else ""
    return {name or "median": statistics.median(values), f"{prefix}min": min(values),
            f"{prefix}max": max(values)}


def least_ms(sent_bytes, megabits):
    """The milliseconds that a throttled link needs for them."""
    return (sent_bytes - BURST) * 8 / megabits / 1e3


def _free_port():
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


def run_ranks(script, words, *, on_hosts, timeout, pinned=False, env=None):
    """Runs it with `--work WORDS` on `words["size"]` ranks; returns what rank 0 printed last, JSON.
    Each has its `rank` and the `coordinator` in addition, and keeps to a core if `pinned`."""
    words = {**words, "coordinator": f"{HOST if on_hosts else '127.0.0.1'}:{_free_port()}"}
    processes = []
    try:
        for rank in range(words["size"]):
            prefix = [str(TESTBED), "exec", f"h{rank}", "--"] if on_hosts else []
            processes.append(subprocess.Popen(
                [*prefix, sys.executable, script, "--work", json.dumps({**words, "rank": rank})],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                preexec_fn=(lambda core=rank: os.sched_setaffinity(0, {core})) if pinned else None,
                env={**os.environ, **(env or {})}))
        texts = [process.communicate(timeout=timeout)[0] for process in processes]
        if any(process.returncode for process in processes):
            raise SystemExit(f"{pathlib.Path(script).stem}: a process failed")
        return json.loads(texts[0].splitlines()[-1])  # JAX's gloo prints lines before
    finally:
        for process in processes:
            process.kill()
            process.wait()


def run_on_testbed(script, words, *, megabits, timeout):
    """Runs the script on a testbed of its own, which checks that links are throttled; returns what
    it printed as JSON."""
    made = subprocess.run(
        [str(TESTBED), "run", "--hosts", "2", "--rate", f"{megabits}mbit", "--", sys.executable,
         script, *words], stdout=subprocess.PIPE, text=True, timeout=timeout, check=False)
    if made.returncode:
        raise SystemExit(made.returncode)
    return json.loads(made.stdout[made.stdout.index("{"):])


def end_ranks_on_sigterm():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
