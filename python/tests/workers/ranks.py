"""Starts a function on several ranks: processes of this machine with a gloo process group.

The processes are forks of one server that has imported torch, so that starting them is cheap. The
store of the group is here, in the test, and outlives any rank.
"""

import multiprocessing
import os
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Callable

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["torch", "torch.distributed", "shiplap.torch"])


@dataclass
class Outcome:
    """The result of one rank: a value, or the exception that ended it, or nothing if it died."""

    value: Any = None
    error: str = ""  # the name of its type
    text: str = ""
    seconds: float = 0.0


def _work(function: Callable[..., Any], rank: int, size: int, port: int, args: tuple[Any, ...],
          result: Connection) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    import torch
    import torch.distributed as dist
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    if store.add("connected", 1) == size:  # a rank that ends at once is not to leave before that
        store.set("all connected", "")
    store.wait(["all connected"])
    begin = time.monotonic()
    try:
        result.send(Outcome(value=function(rank, size, *args), seconds=time.monotonic() - begin))
    except Exception as error:  # told to the test, which decides whether it was right
        result.send(Outcome(error=type(error).__name__, text=str(error),
                            seconds=time.monotonic() - begin))
    result.close()
    os._exit(0)  # a failed group may not be left in order


def run(function: Callable[..., Any], size: int, *args: Any, timeout: float = 60) -> list[Outcome]:
    """function(rank, size, *args) on every rank. Fails if it takes longer than `timeout`."""
    import torch.distributed as dist
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    pipes, processes = [], []
    for rank in range(size):
        here, there = _context.Pipe(duplex=False)
        process = _context.Process(target=_work,
                                   args=(function, rank, size, store.port, args, there))
        process.start()
        there.close()
        pipes.append(here)
        processes.append(process)
    outcomes = [Outcome(error="died") for _ in range(size)]
    waiting = dict(zip(pipes, range(size)))
    end = time.monotonic() + timeout
    try:
        while waiting:
            ready = wait(list(waiting), timeout=max(0.0, end - time.monotonic()))
            assert ready, f"ranks {sorted(waiting.values())} timed out after {timeout} s"
            for pipe in ready:
                rank = waiting.pop(pipe)
                try:
                    outcomes[rank] = pipe.recv()
                except EOFError:
                    pass  # it died
        return outcomes
    finally:
        for process in processes:
            process.kill()
            process.join()


def values(function: Callable[..., Any], size: int, *args: Any, timeout: float = 60) -> list[Any]:
    """The same where no rank may fail."""
    outcomes = run(function, size, *args, timeout=timeout)
    for rank, outcome in enumerate(outcomes):
        assert not outcome.error, f"rank {rank}: {outcome.error}: {outcome.text}"
    return [outcome.value for outcome in outcomes]
