"""A dispatch carried out with torch: tokens to where attention happens, gradients back.

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

It is built on ``torch.distributed.all_to_all_single``, so it runs wherever that does: on gloo with
tensors of the CPU, on NCCL with those of a GPU. docs/torch.md leads through it.
"""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from shiplap import _errors, _shiplap
from shiplap import dispatch as _dispatch

try:
    import torch
except ImportError as error:

    class _Missing(_errors.MissingPart, ImportError):
        """For those who catch one, and those who catch the other."""

    raise _Missing("shiplap.torch needs torch, which is not installed: "
                   "pip install 'shiplap[torch]'") from error

from torch.utils.weak import WeakIdKeyDictionary

from shiplap._torch_link import Link

__all__ = ["Dispatcher", "Exchange", "Metadata"]

_NARROW = {torch.float16: torch.float32, torch.bfloat16: torch.float32,
           torch.complex32: torch.complex64}
_SUMMED = {torch.float32, torch.float64, torch.complex64, torch.complex128, torch.int8, torch.uint8,
           torch.int16, torch.uint16, torch.int32, torch.uint32, torch.int64, torch.uint64,
           *_NARROW}
_PLAIN = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes
_MOST_32 = 2**32 - 1
_MOST_OPEN = 8  # dispatches that wait to be combined; older ones are given up, and their graphs


def _tensor(array: Any) -> torch.Tensor:
    """The memory of an array as a tensor, without a copy."""
    return torch.utils.dlpack.from_dlpack(array)


def _numbers(array: Any) -> list[int]:
    """An array of one dimension as a list, also where there is no numpy."""
    return memoryview(array).tolist()


# ---- tables as tensors


@dataclasses.dataclass
class Metadata:
    """One table of a dispatch as padded tensors: the form that kernels take.

    Made from ``shiplap.dispatch.Metadata`` it shares no memory with it, but is not copied either:
    the tensors are the memory into which C++ wrote them.

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
    def from_dispatch(table: _dispatch.Metadata) -> Metadata:
        """The tensors of a table, int64 throughout."""
        fields: dict[str, Any] = {name: _tensor(array)
                                  for name, array in _shiplap._dense_arrays(table).items()}
        total = fields.pop("num_total_recv_tokens")
        if "seq_recv_mask" in fields:
            fields["seq_recv_mask"] = fields["seq_recv_mask"].view(torch.bool)
        fields.setdefault("num_recv_tokens", torch.empty(0, 1, dtype=torch.int64))
        return Metadata(**fields, world_size=table.world_size,
                        num_total_recv_tokens=tuple(total.tolist()), arrival=table.arrival)

    def to_dispatch(self, arrival: str | None = None) -> _dispatch.Metadata:
        """The table. The tensors do not say whether arrivals are ``placed`` or ``summed``: the
        field ``arrival`` does, unless it is told here.

        Raises InputError if they contradict each other, or are those of one rank only.
        """
        self._expect_all_ranks("to_dispatch")

        def plain(tensor: torch.Tensor | None) -> torch.Tensor | None:
            return None if tensor is None else tensor.detach().cpu()

        total = self.num_total_recv_tokens
        return _dispatch.DenseMetadata(
            plain(self.dst_rank), plain(self.dst_offset), plain(self.seq_len),
            plain(self.num_recv_tokens), plain(self.seq_recv_mask), plain(self.recv_seq_lens),
            plain(self.num_seqs), list(total) if isinstance(total, tuple) else None,
            arrival=self.arrival if arrival is None else arrival).to_sparse()

    def _expect_all_ranks(self, name: str) -> None:
        if self.seq_len.dim() != 2:
            _shiplap._raise("D400", f"{name}: seq_len has the shape {tuple(self.seq_len.shape)}",
                            "a table of all ranks has two dimensions, rank and row; this is the "
                            "slice of one rank", "keep what get_slice was called on")

    def get_slice(self, rank: int) -> Metadata:
        """What one rank needs: its rows without padding, all columns of num_recv_tokens."""
        self._expect_all_ranks("get_slice")
        world_size = len(self.dst_rank)
        if not 0 <= rank < world_size:
            _shiplap._raise("D400", f"there is no rank {rank} among {world_size}")
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
        """int32 ranks, uint32 offsets and lengths, uint64 counts. Raises InputError D410 for what
        does not fit."""
        def narrow(name: str, dtype: torch.dtype, least: int, most: int) -> Any:
            tensor: torch.Tensor | None = getattr(self, name)
            if tensor is None:
                return None
            wide = tensor.to(torch.int64)
            if wide.numel() > 0 and (int(wide.min()) < least or int(wide.max()) > most):
                _shiplap._raise("D410", f"{name} has numbers outside of {least} to {most}")
            return tensor.to(dtype)

        return dataclasses.replace(
            self,
            dst_rank=narrow("dst_rank", torch.int32, -2**31, 2**31 - 1),
            dst_offset=narrow("dst_offset", torch.uint32, 0, _MOST_32),
            seq_len=narrow("seq_len", torch.uint32, 0, _MOST_32),
            num_recv_tokens=narrow("num_recv_tokens", torch.uint64, 0, 2**63 - 1),
            recv_seq_lens=narrow("recv_seq_lens", torch.uint32, 0, _MOST_32),
            normalized=True)

    def to(self, device: torch.device | str | int) -> Metadata:
        """All tensors on a device, without gaps."""
        def moved(value: Any) -> Any:
            return value.to(device).contiguous() if isinstance(value, torch.Tensor) else value

        return Metadata(**{field.name: moved(getattr(self, field.name))
                           for field in dataclasses.fields(self)})

    def cuda(self) -> Metadata:
        """All tensors on the current GPU, without gaps."""
        return self.to("cuda")


# ---- one table of one rank


class _Indices:
    """The index arrays of a way, on one device."""

    def __init__(self, way: _Way, device: torch.device) -> None:
        def there(array: Any) -> torch.Tensor:
            return _tensor(array).to(device)

        own = way.indices
        self.send_rows = there(own.send_rows)
        self.recv_rows = there(own.recv_rows)
        # If every row gets one arrival: which. To gather is faster than to scatter.
        self.gather: torch.Tensor | None = None
        if not way.summed and way.arriving == way.rows_out:
            self.gather = torch.empty_like(self.recv_rows)
            self.gather[self.recv_rows] = torch.arange(way.arriving, device=device)
        self.levels: list[tuple[torch.Tensor, torch.Tensor]] = []
        if way.summed:
            rows, arrivals = there(own.level_rows), there(own.level_arrivals)
            begin = 0
            for end in _numbers(own.level_ends):
                self.levels.append((rows[begin:end], arrivals[begin:end]))
                begin = end


class _Way:
    """What one rank does with one table."""

    def __init__(self, name: str, table: _dispatch.Metadata, back: _dispatch.Metadata,
                 rank: int) -> None:
        self.name = name
        self.indices = _dispatch.exchange_indices(table, rank)
        self.summed = self.indices.arrival == "summed"
        self.rows_in = self.indices.send_tokens
        # The way back reads all of it, also what nothing arrives at.
        self.rows_out = max(self.indices.receive_tokens, back.num_send_tokens(rank))
        self.send_counts: list[int] = _numbers(self.indices.send_counts)
        self.recv_counts: list[int] = _numbers(self.indices.recv_counts)
        self.sent = sum(self.send_counts)
        self.arriving = sum(self.recv_counts)
        self._on: dict[torch.device, _Indices] = {}

    def on(self, device: torch.device) -> _Indices:
        if device not in self._on:
            self._on[device] = _Indices(self, device)
        return self._on[device]

    def place(self, output: torch.Tensor, arrived: torch.Tensor, at: _Indices) -> None:
        """Rows of the output, from those that arrived, no two at one place."""
        if at.gather is not None:
            torch.index_select(arrived, 0, at.gather, out=output)
        else:
            output.zero_().index_copy_(0, at.recv_rows, arrived)

    def sum(self, output: torch.Tensor, arrived: torch.Tensor, at: _Indices) -> None:
        """Level after level: the same bits on every run, because no level has a row twice."""
        rest = at.levels
        if rest and len(rest[0][0]) == self.rows_out:  # then it is all rows, in order
            output.copy_(arrived.index_select(0, rest[0][1]))
            rest = rest[1:]
        else:
            output.zero_()
        for rows, arrivals in rest:
            output.index_add_(0, rows, arrived.index_select(0, arrivals).to(output.dtype))

    def finish(self, arrived: torch.Tensor, x: torch.Tensor, at: _Indices) -> torch.Tensor:
        """What comes out for `x`. It is no view, so that it can be changed in place."""
        output = x.new_empty((self.rows_out, *x.shape[1:]))
        if output.numel() == 0:
            return output
        rows = _plain(output).view(self.rows_out, -1)
        if not self.summed:
            self.place(rows, arrived, at)
        elif x.dtype in _NARROW:  # rounded once
            wide = arrived.new_empty(rows.shape, dtype=_NARROW[x.dtype])
            self.sum(wide, arrived.view(x.dtype), at)
            rows.view(x.dtype).copy_(wide)
        else:
            # Whole numbers of two's complement have the same sum with a sign and without.
            kind = x.dtype if x.dtype.is_floating_point or x.dtype.is_complex else rows.dtype
            self.sum(rows.view(kind), arrived.view(kind), at)
        return output

    def move(self, link: Link, xs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """All of `xs` in one all_to_all, side by side in each row."""
        with link.failing():
            at = self.on(xs[0].device)
            widths = [_width(x) for x in xs]
            sent = _plain(xs[0].new_empty((self.sent, sum(widths))))
            for to, x in zip(torch.split(sent, widths, 1), xs):
                if to.numel() > 0:
                    torch.index_select(_plain(x).reshape(len(x), -1), 0, at.send_rows, out=to)
            arrived = sent.new_empty((self.arriving, sum(widths)))
        link.all_to_all(arrived, sent, self.recv_counts, self.send_counts, self.name)
        with link.failing():
            return tuple(self.finish(part, x, at)
                         for part, x in zip(torch.split(arrived, widths, 1), xs))


def _plain(x: torch.Tensor) -> torch.Tensor:
    """The same memory as numbers that can be indexed: not all types can be."""
    return x.resolve_conj().resolve_neg().view(_PLAIN.get(x.dtype.itemsize, x.dtype))


def _width(x: torch.Tensor) -> int:
    return math.prod(x.shape[1:])


class _Moved(torch.autograd.Function):
    """One way; its gradient takes the other one."""

    @staticmethod
    def forward(ctx: Any, exchange: Exchange, backwards: bool,
                *xs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.exchange, ctx.backwards = exchange, backwards
        return exchange._move(backwards, xs)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        moved = _Moved.apply(ctx.exchange, not ctx.backwards, *gradients)
        return (None, None, *moved)


class Exchange:
    """Moves tokens along a pair of tables: there, and back.

    Autograd goes the other way: the gradient of a token that was copied is the sum of its copies'
    gradients. The sums are taken in a fixed order (in float32 for float16 and bfloat16), so they
    have the same bits on every run. All ranks of the group call it together.

    ``validates`` proves first that the tables are sound, and that one undoes the other. Without it
    a table may send less than all tokens; rows that nothing arrives at are zero.

    >>> pair = shiplap.dispatch.create_qkv_dispatch(1, 8, 2, 2, seed=1).kv
    >>> exchange = shiplap.torch.Exchange(pair)
    >>> x = torch.ones(8, 2, requires_grad=True)
    >>> exchange(x).sum().backward()
    >>> int(x.grad.sum()) == 2 * pair.forward.num_total_recv_tokens(0)
    True
    """

    def __init__(self, pair: _dispatch.MetadataPair, group: Any = None, *,
                 deadline: float = 60.0, validates: bool = True) -> None:
        link = Link(group, deadline)
        with link.failing():
            _expect(pair, _dispatch.MetadataPair, "pair")
            hashes = {f"{way} {field}": value for way, table in zip(("forward", "reverse"), pair)
                      for field, value in table.hashes().items()}
        link.agree(hashes, pair.forward.world_size)
        if validates:  # the same on all ranks, so all raise
            summed = pair.reverse.arrival == "summed"
            prove = _dispatch.validate_keys if summed else _dispatch.validate_queries
            _shiplap._raise_all(prove(pair))
        with link.failing():
            self._build("", pair, link)

    def _build(self, name: str, pair: _dispatch.MetadataPair, link: Link) -> None:
        self._link = link
        self._forward = _Way(f"{name}forward", pair.forward, pair.reverse, link.rank)
        self._reverse = _Way(f"{name}reverse", pair.reverse, pair.forward, link.rank)

    @property
    def tokens(self) -> int:
        """Rows that this rank has at home: the length of what goes in."""
        return int(self._forward.rows_in)

    @property
    def tokens_there(self) -> int:
        """Rows that this rank has at attention."""
        return int(self._forward.rows_out)

    def __call__(self, *xs: torch.Tensor) -> Any:
        """There: ``x`` has a row for each token at home, of any shape and type. Several tensors of
        one type travel together, and come as a tuple."""
        return self._apply(False, xs)

    def back(self, *xs: torch.Tensor) -> Any:
        """The way back: ``x`` has a row for each token at attention."""
        return self._apply(True, xs)

    def _apply(self, backwards: bool, xs: tuple[torch.Tensor, ...]) -> Any:
        moved = _Moved.apply(self, backwards, *xs)
        return moved if len(xs) > 1 else moved[0]

    def _move(self, backwards: bool, xs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        way = self._reverse if backwards else self._forward
        with self._link.failing():
            _check_tensors(way, xs)
        self._link.agree_on_rows(way.name, xs)
        return way.move(self._link, xs)


def _expect(value: object, kind: type, name: str) -> None:
    if not isinstance(value, kind):
        _shiplap._raise("D003", f"{name} is a {type(value).__name__}, not a {kind.__name__}")


def _check_tensors(way: _Way, xs: Sequence[torch.Tensor]) -> None:
    """Before anything is sent, so that what is wrong on one rank is told on that rank."""
    if not xs:
        _shiplap._raise("D400", "there is no tensor to move")
    for x in xs:
        _expect(x, torch.Tensor, "x")
        if x.layout != torch.strided or x.is_quantized:
            _shiplap._raise("D400", f"{way.name}: a tensor of {x.dtype} and {x.layout}",
                            "its rows are not simply one after another", "make it dense first")
        if way.summed and x.dtype not in _SUMMED:
            _shiplap._raise("D400", f"{way.name}: {x.dtype}",
                            "copies are summed here, and torch does not sum these",
                            "convert it first, for example to float32")
        if x.dim() == 0 or len(x) != way.rows_in:
            _shiplap._raise("D400", f"{way.name}: a tensor of shape {tuple(x.shape)}",
                            "its first dimension is the token",
                            f"this rank has {way.rows_in} tokens here")
        if x.dtype != xs[0].dtype or x.device != xs[0].device:
            _shiplap._raise("D400", f"{way.name}: {x.dtype} on {x.device} beside {xs[0].dtype} on "
                            f"{xs[0].device}", "they travel together")


# ---- all of it


class _Dispatched(torch.autograd.Function):
    """Q, K and V in one node, so that all ranks send their gradients in the same order, also a rank
    that has nothing to attend to and uses none of them.

    The last output is a thread from here to `_Combined`: without it a rank whose outputs depend on
    no query would leave this node out on the way back, and the others would wait for it.

    The node has the exchanges, not the Dispatcher: that has threads, and so it would keep itself.
    """

    @staticmethod
    def forward(ctx: Any, of_q: Exchange, of_kv: Exchange, q: torch.Tensor, k: torch.Tensor,
                v: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.of_q, ctx.of_kv = of_q, of_kv
        moved_q = of_q._move(False, (q,))
        moved_kv = of_kv._move(False, (k, v))
        return (*moved_q, *moved_kv, torch.zeros((), device=q.device))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        to_q, to_k, to_v, _ = gradients
        return (None, None, *_Moved.apply(ctx.of_q, True, to_q),
                *_Moved.apply(ctx.of_kv, True, to_k, to_v))


class _Combined(torch.autograd.Function):
    """The way back of the outputs, tied to the dispatch before it."""

    @staticmethod
    def forward(ctx: Any, exchange: Exchange, out: torch.Tensor,
                thread: torch.Tensor) -> torch.Tensor:
        ctx.exchange = exchange
        return exchange._move(True, (out,))[0]

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        (moved,) = _Moved.apply(ctx.exchange, False, *gradients)
        return None, moved, torch.zeros((), device=moved.device)


class Dispatcher:
    """Queries, keys and values to where attention happens, outputs back, with autograd.

    ``metadata`` is a ``shiplap.dispatch.QkvDispatch``, the same on all ranks of ``group``. All of
    them make the Dispatcher together: if one holds other tables, every rank raises MetadataDiffers
    with the rank and the field. It is cheap enough to be made anew in every step.

    ``deadline`` is how many seconds a rank waits for the others. A rank that finds something wrong
    says so to them, and they raise RankFailed with its words; used as a context manager, it also
    does so for what goes wrong in the block. ``validates`` proves the tables sound first.
    """

    def __init__(self, metadata: _dispatch.QkvDispatch, group: Any = None, *,
                 deadline: float = 60.0, validates: bool = True) -> None:
        link = Link(group, deadline)
        with link.failing():
            _expect(metadata, _dispatch.QkvDispatch, "metadata")
            hashes = metadata.hashes()
        link.agree(hashes, metadata.world_size)
        if validates:  # the same on all ranks, so all raise
            _shiplap._raise_all(_dispatch.validate(metadata))
        self._link = link
        self._layout = metadata.attention
        self.q = Exchange.__new__(Exchange)  #: of the queries
        self.kv = Exchange.__new__(Exchange)  #: of keys and values
        with link.failing():
            self.q._build("q ", metadata.q, link)
            self.kv._build("kv ", metadata.kv, link)
        self.device = link.device  #: of the tensors that were dispatched last
        self._threads: deque[torch.Tensor] = deque(maxlen=_MOST_OPEN)  # not combined yet
        self._thread_of: Any = WeakIdKeyDictionary()  # by what dispatch gave
        self._ends: dict[tuple[str, torch.device], torch.Tensor] = {}

    def dispatch(self, q: torch.Tensor, k: torch.Tensor,
                 v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """From home to attention. Keys and values travel together.

        Several may be under way at once; see ``combine``.
        """
        *moved, thread = _Dispatched.apply(self.q, self.kv, q, k, v)
        self._threads.append(thread)
        for x in moved:
            self._thread_of[x] = thread
        self.device = q.device
        return moved[0], moved[1], moved[2]

    def combine(self, out: torch.Tensor, *, of: torch.Tensor | None = None) -> torch.Tensor:
        """The outputs of attention, one row per query, back home.

        Its gradient takes that of its ``dispatch`` along, on every rank. That is the oldest one
        which has not been combined, or the one that gave ``of``: name it (``of=q``) if they are
        combined in another order, more than once, or not all of them.
        """
        with self._link.failing():
            thread = self._thread_for(of)
        moved: torch.Tensor = (self.q.back(out) if thread is None else
                               _Combined.apply(self.q, out, thread))
        return moved

    def _thread_for(self, of: torch.Tensor | None) -> torch.Tensor | None:
        if of is None:
            return self._threads.popleft() if self._threads else None
        _expect(of, torch.Tensor, "of")
        thread: torch.Tensor | None = self._thread_of.get(of)
        if thread is None:
            _shiplap._raise("D400", "combine: `of` is no tensor that dispatch gave",
                            f"it has the shape {tuple(of.shape)}", "pass q, k or v as it was given")
        rest = [one for one in self._threads if one is not thread]
        self._threads.clear()
        self._threads.extend(rest)
        return thread

    @property
    def rank(self) -> int:
        """In the group."""
        return self._link.rank

    @property
    def cu_seqlens_q(self) -> torch.Tensor:
        """Where the queries of each item begin, and the end; int32, as kernels take it."""
        return self._ends_of("cu_seqlens_q")

    @property
    def cu_seqlens_kv(self) -> torch.Tensor:
        """The same of the keys. The last keys of an item are those of its own queries."""
        return self._ends_of("cu_seqlens_kv")

    def _ends_of(self, name: str) -> torch.Tensor:
        if (name, self.device) not in self._ends:
            ends = getattr(self._layout, name)(self.rank)
            self._ends[name, self.device] = torch.tensor(_numbers(ends),
                                                         dtype=torch.int32, device=self.device)
        return self._ends[name, self.device]

    @property
    def max_seqlen_q(self) -> int:
        """Queries of the longest item of this rank."""
        return self._layout.max_seqlen_q(self.rank)

    @property
    def max_seqlen_kv(self) -> int:
        """Keys of the longest item of this rank."""
        return self._layout.max_seqlen_kv(self.rank)

    def __enter__(self) -> Dispatcher:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        if error is not None:
            self._link.tell_others(error)

    def __repr__(self) -> str:
        return (f"<Dispatcher: rank {self.rank} of {self._link.size}, {self.q.tokens} tokens at "
                f"home, {self.q.tokens_there} queries and {self.kv.tokens_there} keys here>")
