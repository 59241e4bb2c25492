"""How the ranks of ``shiplap.puzzles`` meet: protocols, Barrier, Dist."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import operator
import weakref
from collections import defaultdict
from collections.abc import Callable, Collection, Coroutine, Iterator
from typing import Any, Protocol, TypeVar

from shiplap._errors import InputError

T = TypeVar("T", bound="Reduceable[Any]")
O = TypeVar("O", bound="Gatherable[Any]")
TO = TypeVar("TO", bound="ReduceableGatherable[Any]")
_R = TypeVar("_R")
_G = TypeVar("_G")
_RG = TypeVar("_RG")


class PuzzleError(InputError, AssertionError):
    """A wrong call of a program. It is an AssertionError too, as the puzzles have it."""


PuzzleError.__module__ = "shiplap.puzzles"  # the public module, for tracebacks


def error(code: str, what: str, **more: Any) -> PuzzleError:
    """The exception with one diagnostic."""
    return PuzzleError.of(code, what, **more)


# ---- protocols


class Reduceable(Protocol[_R]):
    """Values that can be summed."""

    def __add__(self, other: _R) -> _R: ...


class Gatherable(Protocol[_G]):
    """Values that can be sharded, and put together again."""

    def shard(self, shard: int, num_shards: int) -> _G:
        """Shard number ``shard`` of ``num_shards``."""
        ...

    def is_complete(self) -> bool:
        """Whether no shard is missing."""
        ...

    def combine(self, other: _G) -> _G:
        """The shards of both."""
        ...


class ReduceableGatherable(Reduceable[_RG], Gatherable[_RG], Protocol[_RG]):
    """Values that can be summed and sharded."""


# ---- communication


class _Round:
    def __init__(self) -> None:
        self.arrived: set[int] = set()
        self.passed = 0
        self.full = asyncio.Event()
        self.empty = asyncio.Event()


class Barrier:
    """Blocks ranks until ``target`` of them have arrived. It can be used again and again.

    >>> barrier = shiplap.puzzles.Barrier(2)
    >>> order = []
    >>> async def rank(number):
    ...     order.append(f"{number} arrives")
    ...     await barrier.wait(number)
    ...     order.append(f"{number} passes")
    >>> async def both():
    ...     await asyncio.gather(rank(0), rank(1))
    >>> import asyncio
    >>> asyncio.run(both())
    >>> order[:2]
    ['0 arrives', '1 arrives']
    """

    def __init__(self, target: int) -> None:
        if target < 1:
            raise error("D003", f"a barrier of {target} ranks", help="give 1 or more")
        self.target = target
        self._round = _Round()
        self._last = _Round()  # the last full round
        self._last.empty.set()

    async def wait(self, rank: int) -> None:
        """Blocks until all ranks are here; then rank 0 resets the barrier."""
        current = self._round
        if rank in current.arrived:
            raise error("D616", f"rank {rank} waits twice at one barrier", rank=rank,
                         why=f"a barrier of {self.target} needs that many different ranks",
                         help="give each rank its own number")
        current.arrived.add(rank)
        if len(current.arrived) == self.target:
            self._round, self._last = _Round(), current
            current.full.set()
        try:
            await current.full.wait()
        except asyncio.CancelledError:
            if current.full.is_set():
                self._pass(current)  # rank 0 waits for all who arrived
            else:
                current.arrived.discard(rank)
            if not current.arrived and current is self._round:
                self._round = _Round()  # the next round may run in another event loop
            raise
        self._pass(current)
        if rank == 0:
            await self.reset()

    def _pass(self, current: _Round) -> None:
        current.passed += 1
        if current.passed == self.target:
            current.empty.set()

    async def reset(self) -> None:
        """Blocks until all ranks have left the last full round."""
        await self._last.empty.wait()


@dataclasses.dataclass(eq=False)
class _Call:
    """A blocked call, and the deadlock of which it is part."""

    dist: Dist
    rank: int
    name: str
    deadlock: tuple[str, str] | None = None  # what and why


def _frames(task: asyncio.Task[Any]) -> Iterator[Any]:
    """The frames of a suspended task, outermost first."""
    coroutine: Any = task.get_coro()
    while getattr(coroutine, "cr_frame", None) is not None:
        yield coroutine.cr_frame
        coroutine = coroutine.cr_await


# The coroutines of asyncio that wait for other tasks, and their variable with those tasks.
_WAITS = {asyncio.wait.__code__: "fs", asyncio.wait_for.__code__: "fut"}
_TASK_GROUP = getattr(getattr(asyncio, "TaskGroup", None), "__aexit__", None)


def _are_tasks(futures: Collection[Any]) -> bool:
    """Whether these are tasks, or what ``gather`` made of tasks."""
    return bool(futures) and all(
        isinstance(future, asyncio.Task) or _are_tasks(getattr(future, "_children", ()))
        for future in futures)


def _awaits_tasks(task: asyncio.Task[Any], awaited: Any) -> bool:
    """Whether a task waits for other tasks, not for time, a file, an event, .."""
    if _are_tasks([awaited]):
        return True
    for frame in _frames(task):
        if _TASK_GROUP is not None and frame.f_code is _TASK_GROUP.__code__:
            return True
        found = frame.f_locals.get(_WAITS.get(frame.f_code, ""))
        if _are_tasks(found if isinstance(found, set) else [found]):
            return True
    return False


class _DeadlockDetector:
    """Raises in all blocked calls of an event loop if none of its tasks can continue.

    That is so if each task is blocked in a call of a Dist, or waits for other tasks. A task that
    waits for anything else may still start ranks, send or call, so it prevents the report.
    """

    INTERVAL = 0.25  # seconds; a deadlock lasts for two of them

    def __init__(self, background: Collection[asyncio.Task[Any]]) -> None:
        self._background: weakref.WeakSet[asyncio.Task[Any] | None] = weakref.WeakSet(
            background)  # those of a notebook, for example
        self._calls: dict[asyncio.Task[Any], _Call] = {}
        self._progress = 0
        self._stuck_at = -1
        self._polls = False

    async def block(self, call: _Call, inner: Coroutine[Any, Any, Any]) -> Any:
        """Awaits ``inner``, which other ranks complete."""
        self._background.discard(asyncio.current_task())
        task = asyncio.ensure_future(inner)
        self._calls[task] = call
        self._progress += 1
        self._poll()
        try:
            return await task
        except asyncio.CancelledError:
            if call.deadlock is None:
                raise
            what, why = call.deadlock
            raise error("D617", what, rank=call.rank, operation=call.name, why=why,
                         help="let every rank make the calls that the others wait for") from None
        finally:
            self._progress += 1
            del self._calls[task]

    def _poll(self) -> None:
        # The loop holds the detector, not the detector the loop, so that closed loops are freed.
        if self._calls and not self._polls:
            self._polls = True
            asyncio.get_running_loop().call_later(self.INTERVAL, self._check)

    def _check(self) -> None:
        self._polls = False
        if not self._is_stuck():
            self._stuck_at = -1
        elif self._stuck_at != self._progress:  # callbacks of ended tasks may not have run yet
            self._stuck_at = self._progress
        else:
            self._report()
        self._poll()

    def _is_stuck(self) -> bool:
        return all(map(self._is_blocked, asyncio.all_tasks() - set(self._background)))

    def _is_blocked(self, task: asyncio.Task[Any]) -> bool:
        awaited = getattr(task, "_fut_waiter", None)
        if awaited is None or awaited.done():
            return False
        return task in self._calls or _awaits_tasks(task, awaited)

    def _report(self) -> None:
        hanging: defaultdict[Dist, set[int]] = defaultdict(set)
        for call in self._calls.values():
            hanging[call.dist].add(call.rank)
        why = "; ".join(self._states(hanging))
        for task, call in self._calls.items():
            size = call.dist.world_size
            call.deadlock = f"deadlock: {len(hanging[call.dist])} of {size} ranks hang", why
            task.cancel()

    def _states(self, hanging: dict[Dist, set[int]]) -> list[str]:
        several = len(hanging) > 1
        states = [f"rank {call.rank} waits in {call.name}"
                  + f" of a Dist({call.dist.world_size})" * several
                  for call in sorted(self._calls.values(), key=lambda call: call.rank)]
        # In several Dists a rank has several numbers, and the only rank of Dist(1) any number.
        for dist, ranks in hanging.items():
            if not several and dist.world_size > 1:
                states += [f"rank {rank} has ended" for rank in range(dist.world_size)
                           if rank not in ranks]
        return states


_detectors: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _DeadlockDetector] = (
    weakref.WeakKeyDictionary())


def _detector() -> _DeadlockDetector:
    """The detector of the running loop. Tasks that are older than its first Dist are ignored."""
    loop = asyncio.get_running_loop()
    if loop not in _detectors:
        _detectors[loop] = _DeadlockDetector(())
    return _detectors[loop]


def _start_detector() -> None:
    with contextlib.suppress(RuntimeError):  # outside a loop
        others = asyncio.all_tasks() - {asyncio.current_task()}
        _detectors.setdefault(asyncio.get_running_loop(), _DeadlockDetector(others))


class _Collective:
    """One collective: what each rank that has come passed to it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.inputs: dict[int, tuple[Any, int]] = {}  # by rank: the value and the time
        self.full = asyncio.Event()
        self.result: Any = None
        self.failure: Exception | None = None

    def complete(self, combine: Callable[[Any, Any], Any]) -> None:
        """Computes the result, once for all ranks. A failure is raised in all of them."""
        try:
            self.result = functools.reduce(combine, [value for value, _ in self.inputs.values()])
        except Exception as failure:
            self.failure = failure
        self.full.set()


class Dist:
    """The communication of ``world_size`` ranks.

    Collectives are of all ranks. They return the result and the time at which the last rank came;
    what they take is for the caller to add.

    >>> import asyncio
    >>> async def sums(dist):
    ...     return await asyncio.gather(*[dist.all_reduce(r, 10 ** r, time=r) for r in range(3)])
    >>> asyncio.run(sums(shiplap.puzzles.Dist(3)))
    [(111, 2), (111, 2), (111, 2)]
    """

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self.barrier = Barrier(world_size)  # for programs
        self.queue: defaultdict[tuple[int, int], asyncio.Queue[Any]] = defaultdict(asyncio.Queue)
        self._collective: _Collective | None = None  # the one that ranks enter
        self._loop: asyncio.AbstractEventLoop | None = None
        if world_size > 1:  # the Dist of Model() is as old as this module
            _start_detector()

    def check_rank(self, rank: int, call: str) -> None:
        """Raises D621 for a rank that does not exist."""
        # Model() is rank 1 of Dist(1), as in the puzzles.
        if self.world_size > 1 and not 0 <= rank < self.world_size:
            raise error("D621", f"there is no rank {rank}", operation=call,
                         help=f"there are ranks 0 to {self.world_size - 1}")

    def _use_running_loop(self) -> None:
        """Drops what waits in another event loop. Messages stay."""
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return
        self._loop, self._collective = loop, None
        for ends, old in list(self.queue.items()):
            self.queue[ends] = asyncio.Queue()
            while not old.empty():
                self.queue[ends].put_nowait(old.get_nowait())

    def _enter(self, rank: int, name: str) -> _Collective:
        self.check_rank(rank, name)
        self._use_running_loop()
        current = self._collective = self._collective or _Collective(name)
        if current.name != name:
            raise error("D616", f"rank {rank} calls {name}, another rank {current.name}",
                         rank=rank,
                         why="all ranks must call the same collectives in the same order")
        if rank in current.inputs:
            raise error("D616", f"rank {rank} calls {name} twice at the same time", rank=rank,
                         why=f"{name} needs {self.world_size} different ranks",
                         help="await one collective before the next, and give each rank its own "
                         "number")
        return current

    async def _meet(self, rank: int, name: str, inp: Any, time: int,
                    combine: Callable[[Any, Any], Any]) -> tuple[Any, int]:
        current = self._enter(rank, name)
        current.inputs[rank] = inp, time
        if len(current.inputs) == self.world_size:
            self._collective = None  # the next one may begin before all have left this one
            current.complete(combine)
        try:
            await _detector().block(_Call(self, rank, name), current.full.wait())
        except BaseException:
            self._leave(rank, current)
            raise
        if current.failure is not None:
            raise current.failure
        return current.result, max(each for _, each in current.inputs.values())

    def _leave(self, rank: int, current: _Collective) -> None:
        """Forgets the input of a rank that was cancelled, so that it may call again."""
        if not current.full.is_set():
            del current.inputs[rank]
            if not current.inputs and self._collective is current:
                self._collective = None

    async def all_reduce(self, rank: int, inp: T, time: int) -> tuple[T, int]:
        """The sum of all inputs."""
        return await self._meet(rank, "all_reduce", inp, time, operator.add)

    async def all_gather(self, rank: int, inp: O, time: int) -> tuple[O, int]:
        """The shards of all inputs."""
        return await self._meet(rank, "all_gather", inp, time, lambda a, b: a.combine(b))

    async def reduce_scatter(self, rank: int, inp: TO, time: int) -> tuple[TO, int]:
        """Shard number ``rank`` of the sum."""
        total, time = await self._meet(rank, "reduce_scatter", inp, time, operator.add)
        part: TO = total.shard(rank % self.world_size, self.world_size)
        return part, time

    async def receive(self, rank_source: int, rank_dest: int) -> Any:
        """The next value that ``rank_source`` sent. Blocks until there is one."""
        call = f"receive(source={rank_source})"
        self.check_rank(rank_source, call)
        self.check_rank(rank_dest, call)
        self._use_running_loop()
        queue = self.queue[rank_source, rank_dest]
        return await _detector().block(_Call(self, rank_dest, call), queue.get())

    async def send(self, rank_source: int, rank_dest: int, v: Any) -> None:
        """Sends a value. Does not block."""
        call = f"send(dest={rank_dest})"
        self.check_rank(rank_source, call)
        self.check_rank(rank_dest, call)
        self._use_running_loop()
        await self.queue[rank_source, rank_dest].put(v)
