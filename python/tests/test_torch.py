"""shiplap.torch on processes: correct results, and no rank hangs when one fails."""

import subprocess
import sys
import weakref

import pytest

torch = pytest.importorskip("torch")

import shiplap  # noqa: E402
import shiplap.torch  # noqa: E402
from shiplap import dispatch  # noqa: E402
from workers import exchanges, model  # noqa: E402
from workers.ranks import run, values  # noqa: E402


# ---- results


@pytest.mark.parametrize("size", [2, 4])
def test_every_type_and_shape_arrives_as_the_referee_says(size):
    assert values(exchanges.agree_with_referee, size) == [[]] * size


SUMMED = set("float16 bfloat16 float32 float64 complex32 complex64 complex128 uint8 uint16 uint32 "
             "uint64 int8 int16 int32 int64".split())


def test_all_types_of_torch_move_and_those_that_have_a_sum_are_summed():
    for found in values(exchanges.all_types_move, 2):
        assert {"float8_e4m3fn", "bits8", "uint16", "bool"} <= set(found)
        assert found == {name: "moved, summed" if name in SUMMED else "moved" for name in found}


def test_what_comes_out_may_be_changed_in_place():
    assert values(exchanges.changed_in_place, 2) == [[]] * 2


def test_a_dispatch_gives_what_its_exchanges_give():
    assert values(exchanges.dispatch_is_its_exchanges, 3) == [[]] * 3


def test_a_group_is_used_in_inference_mode_first():
    assert values(exchanges.inference_before_training, 2) == [[]] * 2


def test_the_first_dispatch_does_not_import_the_compiler():
    """Which takes a second or two of a processor, and longer on a busy machine."""
    script = """
import sys, torch, shiplap.torch
from shiplap import dispatch
dispatcher = shiplap.torch.Dispatcher(dispatch.create_qkv_dispatch(1, 64, 4, 2, seed=1))
x = torch.ones(64, 2)
dispatcher.combine(dispatcher.dispatch(x, x, x)[0])
dispatcher.cu_seqlens_q, dispatcher.max_seqlen_q
assert "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_what_goes_wrong_when_rows_have_arrived_is_heard():
    for rank, (error, text, seconds) in enumerate(values(exchanges.goes_wrong_after, 3)):
        assert error == ("InternalError" if rank == 1 else "RankFailed")
        assert "planted" in text and seconds < 2


def test_tables_are_taken_in_every_form():
    made = dispatch.create_qkv_dispatch(1, 8, 2, 3, mask="window:3", shares_keys=True)
    tensors = [shiplap.torch.Metadata.from_dispatch(table) for table in list(made)[:4]]
    assert shiplap.torch.Metadata.from_dispatch(tensors[0]).to_dispatch() == made.q.forward
    x = torch.randn(8, 2)
    expected = shiplap.torch.Exchange(made.kv)(x)
    for pair in ((tensors[2], tensors[3]), [made.kv.forward.to_dense(), made.kv.reverse],
                 (tensors[2].normalize_dtype(), made.kv.reverse.to_dense().normalize_dtype())):
        assert torch.equal(shiplap.torch.Exchange(pair)(x), expected)
    dispatcher = shiplap.torch.Dispatcher((*tensors, made.attention))
    q, k, v = dispatcher.dispatch(x, x, x)
    assert torch.equal(k, expected) and torch.equal(dispatcher.combine(q), x)
    assert dispatcher.kv_begin.dtype == torch.int32
    assert int((dispatcher.kv_begin + dispatcher.kv_length).max()) == len(k)
    with pytest.raises(shiplap.InputError, match="D416"):
        dispatcher.cu_seqlens_kv
    with pytest.raises(shiplap.InputError, match="not a QkvDispatch"):
        shiplap.torch.Dispatcher(made.q)


def test_quantized_and_sparse_tensors_are_refused():
    exchange = shiplap.torch.Exchange(dispatch.create_qkv_dispatch(1, 8, 2, 2).q)
    for x in (torch.quantize_per_tensor(torch.ones(8, 2), 0.5, 0, torch.qint8),
              torch.ones(8, 2).to_sparse()):
        with pytest.raises(shiplap.InputError, match="D400.*q|D400.*sparse"):
            exchange(x)


def test_conjugates_arrive_as_such():
    exchange = shiplap.torch.Exchange(dispatch.create_qkv_dispatch(1, 8, 2, 2).q)
    x = torch.randn(8, 2, dtype=torch.complex64)
    assert torch.equal(exchange.back(exchange(x.conj())), x.conj())
    assert torch.equal(exchange.back(exchange(x.conj().imag)), -x.imag)


def test_gradients_of_copies_are_summed_to_the_bit():
    assert values(exchanges.gradients_are_summed, 4) == [[]] * 4


def test_a_rank_that_attends_to_nothing_takes_part_on_the_way_back():
    assert values(exchanges.nothing_to_attend, 3) == [[4, 6, 0]] * 3


@pytest.mark.parametrize("order,gradients", [
    ("first to last", [5, 10]), ("last to first", [5, 10]), ("only the last", [0, 10]),
    ("one of them twice", [10, 0])])
def test_several_dispatches_may_be_in_flight(order, gradients):
    assert values(exchanges.two_at_once, 3, order) == [gradients] * 3


def test_of_must_be_what_dispatch_gave():
    dispatcher = shiplap.torch.Dispatcher(dispatch.create_qkv_dispatch(1, 8, 2, 2))
    x = torch.ones(8, 2)
    q, _, _ = dispatcher.dispatch(x, x, x)
    with pytest.raises(shiplap.InputError, match="not a tensor that dispatch returned"):
        dispatcher.combine(q, of=q + 1)
    dispatcher = shiplap.torch.Dispatcher(dispatch.create_qkv_dispatch(1, 8, 2, 2))
    with pytest.raises(shiplap.InputError, match="D003.*of is a tuple"):
        dispatcher.combine(q, of=(q,))


def test_a_dispatch_that_is_not_combined_does_not_keep_its_graph():
    dispatcher = shiplap.torch.Dispatcher(dispatch.create_qkv_dispatch(1, 8, 2, 2))
    saved = []
    for _ in range(20):
        weight = torch.ones(8, 2, requires_grad=True)
        x = weight * weight
        saved.append(weakref.ref(weight))
        dispatcher.dispatch(x, x, x)
    del weight, x
    assert sum(one() is not None for one in saved) <= 8
    alive = weakref.ref(dispatcher.q)
    del dispatcher  # no garbage collection is needed: there is no reference cycle
    assert not any(one() is not None for one in saved) and alive() is None


def test_rows_that_nothing_arrives_at_are_zero():
    for rank, found in enumerate(values(exchanges.holes, 3)):
        before = (rank - 1) % 3 + 1
        assert found == [[0, 0, 0, before, before], [3, 4]]


def test_works_on_a_part_of_the_ranks():
    assert values(exchanges.on_a_part, 4) == [[]] * 4


def close(found, expected, tolerance):
    """All numbers, relative to the largest of their tensor."""
    for a, b in zip(found, expected, strict=True):
        a, b = torch.tensor(a, dtype=torch.float64), torch.tensor(b, dtype=torch.float64)
        assert a.shape == b.shape
        assert float((a - b).abs().max()) <= tolerance * max(1e-3, float(b.abs().max()))


def difference(found, expected):
    return max(float((torch.tensor(a, dtype=torch.float64) -
                      torch.tensor(b, dtype=torch.float64)).abs().max())
               for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("size", [2, 4])
def test_training_equals_that_of_one_process(size):
    alone = model.train_alone(3, torch.float64)
    for rank in values(model.train, size, 3, torch.float64):
        close([rank["losses"]], [alone["losses"]], 1e-13)
        close(rank["gradients"], alone["gradients"], 1e-12)
        close(rank["weights"], alone["weights"], 1e-12)


def test_in_float32_it_is_as_far_from_the_truth_as_one_process_is():
    # One step: later ones begin from different weights.
    truth = model.train_alone(1, torch.float64)
    alone = model.train_alone(1, torch.float32)
    unavoidable = difference(alone["gradients"], truth["gradients"])
    assert 0 < unavoidable < 1e-5
    for rank in values(model.train, 4, 1, torch.float32):
        assert difference(rank["gradients"], truth["gradients"]) <= 3 * unavoidable
        close([rank["losses"]], [truth["losses"]], 1e-6)


def test_fifty_steps_with_changing_lengths_on_four_ranks():
    steps = [tuple(model.lengths_of(step)) for step in range(50)]
    assert len(set(steps)) == 50
    alone = model.train_alone(50, torch.float64)
    assert alone["losses"][-1] < alone["losses"][0]
    for rank in values(model.train, 4, 50, torch.float64, timeout=120):
        close([rank["losses"]], [alone["losses"]], 1e-10)
        close(rank["weights"], alone["weights"], 1e-8)


# ---- failures reach all ranks in time


def test_a_rank_with_other_tables_is_named_on_all_ranks():
    for outcome in values(exchanges.other_tables, 4, 5.0):
        (error, text, seconds), (alone, alone_text, _), differs = outcome
        assert error == alone == "MetadataMismatch"
        assert "D420" in text and "rank 2 in q_forward seq_len" in text
        assert "rank 2 in forward" in alone_text
        assert seconds < 5
        assert differs == []  # nothing is dead


@pytest.mark.parametrize("wrong", [exchanges.unsound_tables, exchanges.other_world])
def test_what_is_wrong_with_the_tables_is_said_on_all_ranks(wrong):
    for error, text, seconds in values(wrong, 4):
        assert error == "InputError" and seconds < 5
        assert ("D405" if wrong is exchanges.unsound_tables else "tables are for 5 ranks") in text


def test_an_exchange_of_unsound_tables_is_refused_on_all_ranks():
    for outcomes, differs in values(exchanges.unsound_pairs, 3):
        for error, text, seconds in outcomes:
            assert error == "InputError" and "D405" in text and seconds < 5
        assert differs == []


def test_rows_of_different_width_are_found_before_they_are_sent():
    for (error, text, seconds), differs in values(exchanges.other_rows, 4):
        assert error == "Mismatch" and "D303" in text and seconds < 5
        assert differs == []


def test_rows_that_differ_are_found_also_where_each_kind_is_known():
    for outcomes, differs in values(exchanges.other_rows_later, 2):
        assert [outcome[0] for outcome in outcomes] == ["Mismatch"] * 5, outcomes
        assert all("D303" in text and seconds < 2 for _, text, seconds in outcomes)
        assert differs == []


def test_a_rank_with_a_wrong_shape_is_heard_by_the_others():
    for rank, (first, later) in enumerate(values(exchanges.other_shape, 4)):
        assert first[0] == ("InputError" if rank == 1 else "RankFailed")
        assert first[2] < 2  # of a deadline of 20
        if rank != 1:
            assert "rank 1 failed" in first[1] and "this rank has 32 tokens" in first[1]
        assert later[0] == "Failure" and "D305" in later[1]


def test_it_is_heard_through_a_store_of_files_too(tmp_path):
    path = str(tmp_path / "store")
    for rank, (first, later) in enumerate(values(exchanges.other_shape_with_a_file, 3, path)):
        assert first[0] == ("InputError" if rank == 1 else "RankFailed") and first[2] < 2
        assert later[0] == "Failure"


def test_waiting_as_with_nccl_ends_too():
    for rank, (differs, first, later) in enumerate(values(exchanges.by_asking, 3)):
        assert differs == []
        assert first[0] == ("InputError" if rank == 1 else "RankFailed") and first[2] < 2
        assert later[0] == "Failure"


def test_a_rank_that_makes_something_else_is_found():
    for (error, text, seconds), differs in values(exchanges.one_makes_an_exchange, 3):
        assert error == "Mismatch" and "D303" in text and seconds < 5
        assert differs == []


def test_a_rank_without_tables_is_heard_by_the_others():
    for rank, (error, text, seconds) in enumerate(values(exchanges.no_tables, 4)):
        assert error == ("InputTypeError" if rank == 3 else "RankFailed") and seconds < 2
        assert "NoneType" in text


def test_the_death_of_a_rank_is_noticed():
    outcomes = run(exchanges.one_dies, 4)
    assert [outcome.error for outcome in outcomes] == ["", "died", "", ""]
    for rank in (0, 2, 3):
        error, text, seconds = outcomes[rank].value
        assert error == "RankFailed" and "D302" in text and seconds < 5


def test_an_exception_in_the_block_is_heard_by_the_others():
    for rank, (error, text, seconds) in enumerate(values(exchanges.one_raises, 4)):
        assert error == ("KeyError" if rank == 1 else "RankFailed")
        if rank != 1:
            assert "KeyError: 'planted'" in text and seconds < 2


def test_a_rank_that_says_nothing_is_waited_for_until_the_deadline():
    outcomes = values(exchanges.one_sleeps, 4)
    for error, text, seconds in outcomes[:1] + outcomes[2:]:
        assert error == "CommTimeoutError" and "timed out" in text and seconds < 2.5
        assert "missing: rank 1" in text


def test_a_deadline_is_kept_however_short_and_checked():
    for rank, (first, second) in enumerate(values(exchanges.one_has_no_patience, 2)):
        if rank == 0:
            assert first[0] == "CommTimeoutError" and first[2] < 0.5
        assert second[0] == ("InputError" if rank == 1 else "RankFailed") and second[2] < 3
        assert "deadline is 0" in second[1]


@pytest.mark.parametrize("deadline", [0, -1.0, float("nan"), float("inf"), "soon", None])
def test_a_deadline_is_seconds(deadline):
    made = dispatch.create_qkv_dispatch(1, 8, 2, 2)
    for make in (lambda: shiplap.torch.Dispatcher(made, deadline=deadline),
                 lambda: shiplap.torch.Exchange(made.q, deadline=deadline)):
        with pytest.raises(shiplap.InputError, match="D003"):
            make()


# ---- tensors of a table


def test_gathered_shared_keys_sum_their_gradients():
    """As docs/torch.md does for kernels that take cumulative lengths."""
    found = []
    for shares_keys in (False, True):
        made = shiplap.dispatch.create_qkv_dispatch(1, 24, 2, 4, seed=2, shares_keys=shares_keys)
        dispatcher = shiplap.torch.Dispatcher(made)
        x = torch.arange(24.0).reshape(24, 1).requires_grad_()
        _, k, _ = dispatcher.dispatch(x.detach(), x, x.detach())
        held = len(k)
        if shares_keys:
            ranges = zip(dispatcher.kv_begin.tolist(), dispatcher.kv_length.tolist())
            k = k.index_select(0, torch.cat([torch.arange(b, b + n) for b, n in ranges]))
        (k * torch.arange(len(k)).reshape(-1, 1)).sum().backward()
        found.append((k.flatten().tolist(), x.grad.flatten().tolist(), held))
    assert found[0][:2] == found[1][:2] and found[1][2] < found[0][2]


def tables():
    made = dispatch.create_qkv_dispatch(4, 64, 3, 3, seed=2)
    return [made.q.forward, made.q.reverse, made.kv.forward, made.kv.reverse]


def test_metadata_goes_to_tensors_and_back():
    for table in tables():
        metadata = shiplap.torch.Metadata.from_dispatch(table)
        dense = table.to_dense()
        assert metadata.dst_rank.tolist() == dense.dst_rank.tolist()
        assert metadata.dst_offset.tolist() == dense.dst_offset.tolist()
        assert metadata.num_recv_tokens.shape == (4, 5)
        assert list(metadata.num_total_recv_tokens) == dense.num_total_recv_tokens.tolist()
        assert metadata.to_dispatch() == metadata.to_dispatch(table.arrival) == table
        assert metadata.normalize_dtype().to("cpu").to_dispatch() == table


def test_to_dispatch_may_be_told_how_rows_arrive():
    metadata = shiplap.torch.Metadata.from_dispatch(tables()[0])
    assert metadata.arrival == "placed"
    assert metadata.to_dispatch("summed").arrival == "summed"


@pytest.mark.parametrize("table", tables())
def test_a_slice_of_a_slice_is_no_table(table):
    one = shiplap.torch.Metadata.from_dispatch(table).get_slice(1)
    for act in (lambda: one.get_slice(0), one.to_dispatch, one.normalize_dtype().to_dispatch):
        with pytest.raises(shiplap.InputError, match=r"D400(?s:.*)slice of one rank"):
            act()


def test_metadata_has_the_fields_and_types_of_kernels():
    metadata = shiplap.torch.Metadata.from_dispatch(tables()[2]).normalize_dtype()
    assert metadata.normalized and metadata.world_size == 4
    assert metadata.dst_rank.dtype == torch.int32
    assert metadata.dst_offset.dtype == metadata.seq_len.dtype == torch.uint32
    assert metadata.num_recv_tokens.dtype == torch.uint64
    assert metadata.seq_recv_mask.dtype == torch.bool
    with pytest.raises(shiplap.InputError, match="D410"):
        metadata.dst_offset = torch.tensor([[[2**32]]])
        metadata.normalize_dtype()


def test_a_slice_is_a_view_of_the_rows_of_one_rank():
    metadata = shiplap.torch.Metadata.from_dispatch(tables()[2])
    for rank in range(4):
        one = metadata.get_slice(rank)
        rows = int(metadata.num_seqs[rank])
        assert one.dst_rank.shape == (rows, metadata.dst_rank.shape[2])
        assert one.dst_rank.data_ptr() == metadata.dst_rank[rank].data_ptr()
        assert one.num_recv_tokens.shape == (5,)
        assert one.num_total_recv_tokens == metadata.num_total_recv_tokens[rank]
    with pytest.raises(shiplap.InputError, match="D400"):
        metadata.get_slice(4)


def test_one_rank_needs_no_process_group():
    made = dispatch.create_qkv_dispatch(1, 32, 3, 3, seed=2)
    dispatcher = shiplap.torch.Dispatcher(made)
    x = torch.randn(32, 2, 4)
    q, k, v = dispatcher.dispatch(x, x, 2 * x)
    assert torch.equal(dispatcher.combine(q), x) and torch.equal(2 * k, v)
    assert dispatcher.cu_seqlens_q.dtype == torch.int32
    assert dispatcher.cu_seqlens_q[-1] == len(q) and dispatcher.cu_seqlens_kv[-1] == len(k)
    assert dispatcher.max_seqlen_kv >= dispatcher.max_seqlen_q
    with pytest.raises(shiplap.InputError, match="tables are for 4 ranks, the group has 1"):
        shiplap.torch.Dispatcher(dispatch.create_qkv_dispatch(4, 32, 3, 3))


def test_without_torch_it_says_how_to_get_it():
    code = ("import sys; sys.modules['torch'] = None\n"
            "import shiplap\n"
            "try:\n    import shiplap.torch\n"
            "except ImportError as e:\n    print(isinstance(e, shiplap.MissingDependency), e)")
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                            timeout=60)
    assert answer.stdout.startswith("True shiplap.torch needs torch"), answer.stderr
    assert "pip install 'shiplap[torch]'" in answer.stdout


# ---- torch.compile, meshes


def test_compiled_functions_give_what_eager_ones_give():
    for whole, checkpointed, automatic in values(exchanges.compiled_as_eager, 2, timeout=300):
        assert whole < 1e-12 and checkpointed < 1e-12 and automatic < 1e-2


def test_a_mesh_of_one_dimension_is_a_group():
    assert values(exchanges.groups_are_meshes, 4) == [["name it: `mesh['cp']`"]] * 4
