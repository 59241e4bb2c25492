"""The ranks of a process group: what they agree on, and how one that fails is heard by all.

A rank that finds something wrong before a collective cannot just raise: the others would wait for
it. It leaves a note in the store of the process group first. A rank that waits longer than a moment
looks for notes, and gives up at its deadline. While all goes well nobody looks, so it costs
nothing.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import math
import time
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from shiplap import _errors, _shiplap

_MOMENT_S = 0.1  # between two looks at the notes
_LEAST_WAIT_S = 0.001  # torch counts milliseconds, and takes 0 of them for no limit
_NOTE = "failed"
_MOST_HASHES = 32  # all ranks gather as many numbers, whatever they do: gloo dies of other sizes
_ROWS = -1  # in place of the number of hashes, from a rank that is about to exchange rows


class _State:
    """What is known of one process group, as long as that lives."""

    def __init__(self, store: Any = None) -> None:
        self.dead = ""  # why
        self.agreed: set[tuple[Any, ...]] = set()  # kinds of rows, with NCCL only
        self.store = store


def _state_of(group: Any) -> _State:
    """Made when a group is first used. A group that was made anew in the same store begins without
    the notes of the one before: each rank counts how often it has been there."""
    if group not in _states:
        store = distributed_c10d.PrefixStore(f"shiplap/{group.group_name}",
                                             distributed_c10d._get_default_store())
        times = store.add(f"rank {dist.get_rank(group)}", 1)
        _states[group] = _State(distributed_c10d.PrefixStore(str(times), store))
    return _states[group]


_states: weakref.WeakKeyDictionary[Any, _State] = weakref.WeakKeyDictionary()


class Link:
    """A rank's view of its group. Without a process group: the only rank there is."""

    def __init__(self, group: Any, deadline: float) -> None:
        self.deadline = 0.0
        self.group: Any = None
        self.rank, self.size, self.ranks = 0, 1, [0]
        self.device = torch.device("cpu")
        self._state = _State()
        self._store: Any = None
        if dist.is_available() and dist.is_initialized():
            self._join(group)
        with self.failing():
            self.deadline = _checked(deadline)

    def _join(self, group: Any) -> None:
        self.group = dist.group.WORLD if group is None else group
        self.rank = dist.get_rank(self.group)
        if self.rank < 0:
            _shiplap._raise("D400", "this rank is not in the group")
        self.ranks = dist.get_process_group_ranks(self.group)
        self.size = len(self.ranks)
        if dist.get_backend(self.group) == "nccl":
            self.device = torch.device("cuda", torch.cuda.current_device())
        self._state = _state_of(self.group)
        self._store = self._state.store

    # ---- failing together

    def tell_others(self, error: BaseException) -> None:
        """Leaves a note that this rank failed, unless somebody has left one."""
        self._leave(str(self.ranks[self.rank]), error)

    def _leave(self, failed: str, error: BaseException) -> None:
        self._state.dead = self._state.dead or str(error)
        if self._store is None:
            return
        note = f"{failed}\n{error}"
        with contextlib.suppress(RuntimeError):  # the store went with the rank that had it
            try:
                self._store.compare_set(_NOTE, "", note)
            except NotImplementedError:  # stores of files cannot; then the last one is heard
                self._store.set(_NOTE, note)

    @contextlib.contextmanager
    def failing(self) -> Iterator[None]:
        """What goes wrong in here goes wrong on all ranks."""
        try:
            yield
        except Exception as error:
            self.tell_others(error)
            raise

    def _note(self) -> tuple[int | None, str] | None:
        """Who failed, if that is known, and with which words."""
        try:
            if not self._store.check([_NOTE]):
                return None
            rank, words = self._store.get(_NOTE).decode().split("\n", 1)
        except RuntimeError as error:
            # Whoever has the store may only have left first.
            return None, f"the store of the process group is gone: {error}"
        return (int(rank) if rank else None), words

    def _give_up(self, code: str, what: str, why: str, rank: int | None = None) -> None:
        try:
            _shiplap._raise(code, what, why, rank=rank)
        except _errors.Failure as error:
            self._leave("", error)  # this rank has only noticed
            raise

    def _heed(self, doing: str, cause: str = "") -> None:
        """Raises if some rank has failed."""
        note = self._note()
        if note is not None:
            who = "a rank" if note[0] is None else f"rank {note[0]}"
            self._give_up("D302", f"{who} failed", f"{note[1]}; this rank was in {doing}", note[0])
        if cause:
            self._give_up("D302", "a rank failed", f"{cause}; this rank was in {doing}")

    def _check_alive(self) -> None:
        if self._state.dead:
            _shiplap._raise("D305", "this process group failed before", self._state.dead,
                            rank=self.ranks[self.rank])

    # ---- waiting

    def _wait(self, work: Any, doing: str) -> None:
        """Until it is done, as the host sees it."""
        moment = max(_LEAST_WAIT_S, min(_MOMENT_S, self.deadline))
        end = time.monotonic() + self.deadline
        while True:
            with contextlib.suppress(RuntimeError):
                work.wait(datetime.timedelta(seconds=moment))
                return
            if work.is_completed():
                self._finish(work, doing)
                return
            self._heed(doing)
            self._check_deadline(end, doing)

    def _finish(self, work: Any, doing: str) -> None:
        try:
            work.wait()
        except RuntimeError as error:
            self._heed(doing, str(error))

    def _wait_for_gpu(self, work: Any, doing: str) -> None:
        """With NCCL a wait of limited time would abort the communicator: so it is asked again."""
        end = time.monotonic() + self.deadline
        look = time.monotonic() + _MOMENT_S
        while not work.is_completed():
            if time.monotonic() < look:
                continue
            self._heed(doing)
            self._check_deadline(end, doing)
            look = time.monotonic() + _MOMENT_S
        self._finish(work, doing)

    def _check_deadline(self, end: float, doing: str) -> None:
        if time.monotonic() >= end:
            self._give_up("D301", f"{doing} did not end within {self.deadline:g} s",
                          "some rank did not come, and left no word")

    def _start(self, start: Any, doing: str) -> Any:
        self._check_alive()
        try:
            return start()
        except RuntimeError as error:
            self._heed(doing, str(error))

    # ---- together

    def all_to_all(self, output: torch.Tensor, sent: torch.Tensor, output_counts: Sequence[int],
                   sent_counts: Sequence[int], doing: str) -> None:
        """As bytes: so that rows of any type travel."""
        if self.group is None:
            output.copy_(sent)
            return
        if sent.shape[1] == 0:
            return
        work = self._start(
            lambda: dist.all_to_all_single(
                output.view(torch.uint8), sent.view(torch.uint8), list(output_counts),
                list(sent_counts), group=self.group, async_op=True), doing)
        if sent.device.type == "cpu":
            self._wait(work, doing)
        else:
            work.wait()  # the stream waits, not the host

    def _gather(self, numbers: Sequence[int], doing: str) -> list[list[int]]:
        """The numbers of all ranks, with zeros behind them."""
        length = 1 + _MOST_HASHES
        own = torch.tensor([*numbers, *[0] * (length - len(numbers))], dtype=torch.int64,
                           device=self.device)
        all_ = torch.empty(self.size * length, dtype=torch.int64, device=self.device)
        work = self._start(
            lambda: dist.all_gather_into_tensor(all_, own, group=self.group, async_op=True), doing)
        if self.device.type == "cpu":
            self._wait(work, doing)
        else:
            self._wait_for_gpu(work, doing)
        return all_.reshape(self.size, length)[:, :len(numbers)].tolist()

    def agree(self, hashes: dict[str, int], world_size: int) -> None:
        """Raises MetadataDiffers on all ranks unless all have the same hashes."""
        if self.group is not None:
            own = [_signed(value) for value in hashes.values()]
            everybody = self._gather([len(own), *own], "comparing tables")
            if any(row[0] == _ROWS for row in everybody):
                _shiplap._raise("D303", "this rank compares tables, others exchange rows",
                                rank=self.ranks[self.rank])
            if any(row[0] != len(own) for row in everybody):
                _shiplap._raise("D303", "some ranks make a Dispatcher, others an Exchange",
                                rank=self.ranks[self.rank])
            rows = [row[1:len(own) + 1] for row in everybody]
            if any(row != own for row in rows):
                flat = [value for row in rows for value in row]
                _shiplap._compare_hashes(list(hashes), flat, self.ranks)
        if world_size != self.size:
            _shiplap._raise("D400", f"tables of {world_size} ranks in a group of {self.size}",
                            "" if self.group else "torch.distributed is not initialized",
                            "make them for the ranks of the group")

    def agree_on_rows(self, way: str, xs: Sequence[torch.Tensor]) -> None:
        """Raises Mismatch on all ranks unless all are about to send rows of one kind the same way.

        Rows that differ would come out as other numbers, or end the process within gloo. With NCCL
        the host would have to wait for the GPU, so there each kind is compared once.
        """
        if self.group is None:
            return
        kind = (way, str(xs[0].dtype), *(tuple(x.shape[1:]) for x in xs))
        if kind in self._state.agreed:
            return
        own = [_ROWS, _hash(repr(kind))]
        everybody = self._gather(own, way)
        odd = [rank for rank, row in zip(self.ranks, everybody) if row != own]
        if odd:
            _shiplap._raise("D303", f"{way}: rows differ between the ranks",
                            f"here they are {kind[2:]} of {kind[1]}; other rows, or another way, "
                            "on rank " + ", ".join(map(str, odd)), rank=self.ranks[self.rank])
        if self.device.type != "cpu":
            self._state.agreed.add(kind)


def _checked(deadline: float) -> float:
    try:
        seconds = float(deadline)
    except (TypeError, ValueError):
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds > 0):
        _shiplap._raise("D003", f"deadline is {deadline!r}", "it is seconds, more than 0")
    return seconds


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


@functools.lru_cache(maxsize=256)
def _hash(text: str) -> int:
    """The same on all ranks, unlike hash()."""
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return _signed(value)
