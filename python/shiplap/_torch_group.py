"""A torch process group with consistency checks and failure propagation.

A rank that detects an error before a collective cannot just raise: its peers would hang. It first
posts the failure under a key in the store of the process group. A rank that is blocked for longer
than the poll interval checks that key, and times out at its deadline. A collective that completes
at once never reads the store, so the mechanism costs nothing while no rank fails. Ranks that wait
in an engine of overlapped GEMMs do not read the store: the rank that fails aborts all engines too.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import math
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from shiplap import _errors, _shiplap

_POLL_INTERVAL_S = 0.1  # between two reads of the failure key
_MIN_WAIT_S = 0.001  # torch rounds to milliseconds, and 0 means no timeout
_FAILURE_KEY = "failed"
_TIMED_OUT = "timeout"  # in place of the failed rank: a collective timed out
_MAX_HASHES = 32  # every gather has this fixed size: gloo crashes if sizes differ between ranks
_ROWS_MARKER = -1  # in place of the number of hashes: this rank is about to exchange rows


class _GroupState:
    """The state of one process group, for its lifetime."""

    def __init__(self, store: Any = None) -> None:
        self.failure = ""  # not empty: the group has failed
        self.calls = 0  # collectives that this rank has started
        self.checked: set[tuple[Any, ...]] = set()  # row formats, with NCCL only
        self.engines: dict[float, int] = {}  # numbers of the engine's groups, by deadline
        self.store = store
        self.staging: dict[tuple[str, torch.dtype], torch.Tensor] = {}


def _group_state(group: Any) -> _GroupState:
    """Returns the state of a group, created on first use. A group that is re-created in the same
    store does not see old failures: each rank counts the generations in the key prefix."""
    if group not in _states:
        store = distributed_c10d.PrefixStore(f"shiplap/{group.group_name}",
                                             distributed_c10d._get_default_store())
        times = store.add(f"rank {dist.get_rank(group)}", 1)
        _states[group] = _GroupState(distributed_c10d.PrefixStore(str(times), store))
    return _states[group]


_states: weakref.WeakKeyDictionary[Any, _GroupState] = weakref.WeakKeyDictionary()


class MonitoredGroup:
    """A rank's view of its group. Without a process group: a single rank."""

    def __init__(self, group: Any, deadline: float) -> None:
        self.deadline = 0.0
        self.group: Any = None
        self.rank, self.size, self.ranks = 0, 1, [0]
        self.device = torch.device("cpu")
        self._state = _GroupState()
        self._store: Any = None
        if dist.is_available() and dist.is_initialized():
            self._attach(group)
        with self.abort_peers_on_exception():
            self.deadline = _parse_deadline(deadline)

    def _attach(self, group: Any) -> None:
        self.group = dist.group.WORLD if group is None else _process_group(group)
        self.rank = dist.get_rank(self.group)
        if self.rank < 0:
            _shiplap._raise("D400", "this rank is not in the group")
        self.ranks = dist.get_process_group_ranks(self.group)
        self.size = len(self.ranks)
        if dist.get_backend(self.group) == "nccl":
            self.device = torch.device("cuda", torch.cuda.current_device())
        self._state = _group_state(self.group)
        self._store = self._state.store

    # ---- failure propagation

    def abort_peers(self, error: BaseException) -> None:
        """Ranks that wait for this one raise, in a collective of torch or in an engine."""
        known = isinstance(error, _errors.Error)  # then the message says what it is
        message = str(error) if known else f"{type(error).__name__}: {error}"
        self._post_failure(str(self.ranks[self.rank]), message)
        self._abort_engines(error)

    def _abort_engines(self, error: BaseException, told: int | None = None) -> None:
        """Ranks that wait in an engine do not read the store. ``told`` needs no abort."""
        for number in self._state.engines.values():
            if number != told:
                _shiplap.jax.abort_group(number, str(error))

    def _post_failure(self, failed: str, message: str) -> None:
        """Posts a failure under the key, unless one has been posted already."""
        self._state.failure = self._state.failure or message
        if self._store is None:
            return
        note = f"{failed}\n{message}"
        with contextlib.suppress(RuntimeError):  # the rank that hosted the store has exited
            try:
                self._store.compare_set(_FAILURE_KEY, "", note)
            except NotImplementedError:  # unsupported by FileStore; then the last failure wins
                self._store.set(_FAILURE_KEY, note)

    @contextlib.contextmanager
    def abort_peers_on_exception(self) -> Iterator[None]:
        """An exception inside the block makes all ranks fail."""
        try:
            yield
        except Exception as error:
            self.abort_peers(error)
            raise

    def _read_failure(self) -> tuple[int | str | None, str] | None:
        """Returns the failed rank, if it is known, and its message; None if no rank failed."""
        try:
            if not self._store.check([_FAILURE_KEY]):
                return None
            rank, message = self._store.get(_FAILURE_KEY).decode().split("\n", 1)
        except RuntimeError as error:
            # The host of the store may just have exited first.
            return None, f"lost connection to the store of the process group: {error}"
        return (int(rank) if rank.isdigit() else rank or None), message

    def _raise_failure(self, code: str, what: str, why: str, rank: int | None = None) -> None:
        try:
            _shiplap._raise(code, what, why, rank=rank)
        except _errors.Failure as error:
            # This rank only detected the failure.
            if isinstance(error, _errors.CommTimeoutError):
                self._post_failure(_TIMED_OUT, why)
            else:
                self._post_failure("", str(error))
            if rank is None:  # a rank that is known to have failed has told the engines itself
                self._abort_engines(error)
            raise

    def _check_failures(self, operation: str, cause: str = "") -> None:
        """Raises if a rank has failed."""
        note = self._read_failure()
        if note is not None and note[0] == _TIMED_OUT:
            self._raise_failure("D301", f"{operation} timed out", note[1])
        elif note is not None:
            name = "a rank" if note[0] is None else f"rank {note[0]}"
            self._raise_failure("D302", f"{name} failed",
                                f"{note[1]}; this rank was in {operation}",
                                note[0] if isinstance(note[0], int) else None)
        if cause:
            self._raise_failure("D302", "a rank failed", f"{cause}; this rank was in {operation}")

    def _check_alive(self) -> None:
        if self._state.failure:
            _shiplap._raise("D305", "this process group has already failed", self._state.failure,
                            rank=self.ranks[self.rank])

    # ---- waiting

    def _wait(self, work: Any, operation: str) -> None:
        """Blocks the host until the work has completed."""
        interval = max(_MIN_WAIT_S, min(_POLL_INTERVAL_S, self.deadline))
        end = time.monotonic() + self.deadline
        while True:
            with contextlib.suppress(RuntimeError):
                work.wait(datetime.timedelta(seconds=interval))
                return
            if work.is_completed():
                self._finish(work, operation)
                return
            self._post_arrival()
            self._check_failures(operation)
            self._check_deadline(end, operation)

    def _finish(self, work: Any, operation: str) -> None:
        try:
            work.wait()
        except RuntimeError as error:
            self._check_failures(operation, str(error))

    def _wait_for_gpu(self, work: Any, operation: str) -> None:
        """Polls, because with NCCL a wait that times out would abort the communicator."""
        end = time.monotonic() + self.deadline
        next_poll = time.monotonic() + _POLL_INTERVAL_S
        while not work.is_completed():
            if time.monotonic() < next_poll:
                continue
            self._post_arrival()
            self._check_failures(operation)
            self._check_deadline(end, operation)
            next_poll = time.monotonic() + _POLL_INTERVAL_S
        self._finish(work, operation)

    def _check_deadline(self, end: float, operation: str) -> None:
        if time.monotonic() >= end:
            missing = self._missing_ranks()
            self._raise_failure("D301", f"{operation} timed out after {self.deadline:g} s",
                                f"missing: {missing}" if missing else
                                "a rank did not take part and reported no failure")

    def _post_arrival(self) -> None:
        """A rank that waits for long says in which collective, so that others can tell who did not
        come. One that needs not wait posts nothing."""
        with contextlib.suppress(RuntimeError):
            self._store.set(f"arrived {self.rank}", str(self._state.calls))

    def _missing_ranks(self) -> str:
        """Those that do not wait in this collective: "rank 1", "ranks 1, 2"."""
        missing = []
        for index, rank in enumerate(self.ranks):
            key = f"arrived {index}"
            with contextlib.suppress(RuntimeError):
                there = self._store.check([key]) and int(self._store.get(key))
                if index != self.rank and there < self._state.calls:
                    missing.append(str(rank))
        return f"rank{'s' if len(missing) > 1 else ''} {', '.join(missing)}" if missing else ""

    def _start(self, start: Any, operation: str) -> Any:
        self._check_alive()
        self._state.calls += 1
        try:
            return start()
        except RuntimeError as error:
            self._check_failures(operation, str(error))

    # ---- collectives

    def staging(self, name: str, count: int, like: torch.Tensor) -> torch.Tensor:
        """A buffer of this group, for the duration of a message. Memory of the CPU that is
        allocated anew for every message costs a page fault for each of its pages."""
        if like.device.type != "cpu" or self.group is None:
            return like.new_empty(count)
        buffer = self._state.staging.get((name, like.dtype))
        if buffer is None or len(buffer) < count:
            with torch.inference_mode(False):  # it is kept, and used outside of that mode too
                buffer = self._state.staging[name, like.dtype] = like.new_empty(count)
        return buffer[:count]

    def all_to_all(self, output: torch.Tensor, sent: torch.Tensor, output_counts: Sequence[int],
                   sent_counts: Sequence[int], operation: str) -> None:
        """Exchanges rows as bytes, so that any dtype works."""
        if self.group is None:
            output.copy_(sent)
            return
        if sent.shape[1] == 0:
            return
        try:
            work = self._start(
                lambda: dist.all_to_all_single(
                    output.view(torch.uint8), sent.view(torch.uint8), list(output_counts),
                    list(sent_counts), group=self.group, async_op=True), operation)
            if sent.device.type == "cpu":
                self._wait(work, operation)
            else:
                work.wait()  # the stream waits, not the host
        except BaseException:  # also Ctrl-C: the transfer still uses the staging buffers
            self._state.staging.clear()
            raise

    def _gather(self, numbers: Sequence[int], operation: str) -> list[list[int]]:
        """Gathers the numbers of all ranks, padded with zeros to a fixed size."""
        return self._start_gather(numbers, operation)()

    def _start_gather(self, numbers: Sequence[int],
                      operation: str) -> Callable[[], list[list[int]]]:
        """The same, to be waited for later."""
        length = 1 + _MAX_HASHES
        local = torch.tensor([*numbers, *[0] * (length - len(numbers))], dtype=torch.int64,
                           device=self.device)
        all_ = torch.empty(self.size * length, dtype=torch.int64, device=self.device)
        work = self._start(
            lambda: dist.all_gather_into_tensor(all_, local, group=self.group, async_op=True),
            operation)

        def finish() -> list[list[int]]:
            if self.device.type == "cpu":
                self._wait(work, operation)
            else:
                self._wait_for_gpu(work, operation)
            return all_.reshape(self.size, length)[:, :len(numbers)].tolist()

        return finish

    def check_hashes(self, hashes: dict[str, int], world_size: int) -> None:
        """Raises MetadataMismatch on all ranks if the hashes differ between ranks."""
        if self.group is not None:
            local = [_signed(value) for value in hashes.values()]
            all_numbers = self._gather([len(local), *local], "comparing tables")
            if any(row[0] == _ROWS_MARKER for row in all_numbers):
                _shiplap._raise("D303", "mismatch: this rank compares tables, others exchange rows",
                                rank=self.ranks[self.rank])
            if any(row[0] != len(local) for row in all_numbers):
                _shiplap._raise("D303",
                                "mismatch: some ranks create a Dispatcher, others an Exchange",
                                rank=self.ranks[self.rank])
            rows = [row[1:len(local) + 1] for row in all_numbers]
            if any(row != local for row in rows):
                flat = [value for row in rows for value in row]
                _shiplap._compare_hashes(list(hashes), flat, self.ranks)
        if world_size != self.size:
            _shiplap._raise("D400", f"world size mismatch: the tables are for {world_size} ranks, "
                            f"the group has {self.size}",
                            "" if self.group else "torch.distributed is not initialized",
                            "create the tables for the ranks of the group")

    def check_rows(self, direction: str, xs: Sequence[torch.Tensor]) -> None:
        """Raises Mismatch on all ranks unless all send the same row format in the same direction.

        A mismatch would corrupt data or crash gloo. With NCCL the check blocks the host until the
        GPU is done, so each format is compared only once.
        """
        self.start_check_rows([(direction, xs)])()

    def start_check_rows(self, parts: Sequence[tuple[str, Sequence[torch.Tensor]]]
                         ) -> Callable[[], None]:
        """The same for the directions of one message, to be waited for later."""
        kinds = tuple((direction, str(xs[0].dtype), *(tuple(x.shape[1:]) for x in xs))
                      for direction, xs in parts)
        if self.group is None or kinds in self._state.checked:
            return lambda: None
        local = [_ROWS_MARKER, *(_hash(repr((len(kinds), kind))) for kind in kinds)]
        gathered = self._start_gather(local, parts[0][0])

        def finish() -> None:
            all_numbers = gathered()
            for at, (direction, dtype, *shapes) in enumerate(kinds, 1):
                mismatched = [rank for rank, row in zip(self.ranks, all_numbers)
                              if row[0] != local[0] or row[at] != local[at]]
                if mismatched:
                    _shiplap._raise("D303", f"{direction}: mismatch of rows between ranks",
                                    f"this rank has {tuple(shapes)} of {dtype}; other rows, or "
                                    "another direction, on rank " +
                                    ", ".join(map(str, mismatched)), rank=self.ranks[self.rank])
            if self.device.type != "cpu":
                self._state.checked.add(kinds)

        return finish


def _process_group(group: Any) -> Any:
    """A process group, or that of a DeviceMesh of one dimension."""
    if not hasattr(group, "get_group"):
        return group
    if group.ndim != 1:
        _shiplap._raise("D400", f"a group is one dimension of a mesh, and {group} has {group.ndim}",
                        "", "name it: `mesh['cp']`")
    return group.get_group()


def _parse_deadline(deadline: float) -> float:
    try:
        seconds = float(deadline)
    except (TypeError, ValueError):
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds > 0):
        _shiplap._raise("D003", f"deadline is {deadline!r}",
                        "it must be a positive number of seconds")
    return seconds


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


@functools.lru_cache(maxsize=256)
def _hash(text: str) -> int:
    """FNV-1a: the same on all ranks, unlike hash()."""
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return _signed(value)
