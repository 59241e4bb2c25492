"""Runs the operators of one rank on fake tensors and writes down what it communicates.

A TorchDispatchMode sees every operator that reaches torch's dispatcher, also those that C++ code
calls (the buckets of DDP) and those that DTensor makes. Collectives are written down and not
executed; all other operators run on fake tensors, which have shapes and no data.
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch._C._distributed_c10d import ProcessGroup, ReduceOp, Work
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

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
    ValueRead,
    Wait,
)
from shiplap.record._values import MAX_ELEMENTS, KnownValues

if TYPE_CHECKING:
    from shiplap.record._launch import Mailbox

_HERE = os.path.dirname(os.path.abspath(__file__))
_TORCH = os.path.dirname(os.path.abspath(torch.__file__))
_STDLIB = os.path.dirname(os.path.abspath(os.__file__))
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
_CHOICES = {
    _aten.topk.default,
    _aten.argmax.default,
    _aten.multinomial.default,
    _aten.sort.default,
    _aten.sort.stable,
}
_FACTORIES = {
    _aten.empty,
    _aten.zeros,
    _aten.ones,
    _aten.full,
    _aten.rand,
    _aten.randn,
    _aten.randint,
    _aten.randperm,
    _aten.empty_strided,
    _aten.normal,
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
        future: Any = torch.futures.Future()
        future.set_result(self._tensors)
        return future


class Recorder(TorchDispatchMode):
    """The state of one rank."""

    def __init__(
        self, rank: int, world: int, *, max_steps: int = 0, mailbox: Mailbox | None = None
    ) -> None:
        super().__init__()
        self.rank, self.world, self.max_steps = rank, world, max_steps
        self.events: list[Event] = []
        self.groups: dict[str, list[int]] = {}
        self.backends: dict[str, str] = {}
        self.steps = 0
        self.inside = 0  # depth of calls below the dispatcher
        self.pending_futures: list[int] = []
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)
        self.values = KnownValues()
        self._mailbox = mailbox
        self._sequence: Counter[Any] = (
            Counter()
        )  # messages so far, by sender, receiver, group and tag
        self._calls: dict[int, Call] = {}
        self._batches: list[list[Call]] = []
        self._together: dict[int, list[Call]] = {}  # calls of one batch, by each of them
        self._works: list[RecordedWork] = []  # C++ keeps no reference to their Python part
        self._in_flight: dict[int, list[Call]] = {}  # by storage: calls that nobody has waited for
        self._waited: set[tuple[int, int]] = set()
        self._wait_on_use: set[int] = set()
        self._storages: dict[int, tuple[StorageWeakRef, int]] = {}
        self._storage_count = 0

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
            elif not name.startswith((_STDLIB, "<")) or "site-packages" in name:
                function = getattr(frame.f_code, "co_qualname", frame.f_code.co_name)
                return Site(_shown_path(name), frame.f_lineno, function, via)
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
        if kind != "barrier":
            self._leave_values(call, inputs, outputs)
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
        for known in self._together.get(call, [self._calls[call]]):
            for region in (*known.inputs, *known.outputs):
                calls = self._in_flight.get(region.storage, [])
                calls[:] = [other for other in calls if other is not known]

    def wait_for_futures(self) -> None:
        """What C++ code has waited for when backward returns."""
        for call in self.pending_futures:
            self.wait(call)
        self.pending_futures.clear()

    def begin_batch(self) -> None:
        self._batches.append([])

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

    # ---- the values that calls leave behind

    def _leave_values(
        self, call: Call, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
    ) -> None:
        """What a call leaves in its outputs, as far as it is known."""
        if call.kind in ("send", "receive"):
            results = self._pass_message(call, [*(inputs or outputs)])
        else:
            members = self._inputs_of_members(call, [*inputs])
            me = self.groups[call.group].index(self.rank)
            results = _combine(call, members, me) if members else None
        if call.kind == "send":
            return
        targets = [*(outputs or inputs)]
        for k, target in enumerate(targets):
            value = results[k] if results is not None and len(results) == len(targets) else None
            if value is None or value.numel() != target.numel():
                self.values.forget(target)
            elif isinstance(target, FakeTensor):
                self.values.set(target, value.to(target.dtype).reshape(target.shape).clone())
            else:
                target.copy_(value.reshape(target.shape))

    def _known_bytes(self, tensors: list[torch.Tensor]) -> bytes | None:
        values = [value for value in map(self.values.get, tensors) if value is not None]
        return b"".join(map(_bytes_of, values)) if len(values) == len(tensors) else None

    def _next_key(self, *queue: Any) -> tuple[Any, ...]:
        self._sequence[queue] += 1
        return (*queue, self._sequence[queue])

    def _pass_message(self, call: Call, tensors: list[torch.Tensor]) -> list[torch.Tensor] | None:
        """Carries small integers between recorded ranks, such as shapes and pickled objects."""
        if self._mailbox is None or not _is_small(tensors):
            return None
        ranks = self.groups[call.group]
        sends = call.kind == "send"
        ends = (self.rank, ranks[call.peer]) if sends else (ranks[call.peer], self.rank)
        key = self._next_key(tuple(ranks), *ends, call.tag)
        if sends:
            self._mailbox.put(key, self._known_bytes(tensors))
            return None
        return _decoded(self._mailbox.get(key, ends[0]), tensors)

    def _inputs_of_members(
        self, call: Call, inputs: list[torch.Tensor]
    ) -> list[list[torch.Tensor]] | None:
        """The inputs of all members of a group. Those of ranks that are not recorded are assumed to
        be the same as here."""
        if not inputs or any(t.numel() > MAX_ELEMENTS for t in inputs):
            return None
        ranks = self.groups[call.group]
        own = self._known_bytes(inputs)
        here = _decoded(own, inputs)
        if self._mailbox is None or not _is_small(inputs):
            return [here] * len(ranks) if here is not None else None
        key = self._next_key("collective", tuple(ranks), call.kind)
        self._mailbox.put((*key, self.rank), own)
        members = []
        for position, rank in enumerate(ranks):
            found = here
            if rank != self.rank and (call.kind != "broadcast" or position == call.root):
                found = _decoded(self._mailbox.get((*key, rank), rank), inputs)
            members.append(found if found is not None else here)
        return [member for member in members if member is not None] if None not in members else None

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
                return self._read(func, args)
            return self._compute(func, args, kwargs)
        finally:
            self.inside -= 1

    def _compute(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        operands = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        mark = next((m for m in map(_devices.mark_of, operands) if m is not None), None)
        device = kwargs.get("device")
        if device is not None and torch.device(device).type == "cuda":
            mark = _devices.index_of(device)
            kwargs = {**kwargs, "device": torch.device("cpu")}
        if kwargs.get("pin_memory"):
            kwargs = {**kwargs, "pin_memory": False}
        has_fake = any(isinstance(t, FakeTensor) for t in operands)
        becomes_fake = mark is not None or (
            not operands and func._overloadpacket in _FACTORIES and _is_large(func, args, kwargs)
        )
        if not has_fake and not becomes_fake:
            return func(*args, **kwargs)
        try:
            if has_fake:
                out = func(*args, **kwargs)
            else:
                with self.fake:
                    out = func(*args, **kwargs)
        except (DynamicOutputShapeException, DataDependentOutputException):
            out = self._data_dependent(func, args, kwargs)
        else:
            self.values.follow(func, args, kwargs, out)
            if func in _CHOICES:
                self._choose(func, args, out)
        if mark is not None:
            for tensor in tree_leaves(out):
                if isinstance(tensor, FakeTensor):
                    setattr(tensor, _devices.MARK, mark)
        if self._in_flight and not func.is_view:
            self._find_touches(func, operands, out)
        return out

    def _find_touches(self, func: Any, operands: list[torch.Tensor], out: Any) -> None:
        """Operands that belong to a call in flight: the program should have waited for it."""
        written: set[int] = set()
        if func._schema.is_mutable:
            written = {
                t.untyped_storage()._cdata for t in tree_leaves(out) if isinstance(t, torch.Tensor)
            }
        for tensor in operands:
            self._touch(tensor, tensor.untyped_storage()._cdata in written, str(func))

    def _touch(self, tensor: torch.Tensor, writes: bool, operator: str) -> None:
        """The program uses a tensor. Torch waits for some calls by itself."""
        for call in self._calls_on(tensor):
            if call.id in self.pending_futures or call.id in self._wait_on_use:
                self.wait(call.id)
                continue
            region = self.region(tensor)
            if writes or _is_written_by(call, region):  # two reads are no conflict
                stream = _devices.current_stream_id()
                self.emit(Touch(stream, call.id, region, writes, operator, self.site()))

    def _calls_on(self, tensor: torch.Tensor) -> list[Call]:
        """Calls on the storage of a tensor that nobody has waited for."""
        known = self._storages.get(tensor.untyped_storage()._cdata)
        if known is None or known[0].expired():
            return []
        return list(self._in_flight.get(known[1], ()))

    # ---- numbers that the program reads

    def copy_to_host(self, tensor: torch.Tensor, *, blocking: bool) -> torch.Tensor:
        """`tensor.cpu()`: the host waits for the device."""
        self._touch(tensor, False, "cpu")
        if blocking:
            self.emit(HostWait(_devices.current_stream_id(), self.site()))
        known = self.values.get(tensor)
        if known is not None:
            with _disable_current_modes():
                return known.clone()
        copy = tensor.clone()
        setattr(copy, _devices.MARK, None)
        return copy

    def known_or_stand_in(self, tensor: torch.Tensor) -> torch.Tensor:
        """The value; for data that nobody has, one that is the same on all ranks."""
        self._touch(tensor, False, "item")
        if _devices.mark_of(tensor) is not None:
            self.emit(HostWait(_devices.current_stream_id(), self.site()))
        value = self.values.get(tensor)
        if value is not None:
            return value
        self.emit(ValueRead(self.site()))
        fill: Any = False if tensor.dtype == torch.bool else 1
        with _disable_current_modes():
            return torch.full(tensor.shape, fill, dtype=tensor.dtype)

    def _read(self, func: Any, args: Any) -> Any:
        tensors = [t for t in args if isinstance(t, torch.Tensor)]
        if not any(isinstance(t, FakeTensor) for t in tensors):
            return func(*args)
        if func is _aten.equal.default and any(self.values.get(t) is None for t in tensors):
            self.known_or_stand_in(tensors[0])
            return True
        return func(*tree_map_only(torch.Tensor, self.known_or_stand_in, args))

    def _choose(self, func: Any, args: Any, out: Any) -> None:
        """Indices that depend on data, such as experts of tokens: some, other ones on each rank."""
        index = out if isinstance(out, torch.Tensor) else out[1]
        if self.values.get(index) is not None or index.numel() > MAX_ELEMENTS:
            return
        source = args[0]
        dimension = args[2] if func is _aten.topk.default and len(args) > 2 else -1
        extent = source.shape[dimension] if source.dim() else 1
        self.emit(ValueRead(self.site()))
        dealt = torch.arange(index.numel()) * 7 + self.rank
        places = (dealt + dealt // 5) % max(1, extent)
        self.values.set(index, places.to(index.dtype).reshape(index.shape))

    def _data_dependent(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """An operator whose result has a shape that depends on data: `nonzero`, `masked_select`."""
        real_args, real_kwargs = tree_map_only(torch.Tensor, self.known_or_stand_in, (args, kwargs))
        result = func(*real_args, **real_kwargs)

        def fake(value: torch.Tensor) -> torch.Tensor:
            with self.fake:
                tensor = torch.empty(value.shape, dtype=value.dtype)
            self.values.set(tensor, value)
            return tensor

        return tree_map_only(torch.Tensor, fake, result)

    # ---- collectives

    def _c10d(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        name = func._schema.name.split("::")[1]
        given = _arguments(func, args, kwargs)
        if "process_group" not in given:
            return func(*args, **kwargs)
        group = _group_name(given["process_group"])
        fields = _reduction(given["reduce_op"]) if "reduce_op" in given else {}
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
            alias = _aten.alias.default(args[0])
            setattr(alias, _devices.MARK, _devices.mark_of(args[0]))
            return alias
        if "group_name" not in given:
            return func(*args, **kwargs)
        kind = _FUNCTIONAL.get(name.rstrip("_").removesuffix("_coalesced"))
        if kind is None:
            raise NotImplementedError(f"shiplap record does not know {func}")
        group = _group_name(given["group_name"])
        marks = [mark for mark in map(_devices.mark_of, tree_leaves(args)) if mark is not None]
        out = func(*args, **kwargs)
        outputs: Any = [t for t in tree_leaves(out) if isinstance(t, torch.Tensor)]
        for tensor in outputs:
            if marks and isinstance(tensor, FakeTensor):
                setattr(tensor, _devices.MARK, marks[0])
        inputs = [
            t
            for t in tree_leaves(given.get("input", given.get("inputs")))
            if isinstance(t, torch.Tensor)
        ]
        fields = _reduction(given["reduce_op"]) if "reduce_op" in given else {}
        if kind == "broadcast":
            ranks = self.groups[group]
            fields["root"] = ranks.index(given["src"]) if given["src"] in ranks else 0
        if name == "all_to_all_single":
            fields = _splits({**given, "output": outputs[0]})
        in_place = name.endswith("_") and kind in ("all_reduce", "broadcast")
        self._each(kind, group, inputs, None if in_place else outputs, fields)
        return out


def _is_large(func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
    """Weights and activations are fake; indices and flags of the host are real."""
    dtype = kwargs.get("dtype") or torch.get_default_dtype()
    if func._overloadpacket in (_aten.randint, _aten.randperm) and kwargs.get("dtype") is None:
        dtype = torch.int64
    elements = 1
    for extent in next((a for a in args if isinstance(a, (list, tuple))), ()):
        elements *= int(extent)
    return bool(dtype.is_floating_point) or elements > MAX_ELEMENTS


def _is_written_by(call: Call, region: Region) -> bool:
    """Whether a call writes to the storage of a region."""
    written = call.outputs if call.outputs or call.kind == "send" else call.inputs
    return any(one.storage == region.storage for one in written)


def _is_small(tensors: list[torch.Tensor]) -> bool:
    """Whether the values are carried between ranks: integers, since others are seldom known."""
    return all(t.numel() <= MAX_ELEMENTS and not t.dtype.is_floating_point for t in tensors)


def _decoded(payload: bytes | None, like: list[torch.Tensor]) -> list[torch.Tensor] | None:
    """The tensors of a message; None if there is none, or it has another size."""
    if payload is None or len(payload) != sum(t.numel() * t.element_size() for t in like):
        return None
    tensors = []
    begin = 0
    for tensor in like:
        end = begin + tensor.numel() * tensor.element_size()
        data = bytearray(payload[begin:end])
        value = torch.frombuffer(data, dtype=tensor.dtype) if data else torch.empty(0)
        tensors.append(value.to(tensor.dtype).reshape(tensor.shape))
        begin = end
    return tensors


def _combine(call: Call, members: list[list[torch.Tensor]], me: int) -> list[torch.Tensor] | None:
    """The outputs of a collective on member `me`."""
    columns = [list(column) for column in zip(*members)]  # of each tensor: that of all members
    if call.kind in ("all_reduce", "reduce"):
        stacked = [torch.stack(column) for column in columns]
        if call.reduce in ("min", "band"):
            return [each.amin(0) for each in stacked]
        if call.reduce in ("max", "bor"):
            return [each.amax(0) for each in stacked]
        if call.reduce != "sum":
            return None
        scale = len(members) if call.average else 1
        return [each.sum(0) // scale if scale > 1 else each.sum(0) for each in stacked]
    if call.kind == "broadcast":
        return members[call.root]
    if call.kind == "all_gather" and len(call.outputs) == len(columns):
        return [torch.cat([each.flatten() for each in column]) for column in columns]
    if call.kind == "all_gather" and len(columns) == 1:
        return columns[0]
    if call.kind == "all_to_all" and len(columns) == 1 and not call.send_counts:
        parts = [each.flatten().tensor_split(len(members))[me] for each in columns[0]]
        return [torch.cat(parts)]
    return None


def _reduction(op: Any) -> dict[str, Any]:
    """The operator of a reduction, as fields of Call."""
    if not isinstance(op, (str, ReduceOp, ReduceOp.RedOpType)):
        op = ReduceOp.unbox(op)
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


def _bytes_of(value: torch.Tensor) -> bytes:
    return (
        bytes(value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        if value.numel()
        else b""
    )


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


def _shown_path(file: str) -> str:
    relative = os.path.relpath(file)
    return file if relative.startswith("..") else relative
