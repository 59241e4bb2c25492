"""Records ranks in forked processes, a few at a time, and carries small messages between them.

A process of its own, which has no threads, imports torch once and forks the ranks. A rank that
receives small integers (shapes, pickled objects) waits until the sender has recorded its send;
other ranks run meanwhile. If all ranks that are left wait for one another, the program itself has
no sender for them: they continue with unknown values.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

from shiplap.record._events import Recording


class Mailbox:
    """The end of a recorded rank."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def put(self, key: Any, payload: bytes | None) -> None:
        self._connection.send(("put", key, payload))

    def get(self, key: Any, sender: int) -> bytes | None:
        """Blocks until the message is there; None if its value is unknown or nobody sends it."""
        self._connection.send(("get", key, sender))
        payload: bytes | None = self._connection.recv()
        return payload


@dataclass
class RankSettings:
    """How each rank is recorded."""

    script: str
    arguments: list[str]
    world: int
    steps: int = 2
    ranks_per_node: int = 8
    devices: bool = True


@dataclass
class _Child:
    rank: int
    process: int
    connection: Connection
    log: str
    waits_for: Any = None
    sender: int = -1  # of the message that it waits for


@dataclass
class Launched:
    """What came of it, by rank."""

    recordings: dict[int, Recording]
    logs: dict[int, str]  # what the ranks printed
    like: dict[int, int]  # by rank: the recorded rank that it is like


def launch(
    settings: RankSettings,
    jobs: int,
    find_kinds: bool,
    progress: Callable[[int, int], None] | None = None,
) -> Launched:
    """Records all ranks, or those that stand for all, in a new process: threads of this one would
    not survive a fork."""
    here, there = Pipe()
    program = f"from shiplap.record._launch import serve; serve({there.fileno()})"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen(
        [sys.executable, "-c", program], pass_fds=[there.fileno()], env=environment
    )
    there.close()
    try:
        here.send((settings, jobs, find_kinds))
        while True:
            message = here.recv()
            if isinstance(message, Launched):
                return message
            if progress:
                progress(*message)
    except EOFError:
        raise RuntimeError(f"the recorder ended with code {process.wait()}") from None
    finally:
        here.close()
        process.wait()


def serve(descriptor: int) -> None:
    """The process that `launch` starts."""
    import shiplap.record._rank  # noqa: F401 (torch is imported before the fork)
    from shiplap.record._kinds import find_kinds

    connection = Connection(descriptor)
    settings, jobs, few = connection.recv()
    every = {rank: rank for rank in range(settings.world)}

    def report(done: int, total: int) -> None:
        connection.send((done, total))

    launcher = Launcher(settings, jobs, report)
    like = find_kinds(settings.world, launcher.run, launcher.recordings) if few else None
    if like is None:  # what few ranks assumed of their peers does not hold with all of them
        launcher = Launcher(settings, jobs, report)
        launcher.run(every)
        like = every
    connection.send(Launched(launcher.recordings, launcher.logs, like))


def _shifted(key: Any, shift: int) -> Any:
    """The key of the same message between ranks elsewhere; see Recorder for the two kinds."""
    if key[0] == "collective":
        word, ranks, kind, number, rank = key
        return (word, tuple(r + shift for r in ranks), kind, number, rank + shift)
    ranks, sender, receiver, tag, number = key
    return (tuple(r + shift for r in ranks), sender + shift, receiver + shift, tag, number)


@dataclass
class Launcher:
    """Records ranks with the same settings. REQUIRES: this process has no other threads."""

    settings: RankSettings
    jobs: int = 2
    progress: Callable[[int, int], None] | None = None  # ranks that are done, of how many
    recordings: dict[int, Recording] = field(default_factory=dict)
    logs: dict[int, str] = field(default_factory=dict)  # what the ranks printed

    def __post_init__(self) -> None:
        self._messages: dict[Any, bytes | None] = {}
        self._children: dict[Connection, _Child] = {}
        self._planned: set[int] = set()
        self._models: dict[int, int] = {}

    def run(self, ranks: Mapping[int, int]) -> None:
        """Records ranks; those that are recorded already stay as they are. The value of each is the
        rank that it is compared with: messages of ranks that are not recorded are taken from its
        peers."""
        self._models.update(ranks)
        pending = [rank for rank in ranks if rank not in self.recordings]
        total = len(pending)
        self._planned = {*pending, *self.recordings}
        with tempfile.TemporaryDirectory(prefix="shiplap-record-") as directory:
            try:
                while pending or self._children:
                    while pending and self._running() < self.jobs:
                        self._start(pending.pop(0), directory)
                    if not pending and self._running() == 0:
                        self._give_up()
                    for connection in wait(list(self._children)):
                        self._serve(self._children[connection])  # type: ignore[index]
                    if self.progress:
                        self.progress(total - len(pending) - len(self._children), total)
            finally:
                self._stop()

    def _running(self) -> int:
        return sum(child.waits_for is None for child in self._children.values())

    def _start(self, rank: int, directory: str) -> None:
        here, there = Pipe()
        log = os.path.join(directory, f"rank{rank}.log")
        process = os.fork()
        if process == 0:
            here.close()
            self._run_child(rank, there, log)
        there.close()
        self._children[here] = _Child(rank, process, here, log)

    def _run_child(self, rank: int, connection: Connection, log: str) -> None:
        """Does not return."""
        code = 1
        try:
            output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.dup2(output, 1)
            os.dup2(output, 2)
            from shiplap.record._rank import record_rank

            recording = record_rank(rank, self.settings, Mailbox(connection))
            connection.send(("done", pickle.dumps(recording)))
            code = 0
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def _serve(self, child: _Child) -> None:
        try:
            message = child.connection.recv()
        except EOFError:
            self._end(child, None)
            return
        if message[0] == "put":
            self._messages[message[1]] = message[2]
            for other in self._children.values():
                if other.waits_for == message[1]:
                    self._answer(other, message[2])
        elif message[0] == "get":
            child.waits_for, child.sender = message[1:]
            if child.waits_for in self._messages:
                self._answer(child, self._messages[child.waits_for])
            elif child.sender in self.recordings or child.sender not in self._planned:
                shift = self._models[child.rank] - child.rank
                self._answer(child, self._messages.get(_shifted(child.waits_for, shift)))
        else:
            self._end(child, pickle.loads(message[1]))

    @staticmethod
    def _answer(child: _Child, payload: bytes | None) -> None:
        child.waits_for = None
        child.connection.send(payload)

    def _give_up(self) -> None:
        for child in self._children.values():
            self._answer(child, None)

    def _end(self, child: _Child, recording: Recording | None) -> None:
        del self._children[child.connection]
        child.connection.close()
        _, status = os.waitpid(child.process, 0)
        with contextlib.suppress(OSError), open(child.log, errors="replace") as log:
            self.logs[child.rank] = log.read()
        if recording is None:
            code = os.waitstatus_to_exitcode(status)
            recording = Recording(
                child.rank, self.settings.world, [], {}, f"its process ended with code {code}"
            )
        self.recordings[child.rank] = recording
        for other in self._children.values():  # nothing more comes from this rank
            if other.waits_for is not None and other.sender == child.rank:
                self._answer(other, None)

    def _stop(self) -> None:
        for child in self._children.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.process, signal.SIGKILL)
            os.waitpid(child.process, 0)
        self._children.clear()
