"""Q/KV dispatch: which tokens are sent to which rank to compute attention, and which return.

>>> home = shiplap.dispatch.pack_documents([6, 2], 2)
>>> attention = shiplap.dispatch.Layout([[(0, 0, 3), (1, 0, 2)], [(0, 3, 3)]])
>>> made = shiplap.dispatch.compute_qkv_dispatch(shiplap.dispatch.Routing(home, attention))
>>> made.q.forward.row(1, 0)
<Row: tokens 0 to 2 -> (rank 1, 1)>
>>> shiplap.dispatch.validate(made)
[]

All counts are in tokens. Returned arrays are numpy arrays if numpy is installed, otherwise objects
that support DLPack and the buffer protocol; they are views of the C++ memory. Arguments may be
arrays of any library, or nested lists. ``shiplap.torch`` executes a dispatch.
"""

from __future__ import annotations

import array
import copyreg
import random
from collections.abc import Iterable, Mapping
from typing import Any, overload

from shiplap import _shiplap
from shiplap._dispatch_values import Copy, Flow, MetadataSlice, Row, Segment, TrafficSummary
from shiplap._shiplap import (
    AttentionLayout,
    DenseMetadata,
    DispatchFile,
    ExchangeIndices,
    Layout,
    Metadata,
    MetadataPair,
    NormalizedMetadata,
    QkvDispatch,
    Routing,
    assign_randomly,
    attention_pairs,
    compute_qkv_dispatch,
    cut_documents,
    exchange_indices,
    gen_seq_lens,
    orchestrate_simulate,
    pack_documents,
    read_dispatch,
    sum_simulate,
    validate_keys,
    validate_queries,
)
from shiplap._shiplap import dispatch_flows as flows
from shiplap._shiplap import dispatch_lower as lower
from shiplap._shiplap import dispatch_summarize as summarize
from shiplap._shiplap import dispatch_validate as validate



# ---- pickle: a value is made again of its parts


def _table_of_rows(rows: Any, max_cp: int, arrival: str) -> Metadata:
    return Metadata.from_rows(rows, max_cp=max_cp, arrival=arrival)


def _layout_of_items(by_rank: Any, mask: str, shares_keys: bool) -> AttentionLayout:
    return AttentionLayout(by_rank, mask=mask, shares_keys=shares_keys)


def _items_of(layout: AttentionLayout) -> list[list[tuple[int, ...]]]:
    """The argument of AttentionLayout."""
    by_rank = []
    for rank in range(layout.world_size):
        ends = memoryview(layout.cu_seqlens_q(rank)).tolist()
        queries = [end - begin for begin, end in zip(ends, ends[1:])]
        columns = [queries, memoryview(layout.kv_length(rank)).tolist()]
        if layout.shares_keys:
            columns.append(memoryview(layout.kv_begin(rank)).tolist())
        by_rank.append(list(zip(*columns)))
    return by_rank


copyreg.pickle(Layout, lambda made: (Layout, (made.to_dict()["segments"],)))
copyreg.pickle(Routing, lambda made: (Routing, (made.home, made.attention)))
copyreg.pickle(Metadata, lambda made: (_table_of_rows,
                                       (made.to_rows(), made.max_cp, made.arrival)))
copyreg.pickle(MetadataPair, lambda made: (MetadataPair, (made.forward, made.reverse)))
copyreg.pickle(AttentionLayout, lambda made: (_layout_of_items,
                                              (_items_of(made), made.mask, made.shares_keys)))
copyreg.pickle(QkvDispatch, lambda made: (QkvDispatch,
                                          (made.q, made.kv, made.attention, made.routing)))


# ---- functions whose parameters have two names: that of the layouts, and that of tensors


def _one_of(default: Any = None, /, **names: Any) -> Any:
    """The value that is not None of several names of one parameter."""
    given = [name for name, value in names.items() if value is not None]
    if len(given) > 1:
        raise TypeError(f"got both `{given[0]}` and `{given[1]}`: they are names of one parameter")
    return names[given[0]] if given else default


def _check_given(function: str, **values: Any) -> None:
    for name, value in values.items():
        if value is None:
            raise TypeError(f"{function}() needs `{name}`")


def random_routing(world_size: int = 1, total_seq_len: int | None = None, num_seqs: int = 1,
                   max_cp_degree: int | None = None, seed: int = 0, *, seq_len: int | None = None,
                   cp_degree: int | None = None) -> Routing:
    """The routing of ``create_qkv_dispatch``: random documents, random items, random ranks."""
    return _shiplap.random_routing(
        world_size, _one_of(1, total_seq_len=total_seq_len, seq_len=seq_len), num_seqs,
        _one_of(1, max_cp_degree=max_cp_degree, cp_degree=cp_degree), seed)


def create_qkv_dispatch(world_size: int = 1, total_seq_len: int | None = None, num_seqs: int = 1,
                        max_cp_degree: int | None = None, seed: int = 0, *, mask: str = "causal",
                        shares_keys: bool = False, seq_len: int | None = None,
                        cp_degree: int | None = None) -> QkvDispatch:
    """A random dispatch, for tests and tutorials: every rank has ``num_seqs`` documents that sum to
    ``total_seq_len`` tokens; each is split into 1 to ``max_cp_degree`` items, each assigned to a
    random rank. It is not balanced. ``mask`` and ``shares_keys`` as in ``compute_qkv_dispatch``.

    ``seq_len`` is another name of ``total_seq_len``, ``cp_degree`` of ``max_cp_degree``.

    >>> made = shiplap.dispatch.create_qkv_dispatch(4, seq_len=64, num_seqs=2, cp_degree=2)
    >>> made == shiplap.dispatch.create_qkv_dispatch(4, 64, 2, 2)
    True
    """
    routing = random_routing(world_size, total_seq_len, num_seqs, max_cp_degree, seed,
                             seq_len=seq_len, cp_degree=cp_degree)
    return compute_qkv_dispatch(routing, mask=mask, shares_keys=shares_keys)


@overload
def compute_metadata(routing: Routing, /) -> MetadataPair: ...
@overload
def compute_metadata(seq_lens: Any = None, dst_rank: Any = None, *, routing: Routing | None = None,
                     seq_len: Any = None, dispatch_plan: Any = None) -> MetadataPair: ...
def compute_metadata(seq_lens: Any = None, dst_rank: Any = None, *, routing: Routing | None = None,
                     seq_len: Any = None, dispatch_plan: Any = None) -> MetadataPair:
    """Queries: every token is sent to its item, and returned.

    Of a routing; or of whole sequences: sequence s of rank r has ``seq_lens[r][s]`` tokens and is
    sent to rank ``dst_rank[r][s]``; rank -1 with length 0 is padding. If ``dst_rank`` has three
    dimensions, to every rank of ``dst_rank[r][s]`` that is not -1; then the reverse table sums the
    copies.

    ``seq_len`` is another name of ``seq_lens``, ``dispatch_plan`` of ``dst_rank``.

    >>> there, back = shiplap.dispatch.compute_metadata([[3, 1], [2, 0]], [[0, 1], [0, -1]])
    >>> there.row(1, 0)
    <Row: tokens 0 to 2 -> (rank 0, 3)>
    >>> there, back = shiplap.dispatch.compute_metadata([[3], [2]], [[[0, 1]], [[0, -1]]])
    >>> there.dst_offset.tolist(), back.arrival
    ([[[0, 0]], [[3, 0]]], 'summed')
    """
    if isinstance(seq_lens, Routing):
        routing, seq_lens = _one_of(routing=routing, seq_lens=seq_lens), None
    lengths = _one_of(seq_lens=seq_lens, seq_len=seq_len)
    ranks = _one_of(dst_rank=dst_rank, dispatch_plan=dispatch_plan)
    if routing is not None and lengths is None and ranks is None:
        return _shiplap.compute_metadata(routing)
    if routing is not None:
        raise TypeError("got both `routing` and sequences")
    _check_given("compute_metadata", seq_len=lengths, dispatch_plan=ranks)
    return _shiplap.compute_metadata(lengths, ranks)


@overload
def compute_metadata_kv(routing: Routing, *, mask: str = "causal",
                        shares_keys: bool = False) -> MetadataPair: ...
@overload
def compute_metadata_kv(*, kv_to_q_mapping: Any, kv_context_size: Any, seq_len: Any = None,
                        dispatch_plan: Any = None, seq_lens: Any = None,
                        dst_rank: Any = None) -> MetadataPair: ...
def compute_metadata_kv(routing: Routing | None = None, *, mask: str | None = None,
                        shares_keys: bool | None = None, kv_to_q_mapping: Any = None,
                        kv_context_size: Any = None, seq_len: Any = None, dispatch_plan: Any = None,
                        seq_lens: Any = None, dst_rank: Any = None) -> MetadataPair:
    """Keys and values: an item needs the keys that its queries attend to. In the reverse direction
    the gradients of the copies are summed.

    Of a routing, with ``mask`` and ``shares_keys`` as in ``compute_qkv_dispatch``. Or of mapping
    tensors, for sequences that are cut into shards: shard s of rank r has ``seq_len[r][s]`` tokens,
    after ``kv_context_size[r][s]`` others of its sequence; ``dispatch_plan[r][s]`` is the rank that
    computes its queries; and ``kv_to_q_mapping[r][s]`` lists the shards whose queries attend to its
    keys, each as (rank, shard), or (-1, -1) for none. ``seq_lens`` and ``dst_rank`` are other
    names.

    >>> there, back = shiplap.dispatch.compute_metadata_kv(
    ...     kv_to_q_mapping=[[[(0, 0), (1, 0)]], [[(1, 0), (-1, -1)]]], kv_context_size=[[0], [2]],
    ...     seq_len=[[2], [3]], dispatch_plan=[[1], [0]])
    >>> there.row(0, 0)
    <Row: tokens 0 to 2 -> (rank 1, 0), (rank 0, 0)>
    """
    mapping = _mapping(kv_to_q_mapping, kv_context_size, seq_len, dispatch_plan, seq_lens, dst_rank)
    if routing is not None:
        _check_alone(mapping)
        return _shiplap.compute_metadata_kv(routing, mask="causal" if mask is None else mask,
                                            shares_keys=bool(shares_keys))
    if mask is not None or shares_keys is not None:
        raise TypeError("`mask` and `shares_keys` need a routing: with mapping tensors, "
                        "`kv_to_q_mapping` says which keys a query attends to")
    _check_given("compute_metadata_kv", **mapping)
    return _shiplap.compute_metadata_kv(*mapping.values())


@overload
def compute_attention_layout(routing: Routing, *, mask: str = "causal",
                             shares_keys: bool = False) -> AttentionLayout: ...
@overload
def compute_attention_layout(*, kv_to_q_mapping: Any, kv_context_size: Any, seq_len: Any = None,
                             dispatch_plan: Any = None, seq_lens: Any = None, dst_rank: Any = None,
                             mask: str = "causal") -> AttentionLayout: ...
def compute_attention_layout(routing: Routing | None = None, *, mask: str = "causal",
                             shares_keys: bool | None = None, kv_to_q_mapping: Any = None,
                             kv_context_size: Any = None, seq_len: Any = None,
                             dispatch_plan: Any = None, seq_lens: Any = None,
                             dst_rank: Any = None) -> AttentionLayout:
    """The lengths of the items of each rank, for the attention kernels.

    Of a routing, with ``mask`` and ``shares_keys`` as in ``compute_qkv_dispatch``. Or of the
    mapping tensors of ``compute_metadata_kv``; then ``mask`` says which keys ``validate`` expects.

    >>> mapping = {"kv_to_q_mapping": [[[(0, 0), (1, 0)]], [[(1, 0), (-1, -1)]]],
    ...            "kv_context_size": [[0], [2]], "seq_len": [[2], [3]],
    ...            "dispatch_plan": [[1], [0]]}
    >>> shiplap.dispatch.validate(shiplap.dispatch.QkvDispatch(
    ...     shiplap.dispatch.compute_metadata(mapping["seq_len"], mapping["dispatch_plan"]),
    ...     shiplap.dispatch.compute_metadata_kv(**mapping),
    ...     shiplap.dispatch.compute_attention_layout(**mapping)))
    []
    """
    mapping = _mapping(kv_to_q_mapping, kv_context_size, seq_len, dispatch_plan, seq_lens, dst_rank)
    if routing is not None:
        _check_alone(mapping)
        return _shiplap.compute_attention_layout(routing, mask=mask, shares_keys=bool(shares_keys))
    if shares_keys is not None:
        raise TypeError("`shares_keys` needs a routing")
    _check_given("compute_attention_layout", **mapping)
    return _shiplap.compute_attention_layout(*mapping.values(), mask=mask)


def _mapping(kv_to_q_mapping: Any, kv_context_size: Any, seq_len: Any, dispatch_plan: Any,
             seq_lens: Any, dst_rank: Any) -> dict[str, Any]:
    """The mapping tensors by name; None for those that are not given."""
    return {"kv_to_q_mapping": kv_to_q_mapping, "kv_context_size": kv_context_size,
            "seq_len": _one_of(seq_lens=seq_lens, seq_len=seq_len),
            "dispatch_plan": _one_of(dst_rank=dst_rank, dispatch_plan=dispatch_plan)}


def _check_alone(mapping: dict[str, Any]) -> None:
    for name, value in mapping.items():
        if value is not None:
            raise TypeError(f"got both `routing` and `{name}`")


# ---- the whole way


_OTHER_NAMES = {"total_seq_len": "seq_len", "max_cp_degree": "cp_degree"}


def _parameters_of(source: Any, names: Iterable[str]) -> dict[str, Any]:
    """The values of a mapping, or of the attributes of an object, that are not None."""
    def get(name: str) -> Any:
        return source.get(name) if isinstance(source, Mapping) else getattr(source, name, None)

    found = {name: _one_of(**{one: get(one) for one in (name, _OTHER_NAMES.get(name, name))})
             for name in names}
    return {name: value for name, value in found.items() if value is not None}


def test_qkv_dispatch(args: Any = None, /, *, world_size: int = 4, num_seqs: int = 4,
                      seq_len: int | None = None, cp_degree: int | None = None,
                      hidden_size: int = 4, seed: int = 0, mask: str = "causal",
                      shares_keys: bool = False, total_seq_len: int | None = None,
                      max_cp_degree: int | None = None) -> QkvDispatch:
    """Makes a random dispatch, validates it, simulates it, and raises AssertionError if a query
    does not come back as it was, a copy of a key is not that key, or the gradients of copies are
    not summed. Returns the dispatch.

    ``total_seq_len`` is another name of ``seq_len``, by default 1024, and ``max_cp_degree`` of
    ``cp_degree``, by default 4.
    ``args`` is a mapping with any of the parameters, or an object with any of them as attributes,
    such as an ``argparse.Namespace``; what is not None in it takes precedence.

    >>> shiplap.dispatch.test_qkv_dispatch(world_size=2, num_seqs=2, seq_len=8, cp_degree=2)
    <QkvDispatch: 2 ranks, 5 rows, 6 copies of keys>
    """
    given = {"world_size": world_size, "num_seqs": num_seqs, "hidden_size": hidden_size,
             "total_seq_len": _one_of(1024, total_seq_len=total_seq_len, seq_len=seq_len),
             "max_cp_degree": _one_of(4, max_cp_degree=max_cp_degree, cp_degree=cp_degree),
             "seed": seed, "mask": mask, "shares_keys": shares_keys}
    given |= _parameters_of(args, given)
    width = given.pop("hidden_size")
    if width < 1:
        _shiplap._raise("D003", f"hidden_size is {width}", "a token has at least one value")
    made = create_qkv_dispatch(**given)
    if found := validate(made):
        raise AssertionError("the dispatch is unsound:\n" + "\n".join(map(str, found)))
    numbers = random.Random(given["seed"])

    def buffers(table: Metadata, value: Any) -> list[Any]:
        """One buffer per rank of what a table sends; small whole numbers, whose sums are exact."""
        made_of = [array.array("i", [value() for _ in range(max(tokens, 1) * width)])
                   for tokens in map(table.num_send_tokens, range(made.world_size))]
        return [memoryview(one).cast("B").cast("i", (len(one) // width, width)) for one in made_of]

    def rows(of: list[Any]) -> list[list[list[int]]]:
        return [one.tolist() for one in of]

    fwd_q, rev_q, fwd_kv, rev_kv, _ = made
    queries = buffers(fwd_q, lambda: numbers.randrange(1000))
    there = orchestrate_simulate(queries, buffers(rev_q, int), fwd_q)
    back = orchestrate_simulate(there, buffers(fwd_q, int), rev_q)
    if rows(back) != rows(queries):
        raise AssertionError("queries did not come back as they were")

    copies = orchestrate_simulate(queries, buffers(rev_kv, int), fwd_kv)
    gradients = buffers(rev_kv, lambda: numbers.randrange(1000))
    sums = rows(sum_simulate(gradients, buffers(fwd_kv, int), rev_kv))
    sent, held, grads = rows(queries), rows(copies), rows(gradients)
    for rank, own in enumerate(fwd_kv.to_rows()):
        token = 0
        for length, places in own:
            for k in range(length):
                at = [(to, offset + k) for to, offset in places if to >= 0]
                if any(held[to][i] != sent[rank][token] for to, i in at):
                    raise AssertionError(f"rank {rank}, token {token}: a copy is another key")
                if sums[rank][token] != [sum(of) for of in zip(*(grads[to][i] for to, i in at))]:
                    raise AssertionError(f"rank {rank}, token {token}: gradients of {len(at)} "
                                         "copies are not summed")
                token += 1
    return made


setattr(test_qkv_dispatch, "__test__", False)  # pytest: this is not a test to collect


__all__ = [
    "AttentionLayout",
    "Copy",
    "DenseMetadata",
    "DispatchFile",
    "ExchangeIndices",
    "Flow",
    "Layout",
    "Metadata",
    "MetadataPair",
    "MetadataSlice",
    "NormalizedMetadata",
    "QkvDispatch",
    "Routing",
    "Row",
    "Segment",
    "TrafficSummary",
    "assign_randomly",
    "attention_pairs",
    "compute_attention_layout",
    "compute_metadata",
    "compute_metadata_kv",
    "compute_qkv_dispatch",
    "create_qkv_dispatch",
    "cut_documents",
    "exchange_indices",
    "flows",
    "gen_seq_lens",
    "lower",
    "orchestrate_simulate",
    "pack_documents",
    "random_routing",
    "read_dispatch",
    "sum_simulate",
    "summarize",
    "test_qkv_dispatch",
    "validate",
    "validate_keys",
    "validate_queries",
]
