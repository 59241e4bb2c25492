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

from shiplap import _deprecated
from shiplap._shiplap import (
    AttentionLayout,
    Copy,
    DenseMetadata,
    DispatchFile,
    ExchangeIndices,
    Flow,
    Layout,
    Metadata,
    MetadataPair,
    MetadataSlice,
    NormalizedMetadata,
    NormalizedSlice,
    QkvDispatch,
    Routing,
    Row,
    Segment,
    TrafficSummary,
    assign_randomly,
    bytes_at,
    causal_pairs,
    compute_attention_layout,
    compute_metadata,
    compute_metadata_kv,
    compute_qkv_dispatch,
    create_qkv_dispatch,
    cut_documents,
    exchange_indices,
    gen_seq_lens,
    normalize_dtype,
    orchestrate_simulate,
    pack_documents,
    random_routing,
    read_dispatch,
    sum_simulate,
    to_sparse,
    validate_keys,
    validate_queries,
)
from shiplap._shiplap import dispatch_flows as flows
from shiplap._shiplap import dispatch_lower as lower
from shiplap._shiplap import dispatch_summarize as summarize
from shiplap._shiplap import dispatch_validate as _validate
from shiplap._shiplap import to_dense as _to_dense

to_dense = _deprecated.accept_old_parameters(_to_dense)
validate = _deprecated.accept_old_parameters(_validate)
setattr(Metadata, "to_dense", _deprecated.accept_old_parameters(Metadata.to_dense))
_deprecated.add_old_attributes(TrafficSummary)

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
    "NormalizedSlice",
    "QkvDispatch",
    "Routing",
    "Row",
    "Segment",
    "TrafficSummary",
    "assign_randomly",
    "bytes_at",
    "causal_pairs",
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
    "normalize_dtype",
    "orchestrate_simulate",
    "pack_documents",
    "random_routing",
    "read_dispatch",
    "sum_simulate",
    "summarize",
    "to_dense",
    "to_sparse",
    "validate",
    "validate_keys",
    "validate_queries",
]
