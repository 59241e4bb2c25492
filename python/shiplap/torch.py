"""Executes a dispatch with torch: sends tokens to the ranks that compute attention, with autograd.

>>> import torch, shiplap.torch
>>> dispatch = shiplap.dispatch.create_qkv_dispatch(world_size=1, total_seq_len=8, num_seqs=2,
...                                                 max_cp_degree=2, seed=0)
>>> dispatcher = shiplap.torch.Dispatcher(dispatch)  # on 1 rank no process group is needed
>>> x = torch.arange(8.0).reshape(8, 1).requires_grad_()
>>> q, k, v = dispatcher.dispatch(x, x, x)
>>> len(q), len(k)
(8, 10)
>>> dispatcher.combine(q).equal(x)
True

It uses ``torch.distributed.all_to_all_single``, so it runs on gloo with CPU tensors and on NCCL
with GPU tensors. docs/torch.md is a tutorial.

``OverlappedLinear`` is a tensor-parallel linear layer whose communication overlaps its GEMMs, on
CPU ranks.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, TypeVar, cast

from shiplap import _errors, _shiplap
from shiplap import dispatch as _dispatch

try:
    import torch
except ImportError as error:

    class _Missing(_errors.MissingDependency, ImportError):
        """Callers can catch either base class."""

    raise _Missing("shiplap.torch needs torch, which is not installed: "
                   "pip install 'shiplap[torch]'") from error

from torch.utils.weak import WeakIdKeyDictionary

from shiplap._torch_group import MonitoredGroup
from shiplap._torch_linear import OverlappedLinear

__all__ = ["Dispatcher", "Exchange", "Metadata", "OverlappedLinear"]

_ACCUMULATION_DTYPE = {torch.float16: torch.float32, torch.bfloat16: torch.float32,
           torch.complex32: torch.complex64}
_SUMMABLE = {torch.float32, torch.float64, torch.complex64, torch.complex128, torch.int8,
             torch.uint8, torch.int16, torch.uint16, torch.int32, torch.uint32, torch.int64,
             torch.uint64, *_ACCUMULATION_DTYPE}
_INTEGER_OF_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes
_MAX_UINT32 = 2**32 - 1

_Method = TypeVar("_Method", bound=Callable[..., Any])


def _outside_of_graphs(method: _Method) -> _Method:
    """Methods that communicate or read tables of C++ cannot be traced: torch.compile breaks its
    graph there. A call outside of graphs does not import the compiler (1 to 2 s)."""
    untraced = getattr(torch, "_disable_dynamo")(method)

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return untraced(*args, **kwargs)
        return method(*args, **kwargs)

    return cast(_Method, call)


_MAX_PENDING = 8  # dispatches that are not combined yet; older ones and their graphs are dropped


def _tensor(array: Any) -> torch.Tensor:
    """The memory of an array as a tensor, without a copy."""
    return torch.utils.dlpack.from_dlpack(array)


def _to_list(array: Any) -> list[int]:
    """A one-dimensional array as a list; works without numpy."""
    return memoryview(array).tolist()


# ---- tables as tensors


@dataclasses.dataclass
class Metadata:
    """One table of a dispatch as padded tensors, the format that kernels take.

    Tensors made from a ``shiplap.dispatch.Metadata`` do not share memory with it, and are not
    copied: they are the memory that C++ wrote them to.

    >>> table = shiplap.dispatch.create_qkv_dispatch(2, 8, 2, 2, seed=3).kv.forward
    >>> metadata = shiplap.torch.Metadata.from_dispatch(table)
    >>> metadata.dst_rank.shape, metadata.world_size
    (torch.Size([2, 3, 2]), 2)
    >>> metadata.to_dispatch() == table
    True
    """

    dst_rank: torch.Tensor
    dst_offset: torch.Tensor
    seq_len: torch.Tensor
    num_recv_tokens: torch.Tensor | None
    seq_recv_mask: torch.Tensor | None = None
    recv_seq_lens: torch.Tensor | None = None
    num_seqs: torch.Tensor | None = None
    world_size: int | None = None
    normalized: bool = False
    num_total_recv_tokens: int | tuple[int, ...] | None = None
    arrival: str = "placed"

    @staticmethod
    def from_dispatch(table: Any) -> Metadata:
        """The tensors of a table, int64 throughout."""
        if not isinstance(table, _dispatch.Metadata):
            table = _dispatch.Metadata(table)
        fields: dict[str, Any] = {name: _tensor(array)
                                  for name, array in _shiplap._dense_arrays(table).items()}
        total = fields.pop("num_total_recv_tokens")
        if "seq_recv_mask" in fields:
            fields["seq_recv_mask"] = fields["seq_recv_mask"].view(torch.bool)
        fields.setdefault("num_recv_tokens", torch.empty(0, 1, dtype=torch.int64))
        return Metadata(**fields, world_size=table.world_size,
                        num_total_recv_tokens=tuple(total.tolist()), arrival=table.arrival)

    def to_dispatch(self, arrival: str | None = None) -> _dispatch.Metadata:
        """Returns the table. Whether received tokens are ``placed`` or ``summed`` is not in the
        tensors: it is in the field ``arrival``, unless it is given here.

        Raises InputError if the tensors are inconsistent, or are the slice of one rank.
        """
        self._check_all_ranks("to_dispatch")

        def plain(tensor: torch.Tensor | None) -> torch.Tensor | None:
            return None if tensor is None else tensor.detach().cpu()

        total = self.num_total_recv_tokens
        return _dispatch.DenseMetadata(
            plain(self.dst_rank), plain(self.dst_offset), plain(self.seq_len),
            plain(self.num_recv_tokens), plain(self.seq_recv_mask), plain(self.recv_seq_lens),
            plain(self.num_seqs), list(total) if isinstance(total, tuple) else None,
            arrival=self.arrival if arrival is None else arrival).to_sparse()

    def _check_all_ranks(self, name: str) -> None:
        if self.seq_len.dim() != 2:
            _shiplap._raise("D400", f"{name}: seq_len has the shape {tuple(self.seq_len.shape)}",
                            "a table of all ranks has two dimensions, rank and row; this is the "
                            "slice of one rank", "use the object that get_slice was called on")

    def get_slice(self, rank: int) -> Metadata:
        """The slice of one rank: its rows without padding, all columns of num_recv_tokens."""
        self._check_all_ranks("get_slice")
        world_size = len(self.dst_rank)
        if not 0 <= rank < world_size:
            _shiplap._raise("D400", f"rank {rank} is out of range: the world size is {world_size}")
        rows = None if self.num_seqs is None else int(self.num_seqs[rank])
        mask, lengths = self.seq_recv_mask, self.recv_seq_lens
        total = self.num_total_recv_tokens
        return dataclasses.replace(
            self,
            dst_rank=self.dst_rank[rank][:rows],
            dst_offset=self.dst_offset[rank][:rows],
            seq_len=self.seq_len[rank][:rows],
            num_recv_tokens=None if self.num_recv_tokens is None else self.num_recv_tokens[rank],
            seq_recv_mask=None if mask is None else mask[rank][:rows],
            recv_seq_lens=None if lengths is None else lengths[rank],
            num_seqs=None if self.num_seqs is None else self.num_seqs[rank],
            num_total_recv_tokens=total[rank] if isinstance(total, tuple) else total)

    def normalize_dtype(self) -> Metadata:
        """int32 ranks, uint32 offsets and lengths, uint64 counts. Raises InputError D410 if a value
        does not fit."""
        def narrow(name: str, dtype: torch.dtype, minimum: int, maximum: int) -> Any:
            tensor: torch.Tensor | None = getattr(self, name)
            if tensor is None:
                return None
            wide = tensor.to(torch.int64)
            if wide.numel() > 0 and (int(wide.min()) < minimum or int(wide.max()) > maximum):
                _shiplap._raise("D410", f"{name} has values out of range {minimum} to {maximum}")
            return tensor.to(dtype)

        return dataclasses.replace(
            self,
            dst_rank=narrow("dst_rank", torch.int32, -2**31, 2**31 - 1),
            dst_offset=narrow("dst_offset", torch.uint32, 0, _MAX_UINT32),
            seq_len=narrow("seq_len", torch.uint32, 0, _MAX_UINT32),
            num_recv_tokens=narrow("num_recv_tokens", torch.uint64, 0, 2**63 - 1),
            recv_seq_lens=narrow("recv_seq_lens", torch.uint32, 0, _MAX_UINT32),
            normalized=True)

    def to(self, device: torch.device | str | int) -> Metadata:
        """All tensors on a device, contiguous."""
        def moved(value: Any) -> Any:
            return value.to(device).contiguous() if isinstance(value, torch.Tensor) else value

        return Metadata(**{field.name: moved(getattr(self, field.name))
                           for field in dataclasses.fields(self)})

    def cuda(self) -> Metadata:
        """All tensors on the current GPU, contiguous."""
        return self.to("cuda")


# ---- one table of one rank


class _Indices:
    """The index arrays of a direction, on one device."""

    def __init__(self, direction: _Direction, device: torch.device) -> None:
        def there(array: Any) -> torch.Tensor:
            return _tensor(array).to(device)

        indices = direction.indices
        self.send_rows = there(indices.send_rows)
        self.recv_rows = there(indices.recv_rows)
        # If every output row receives exactly one row: which one. Gather is faster than scatter.
        self.gather: torch.Tensor | None = None
        if not direction.summed and direction.arriving == direction.rows_out:
            self.gather = torch.empty_like(self.recv_rows)
            self.gather[self.recv_rows] = torch.arange(direction.arriving, device=device)
        self.levels: list[tuple[torch.Tensor, torch.Tensor]] = []
        if direction.summed:
            rows, arrivals = there(indices.level_rows), there(indices.level_arrivals)
            begin = 0
            for end in _to_list(indices.level_ends):
                self.levels.append((rows[begin:end], arrivals[begin:end]))
                begin = end


class _Direction:
    """The exchange of one rank along one table."""

    def __init__(self, name: str, table: _dispatch.Metadata, back: _dispatch.Metadata,
                 rank: int) -> None:
        self.name = name
        self.indices = _dispatch.exchange_indices(table, rank)
        self.summed = self.indices.arrival == "summed"
        self.rows_in = self.indices.send_tokens
        # The other direction reads all rows, including those that receive nothing.
        self.rows_out = max(self.indices.receive_tokens, back.num_send_tokens(rank))
        self.send_counts: list[int] = _to_list(self.indices.send_counts)
        self.recv_counts: list[int] = _to_list(self.indices.recv_counts)
        self.sent = sum(self.send_counts)
        self.arriving = sum(self.recv_counts)
        self._on: dict[torch.device, _Indices] = {}

    def on(self, device: torch.device) -> _Indices:
        if device not in self._on:
            self._on[device] = _Indices(self, device)
        return self._on[device]

    def place(self, output: torch.Tensor, arrived: torch.Tensor, at: _Indices) -> None:
        """Writes the received rows to the output. No two go to the same row."""
        if at.gather is not None:
            torch.index_select(arrived, 0, at.gather, out=output)
        else:
            output.zero_().index_copy_(0, at.recv_rows, arrived)

    def sum(self, output: torch.Tensor, arrived: torch.Tensor, at: _Indices) -> None:
        """Sums level by level. Deterministic, because no level contains a row twice."""
        rest = at.levels
        if rest and len(rest[0][0]) == self.rows_out:  # then it contains all rows, in order
            output.copy_(arrived.index_select(0, rest[0][1]))
            rest = rest[1:]
        else:
            output.zero_()
        for rows, arrivals in rest:
            output.index_add_(0, rows, arrived.index_select(0, arrivals).to(output.dtype))

    def finish(self, arrived: torch.Tensor, x: torch.Tensor, at: _Indices) -> torch.Tensor:
        """Returns the output for `x`. It is not a view, so that it can be modified in place."""
        output = x.new_empty((self.rows_out, *x.shape[1:]))
        if output.numel() == 0:
            return output
        rows = _as_integers(output).view(self.rows_out, -1)
        if not self.summed:
            self.place(rows, arrived, at)
        elif x.dtype in _ACCUMULATION_DTYPE:  # rounded once
            wide = arrived.new_empty(rows.shape, dtype=_ACCUMULATION_DTYPE[x.dtype])
            self.sum(wide, arrived.view(x.dtype), at)
            rows.view(x.dtype).copy_(wide)
        else:
            # In two's complement, signed and unsigned sums have the same bits.
            kind = x.dtype if x.dtype.is_floating_point or x.dtype.is_complex else rows.dtype
            self.sum(rows.view(kind), arrived.view(kind), at)
        return output

    def move(self, monitored: MonitoredGroup,
             xs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Exchanges all of `xs` in one all_to_all, concatenated along each row."""
        with monitored.abort_peers_on_exception():
            at = self.on(xs[0].device)
            widths = [_row_elements(x) for x in xs]
            sent = monitored.staging("sent", self.sent * sum(widths), _as_integers(xs[0])).view(
                self.sent, sum(widths))
            for to, x in zip(torch.split(sent, widths, 1), xs):
                if to.numel() > 0:
                    torch.index_select(_as_integers(x).reshape(len(x), -1), 0, at.send_rows, out=to)
            arrived = monitored.staging("arrived", self.arriving * sum(widths), sent).view(
                self.arriving, sum(widths))
        monitored.all_to_all(arrived, sent, self.recv_counts, self.send_counts, self.name)
        with monitored.abort_peers_on_exception():
            return tuple(self.finish(part, x, at)
                         for part, x in zip(torch.split(arrived, widths, 1), xs))


class _Message:
    """Queries, keys and values of one dtype in one all_to_all: for each rank its queries, its keys
    and its values, one after the other. It is packed while the ranks compare their rows."""

    def __init__(self, parts: Sequence[tuple[_Direction, torch.Tensor]]) -> None:
        self.parts = [(way, x, _as_integers(x).reshape(len(x), -1)) for way, x in parts]
        ranks = range(len(parts[0][0].send_counts))
        self.sent = [sum(way.send_counts[r] * rows.shape[1] for way, _, rows in self.parts)
                     for r in ranks]
        self.arriving = [sum(way.recv_counts[r] * rows.shape[1] for way, _, rows in self.parts)
                         for r in ranks]

    @staticmethod
    def fits(parts: Sequence[tuple[_Direction, torch.Tensor]]) -> bool:
        first = parts[0][1]
        return all(x.dtype == first.dtype and x.device == first.device and not way.summed
                   for way, x in parts)

    def _blocks(self, flat: torch.Tensor, counts: Sequence[Sequence[int]]) -> Any:
        """The rows of each part of each rank: its index, its first row, and where they lie."""
        at, begin = 0, [0] * len(self.parts)
        for rank in range(len(counts[0])):
            for index, (_, _, rows) in enumerate(self.parts):
                count, width = counts[index][rank], rows.shape[1]
                if count * width > 0:
                    block = flat[at:at + count * width].view(count, width)
                    yield index, slice(begin[index], begin[index] + count), block
                at += count * width
                begin[index] += count

    def pack(self, monitored: MonitoredGroup) -> torch.Tensor:
        flat = monitored.staging("sent", sum(self.sent), self.parts[0][2])
        for index, some, block in self._blocks(flat, [way.send_counts for way, _, _ in self.parts]):
            way, x, rows = self.parts[index]
            torch.index_select(rows, 0, way.on(x.device).send_rows[some], out=block)
        return flat

    def _sources(self, flat: torch.Tensor, unit: int) -> list[torch.Tensor]:
        """Of each part, where each unit of its output lies in the message."""
        begins = [torch.empty(way.arriving, dtype=torch.int64) for way, _, _ in self.parts]
        start = flat.storage_offset()
        for index, some, block in self._blocks(flat, [way.recv_counts for way, _, _ in self.parts]):
            begins[index][some] = (block.storage_offset() - start +
                                   torch.arange(len(block)) * block.shape[1]) // unit
        found = []
        for (way, x, rows), begin in zip(self.parts, begins):
            gather = way.on(x.device).gather
            assert gather is not None
            units = torch.arange(rows.shape[1] // unit)
            found.append((begin[gather.cpu(), None] + units).reshape(-1).to(x.device))
        return found

    def unpack(self, flat: torch.Tensor, cache: dict[Any, list[torch.Tensor]]
               ) -> tuple[torch.Tensor, ...]:
        outputs = [x.new_empty((way.rows_out, *x.shape[1:])) for way, x, _ in self.parts]
        views = [_as_integers(out).view(len(out), rows.shape[1])
                 for out, (_, _, rows) in zip(outputs, self.parts)]
        widths = tuple(rows.shape[1] for _, _, rows in self.parts)
        unit = math.gcd(*widths)
        # Gather is faster than scatter.
        if unit > 0 and max(widths) <= 8 * unit and all(
                way.on(x.device).gather is not None for way, x, _ in self.parts):
            if (widths, flat.device) not in cache:
                cache[widths, flat.device] = self._sources(flat, unit)
            for view, source in zip(views, cache[widths, flat.device]):
                torch.index_select(flat.view(-1, unit), 0, source, out=view.view(-1, unit))
            return tuple(outputs)
        for (way, x, _), view in zip(self.parts, views):
            if way.on(x.device).gather is None:  # some rows receive nothing
                view.zero_()
        for index, some, block in self._blocks(flat, [way.recv_counts for way, _, _ in self.parts]):
            way, x, _ = self.parts[index]
            views[index].index_copy_(0, way.on(x.device).recv_rows[some], block)
        return tuple(outputs)

    def exchange(self, monitored: MonitoredGroup,
                 cache: dict[Any, list[torch.Tensor]]) -> tuple[torch.Tensor, ...]:
        compared = monitored.start_check_rows([(way.name, (x,)) for way, x, _ in self.parts])
        with monitored.abort_peers_on_exception():
            flat = self.pack(monitored)
            arrived = monitored.staging("arrived", sum(self.arriving), flat)
        compared()
        monitored.all_to_all(arrived[:, None], flat[:, None], self.arriving, self.sent,
                             self.parts[0][0].name)
        with monitored.abort_peers_on_exception():
            return self.unpack(arrived, cache)


def _as_integers(x: torch.Tensor) -> torch.Tensor:
    """The same memory as integers of the same size: torch cannot index all dtypes."""
    return x.resolve_conj().resolve_neg().view(_INTEGER_OF_SIZE.get(x.dtype.itemsize, x.dtype))


def _row_elements(x: torch.Tensor) -> int:
    return math.prod(x.shape[1:])


class _ExchangeFunction(torch.autograd.Function):
    """One direction; the gradient takes the other one."""

    @staticmethod
    def forward(ctx: Any, exchange: Exchange, reverse: bool,
                *xs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.exchange, ctx.reverse = exchange, reverse
        return exchange._move(reverse, xs)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        moved = _ExchangeFunction.apply(ctx.exchange, not ctx.reverse, *gradients)
        return (None, None, *moved)


class Exchange:
    """Exchanges tokens along a pair of tables: forward and reverse.

    Autograd uses the opposite direction: the gradient of a token that was copied is the sum of the
    gradients of its copies. Sums have a fixed order (in float32 for float16 and bfloat16), so they
    are deterministic. A collective: all ranks of the group call it.

    ``pair`` is a ``shiplap.dispatch.MetadataPair`` or two tables, sparse or as tensors.
    ``validates`` first proves that the tables are sound and that one is the inverse of the other.
    Without it, a table may send only some of the tokens; rows that receive nothing are zero.

    >>> pair = shiplap.dispatch.create_qkv_dispatch(1, 8, 2, 2, seed=1).kv
    >>> exchange = shiplap.torch.Exchange(pair)
    >>> x = torch.ones(8, 2, requires_grad=True)
    >>> exchange(x).sum().backward()
    >>> int(x.grad.sum()) == 2 * pair.forward.num_total_recv_tokens(0)
    True
    """

    def __init__(self, pair: Any, group: Any = None, *,
                 deadline: float = 60.0, validates: bool = True) -> None:
        monitored = MonitoredGroup(group, deadline)
        with monitored.abort_peers_on_exception():
            pair = _as_pair(pair, "pair")
            hashes = {f"{direction} {field}": value
                      for direction, table in zip(("forward", "reverse"), pair)
                      for field, value in table.hashes().items()}
        monitored.check_hashes(hashes, pair.forward.world_size)
        if validates:  # the same on all ranks, so all raise
            summed = pair.reverse.arrival == "summed"
            prove = _dispatch.validate_keys if summed else _dispatch.validate_queries
            _shiplap._raise_all(prove(pair))
        with monitored.abort_peers_on_exception():
            self._build("", pair, monitored)

    def _build(self, name: str, pair: _dispatch.MetadataPair, monitored: MonitoredGroup) -> None:
        self._group = monitored
        self._sources: dict[Any, list[torch.Tensor]] = {}  # of messages, by their rows
        self._forward = _Direction(f"{name}forward", pair.forward, pair.reverse, monitored.rank)
        self._reverse = _Direction(f"{name}reverse", pair.reverse, pair.forward, monitored.rank)

    @property
    def tokens(self) -> int:
        """Rows in this rank's home layout: the length of the input."""
        return int(self._forward.rows_in)

    @property
    def tokens_there(self) -> int:
        """Rows in this rank's attention layout."""
        return int(self._forward.rows_out)

    @_outside_of_graphs
    def __call__(self, *xs: torch.Tensor) -> Any:
        """Forward: ``x`` has one row per token of the home layout, of any shape and dtype. Several
        tensors of one dtype are sent in one message and returned as a tuple."""
        return self._apply(False, xs)

    @_outside_of_graphs
    def back(self, *xs: torch.Tensor) -> Any:
        """Reverse: ``x`` has one row per token of the attention layout."""
        return self._apply(True, xs)

    def _apply(self, reverse: bool, xs: tuple[torch.Tensor, ...]) -> Any:
        moved = _ExchangeFunction.apply(self, reverse, *xs)
        return moved if len(xs) > 1 else moved[0]

    def _move(self, reverse: bool, xs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        direction = self._reverse if reverse else self._forward
        with self._group.abort_peers_on_exception():
            _check_tensors(direction, xs)
        self._group.check_rows(direction.name, xs)
        return direction.move(self._group, xs)


def _as_pair(value: Any, name: str) -> _dispatch.MetadataPair:
    if isinstance(value, Sequence) and len(value) == 2:
        value = _dispatch.MetadataPair(*value)
    _check_type(value, _dispatch.MetadataPair, name)
    return cast(_dispatch.MetadataPair, value)


def _as_dispatch(value: Any) -> _dispatch.QkvDispatch:
    if isinstance(value, Sequence) and len(value) == 5:
        value = _dispatch.QkvDispatch(value[:2], value[2:4], value[4])
    _check_type(value, _dispatch.QkvDispatch, "metadata")
    return cast(_dispatch.QkvDispatch, value)


def _check_type(value: object, kind: type, name: str) -> None:
    if not isinstance(value, kind):
        raise _errors.InputTypeError.of(
            "D003", f"type mismatch: {name} is a {type(value).__name__}, not a {kind.__name__}")


def _check_tensors(direction: _Direction, xs: Sequence[torch.Tensor]) -> None:
    """Checks before anything is sent, so that the error is raised on the rank that caused it."""
    if not xs:
        _shiplap._raise("D400", "no tensor was given")
    for x in xs:
        _check_type(x, torch.Tensor, "x")
        if x.layout != torch.strided or x.is_quantized:
            _shiplap._raise("D400",
                            f"{direction.name}: unsupported tensor of {x.dtype} and {x.layout}",
                            "only dense (strided) tensors are supported", "make it dense first")
        if direction.summed and x.dtype not in _SUMMABLE:
            _shiplap._raise("D400", f"{direction.name}: unsupported dtype {x.dtype}",
                            "this direction sums copies, and torch cannot sum this dtype",
                            "convert it first, for example to float32")
        if x.dim() == 0 or len(x) != direction.rows_in:
            _shiplap._raise("D400", f"{direction.name}: shape mismatch: {tuple(x.shape)}",
                            "the first dimension must be the number of tokens",
                            f"this rank has {direction.rows_in} tokens here")
        if x.dtype != xs[0].dtype or x.device != xs[0].device:
            _shiplap._raise("D400", f"{direction.name}: mismatch of {x.dtype} on {x.device} and "
                            f"{xs[0].dtype} on {xs[0].device}", "they are sent in one message")


# ---- the Dispatcher


def _move_together(of_q: Exchange, of_kv: Exchange, q: torch.Tensor, k: torch.Tensor,
                   v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Queries, keys and values, in one message if they have one dtype."""
    parts = [(of_q._forward, q), (of_kv._forward, k), (of_kv._forward, v)]
    with of_q._group.abort_peers_on_exception():
        for way, x in parts:
            _check_tensors(way, (x,))
        _check_tensors(of_kv._forward, (k, v))
    if not _Message.fits(parts):
        return (*of_q._move(False, (q,)), *of_kv._move(False, (k, v)))
    return _Message(parts).exchange(of_q._group, of_q._sources)


class _DispatchFunction(torch.autograd.Function):
    """Q, K and V in one autograd node, so that all ranks send their gradients in the same order,
    even a rank that has no attention to compute and uses none of them.

    The last output is an anchor, which `_CombineFunction` takes as an input: without this
    dependency, autograd would skip this node in the backward pass of a rank whose outputs depend on
    no query, and its peers would hang.

    The node holds the exchanges and not the Dispatcher, which holds anchors: that would be a
    reference cycle.
    """

    @staticmethod
    def forward(ctx: Any, of_q: Exchange, of_kv: Exchange, q: torch.Tensor, k: torch.Tensor,
                v: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.of_q, ctx.of_kv = of_q, of_kv
        moved = _move_together(of_q, of_kv, q, k, v)
        return (*moved, torch.zeros((), device=q.device))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        to_q, to_k, to_v, _ = gradients
        return (None, None, *_ExchangeFunction.apply(ctx.of_q, True, to_q),
                *_ExchangeFunction.apply(ctx.of_kv, True, to_k, to_v))


class _CombineFunction(torch.autograd.Function):
    """Returns the outputs home; depends on the anchor of its dispatch."""

    @staticmethod
    def forward(ctx: Any, exchange: Exchange, out: torch.Tensor,
                anchor: torch.Tensor) -> torch.Tensor:
        ctx.exchange = exchange
        return exchange._move(True, (out,))[0]

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        (moved,) = _ExchangeFunction.apply(ctx.exchange, False, *gradients)
        return None, moved, torch.zeros((), device=moved.device)


class Dispatcher:
    """Sends queries, keys and values to the ranks of attention and returns outputs, with autograd.

    ``metadata`` is a ``shiplap.dispatch.QkvDispatch``, or its five parts: the tables of queries
    there and back, those of keys there and back, each sparse or as tensors, and the attention
    layout. It is the same on all ranks of ``group``, a process group or a DeviceMesh of one
    dimension. Creating a Dispatcher is a collective: if the
    tables of a rank differ, every rank raises MetadataMismatch with the rank and the field. It is
    cheap enough to be created in every step.

    ``deadline`` is the timeout of a collective in seconds. If a rank detects an error, all others
    raise RankFailed with its message; used as a context manager, this also covers exceptions
    inside the block. ``validates`` first proves that the tables are sound.
    """

    def __init__(self, metadata: Any, group: Any = None, *,
                 deadline: float = 60.0, validates: bool = True) -> None:
        monitored = MonitoredGroup(group, deadline)
        with monitored.abort_peers_on_exception():
            metadata = _as_dispatch(metadata)
            hashes = metadata.hashes()
        monitored.check_hashes(hashes, metadata.world_size)
        if validates:  # the same on all ranks, so all raise
            _shiplap._raise_all(_dispatch.validate(metadata))
        self._group = monitored
        self._layout = metadata.attention
        self.q = Exchange.__new__(Exchange)  #: of the queries
        self.kv = Exchange.__new__(Exchange)  #: of keys and values
        with monitored.abort_peers_on_exception():
            self.q._build("q ", metadata.q, monitored)
            self.kv._build("kv ", metadata.kv, monitored)
        self.device = monitored.device  #: of the tensors that were dispatched last
        self._pending_anchors: deque[torch.Tensor] = deque(maxlen=_MAX_PENDING)  # not combined yet
        self._anchor_of: Any = WeakIdKeyDictionary()  # by the tensors that dispatch returned
        self._ends: dict[tuple[str, torch.device], torch.Tensor] = {}

    @_outside_of_graphs
    def dispatch(self, q: torch.Tensor, k: torch.Tensor,
                 v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Sends tokens from the home to the attention layout; keys and values in one message.

        Several dispatches may be pending at once; see ``combine``.
        """
        *moved, anchor = _DispatchFunction.apply(self.q, self.kv, q, k, v)
        self._pending_anchors.append(anchor)
        for x in moved:
            self._anchor_of[x] = anchor
        self.device = q.device
        return moved[0], moved[1], moved[2]

    @_outside_of_graphs
    def combine(self, out: torch.Tensor, *, of: torch.Tensor | None = None) -> torch.Tensor:
        """Returns the outputs of attention, one row per query, to the home layout.

        Its backward always runs the backward of its ``dispatch`` as well, on every rank. That
        dispatch is the oldest one that has not been combined, or the one that returned ``of``: give
        it (``of=q``) if dispatches are combined in another order, more than once, or not at all.
        """
        with self._group.abort_peers_on_exception():
            anchor = self._find_anchor(of)
        moved: torch.Tensor = (self.q.back(out) if anchor is None else
                               _CombineFunction.apply(self.q, out, anchor))
        return moved

    def _find_anchor(self, of: torch.Tensor | None) -> torch.Tensor | None:
        if of is None:
            return self._pending_anchors.popleft() if self._pending_anchors else None
        _check_type(of, torch.Tensor, "of")
        anchor: torch.Tensor | None = self._anchor_of.get(of)
        if anchor is None:
            _shiplap._raise("D400", "combine: `of` is not a tensor that dispatch returned",
                            f"it has the shape {tuple(of.shape)}",
                            "pass q, k or v as dispatch returned it")
        rest = [one for one in self._pending_anchors if one is not anchor]
        self._pending_anchors.clear()
        self._pending_anchors.extend(rest)
        return anchor

    @property
    def rank(self) -> int:
        """The rank in the group."""
        return self._group.rank

    @property
    def cu_seqlens_q(self) -> torch.Tensor:
        """Cumulative sequence lengths of the queries of each item; int32, as kernels take them."""
        return self._cu_seqlens("cu_seqlens_q")

    @property
    def cu_seqlens_kv(self) -> torch.Tensor:
        """The same for the keys. With a causal mask the last keys of an item are those of its own
        queries. Raises InputError if items share keys: use ``kv_begin`` and ``kv_length``."""
        return self._cu_seqlens("cu_seqlens_kv")

    @property
    def kv_begin(self) -> torch.Tensor:
        """Where the keys of each item begin; int32."""
        return self._cu_seqlens("kv_begin")

    @property
    def kv_length(self) -> torch.Tensor:
        """The number of keys of each item; int32."""
        return self._cu_seqlens("kv_length")

    @_outside_of_graphs
    def _cu_seqlens(self, name: str) -> torch.Tensor:
        if (name, self.device) not in self._ends:
            try:
                ends = getattr(self._layout, name)(self.rank)
            except _errors.InputError as error:  # of a property, so that hasattr() works
                found = _errors.InputAttributeError(str(error))
                found.diagnostics = error.diagnostics
                raise found from None
            self._ends[name, self.device] = torch.tensor(_to_list(ends),
                                                         dtype=torch.int32, device=self.device)
        return self._ends[name, self.device]

    @property
    def max_seqlen_q(self) -> int:
        """The number of queries of the longest item of this rank."""
        return self._max_seqlen("max_seqlen_q")

    @property
    def max_seqlen_kv(self) -> int:
        """The number of keys of the longest item of this rank."""
        return self._max_seqlen("max_seqlen_kv")

    @_outside_of_graphs
    def _max_seqlen(self, name: str) -> int:
        return int(getattr(self._layout, name)(self.rank))

    def __enter__(self) -> Dispatcher:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        if error is not None:
            self._group.abort_peers(error)

    def __repr__(self) -> str:
        return (f"<Dispatcher: rank {self.rank} of {self._group.size}, {self.q.tokens} tokens at "
                f"home, {self.q.tokens_there} queries and {self.kv.tokens_there} keys here>")
