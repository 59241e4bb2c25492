"""Runs one job script as one rank and writes its dumps when the job makes no progress.

A daemon thread counts the recorded and retired entries. When the count is unchanged for HUNG_QUIET
seconds (or HUNG_AFTER seconds after the first entry, if set) it writes rank_N.pkl, rank_N.json and
rank_N.stacks.txt (the stacks of this process, in the format of `py-spy dump`) to HUNG_OUT.
"""

import json
import os
import runpy
import sys
import threading
import time

import torch
from torch._C import _distributed_c10d as c10d


def stacks(script):
    names = {t.ident: (t.native_id, t.name) for t in threading.enumerate()}
    version = sys.version.split()[0]
    text = [f"Process {os.getpid()}: python {script}",
            f"Python v{version} (/usr/bin/python{'.'.join(version.split('.')[:2])})", ""]
    for ident, frame in sys._current_frames().items():
        native, name = names.get(ident, (ident, "unknown"))
        if name == "dump":
            continue
        text.append(f'Thread {native} (idle): "{name}"')
        while frame is not None:
            code, line = frame.f_code, frame.f_lineno
            text.append(f"    {code.co_name} ({os.path.basename(code.co_filename)}:{line})")
            frame = frame.f_back
    return "\n".join(text) + "\n"


def watch(rank, out, script, quiet, after):
    first = since = seen = None
    while True:
        time.sleep(0.05)
        text = c10d._dump_fr_trace_json(includeCollectives=True, onlyActive=False)
        entries = json.loads(text).get("entries", [])
        now = time.time()
        if not entries:
            continue
        first = first or now
        state = (entries[-1]["record_id"], sum(e["retired"] for e in entries))
        if state != seen:
            seen, since = state, now
        if (after and now - first >= after) or (not after and now - since >= quiet):
            break
    everything = {"includeCollectives": True, "onlyActive": False}
    for name, data in (("pkl", c10d._dump_fr_trace(includeStackTraces=True, **everything)),
                       ("json", c10d._dump_fr_trace_json(**everything)),
                       ("stacks.txt", stacks(script))):
        with open(os.path.join(out, f"rank_{rank}.{name}"), "wb") as f:
            f.write(data if isinstance(data, bytes) else data.encode())
    open(os.path.join(out, f"rank_{rank}.done"), "w").close()


def main():
    script = sys.argv[1]
    torch.set_num_threads(1)
    out, rank = os.environ["HUNG_OUT"], int(os.environ["RANK"])
    threading.Thread(target=watch, name="dump", daemon=True,
                     args=(rank, out, "train.py", float(os.environ["HUNG_QUIET"]),
                           float(os.environ["HUNG_AFTER"]))).start()
    try:
        runpy.run_path(script, run_name="__main__")  # line 68 in all dumps
    except BaseException as error:  # like a launcher: keeps the process until the others dumped
        with open(os.path.join(out, f"rank_{rank}.error.txt"), "w", encoding="utf-8") as f:
            f.write(f"{type(error).__name__}: {error}\n")
        time.sleep(80)
    os._exit(0)


main()
