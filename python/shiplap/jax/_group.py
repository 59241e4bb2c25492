"""Groups: the devices that a product is cut over, and how their ranks find each other."""

from __future__ import annotations

import atexit
import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax._src import distributed

from shiplap import _errors, _shiplap
from shiplap.jax import _primitive

_cpp = _shiplap.jax
_opened = 0  # by all processes alike, so that they mean the same by a number
_groups: list[Group] = []


def wait_for_calls() -> None:
    """Until all that was started has ended."""
    jax.effects_barrier()  # type: ignore[no-untyped-call]


class Group:
    """The ranks of a tensor-parallel group, one on each device. ``initialize()`` makes one."""

    def __init__(self, number: int, name: str, axis: str | None, size: int,
                 local: dict[int, int]) -> None:
        self.number = number  # by which compiled programs name it
        self.name = name
        self.axis = axis  # of the mesh; None: there is none
        self.size = size
        self._local = local  # ranks of this process, by the number of their device
        self.rank = next(iter(local.values()))  # the first of them
        self.is_open = True

    def __repr__(self) -> str:
        along = f" along {self.axis!r}" if self.axis else ""
        return f"<Group {self.name!r}{along}: rank {self.rank} of {self.size}>"

    def has_several_here(self) -> bool:
        """Whether several of its ranks are in this process."""
        return len(self._local) > 1

    def rank_known(self) -> int | None:
        """The rank of what is traced now; None if devices of this process have several."""
        ranks = set(self._local.values())
        return ranks.pop() if len(ranks) == 1 else None

    def addresses(self, device: Any) -> list[int]:
        """Where lhs, rhs and output of the last call on a device lay."""
        return list(_cpp.addresses(self.number, device.id))

    def memory(self) -> dict[str, Any]:
        """What buffers of the first rank of this process hold, in bytes."""
        held: dict[str, Any] = _cpp.memory(self.number)
        return held

    def take_trace(self) -> _shiplap.Trace:
        """What every call did, on all ranks, since the last time: ``initialize(trace=True)``.

        All ranks together. Numbers of layers count calls.
        """
        wait_for_calls()
        taken: _shiplap.Trace = _cpp.take_trace(self.number)
        return taken

    def close(self) -> None:
        """Ends the connections. All ranks; programs that use the group fail from then on."""
        try:
            wait_for_calls()
        except Exception:  # a call failed, and was told of when its result was looked at
            _primitive.forget_order()
        _cpp.close_group(self.number)
        self.is_open = False
        if self in _groups:
            _groups.remove(self)

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _close_all() -> None:
    for group in list(_groups):
        group.close()


class _OwnStore:
    """Where ranks of one process find each other."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._changed = threading.Condition()

    def put(self, key: str, value: str) -> None:
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def get(self, key: str, within: float) -> str | None:
        with self._changed:
            self._changed.wait_for(lambda: key in self._values, within)
            return self._values.get(key)


class _JaxStore:
    """The one of jax.distributed's coordinator."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def put(self, key: str, value: str) -> None:
        self._client.key_value_set(key, value)

    def get(self, key: str, within: float) -> str | None:
        end = time.monotonic() + within
        try:
            value: str = self._client.blocking_key_value_get(key, max(1, int(within * 1000)))
            return value
        except Exception:
            if time.monotonic() < end - 0.05:
                raise  # the coordinator is gone
            return None


def _own_address() -> str:
    """The one by which this process reaches JAX's coordinator: others can reach it there."""
    coordinator = getattr(distributed.global_state, "coordinator_address", None)
    if not coordinator or distributed.global_state.client is None:
        return "127.0.0.1"
    host, _, port = coordinator.rpartition(":")
    host = host.strip("[]")
    if host in ("localhost", "0.0.0.0", ""):
        return "127.0.0.1"
    kind, _, _, _, target = socket.getaddrinfo(host, int(port), type=socket.SOCK_DGRAM)[0]
    with socket.socket(kind, socket.SOCK_DGRAM) as probe:
        probe.connect(target)  # nothing is sent
        return str(probe.getsockname()[0])


def _lines(mesh: Any, axis: str | None) -> Any:
    """Devices by line and rank."""
    if mesh is None:
        return np.array(jax.devices(), dtype=object)[None, :]
    names = tuple(mesh.axis_names)
    if axis is None and len(names) == 1:
        axis = names[0]
    if axis not in names:
        raise _errors.InputError(f"the mesh has the axes {', '.join(names)}, and not {axis}: "
                                 "name the one that products are cut over")
    devices = np.moveaxis(np.asarray(mesh.devices, dtype=object), names.index(axis), -1)
    return devices.reshape(-1, devices.shape[-1])


def _meet(places: list[Any], name: str, address: str | None, timeout: float,
          connect_within: float, trace: bool) -> int:
    """By JAX's own coordinator; in one process, without."""
    client = distributed.global_state.client
    store: Any = _OwnStore() if client is None else _JaxStore(client)
    number: int = _cpp.open_group(name, places, address or _own_address(), timeout, connect_within,
                                  trace, store.put, store.get)
    return number


def initialize(mesh: Any = None, axis: str | None = None, *, meet_at: str | None = None,
               rank: int | None = None, size: int | None = None, name: str | None = None,
               address: str | None = None, timeout: float = 60.0, connect_within: float = 60.0,
               trace: bool = False) -> Group:
    """Connects the devices along an axis of a mesh; without one, all devices there are.

    All processes call it, in the same order as other calls of it. They find each other by the
    coordinator of ``jax.distributed``, if that was initialized; neither MPI nor a shared file is
    needed. Processes that do without it, each with a JAX of its own, say ``meet_at="HOST:PORT"``,
    where rank 0 waits for the others, and which ``rank`` of what ``size`` they are.

    ``timeout`` is how many seconds any rank may keep the others waiting in a call, ``address``
    where this process listens, if not at the address by which it reaches the coordinator. With
    ``trace``, ``Group.take_trace()`` has what every call did.
    """
    global _opened
    if mesh is not None and not hasattr(mesh, "axis_names"):
        raise _errors.InputError(f"{mesh!r} is no mesh: initialize(mesh, axis)")
    if (meet_at is None) != (rank is None) or (meet_at is None) != (size is None) or (
            meet_at is not None and mesh is not None):
        raise _errors.InputError("meet_at, rank and size come together, and without a mesh: every "
                                 "process has a JAX of its own then")
    _opened += 1
    if meet_at is not None and rank is not None and size is not None:
        if not 0 <= rank < size:
            raise _errors.InputError(f"there is no rank {rank} of {size}")
        name = name or "all"
        where = (jax.local_devices()[0].id, rank, f"shiplap/{_opened}/{name}",
                 [f"process {k}" for k in range(size)])
        number = _cpp.meet_group(name, where, meet_at, address or "", timeout, connect_within,
                                 trace)
        return _kept(Group(number, name, None, size, {where[0]: rank}))
    lines = _lines(mesh, axis)
    if mesh is not None and axis is None:
        axis = mesh.axis_names[0]
    name = name or axis or "all"
    places = []
    for k, line in enumerate(lines):
        who = [f"process {d.process_index}"
               + (f" (device {d.id})" if jax.local_device_count() > 1 else "") for d in line]
        for place, device in enumerate(line):
            if device.process_index == jax.process_index():
                places.append((device.id, place, f"shiplap/{_opened}/{name}/{k}", who))
    if not places:
        raise _errors.InputError("no device of this process is in the mesh")
    number = _meet(places, name, address, timeout, connect_within, trace)
    return _kept(Group(number, name, axis, lines.shape[-1], {p[0]: p[1] for p in places}))


def _kept(group: Group) -> Group:
    if not _groups:
        atexit.register(_close_all)
    _groups.append(group)
    return group


def group_or_only(group: Group | None) -> Group:
    if group is not None:
        if group.is_open:
            return group
        raise _errors.InputError(f"{group!r} was closed: make another one, and trace again")
    if len(_groups) == 1:
        return _groups[0]
    raise _errors.InputError(
        "call shiplap.jax.initialize() first" if not _groups else
        f"there are {len(_groups)} groups: give the one that is meant, group=..")


@contextlib.contextmanager
def diagnosed() -> Iterator[None]:
    """What fails within is raised as an exception of shiplap, with its diagnostics.

    XLA reports what a handler says as a ``JaxRuntimeError``, when a result is first looked at. Look
    at results within: ``jax.block_until_ready()``. Calls that waited for one that failed fail with
    it, also those of later programs; after a ``diagnosed()`` they start anew.
    """
    _primitive.forget_failures()
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        _primitive.forget_order()
        try:
            _cpp.throw_failure(str(error))
        except _errors.Error as ours:
            raise ours from error
        raise
