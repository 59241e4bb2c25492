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

from shiplap.record._events import Recording, events_file


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
    is_module: bool = False
    # Ranks run for real, through gloo, and a call may take so many seconds; 0: on fake tensors.
    real_timeout: float = 0.0
    directory: str = ""  # for files of this run


@dataclass
class _Child:
    rank: int
    process: int
    connection: Connection
    log: str
    waits_for: Any = None
    sender: int = -1  # of the message that it waits for
    released: bool = False  # may end


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

    if settings.real_timeout:  # they need one another
        jobs, few = settings.world, False
    launcher = Launcher(settings, jobs, report)
    like = find_kinds(settings.world, launcher.run, launcher.recordings) if few else None
    failed = all(recording.error for recording in launcher.recordings.values())
    if like is None and not (few and failed):  # their peers are not as the few assumed
        launcher = Launcher(settings, jobs, report)
        launcher.run(every)
        like = every
    connection.send(Launched(launcher.recordings, launcher.logs, like or every))


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
        self._pending: list[int] = []
        self._planned: set[int] = set()
        self._models: dict[int, int] = {}

    def run(self, ranks: Mapping[int, int]) -> None:
        """Records ranks; those that are recorded already stay as they are. The value of each is the
        rank that it is compared with: messages of ranks that are not recorded are taken from its
        peers."""
        self._models.update(ranks)
        self._pending = [rank for rank in ranks if rank not in self.recordings]
        told = (-1, -1)
        self._planned = {*self._pending, *self.recordings}
        before = len(self.recordings)
        with tempfile.TemporaryDirectory(prefix="shiplap-record-") as directory:
            self.settings.directory = directory
            try:
                while self._pending or self._children:
                    while self._pending and self._running() < self.jobs:
                        self._start(self._pending.pop(0))
                    if not self._pending and self._running() == 0:
                        self._give_up()
                    for connection in wait(list(self._children)):
                        self._serve(self._children[connection])  # type: ignore[index]
                    total = len(self._planned) - before
                    done = total - len(self._pending) - len(self._children)
                    if self.progress and (done, total) != told:
                        self.progress(done, total)
                    told = (done, total)
            finally:
                self._stop()

    def _running(self) -> int:
        return sum(child.waits_for is None for child in self._children.values())

    def _start(self, rank: int) -> None:
        here, there = Pipe()
        log = os.path.join(self.settings.directory, f"rank{rank}.log")
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
            connection.send(("done", recording))
            code = 0
            connection.recv()  # the others may still need what it has sent
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def _serve(self, child: _Child) -> None:
        try:
            message = child.connection.recv()
        except EOFError:
            self._end(child)
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
                known = self._messages.get(_shifted(child.waits_for, shift))
                is_message = child.waits_for[0] != "collective"
                if is_message and shift == 0 and child.sender not in self._planned:
                    self._plan_too(child.sender)
                else:
                    self._answer(child, known)
        else:
            self.recordings[child.rank] = message[1]
            self._release()

    def _plan_too(self, rank: int) -> None:
        """Records a rank, too: another one needs a message of it, such as a pipeline stage."""
        self._planned.add(rank)
        self._models[rank] = rank
        self._pending.insert(0, rank)

    def _release(self) -> None:
        """Lets ranks go that are recorded. Real ones go together: gloo needs both ends."""
        recorded = [child for child in self._children.values() if child.rank in self.recordings]
        if self.settings.real_timeout and len(recorded) < len(self._children):
            return
        for child in recorded:
            if not child.released:
                child.released = True
                child.connection.send(None)

    @staticmethod
    def _answer(child: _Child, payload: bytes | None) -> None:
        child.waits_for = None
        child.connection.send(payload)

    def _give_up(self) -> None:
        for child in self._children.values():
            self._answer(child, None)

    def _end(self, child: _Child) -> None:
        del self._children[child.connection]
        child.connection.close()
        _, status = os.waitpid(child.process, 0)
        with contextlib.suppress(OSError), open(child.log, errors="replace") as log:
            self.logs[child.rank] = log.read()
        if child.rank not in self.recordings:
            self.recordings[child.rank] = self._recording_of_dead(child.rank, status)
        for other in self._children.values():  # nothing more comes from this rank
            if other.waits_for is not None and other.sender == child.rank:
                self._answer(other, None)
        self._release()

    def _recording_of_dead(self, rank: int, status: int) -> Recording:
        """What it wrote down before its process ended."""
        code = os.waitstatus_to_exitcode(status)
        recording = Recording(rank, self.settings.world, [], {})
        with contextlib.suppress(OSError, EOFError):
            with open(events_file(self.settings.directory, rank), "rb") as file:
                while True:
                    recording.add(pickle.load(file))
        why = f"its process ended with code {code}"
        *_, last = (None, *recording.calls())
        if last is None:
            recording.error = why
        else:
            recording.incomplete = f"{last.kind} at {last.site}: {why}"
        return recording

    def _stop(self) -> None:
        for child in self._children.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.process, signal.SIGKILL)
            os.waitpid(child.process, 0)
        self._children.clear()
