"""The C++ engine of overlapped GEMMs on the ranks of a torch process group.

The ranks of the process group connect to each other by sockets of the engine, at the first GEMM;
they find each other through the store of the process group. A failure before the connection is
propagated through that store, a later one by the engine.
"""

from __future__ import annotations

import os
import socket
import time
import weakref
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from shiplap import _address, _errors, _shiplap
from shiplap._torch_group import MonitoredGroup

_cpp = _shiplap.jax
_POLL_INTERVAL_S = 0.01  # between two reads of the store, while the ranks connect
DTYPES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}


class OverlapGroup(MonitoredGroup):
    """A rank's view of its group, which multiplies matrices while it communicates."""

    def __deepcopy__(self, memo: dict[int, Any]) -> OverlapGroup:
        return self  # copies of a layer are on the same ranks

    def multiply(self, comm_type: str, method: str, chunks: int, transposed: str,
                 **matrices: torch.Tensor | None) -> None:
        """A GEMM with its communication: see ``OverlapCall`` in run/comm_overlap.h. ``transposed``
        names the transposed operands: "", "w" or "x". All matrices are contiguous."""
        self._check_alive()
        with self.abort_peers_on_exception():
            given = {name: _memory(name, one) for name, one in matrices.items() if one is not None}
        dtype = next(DTYPES[one.dtype] for one in matrices.values() if one is not None)
        try:
            _cpp.multiply(self._connect(), comm_type, method, chunks, dtype, transposed, given)
        except _errors.Failure as error:
            self._post_failure("", str(error))  # this rank only detected the failure
            if not isinstance(error, _errors.RankFailed):  # that rank is gone, or told all engines
                self._abort_engines(error, told=self._state.engines.get(self.deadline))
            raise
        except _errors.InputError as error:
            # All ranks raise D808, and the group stays usable.
            if [each.code for each in error.diagnostics] != ["D808"]:
                self.abort_peers(error)
            raise

    # ---- connecting

    def _connect(self) -> int:
        """Returns the number of the engine's group. The first call is a collective."""
        number = self._state.engines.get(self.deadline)
        if number is None:
            name = f"engine {len(self._state.engines)}"
            self._wait_for_peers(name)
            names = [f"rank {rank} of the job" for rank in self.ranks]
            number = _cpp.open_group(self.group.group_name, [(0, self.rank, name, names)],
                                     self._local_address(), self.deadline, self.deadline, False,
                                     self._store.set, self._get)
            self._state.engines[self.deadline] = number
            weakref.finalize(self._state, _cpp.close_group, number)
        return number

    def _wait_for_peers(self, name: str) -> None:
        """Returns when all ranks connect. Raises if a rank has failed, which the sockets of ranks
        that are not connected yet cannot tell."""
        self._store.set(f"{name}: rank {self.rank}", "")
        end = time.monotonic() + self.deadline
        missing = list(range(self.size))
        while True:
            missing = [rank for rank in missing if not self._has_key(f"{name}: rank {rank}")]
            if not missing:
                return
            self._check_failures("connecting")
            if time.monotonic() >= end:
                ranks = ", ".join(str(self.ranks[rank]) for rank in missing)
                self._raise_failure("D301", f"connecting timed out after {self.deadline:g} s",
                                    f"missing: rank {ranks}")
            time.sleep(_POLL_INTERVAL_S)

    def _has_key(self, key: str) -> bool:
        try:
            return bool(self._store.check([key]))
        except RuntimeError as error:
            self._raise_failure("D302", "a rank failed",
                                f"lost connection to the store of the process group: {error}")
            return False

    def _get(self, key: str, within: float) -> str | None:
        """The value of a key, for which it waits. Not by wait(), which writes to standard error."""
        end = time.monotonic() + within
        while not self._has_key(key):
            if time.monotonic() >= end:
                return None
            time.sleep(_POLL_INTERVAL_S)
        value: str = self._store.get(key).decode()
        return value

    @staticmethod
    def _local_address() -> str:
        """The address of the interface that reaches the store, like gloo's default otherwise."""
        given = os.environ.get("SHIPLAP_ADDRESS")
        if given:
            return given
        store = distributed_c10d._get_default_store()
        while isinstance(store, distributed_c10d.PrefixStore):
            store = store.underlying_store
        if isinstance(store, dist.TCPStore):  # type: ignore[attr-defined]
            return _address.local_address_towards(store.host, store.port)
        return socket.gethostbyname(socket.gethostname())


def _memory(name: str, matrix: torch.Tensor) -> tuple[int, int, int]:
    """The address, the rows and the columns, which is all that the engine sees of a matrix."""
    if not matrix.is_contiguous():
        _shiplap._raise("D818", f"the matrix {name} is not contiguous",
                        f"its strides are {tuple(matrix.stride())}", "call contiguous() first")
    return matrix.data_ptr(), matrix.shape[0], matrix.shape[1]
