"""Runs the operators of a rank on fake tensors: shapes without data, no memory for weights.

Collectives are not executed. Numbers that do not depend on training data are known nevertheless
(_values.py), also those that ranks send to one another.
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map_only

from shiplap.record import _devices
from shiplap.record._events import Call, HostWait, ValueRead
from shiplap.record._recorder import Recorder, tensors_in
from shiplap.record._values import MAX_ELEMENTS, KnownValues

if TYPE_CHECKING:
    from shiplap.record._launch import Mailbox

_MAX_FLOATS = 64
_aten = torch.ops.aten
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


class FakeRecorder(Recorder):
    """The state of one rank."""

    backend = "fake"
    tensor_type = FakeTensor

    def __init__(
        self, rank: int, world: int, max_steps: int = 0, mailbox: Mailbox | None = None
    ) -> None:
        super().__init__(rank, world, max_steps)
        self._fake = FakeTensorMode(allow_non_fake_inputs=True)
        self._values = KnownValues()
        self._mailbox = mailbox
        self._sequence: Counter[Any] = Counter()  # messages so far, by queue

    def store(self) -> Any:
        return FakeStore()

    def execute(self, func: Any, args: Any, kwargs: dict[str, Any], on_device: bool) -> Any:
        operands = tensors_in((args, kwargs))
        has_fake = any(isinstance(t, FakeTensor) for t in operands)
        becomes_fake = on_device or (
            not operands and func._overloadpacket in _FACTORIES and _is_large(func, args, kwargs)
        )
        if not has_fake and not becomes_fake:
            return func(*args, **kwargs)
        try:
            if has_fake:
                out = func(*args, **kwargs)
            else:
                with self._fake:
                    out = func(*args, **kwargs)
        except (DynamicOutputShapeException, DataDependentOutputException):
            return self._data_dependent(func, args, kwargs)
        self._values.follow(func, args, kwargs, out)
        if func in _CHOICES:
            self._choose(func, args, out)
        return out

    def results_of(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        return func(*args, **kwargs)

    # ---- the values that calls leave behind

    def carry_out(
        self, call: Call, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
    ) -> None:
        """Leaves in the outputs what is known of them."""
        if call.kind == "barrier":
            return
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
                self._values.forget(target)
            elif isinstance(target, FakeTensor):
                self._values.set(target, value.to(target.dtype).reshape(target.shape).clone())
            else:
                target.copy_(value.reshape(target.shape))

    def _known_bytes(self, tensors: list[torch.Tensor]) -> bytes | None:
        values = [value for value in map(self._values.get, tensors) if value is not None]
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
        if not inputs or not _is_small(inputs):
            return None
        ranks = self.groups[call.group]
        own = self._known_bytes(inputs)
        here = _decoded(own, inputs)
        if self._mailbox is None:
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

    # ---- numbers that the program reads

    def host_copy(self, tensor: torch.Tensor) -> torch.Tensor:
        known = self._values.get(tensor)
        if known is None:
            return super().host_copy(tensor)
        with _disable_current_modes():
            return known.clone()

    def value_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The value; for data that nobody has, one that is the same on all ranks."""
        self.touch(tensor, False, "item")
        if _devices.mark_of(tensor) is not None:
            self.emit(HostWait(_devices.current_stream_id(), self.site()))
        value = self._values.get(tensor)
        if value is not None:
            return value
        self.emit(ValueRead(self.site()))
        fill: Any = False if tensor.dtype == torch.bool else 1
        with _disable_current_modes():
            return torch.full(tensor.shape, fill, dtype=tensor.dtype)

    def read(self, func: Any, args: Any) -> Any:
        tensors = [t for t in args if isinstance(t, torch.Tensor)]
        if not any(isinstance(t, FakeTensor) for t in tensors):
            return func(*args)
        if func is _aten.equal.default and any(self._values.get(t) is None for t in tensors):
            self.value_of(tensors[0])
            return True
        return func(*tree_map_only(torch.Tensor, self.value_of, args))

    def _choose(self, func: Any, args: Any, out: Any) -> None:
        """Indices that depend on data, such as experts of tokens: some, other ones on each rank."""
        index = out if isinstance(out, torch.Tensor) else out[1]
        if self._values.get(index) is not None or index.numel() > MAX_ELEMENTS:
            return
        source = args[0]
        dimension = args[2] if func is _aten.topk.default and len(args) > 2 else -1
        extent = source.shape[dimension] if source.dim() else 1
        self.emit(ValueRead(self.site()))
        dealt = torch.arange(index.numel()) * 7 + self.rank
        places = (dealt + dealt // 5) % max(1, extent)
        self._values.set(index, places.to(index.dtype).reshape(index.shape))

    def _data_dependent(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """An operator whose result has a shape that depends on data: `nonzero`, `masked_select`."""
        real_args, real_kwargs = tree_map_only(torch.Tensor, self.value_of, (args, kwargs))
        result = func(*real_args, **real_kwargs)

        def fake(value: torch.Tensor) -> torch.Tensor:
            with self._fake:
                tensor = torch.empty(value.shape, dtype=value.dtype)
            self._values.set(tensor, value)
            return tensor

        return tree_map_only(torch.Tensor, fake, result)


def _is_large(func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
    """Weights and activations are fake; indices and flags of the host are real."""
    dtype = kwargs.get("dtype") or torch.get_default_dtype()
    if func._overloadpacket in (_aten.randint, _aten.randperm) and kwargs.get("dtype") is None:
        dtype = torch.int64
    elements = 1
    for extent in next((a for a in args if isinstance(a, (list, tuple))), ()):
        elements *= int(extent)
    return bool(dtype.is_floating_point) or elements > MAX_ELEMENTS


def _is_small(tensors: list[torch.Tensor]) -> bool:
    """Whether the values are carried between ranks: not those of weights and gradients."""
    return all(
        t.numel() <= (_MAX_FLOATS if t.dtype.is_floating_point else MAX_ELEMENTS) for t in tensors
    )


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


def _average(total: torch.Tensor, scale: int) -> torch.Tensor:
    return total / scale if total.dtype.is_floating_point else total // scale


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
        return [_average(each.sum(0), scale) for each in stacked]
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


def _bytes_of(value: torch.Tensor) -> bytes:
    return (
        bytes(value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        if value.numel()
        else b""
    )
