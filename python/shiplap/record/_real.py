"""Runs a rank for real: every operator on the CPU, every call through a gloo process group.

For programs whose control flow depends on data, and as evidence that fake ranks do what real ones
do. Calls are started when they are made. As on a GPU, waiting for one does not block the host: it
is completed when an operator uses its memory, or the host waits for the device.
"""

# mypy: disable-error-code="no-untyped-call,attr-defined,arg-type"

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch._C._distributed_c10d import AllreduceOptions, ReduceOp
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map_only

from shiplap.record import _devices
from shiplap.record._events import Call, Event, HostWait, Region, events_file
from shiplap.record._recorder import Recorder, tensors_in, written_by

_MEETING = timedelta(minutes=2)  # ranks that create a group may be far apart
_OPERATORS = {
    "product": ReduceOp.PRODUCT,
    "min": ReduceOp.MIN,
    "max": ReduceOp.MAX,
    "band": ReduceOp.BAND,
    "bor": ReduceOp.BOR,
    "bxor": ReduceOp.BXOR,
}


class Stuck(BaseException):
    """A call did not complete: the recording ends here."""


@dataclass
class _Running:
    """A call that was started."""

    call: Call
    works: list[Any]
    finish: Callable[[], None]  # puts the result where it belongs


class RealRecorder(Recorder):
    """The state of one rank. What is recorded also goes to a file, in case the process dies."""

    backend = "cpu:gloo"  # no program would say it so
    tensor_type = torch.Tensor

    def __init__(
        self, rank: int, world: int, max_steps: int, timeout: timedelta, directory: str
    ) -> None:
        super().__init__(rank, world, max_steps)
        self._timeout = timeout
        self.timeout = max(timeout, _MEETING)
        self._directory = directory
        self._file = open(events_file(directory, rank), "wb")
        self._running: dict[int, _Running] = {}  # by call
        # By storage: what running calls write, which nobody sees before they are complete. What
        # they read was copied when they started.
        self._written: dict[int, list[tuple[Region, int]]] = {}

    def emit(self, event: Event) -> None:
        super().emit(event)
        pickle.dump(event, self._file)
        self._file.flush()
        if isinstance(event, HostWait) and event.stream < 0:
            self.finish()

    def store(self) -> Any:
        return dist.FileStore(os.path.join(self._directory, "store"), self.world)

    def begin_capture(self) -> int:
        raise NotImplementedError("CUDA graphs cannot be executed on the CPU: use --mode fake")

    # ---- operators

    def execute(self, func: Any, args: Any, kwargs: dict[str, Any], on_device: bool) -> Any:
        for tensor in tensors_in((args, kwargs)) if self._written else ():
            self._complete_on(tensor)
        return func(*args, **kwargs)

    def read(self, func: Any, args: Any) -> Any:
        for tensor in tensors_in(args):
            self.value_of(tensor)
        return func(*args)

    def value_of(self, tensor: torch.Tensor) -> torch.Tensor:
        self.touch(tensor, False, "item")
        if _devices.mark_of(tensor) is not None:
            self.emit(HostWait(_devices.current_stream_id(), self.site()))
        self._complete_on(tensor)
        return tensor

    # ---- calls

    def results_of(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        name = func._schema.name.split("::")[1]
        if name.endswith(("_", "_out")):
            return kwargs.get("out", args[0])
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            shapes = func(*tree_map_only(torch.Tensor, mode.from_tensor, args), **kwargs)
        return tree_map_only(
            torch.Tensor, lambda t: torch.empty(t.shape, dtype=t.dtype, device="cpu"), shapes
        )

    def carry_out(
        self, call: Call, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
    ) -> None:
        for tensor in (*inputs, *outputs):
            self._complete_on(tensor, since=self.batch_begin)
        try:
            works, finish = _start(call, [*inputs], [*outputs])
        except RuntimeError as error:
            raise Stuck(_reason(call, error)) from None
        self._running[call.id] = _Running(call, works, finish)
        for region in written_by(call):
            self._written.setdefault(region.storage, []).append((region, call.id))

    def wait(self, call: int) -> None:
        super().wait(call)
        for known in self.together(call):
            if known.on_host or known.kind == "barrier":
                self.complete(known.id)

    def complete(self, call: int) -> None:
        """Blocks the host until a call is complete."""
        running = self._running.pop(call, None)
        if running is None:
            return
        try:
            for work in running.works:
                work.wait(self._timeout)
        except RuntimeError as error:
            raise Stuck(_reason(running.call, error)) from None
        with _disable_current_modes(), torch.no_grad():
            running.finish()
        for region in written_by(running.call):
            regions = self._written.pop(region.storage, [])
            if others := [each for each in regions if each[1] != call]:
                self._written[region.storage] = others

    def finish(self) -> None:
        for call in list(self._running):
            self.complete(call)

    def _complete_on(self, tensor: torch.Tensor, since: int | None = None) -> None:
        """Completes the calls that write to a tensor; those of the batch that begins with call
        `since` do not see one another's results."""
        running = self._written.get(self.known_storage(tensor)) if self._written else None
        if not running:
            return
        own = self.region(tensor)
        for region, call in running[:]:
            overlap = region.begin < own.begin + own.size and own.begin < region.begin + region.size
            if overlap and (since is None or call < since):
                self.complete(call)


def _reason(call: Call, error: RuntimeError) -> str:
    """Without the place in the source of gloo, and its advice."""
    text = re.sub(r"^\[[^\]]*\]\s*", "", str(error)).split(". ")[0]
    return f"{call.kind} at {call.site}: {text}"


def _start(
    call: Call, inputs: list[torch.Tensor], outputs: list[torch.Tensor]
) -> tuple[list[Any], Callable[[], None]]:
    """Starts a call in gloo. Results go through memory of our own, since gloo knows neither all
    types nor all layouts: data travel as bytes, and sums are formed in a wide type."""
    group = c10d._resolve_process_group(call.group)
    size, me = group.size(), group.rank()

    def nothing() -> None:
        pass

    if call.kind == "barrier":
        return [group.barrier()], nothing
    if call.kind == "send":
        return [group.send([_bytes(t)], call.peer, call.tag) for t in inputs], nothing
    if call.kind == "receive":
        received = [torch.empty(_size(t), dtype=torch.uint8) for t in outputs]
        works = [group.recv([each], call.peer, call.tag) for each in received]
        return works, lambda: _fill(outputs, torch.cat(received))
    if call.kind in ("all_reduce", "reduce", "reduce_scatter"):
        return _reduce(group, call, inputs, outputs)
    if call.kind == "broadcast":
        targets = outputs or inputs
        data = _bytes(*(inputs if me == call.root else targets))
        return [_broadcast(group, data, call.root)], lambda: _fill(targets, data)
    if call.kind in ("all_gather", "gather"):
        # In turn: the parts of members may differ in size.
        mine = _bytes(*inputs)
        whole = len(outputs) != size
        sizes = [len(mine)] * size if whole else [_size(t) for t in outputs]
        parts = [
            mine.clone() if rank == me else torch.empty(sizes[rank], dtype=torch.uint8)
            for rank in range(size)
        ]
        works = [_broadcast(group, part, rank) for rank, part in enumerate(parts)]
        return works, lambda: _fill(outputs, torch.cat(parts)) if outputs else None
    if call.kind == "scatter":
        part = torch.empty(_size(outputs[0]), dtype=torch.uint8)
        options = c10d.ScatterOptions()
        options.rootRank = call.root
        pieces = [[_bytes(t) for t in inputs]] if me == call.root else []
        return [group.scatter([part], pieces, options)], lambda: _fill(outputs, part)
    if call.kind == "all_to_all":
        width = (inputs or outputs)[0].element_size()
        data, result = _bytes(*inputs), torch.empty(sum(map(_size, outputs)), dtype=torch.uint8)
        sent = [n * width for n in call.send_counts] or [len(data) // size] * size
        received_sizes = [n * width for n in call.receive_counts] or [len(result) // size] * size
        works = [group.alltoall_base(result, data, received_sizes, sent, c10d.AllToAllOptions())]
        return works, lambda: _fill(outputs, result)
    raise NotImplementedError(f"shiplap record cannot execute {call.kind}")


def _reduce(
    group: Any, call: Call, inputs: list[torch.Tensor], outputs: list[torch.Tensor]
) -> tuple[list[Any], Callable[[], None]]:
    given = inputs[0].dtype
    wide = given if given == torch.float64 else torch.float32
    wide = wide if given.is_floating_point else torch.int64
    total = torch.cat([t.detach().reshape(-1) for t in inputs]).to(wide)
    options = AllreduceOptions()
    options.reduceOp = _OPERATORS.get(call.reduce, ReduceOp.SUM)
    work = group.allreduce([total], options)
    size, me = group.size(), group.rank()

    def finish() -> None:
        result = total
        if call.average:
            result = total / size if wide.is_floating_point else total // size
        if call.kind == "reduce_scatter":
            result = result.tensor_split(size)[me]
        if call.kind != "reduce" or me == call.root:
            _fill(outputs or inputs, _bytes(result.to(given)))

    return [work], finish


def _broadcast(group: Any, data: torch.Tensor, root: int) -> Any:
    options = dist.BroadcastOptions()
    options.rootRank, options.rootTensor = root, 0
    return group.broadcast([data], options)


def _size(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _bytes(*tensors: torch.Tensor) -> torch.Tensor:
    """A copy of their data."""
    parts = [t.detach().contiguous().reshape(-1).view(torch.uint8) for t in tensors]
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.uint8)


def _fill(tensors: Sequence[torch.Tensor], data: torch.Tensor) -> None:
    """The opposite of _bytes."""
    begin = 0
    for tensor in tensors:
        part = data[begin : begin + _size(tensor)].clone()  # aligned
        begin += _size(tensor)
        tensor.detach().copy_(part.view(tensor.dtype).reshape(tensor.shape))
