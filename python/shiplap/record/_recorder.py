"""Writes down what one rank communicates.

A TorchDispatchMode sees every operator that reaches torch's dispatcher, also those that C++ code
calls (the buckets of DDP) and those that DTensor makes. What becomes of them depends on the kind of
recorder: _fake.py has shapes and no data, _real.py executes everything.
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import os
import sys
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import ProcessGroup, ReduceOp, Work
from torch._subclasses.fake_tensor import FakeTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from shiplap.record import _devices
from shiplap.record._events import (
    Batch,
    Call,
    Event,
    HostWait,
    Region,
    Site,
    Step,
    Touch,
    Wait,
    calls_in,
)

_HERE = os.path.dirname(os.path.abspath(__file__))
_TORCH = os.path.dirname(os.path.abspath(torch.__file__))
_STDLIB = os.path.dirname(os.path.abspath(os.__file__))
_MAX_CALLERS = 3
# Files of torch that only pass calls on.
_WRAPPERS = (
    "distributed_c10d",
    "c10d_logger",
    "_ops",
    "_contextlib",
    "_stats",
    "_compile",
    "eval_frame",
)

DTYPES = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "u8",
    torch.float8_e4m3fn: "fp8_e4m3",
    torch.float8_e5m2: "fp8_e5m2",
}

_aten = torch.ops.aten
_READS = {
    _aten._local_scalar_dense.default,
    _aten.item.default,
    _aten.equal.default,
    _aten.is_nonzero.default,
}
# Functional collectives, without `_coalesced` and a final underscore.
_FUNCTIONAL = {
    "all_reduce": "all_reduce",
    "all_gather_into_tensor": "all_gather",
    "all_gather_into_tensor_out": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_tensor_out": "reduce_scatter",
    "all_to_all_single": "all_to_all",
    "shard_dim_alltoall": "all_to_all",
    "broadcast": "broadcast",
}


class StepLimit(BaseException):
    """The program made as many optimizer steps as were asked for."""


class RecordedWork(Work):
    """The handle of a recorded call. C++ callers reach its methods, too."""

    def __init__(self, recorder: Recorder, call: int, tensors: list[torch.Tensor]) -> None:
        super().__init__()
        self._recorder, self._call, self._tensors = recorder, call, tensors

    def wait(self, timeout: Any = None) -> bool:
        self._recorder.wait(self._call)
        return True

    def synchronize(self) -> None:
        self._recorder.wait(self._call)

    def block_current_stream(self) -> None:
        self._recorder.wait(self._call)

    def is_completed(self) -> bool:
        self._recorder.wait(self._call)  # a program that polls continues after completion
        return True

    def is_success(self) -> bool:
        return True

    def exception(self) -> None:
        return None

    def result(self) -> list[torch.Tensor]:
        return self._tensors

    def get_future(self) -> Any:
        # The reducer of DDP waits for futures in C++, at the latest at the end of backward.
        self._recorder.pending_futures.append(self._call)
        self._recorder.complete(self._call)
        future: Any = torch.futures.Future()
        future.set_result(self._tensors)
        return future


class Recorder(TorchDispatchMode):
    """The state of one rank."""

    backend: str  # of the process groups that are made
    timeout: timedelta | None = None  # likewise; None: as the program asks
    tensor_type: type[torch.Tensor]  # of the tensors that pretend to be on a device

    def __init__(self, rank: int, world: int, max_steps: int = 0) -> None:
        super().__init__()
        self.rank, self.world, self.max_steps = rank, world, max_steps
        self.events: list[Event] = []
        self.groups: dict[str, list[int]] = {}
        self.backends: dict[str, str] = {}
        self.steps = 0
        # That of the function of torch that runs, for versions that do not tell the dispatcher.
        self.reduction: Any = ReduceOp.SUM
        self.inside = 0  # depth of calls below the dispatcher
        self.pending_futures: list[int] = []
        self._calls: dict[int, Call] = {}
        self._batches: list[list[Call]] = []
        self._together: dict[int, list[Call]] = {}  # calls of one batch, by each of them
        self._works: list[RecordedWork] = []  # C++ keeps no reference to their Python part
        self._in_flight: dict[int, list[Call]] = {}  # by storage: calls that nobody has waited for
        self._waited: set[tuple[int, int]] = set()
        self._wait_on_use: set[int] = set()
        self._storages: dict[int, tuple[StorageWeakRef, int]] = {}
        self._storage_count = 0

    # ---- what kinds of recorders do

    @abstractmethod
    def store(self) -> Any:
        """Where the ranks meet."""

    @abstractmethod
    def execute(self, func: Any, args: Any, kwargs: dict[str, Any], on_device: bool) -> Any:
        """An operator that does not communicate. Its device is the CPU; `on_device`: for the
        program it is not."""

    @abstractmethod
    def read(self, func: Any, args: Any) -> Any:
        """An operator with a number as its result."""

    @abstractmethod
    def value_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The value that the program sees if it reads a tensor."""

    @abstractmethod
    def carry_out(
        self, call: Call, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
    ) -> None:
        """Does what a call does, after it was written down."""

    @abstractmethod
    def results_of(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """The tensors that a functional collective returns, before it is carried out."""

    def complete(self, call: int) -> None:
        """Blocks the host until a call is complete."""

    def finish(self) -> None:
        """The program has ended."""

    # ---- events

    def emit(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, HostWait) and event.stream < 0:
            self._in_flight.clear()

    def site(self) -> Site:
        """The innermost line outside torch, and the function of torch that it called."""
        frame: Any = sys._getframe(1)
        via = ""
        while frame is not None:
            name = frame.f_code.co_filename
            if name.startswith(_TORCH):
                module = os.path.basename(name)
                if not module.startswith(_WRAPPERS):
                    via = f"{os.path.splitext(module)[0]}.{frame.f_code.co_name}"
            elif name.startswith(_HERE):
                via = ""
            elif _is_users(name):
                return Site(_shown_path(name), frame.f_lineno, _function(frame), via)
            frame = frame.f_back
        return Site("<unknown>", 1, "", via)

    def end_step(self) -> None:
        self.steps += 1
        self.emit(Step(self.steps))
        if self.max_steps and self.steps >= self.max_steps:
            raise StepLimit

    # ---- calls

    def region(self, tensor: torch.Tensor) -> Region:
        """The bytes of a tensor, also those between its elements if it is not contiguous."""
        elements = tensor.numel()
        if elements and not tensor.is_contiguous():
            elements = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride()))
        width = tensor.element_size()
        dtype = DTYPES.get(tensor.dtype) or {1: "u8", 2: "i16", 4: "i32"}.get(width, "i64")
        return Region(
            self._storage(tensor), int(tensor.storage_offset()) * width, elements * width, dtype
        )

    def _storage(self, tensor: torch.Tensor) -> int:
        storage = tensor.untyped_storage()
        known = self._storages.get(storage._cdata)
        if known is not None and not known[0].expired():
            return known[1]
        self._storage_count += 1
        self._storages[storage._cdata] = (StorageWeakRef(storage), self._storage_count)
        return self._storage_count

    def record(
        self,
        kind: str,
        group: str,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        **fields: Any,
    ) -> RecordedWork:
        """Writes a call down and returns its handle."""
        tensors = [*inputs, *outputs]
        for tensor in tensors:
            self._wait_on_touch(tensor)
        backend = self.backends.get(group, "")
        on_device = "nccl" in backend and (
            "gloo" not in backend or any(_devices.mark_of(t) is not None for t in tensors)
        )
        call = Call(
            len(self._calls) + 1,
            kind,
            group,
            [self.region(t) for t in inputs],
            [self.region(t) for t in outputs],
            self.site(),
            _devices.current_stream_id(),
            not on_device,
            **fields,
        )
        self._calls[call.id] = call
        if self._batches:
            self._batches[-1].append(call)
        else:
            self.emit(call)
        for region in (*call.inputs, *call.outputs):
            self._in_flight.setdefault(region.storage, []).append(call)
        self.carry_out(call, inputs, outputs)
        return self._handle(call.id, list(outputs or inputs))

    def _handle(self, call: int, tensors: list[torch.Tensor]) -> RecordedWork:
        work = RecordedWork(self, call, tensors)
        self._works.append(work)
        return work

    def wait(self, call: int) -> None:
        """The current stream waits until the call, and those of its batch, are complete."""
        stream = _devices.current_stream_id()
        if call <= 0 or (call, stream) in self._waited:
            return
        self._waited.add((call, stream))
        self.emit(Wait(call, stream))
        for known in self.together(call):
            for region in (*known.inputs, *known.outputs):
                calls = self._in_flight.pop(region.storage, [])
                if others := [other for other in calls if other is not known]:
                    self._in_flight[region.storage] = others

    def together(self, call: int) -> list[Call]:
        """The calls of its batch."""
        return self._together.get(call) or [self._calls[call]]

    def wait_for_futures(self) -> None:
        """What C++ code has waited for when backward returns."""
        for call in self.pending_futures:
            self.wait(call)
        self.pending_futures.clear()

    def begin_batch(self) -> None:
        self._batches.append([])

    @property
    def batch_begin(self) -> int | None:
        """The first call of the batch that is not ended, if there is one."""
        return self._batches[-1][0].id if self._batches and self._batches[-1] else None

    def end_batch(self) -> RecordedWork | None:
        """The handle of all calls since begin_batch; None if there are none."""
        calls = self._batches.pop()
        if not calls:
            return None
        messages = any(call.kind in ("send", "receive") for call in calls)
        self.emit(Batch(calls) if len(calls) > 1 or messages else calls[0])
        for call in calls:
            self._together[call.id] = calls
        return self._handle(calls[0].id, [])

    # ---- CUDA graphs

    def begin_capture(self) -> int:
        """What is written down from here on happens when it is replayed."""
        return len(self.events)

    def end_capture(self, begin: int) -> list[Event]:
        captured = self.events[begin:]
        del self.events[begin:]
        ids = {call.id for call in calls_in(captured)}
        for storage, calls in list(self._in_flight.items()):
            self._in_flight[storage] = [call for call in calls if call.id not in ids]
        return captured

    def replay(self, captured: list[Event]) -> None:
        new = {call.id: len(self._calls) + k for k, call in enumerate(calls_in(captured), 1)}

        def again(call: Call) -> Call:
            copy = replace(call, id=new[call.id])
            self._calls[copy.id] = copy
            return copy

        for event in captured:
            if isinstance(event, Batch):
                self.emit(Batch([again(call) for call in event.calls]))
            elif isinstance(event, Call):
                self.emit(again(event))
            elif isinstance(event, (Wait, Touch)):
                self.emit(replace(event, call=new.get(event.call, event.call)))
            else:
                self.emit(event)

    # ---- the dispatcher

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(t not in (torch.Tensor, FakeTensor, torch.nn.Parameter) for t in types):
            return NotImplemented  # DTensor and others: they call again with what they consist of
        kwargs = kwargs or {}
        self.inside += 1
        try:
            if func.namespace == "c10d":
                return self._c10d(func, args, kwargs)
            if func.namespace in ("_c10d_functional", "_dtensor"):
                return self._functional(func, args, kwargs)
            if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None:
                return func(*args, **kwargs)  # torch itself asks for a shape
            if func in _READS:
                return self.read(func, args)
            return self._compute(func, args, kwargs)
        finally:
            self.inside -= 1

    def _compute(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        operands = tensors_in((args, kwargs))
        mark = _first_mark(operands)
        device = kwargs.get("device")
        if device is not None and torch.device(device).type == "cuda":
            mark = _devices.index_of(device)
            kwargs = {**kwargs, "device": torch.device("cpu")}
        if kwargs.get("pin_memory"):
            kwargs = {**kwargs, "pin_memory": False}
        out = self.execute(func, args, kwargs, mark is not None)
        _devices.set_mark(out, mark)
        if self._in_flight and not func.is_view:
            self._find_touches(func, operands, out)
        return out

    def _find_touches(self, func: Any, operands: list[torch.Tensor], out: Any) -> None:
        """Operands that belong to a call in flight: the program should have waited for it."""
        written: set[int] = set()
        if func._schema.is_mutable:
            written = {t.untyped_storage()._cdata for t in tensors_in(out)}
        for tensor in operands:
            self.touch(tensor, tensor.untyped_storage()._cdata in written, str(func))

    def touch(self, tensor: torch.Tensor, writes: bool, operator: str) -> None:
        """The program uses a tensor."""
        self._wait_on_touch(tensor)
        for call in self._calls_on(tensor):
            region = self.region(tensor)
            written = any(one.storage == region.storage for one in written_by(call))
            if writes or written:  # two reads are no conflict
                stream = _devices.current_stream_id()
                self.emit(Touch(stream, call.id, region, writes, operator, self.site()))

    def _wait_on_touch(self, tensor: torch.Tensor) -> None:
        """For some calls torch itself waits when their result is used."""
        for call in self._calls_on(tensor):
            if call.id in self.pending_futures or call.id in self._wait_on_use:
                self.wait(call.id)

    def _calls_on(self, tensor: torch.Tensor) -> list[Call]:
        """Calls on the storage of a tensor that nobody has waited for."""
        return list(self._in_flight.get(self.known_storage(tensor), ()))

    def known_storage(self, tensor: torch.Tensor) -> int:
        """The number of its storage; 0 if no call has used it."""
        known = self._storages.get(tensor.untyped_storage()._cdata)
        return known[1] if known is not None and not known[0].expired() else 0

    def copy_to_host(self, tensor: torch.Tensor, *, blocking: bool) -> torch.Tensor:
        """`tensor.cpu()`: the host waits for the device."""
        self.touch(tensor, False, "cpu")
        if blocking:
            self.emit(HostWait(_devices.current_stream_id(), self.site()))
        return self.host_copy(tensor)

    def host_copy(self, tensor: torch.Tensor) -> torch.Tensor:
        copy = tensor.clone()
        _devices.remove_mark(copy)
        return copy

    # ---- collectives

    def _c10d(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        name = func._schema.name.split("::")[1]
        given = _arguments(func, args, kwargs)
        if "process_group" not in given:
            return func(*args, **kwargs)
        group = _group_name(given["process_group"])
        fields = _reduction(given["reduce_op"], self.reduction) if "reduce_op" in given else {}
        if "root_rank" in given:
            fields["root"] = given["root_rank"]
        if name == "barrier":
            return self.record("barrier", group, [], []).boxed()
        if name == "monitored_barrier_":
            self.record("barrier", group, [], []).wait()
            return None
        if name == "send":
            work = self.record(
                "send", group, given["tensors"], [], peer=given["dst"], tag=given["tag"]
            )
            return work.boxed()
        if name == "recv_":
            work = self.record(
                "receive", group, [], given["tensors"], peer=given["src"], tag=given["tag"]
            )
            return work.boxed()
        if name in ("allreduce_", "broadcast_"):
            kind = "all_reduce" if name == "allreduce_" else "broadcast"
            return given["tensors"], self._each(kind, group, given["tensors"], None, fields).boxed()
        if name in ("allreduce_coalesced_", "reduce_"):
            kind = "reduce" if name == "reduce_" else "all_reduce"
            return self._each(kind, group, given["tensors"], None, fields).boxed()
        kind = "all_gather" if "allgather" in name else "reduce_scatter"
        if name in ("_allgather_base_", "_reduce_scatter_base_"):
            work = self.record(
                kind, group, [given["input_tensor"]], [given["output_tensor"]], **fields
            )
            return given["output_tensor"], work.boxed()
        if name in ("allgather_into_tensor_coalesced_", "reduce_scatter_tensor_coalesced_"):
            return self._each(kind, group, given["inputs"], given["outputs"], fields).boxed()
        if name == "allgather_":
            outputs = given["output_tensors"]
            return outputs, self.record(kind, group, given["input_tensors"], outputs[0]).boxed()
        if name == "reduce_scatter_":
            outputs = given["output_tensors"]
            return (
                outputs,
                self.record(kind, group, given["input_tensors"][0], outputs, **fields).boxed(),
            )
        if name == "gather_":
            outputs = given["output_tensors"][0] if given["output_tensors"] else []
            return self.record("gather", group, given["input_tensors"], outputs, **fields).boxed()
        if name == "scatter_":
            inputs = given["input_tensors"][0] if given["input_tensors"] else []
            work = self.record("scatter", group, inputs, given["output_tensors"], **fields)
            return given["output_tensors"], work.boxed()
        if name == "alltoall_base_":
            fields = _splits(given)
            return self.record(
                "all_to_all", group, [given["input"]], [given["output"]], **fields
            ).boxed()
        if name == "alltoall_":
            inputs, outputs = given["input_tensors"], given["output_tensors"]
            fields = {
                "send_counts": [t.numel() for t in inputs],
                "receive_counts": [t.numel() for t in outputs],
            }
            return outputs, self.record("all_to_all", group, inputs, outputs, **fields).boxed()
        raise NotImplementedError(f"shiplap record does not know c10d::{name}")

    def _each(
        self, kind: str, group: str, inputs: Any, outputs: Any, fields: dict[str, Any]
    ) -> RecordedWork:
        """One call for each tensor, started together."""
        if len(inputs) == 1:
            return self.record(kind, group, inputs, outputs or [], **fields)
        self.begin_batch()
        for k, tensor in enumerate(inputs):
            self.record(kind, group, [tensor], [outputs[k]] if outputs else [], **fields)
        return self.end_batch() or self._handle(0, [])

    def _functional(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        name = func._schema.name.split("::")[1]
        given = _arguments(func, args, kwargs)
        if name in ("wait_tensor", "wait_tensors"):
            for tensor in tree_leaves(args):
                for call in self._calls_on(tensor):
                    self.wait(call.id)
            return args[0]
        if name == "_wrap_tensor_autograd":  # its result waits when it is used
            self._wait_on_use.update(call.id for call in self._calls_on(args[0]))
            return _aten.alias.default(args[0])
        if "group_name" not in given:
            return func(*args, **kwargs)
        kind = _FUNCTIONAL.get(name.rstrip("_").removesuffix("_coalesced"))
        if kind is None:
            raise NotImplementedError(f"shiplap record does not know {func}")
        group = _group_name(given["group_name"])
        out = self.results_of(func, args, kwargs)
        _devices.set_mark(out, _first_mark(tree_leaves(args)))
        outputs: Any = tensors_in(out)
        inputs = tensors_in(given.get("input", given.get("inputs")))
        fields = _reduction(given["reduce_op"], self.reduction) if "reduce_op" in given else {}
        if kind == "broadcast":
            ranks = self.groups[group]
            fields["root"] = ranks.index(given["src"]) if given["src"] in ranks else 0
        if name == "all_to_all_single":
            fields = _splits({**given, "output": outputs[0]})
        in_place = name.endswith("_") and kind in ("all_reduce", "broadcast")
        self._each(kind, group, inputs, None if in_place else outputs, fields)
        return out


def tensors_in(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _first_mark(tensors: Any) -> int | None:
    return next((mark for mark in map(_devices.mark_of, tensors) if mark is not None), None)


def written_by(call: Call) -> list[Region]:
    return call.outputs if call.outputs or call.kind == "send" else call.inputs


def _reduction(op: Any, named: Any) -> dict[str, Any]:
    """The operator of a reduction, as fields of Call. `named`: see Recorder.reduction."""
    if not isinstance(op, (str, ReduceOp, ReduceOp.RedOpType)):
        op = ReduceOp.unbox(op) if hasattr(ReduceOp, "unbox") else named
    text = (op if isinstance(op, str) else str(getattr(op, "op", op)).rsplit(".", 1)[-1]).lower()
    if "avg" in text:
        return {"reduce": "sum", "average": True}
    for name in ("premul_sum", "product", "sum", "min", "max", "band", "bor", "bxor"):
        if name in text:
            return {"reduce": name}
    return {"reduce": text}


def _splits(given: dict[str, Any]) -> dict[str, list[int]]:
    """The split sizes of an all-to-all, in elements."""
    result = {}
    for field, side in (("send_counts", "input"), ("receive_counts", "output")):
        width = 1
        for extent in given[side].shape[1:]:
            width *= int(extent)
        result[field] = [int(rows) * width for rows in given[f"{side}_split_sizes"]]
    return result


def _arguments(func: Any, args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    schema = func._schema.arguments
    given = dict(zip((argument.name for argument in schema), args), **kwargs)
    for argument in schema:
        if argument.name not in given and argument.has_default_value():
            given[argument.name] = argument.default_value
    return given


def _group_name(group: Any) -> str:
    if isinstance(group, str):
        return group
    if not isinstance(group, ProcessGroup):
        group = ProcessGroup.unbox(group)
    return str(group.group_name)


def _is_users(file: str) -> bool:
    """Whether a file is neither ours nor that of torch or Python."""
    if file.startswith((_HERE, _TORCH, "<")):
        return False
    return "site-packages" in file or not file.startswith(_STDLIB)


def _function(frame: Any) -> str:
    """The name of a function, and where it was called from: one that communicates for others says
    little by itself."""
    text = _name(frame)
    callers: list[str] = []
    outer = frame.f_back
    while outer is not None and len(callers) < _MAX_CALLERS:
        file, name = outer.f_code.co_filename, _name(outer)
        if _is_users(file) and name != "<module>":
            callers.append(f"from {name}, {os.path.basename(file)}:{outer.f_lineno}")
        outer = outer.f_back
    return f"{text} ({'; '.join(callers)})" if callers else text


def _name(frame: Any) -> str:
    return str(getattr(frame.f_code, "co_qualname", frame.f_code.co_name))


def _shown_path(file: str) -> str:
    relative = os.path.relpath(file)
    return file if relative.startswith("..") else relative
