"""Processes of JAX that take steps until one of them dies, and the reports of the survivors.

As a program it is one of them: it takes steps of a network of two layers, forward and backward,
and prints a line of JSON when it has begun, and one when it fails.

Who survives JAX's coordinator? It is a service, in process 0, that all processes ask for errors.
When that process dies, JAX ends all others by SIGABRT some ten milliseconds later ("Terminating
process because the JAX distributed service detected fatal errors"): most of them, not all, raise
our exception before. No option of jax.distributed.initialize() helps, nor does
jax_enable_recoverability. So let the service live with whoever outlives the ranks, as a launcher
does: here, in ``Coordinator``. The one that process 0 starts all the same gets another port, by
``coordinator_bind_address``, and nobody asks it.

Where it is ``recoverable``, survivors of any rank end by themselves, with the exit code that they
choose. Where it is not, or in process 0, they raise as well, but then wait at their end for the
dead one, and JAX ends them by SIGABRT; ``os._exit()`` does not wait.
"""

import dataclasses
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import Any

WAYS = ("SIGKILL", "SIGSTOP", "exit", "raise")


# ---- one process


def _obey(dying: threading.Event) -> None:
    """Dies on command: at once, in the middle of a call, or between steps."""
    word = sys.stdin.readline().strip()
    if word in ("exit", ""):  # or nobody is left who could tell it
        os._exit(7)
    if word == "raise":
        dying.set()


def _step_of(mesh: Any, group: Any) -> Any:
    import jax
    import jax.numpy as jnp
    from jax.sharding import PartitionSpec as P

    import shiplap.jax

    def loss(weights: Any, x: Any) -> Any:
        wide = shiplap.jax.gemm(x, weights[0], comm_type="all_gather", group=group)
        y = shiplap.jax.gemm(jnp.tanh(wide), weights[1], comm_type="reduce_scatter", group=group)
        return jnp.sum(y * y)

    def several(weights: Any, x: Any) -> Any:
        def one(_: int, now: Any) -> Any:
            slopes = jax.grad(loss)(now, x)
            return jax.tree.map(lambda w, slope: w - 1e-6 * slope, now, slopes)

        return jax.lax.fori_loop(0, 3, one, weights)

    kept = (P(None, "tp"), P("tp", None))
    return jax.jit(jax.shard_map(several, mesh=mesh, in_specs=(kept, P("tp", None)),
                                 out_specs=kept, check_vma=False))


def _arrays(mesh: Any, size: int) -> Any:
    import jax
    import numpy as np
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    def made(shape: tuple[int, int], spec: Any) -> Any:
        values = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
        return jax.make_array_from_callback(shape, NamedSharding(mesh, spec), values.__getitem__)

    rows, depth, columns = 32 * size, 64, 32 * size
    weights = (made((depth, columns), P(None, "tp")), made((columns, depth), P("tp", None)))
    return weights, made((rows, depth), P("tp", None))


def _say(**words: Any) -> None:
    print(json.dumps({**words, "at": time.monotonic()}), flush=True)


def work(words: dict[str, Any]) -> None:
    import contextlib

    import jax
    import numpy as np

    jax.distributed.initialize(words["coordinator"], words["size"], words["rank"],
                               **words["options"])
    import shiplap.jax

    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("tp",))
    group = shiplap.jax.initialize(mesh, timeout=words["timeout"])
    step = _step_of(mesh, group)
    weights, x = _arrays(mesh, words["size"])
    dying = threading.Event()
    threading.Thread(target=_obey, args=(dying,), daemon=True).start()
    watched = shiplap.jax.diagnosed if words["diagnosed"] else contextlib.nullcontext
    try:
        for number in range(1_000_000):
            if dying.is_set():
                raise RuntimeError("planted")
            with watched():
                weights = jax.block_until_ready(step(weights, x))
            if number == 3:
                _say(ready=True)
    except Exception as error:
        _say(error=type(error).__name__, text=str(error))
        raise


# ---- all of them


@dataclasses.dataclass
class End:
    """The outcome of one process."""

    rank: int
    error: str = ""  # the name of its type; none: it said nothing
    text: str = ""
    after: float = 0.0  # seconds from the death to the exception
    code: int | None = None  # None: it had to be killed
    output: str = ""

    def names(self, victim: int) -> bool:
        """Whether it reports which rank died, and its process of JAX."""
        return f"rank {victim} is process {victim}" in self.text


@dataclasses.dataclass
class Story:
    victim: End
    survivors: list[End]


class Coordinator:
    """JAX's service, in this process: no death of a rank is its own. It is not public in JAX."""

    def __init__(self, size: int, heartbeat: int = 100) -> None:
        from jaxlib import _jax

        self.address = f"127.0.0.1:{free_port()}"
        self._service = _jax.get_distributed_runtime_service(
            self.address, size, heartbeat_timeout=heartbeat, recoverable=True)

    def close(self) -> None:
        self._service.shutdown()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class _Process:
    """One rank, and the lines that it prints."""

    def __init__(self, words: dict[str, Any]) -> None:
        self.rank = words["rank"]
        self.lines: list[dict[str, Any]] = []
        self.output: list[str] = []
        self.ready = threading.Event()
        self._process = subprocess.Popen(
            [sys.executable, str(pathlib.Path(__file__).resolve()), json.dumps(words)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**os.environ, "JAX_PLATFORMS": "cpu"})
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith('{"'):
                self.lines.append(json.loads(line))
            else:
                self.output.append(line)
            if self.lines and self.lines[0].get("ready"):
                self.ready.set()
        self.ready.set()

    def die(self, way: str) -> None:
        if way.startswith("SIG"):
            os.kill(self._process.pid, signal.Signals[way])
            return
        assert self._process.stdin is not None
        self._process.stdin.write(way + "\n")
        self._process.stdin.flush()

    def end(self, within: float) -> int | None:
        """Its exit code; None, and it is killed, if it does not end."""
        try:
            code: int | None = self._process.wait(max(0.01, within))
        except subprocess.TimeoutExpired:
            code = None
            self._process.kill()
            self._process.wait()
        self._reader.join(5)
        return code

    def story(self, died_at: float, code: int | None) -> End:
        found = End(self.rank, code=code, output="".join(self.output)[-4000:])
        for line in self.lines:
            if "error" in line:
                found.error, found.text = line["error"], line["text"]
                found.after = line["at"] - died_at
        return found


def death(size: int, victim: int, way: str, *, seed: int, timeout: float, diagnosed: bool = True,
          outside: bool = True) -> Story:
    """Lets one rank die at a random moment. ``outside``: the coordinator is in this process."""
    coordinator = Coordinator(size) if outside else None
    address = coordinator.address if coordinator else f"127.0.0.1:{free_port()}"
    options: dict[str, Any] = {"shutdown_timeout_seconds": 3}
    if outside:
        options["coordinator_bind_address"] = f"127.0.0.1:{free_port()}"
    words = {"coordinator": address, "size": size, "timeout": timeout, "diagnosed": diagnosed,
             "options": options}
    processes: list[_Process] = []
    try:
        processes += [_Process({**words, "rank": rank}) for rank in range(size)]
        end = time.monotonic() + 90
        for process in processes:
            assert process.ready.wait(end - time.monotonic()) and process.lines, \
                f"rank {process.rank} did not begin: {''.join(process.output)[-2000:]}"
        time.sleep(random.Random(seed).uniform(0, 0.3))
        died_at = time.monotonic()
        processes[victim].die(way)
        last = died_at + timeout + 15
        ends = [process.story(died_at, process.end(last - time.monotonic()))
                for process in processes if process.rank != victim]
        is_stopped = way == "SIGSTOP"  # will not end
        code = processes[victim].end(0 if is_stopped else last - time.monotonic())
        return Story(processes[victim].story(died_at, code), ends)
    finally:
        for process in processes:
            process.end(0)
        if coordinator:
            coordinator.close()


if __name__ == "__main__":
    work(json.loads(sys.argv[1]))
