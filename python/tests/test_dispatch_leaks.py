"""The bindings of dispatch do not leak: 1,000 cycles of each, measured."""

import sys

import pytest
from leaks import assert_no_leak

import shiplap
from shiplap import _shiplap, dispatch

# About 100 KB each, so that one that is kept would be seen.
ROUTING = dispatch.random_routing(32, 2048, 16, 4, seed=1)
MADE = dispatch.compute_qkv_dispatch(ROUTING)
JSON = dispatch.create_qkv_dispatch(4, 256, 8, 4).to_json()
LENGTHS = [7] * 5000
NARROW = MADE.kv.forward.to_dense().normalize_dtype()
FLOWS = dispatch.flows(MADE.kv.forward)


def refused():
    try:
        dispatch.pack_documents([-1], 2)
    except shiplap.InputError as error:
        assert error.diagnostics


MAKES = {
    "Segment": lambda: [dispatch.Segment(1, 2, 3) for _ in range(100)],
    "Copy": lambda: [dispatch.Copy(1, 2) for _ in range(100)],
    "Flow": lambda: [dispatch.Flow(1, 2, 3, 4) for _ in range(100)],
    "Layout": lambda: dispatch.pack_documents(LENGTHS, 8).of(3),
    "Layout of lists": lambda: dispatch.Layout([[(0, 0, 4)] * 50]),
    "cut_documents": lambda: dispatch.cut_documents(LENGTHS[:500], 2),
    "Routing": lambda: dispatch.Routing(ROUTING.home, ROUTING.attention).home,
    "gen_seq_lens": lambda: dispatch.gen_seq_lens(64, 64, 4096),
    "QkvDispatch": lambda: dispatch.compute_qkv_dispatch(ROUTING).q.forward.rows,
    "QkvDispatch by hand": lambda: list(dispatch.QkvDispatch(MADE.q, MADE.kv, MADE.attention)),
    "create_qkv_dispatch": lambda: dispatch.create_qkv_dispatch(32, 2048, 16, 4).routing,
    "MetadataPair": lambda: dispatch.MetadataPair(MADE.q.forward, MADE.q.reverse).reverse,
    "Metadata": lambda: dispatch.Metadata.from_rows([[(1, [(0, 0)])] * 300]).row(0, 5),
    "AttentionLayout": lambda: dispatch.compute_attention_layout(ROUTING).cu_seqlens_q(3),
    "DenseMetadata": lambda: MADE.kv.forward.to_dense().dst_rank,
    "NormalizedMetadata": lambda: MADE.kv.forward.to_dense().normalize_dtype().seq_len,
    "MetadataSlice": lambda: MADE.kv.forward.to_dense().get_slice(3).dst_rank,
    "NormalizedSlice": lambda: NARROW.get_slice(3).dst_offset,
    "TrafficSummary": lambda: [dispatch.summarize(FLOWS, 8).largest for _ in range(20)],
    "ExchangeIndices": lambda: dispatch.exchange_indices(MADE.kv.reverse, 3).level_rows,
    "flows": lambda: dispatch.summarize(dispatch.flows(MADE.kv.forward), 8),
    "DispatchFile": lambda: dispatch.read_dispatch(JSON).tables["q_forward"],
    "writable arrays": lambda: _shiplap._dense_arrays(MADE.kv.forward)["dst_rank"],
    "an error": refused,
}


@pytest.mark.parametrize("name", MAKES)
def test_cycles_leave_nothing_behind(name):
    assert_no_leak(MAKES[name])


def test_dispatchers_leave_nothing_behind():
    torch = pytest.importorskip("torch")
    import shiplap.torch
    made = dispatch.create_qkv_dispatch(1, 512, 8, 4, seed=1)

    def step():
        dispatcher = shiplap.torch.Dispatcher(made, validates=False)
        x = torch.ones(512, 4, requires_grad=True)
        q, k, v = dispatcher.dispatch(x, x, x)
        dispatcher.combine(q + k[:len(q)] + v[:len(q)]).sum().backward()
        shiplap.torch.Metadata.from_dispatch(made.kv.forward)

    assert_no_leak(step)


def test_a_part_keeps_the_whole_alive_and_lets_it_go():
    made = dispatch.compute_qkv_dispatch(ROUTING)
    alone = sys.getrefcount(made)
    forward = made.q.forward
    assert sys.getrefcount(made) == alone + 1
    assert forward.rows == MADE.q.forward.rows
    del forward
    assert sys.getrefcount(made) == alone
