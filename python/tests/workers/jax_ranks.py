"""Starts JAX on several processes, each of which tries all cases of a suite.

A suite is a function in a module of this folder: it gets a Setting and gives (name, case) one after
the other, the same on all processes. A case raises if something is wrong. Starting JAX takes
seconds, so a start serves many cases; one that fails does not keep the next from being tried.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import importlib
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
from typing import Any


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@dataclasses.dataclass
class Start:
    """The arguments of a process."""

    suite: str  # module:function
    processes: int
    devices: int
    port: int
    timeout: float
    seed: int
    arguments: dict[str, Any]


def failures(suite: str, processes: int, devices: int = 1, *, timeout: float = 150,
             seed: int = 1, least: int = 1, threads: int = 0, **arguments: Any) -> str:
    """The failures of the cases of a suite, or "". Fails if a process times out, or if fewer than
    ``least`` cases ran. XLA has ``threads`` threads, or one per core."""
    start = Start(suite, processes, devices, _free_port(), timeout, seed, arguments)
    here = pathlib.Path(__file__).resolve()
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1",
                   "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
                   "PYTHONFAULTHANDLER": "1"}
    if threads:
        environment["NPROC"] = str(threads)
    begun, running, texts = time.monotonic(), [], []
    with tempfile.TemporaryDirectory() as folder:
        said = [pathlib.Path(folder, f"{k}.json") for k in range(processes)]
        wrote = [pathlib.Path(folder, f"{k}.txt") for k in range(processes)]
        try:
            for k in range(processes):
                with wrote[k].open("wb") as errors:
                    running.append(subprocess.Popen(
                        [sys.executable, str(here), json.dumps(dataclasses.asdict(start)), str(k),
                         str(said[k])], stdout=errors, stderr=errors, env=environment))
            for process in running:
                process.wait(timeout=max(1.0, begun + timeout - time.monotonic()))
        except subprocess.TimeoutExpired:
            texts.append(f"not all processes ended within {timeout} s")
        finally:
            for process in running:
                process.kill()
                process.wait()
        count = 0
        for k, process in enumerate(running):
            lines = said[k].read_text().splitlines() if said[k].exists() else []
            found = [json.loads(line) for line in lines]
            count = max(count, len(found))
            texts += [f"process {k}, {one['case']}: {one['error']}" for one in found
                      if one["error"]]
            if process.returncode != 0:
                tried = found[-1]["case"] if found else "none"
                texts.append(f"process {k} ended with {process.returncode}; the last case that it "
                             f"finished was: {tried}\n{wrote[k].read_text()[-6000:]}")
    if count < least and not texts:
        texts.append(f"only {count} cases were tried")
    if texts:
        texts.insert(0, f"{suite} on {processes} processes x {devices} devices, seed {seed}:")
    else:
        print(f"{suite} on {processes} x {devices}: {count} cases, "
              f"{time.monotonic() - begun:.1f} s")
    return "\n".join(texts)


# ---- in a process


class Setting:
    """The fixture of a process: a mesh of all devices along "tp", and its group."""

    def __init__(self, start: Start, me: int) -> None:
        import jax
        import numpy as np
        import shiplap.jax as sj
        if start.processes > 1:
            jax.distributed.initialize(f"127.0.0.1:{start.port}", start.processes, me)
        self.process = me
        self.processes = start.processes
        self.seed = start.seed
        self.arguments = start.arguments
        self.mesh = jax.sharding.Mesh(np.array(jax.devices()), ("tp",))
        self.ranks = len(jax.devices())
        self.group = sj.initialize(self.mesh, timeout=30)

    def put(self, whole: Any, spec: Any, mesh: Any = None) -> Any:
        """An array of all devices, of which each process has its parts."""
        import jax
        import numpy as np
        whole = np.asarray(whole)
        place = jax.sharding.NamedSharding(mesh or self.mesh, spec)
        return jax.make_array_from_callback(whole.shape, place, lambda index: whole[index])


def _forget_order() -> None:
    """Calls after one that failed would wait for its token, and fail as well."""
    from jax._src import dispatch
    dispatch.runtime_tokens.clear()


def _work(start: Start, me: int, said: str) -> None:
    faulthandler.dump_traceback_later(max(5.0, start.timeout - 10), exit=False)
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
    module, function = start.suite.split(":")
    suite = getattr(importlib.import_module(f"workers.{module}"), function)
    setting = Setting(start, me)
    with open(said, "w", encoding="utf-8") as out:
        for name, case in suite(setting):
            begun = time.monotonic()
            error = ""
            try:
                case()
            except Exception as problem:  # reported to the test; the next case still runs
                import traceback
                where = traceback.extract_tb(problem.__traceback__)[-1]
                _forget_order()
                error = (f"{type(problem).__name__}: {problem} "
                         f"[{pathlib.Path(where.filename).name}:{where.lineno}]")
            print(json.dumps({"case": name, "error": error,
                              "seconds": time.monotonic() - begun}), file=out, flush=True)
    if setting.processes > 1:
        from jax._src import distributed
        # A process must not exit while another one still needs it.
        distributed.global_state.client.wait_at_barrier("all cases tried", 60_000)
    setting.group.close()
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    _work(Start(**json.loads(sys.argv[1])), int(sys.argv[2]), sys.argv[3])
