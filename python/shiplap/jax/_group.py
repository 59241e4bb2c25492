"""Groups: the devices that a GEMM is sharded over, and the rendezvous of their ranks."""

from __future__ import annotations

import atexit
import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax._src import distributed

from shiplap import _address, _errors, _shiplap
from shiplap.jax import _primitive

_cpp = _shiplap.jax
_opened = 0  # number of initialize() calls, the same in all processes: part of the store's keys
_groups: list[Group] = []


def wait_for_calls() -> None:
    """Blocks until all calls in flight have completed."""
    jax.effects_barrier()  # type: ignore[no-untyped-call]


class Group:
    """The ranks of a tensor-parallel group, one per device. ``initialize()`` creates one."""

    def __init__(self, number: int, name: str, axis: str | None, size: int,
                 local: dict[int, int]) -> None:
        self.number = number  # compiled programs refer to the group by it
        self.name = name
        self.axis = axis  # of the mesh; None: no mesh
        self.size = size
        self._local = local  # ranks of this process, by device id
        self.rank = next(iter(local.values()))  # the first local rank
        self.is_open = True

    def __repr__(self) -> str:
        along = f" along {self.axis!r}" if self.axis else ""
        return f"<Group {self.name!r}{along}: rank {self.rank} of {self.size}>"

    def has_several_here(self) -> bool:
        """Whether several of its ranks are in this process."""
        return len(self._local) > 1

    def rank_known(self) -> int | None:
        """The rank of this process; None if its devices have different ranks."""
        ranks = set(self._local.values())
        return ranks.pop() if len(ranks) == 1 else None

    def addresses(self, device: Any) -> list[int]:
        """The addresses of lhs, rhs and output of the last call on a device."""
        return list(_cpp.addresses(self.number, device.id))

    def memory(self) -> dict[str, Any]:
        """The memory of the buffers of the first local rank, in bytes."""
        held: dict[str, Any] = _cpp.memory(self.number)
        return held

    def take_trace(self) -> _shiplap.Trace:
        """Returns the trace of all ranks since the last call; needs ``initialize(trace=True)``.

        A collective: all ranks call it. The layer number of an event counts calls.
        """
        wait_for_calls()
        taken: _shiplap.Trace = _cpp.take_trace(self.number)
        return taken

    def close(self) -> None:
        """Closes the connections. All ranks call it. Programs that use the group then fail."""
        try:
            wait_for_calls()
        except Exception:  # a call failed; its error is reported where its result is used
            _primitive.reset_order()
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


class _InProcessStore:
    """A key-value store for the ranks of one process."""

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
    """The key-value store of jax.distributed's coordinator."""

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


def _local_address() -> str:
    """The address of the interface that reaches JAX's coordinator; peers can connect to it."""
    coordinator = getattr(distributed.global_state, "coordinator_address", None)
    if not coordinator or distributed.global_state.client is None:
        return "127.0.0.1"
    host, _, port = coordinator.rpartition(":")
    return _address.local_address_towards(host.strip("[]"), int(port))


def _subgroups(mesh: Any, axis: str | None) -> Any:
    """Devices by subgroup (a line of the mesh along the axis) and rank."""
    if mesh is None:
        return np.array(jax.devices(), dtype=object)[None, :]
    names = tuple(mesh.axis_names)
    if axis is None and len(names) == 1:
        axis = names[0]
    if axis not in names:
        raise _errors.InputError(f"unknown axis {axis}: the mesh has the axes {', '.join(names)}; "
                                 "give the one that GEMMs are sharded over")
    devices = np.moveaxis(np.asarray(mesh.devices, dtype=object), names.index(axis), -1)
    return devices.reshape(-1, devices.shape[-1])


def _open_group(placements: list[Any], name: str, address: str | None, timeout: float,
          connect_timeout: float, trace: bool) -> int:
    """Rendezvous through JAX's coordinator, or within one process if there is none."""
    client = distributed.global_state.client
    store: Any = _InProcessStore() if client is None else _JaxStore(client)
    number: int = _cpp.open_group(name, placements, address or _local_address(), timeout,
                                  connect_timeout, trace, store.put, store.get)
    return number


def initialize(mesh: Any = None, axis: str | None = None, *, store_address: str | None = None,
               rank: int | None = None, size: int | None = None, name: str | None = None,
               address: str | None = None, timeout: float = 60.0, connect_timeout: float = 60.0,
               trace: bool = False) -> Group:
    """Connects the devices along an axis of a mesh; without a mesh, all devices.

    A collective: all processes call it, in the same order. The rendezvous uses the coordinator of
    ``jax.distributed``, if that was initialized; neither MPI nor a shared file is needed. Processes
    without it, each with a separate JAX, give ``store_address="HOST:PORT"``, where rank 0 listens,
    and their ``rank`` and the world ``size``.

    ``timeout`` is the maximum time in seconds that a call waits for another rank. ``address`` is
    the address that this process listens on; the default is that of the interface that reaches
    the coordinator. With ``trace``, ``Group.take_trace()`` returns the events of all calls.
    """
    global _opened
    if mesh is not None and not hasattr(mesh, "axis_names"):
        raise _errors.InputTypeError(f"{mesh!r} is not a mesh: call initialize(mesh, axis)")
    if (store_address is None) != (rank is None) or (store_address is None) != (size is None) or (
            store_address is not None and mesh is not None):
        raise _errors.InputError("store_address, rank and size require each other and exclude a "
                                 "mesh: every process then has a separate JAX")
    _opened += 1
    if store_address is not None and rank is not None and size is not None:
        if not 0 <= rank < size:
            raise _errors.InputError(f"rank {rank} is out of range: the size is {size}")
        name = name or "all"
        where = (jax.local_devices()[0].id, rank, f"shiplap/{_opened}/{name}",
                 [f"process {k}" for k in range(size)])
        number = _cpp.open_group_at(name, where, store_address, address or "", timeout,
                                    connect_timeout, trace)
        return _register(Group(number, name, None, size, {where[0]: rank}))
    subgroups = _subgroups(mesh, axis)
    if mesh is not None and axis is None:
        axis = mesh.axis_names[0]
    name = name or axis or "all"
    placements = []
    for k, subgroup in enumerate(subgroups):
        rank_names = [f"process {d.process_index}"
               + (f" (device {d.id})" if jax.local_device_count() > 1 else "") for d in subgroup]
        for place, device in enumerate(subgroup):
            if device.process_index == jax.process_index():
                placements.append((device.id, place, f"shiplap/{_opened}/{name}/{k}", rank_names))
    if not placements:
        raise _errors.InputError("the mesh contains no device of this process")
    number = _open_group(placements, name, address, timeout, connect_timeout, trace)
    return _register(Group(number, name, axis, subgroups.shape[-1],
                           {p[0]: p[1] for p in placements}))


def _register(group: Group) -> Group:
    if not _groups:
        atexit.register(_close_all)
    _groups.append(group)
    return group


def resolve_group(group: Group | None) -> Group:
    if group is not None:
        if group.is_open:
            return group
        raise _errors.InputError(f"{group!r} is closed: create another one and trace again")
    if len(_groups) == 1:
        return _groups[0]
    raise _errors.InputError(
        "call shiplap.jax.initialize() first" if not _groups else
        f"ambiguous group: there are {len(_groups)} groups, so pass group=..")


@contextlib.contextmanager
def diagnosed() -> Iterator[None]:
    """Raises failures inside the block as exceptions of shiplap, with their diagnostics.

    XLA reports the error of a handler as a ``JaxRuntimeError`` when a result is first used, so use
    results inside the block: ``jax.block_until_ready()``. Calls that depend on a failed call fail
    with it, even in later programs; ``diagnosed()`` resets this dependence.
    """
    _primitive.reset_order_after_failure()
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        _primitive.reset_order()
        try:
            _cpp.rethrow_failure(str(error))
        except _errors.Error as ours:
            raise ours from error
        raise
