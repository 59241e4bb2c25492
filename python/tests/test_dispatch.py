"""shiplap.dispatch: the same as C++, under the same names."""

import argparse
import itertools
import json
import pathlib
import pickle
import random
import subprocess

import pytest

import shiplap
from shiplap import dispatch


def command(*words):
    """The result of the command line tool for the same input."""
    program = pathlib.Path(shiplap.__file__).parent / "bin" / "shiplap"
    answer = subprocess.run([program, "dispatch", *map(str, words)], capture_output=True,
                            text=True, timeout=60)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


# ---- the same as C++


@pytest.mark.parametrize("ranks, tokens, seqs, cp, seed", [
    (1, 8, 1, 1, 0), (2, 16, 2, 2, 1), (4, 64, 3, 4, 2), (8, 4096, 4, 4, 0), (64, 512, 4, 8, 5)])
def test_gives_the_tables_of_the_command_line(tmp_path, ranks, tokens, seqs, cp, seed):
    file = tmp_path / "dispatch.json"
    command("--ranks", ranks, "--tokens", tokens, "--seqs", seqs, "--cp", cp, "--seed", seed,
            "--output", file)
    made = dispatch.create_qkv_dispatch(ranks, tokens, seqs, cp, seed)
    assert made.to_json(q_row_bytes=1024, kv_row_bytes=512) == file.read_text()
    with pytest.raises(shiplap.InputError):
        made.to_json(q_row_bytes=1024)
    sizes = {"q_row_bytes": 1024, "kv_row_bytes": 512}
    assert {**made.to_dict(), **sizes} == json.loads(file.read_text())
    assert dispatch.read_dispatch(file.read_text()).to_dispatch() == made
    assert dispatch.compute_qkv_dispatch(dispatch.random_routing(ranks, tokens, seqs, cp,
                                                                 seed)) == made


def test_gives_the_tables_and_the_plan_of_given_lengths(tmp_path):
    lengths = [37, 5, 0, 120, 64, 1, 33, 7]
    (tmp_path / "lengths.txt").write_text(" ".join(map(str, lengths)))
    command("--ranks", 4, "--lengths", tmp_path / "lengths.txt", "--cp", 3, "--seed", 6,
            "--output", tmp_path / "d.json", "--plan", tmp_path / "d.plan")
    items = dispatch.cut_documents(lengths, 3)
    routing = dispatch.Routing(dispatch.pack_documents(lengths, 4),
                               dispatch.assign_randomly(items, 4, seed=6))
    made = dispatch.compute_qkv_dispatch(routing)
    written = (tmp_path / "d.json").read_text()
    assert made.to_json(q_row_bytes=1024, kv_row_bytes=512) == written
    plan = dispatch.lower(routing, made, q_row_bytes=1024, kv_row_bytes=512)
    assert plan.to_text() == (tmp_path / "d.plan").read_text()
    assert shiplap.check(plan).sound and plan.name == "dispatch on 4 ranks"


def test_str_is_what_the_command_line_prints():
    made = dispatch.create_qkv_dispatch(4, 64, 2, 2, 3)
    printed = command("--ranks", 4, "--tokens", 64, "--seqs", 2, "--cp", 2, "--seed", 3)
    lines = printed.splitlines()  # the first counts documents
    assert lines[1] == "The placement of items on ranks is random (--seed 3)."
    assert str(made).splitlines()[1:] == lines[2:]


# ---- the parts fit together


def test_iterates_as_the_five_results():
    made = dispatch.create_qkv_dispatch(4, 64, 2, 3, 1)
    fwd_q, rev_q, fwd_k, rev_k, attention = made
    assert len(made) == 5 and made.world_size == 4
    assert [fwd_q, rev_q] == list(made.q) and [fwd_k, rev_k] == list(made.kv)
    assert dispatch.MetadataPair(fwd_q, rev_q) == dispatch.compute_metadata(made.routing)
    assert made.kv == dispatch.compute_metadata_kv(made.routing)
    assert attention == dispatch.compute_attention_layout(made.routing)
    assert dispatch.QkvDispatch(made.q, made.kv, attention) == made
    assert sum(dispatch.attention_pairs(attention, rank) for rank in range(4)) > 0


def test_compute_metadata_takes_whole_sequences():
    np = pytest.importorskip("numpy")
    lengths, to = [[3, 1, 0], [2, 5, 4]], [[0, 1, -1], [0, 1, 0]]
    pair = dispatch.compute_metadata(lengths, to)
    assert pair == dispatch.compute_metadata(np.array(lengths), np.array(to, dtype=np.int8))
    assert pair.forward.row(1, 0).copies == [dispatch.Copy(0, 3)]
    assert dispatch.validate_queries(pair) == []
    with pytest.raises(shiplap.InputError, match="D402"):
        dispatch.compute_metadata([[3]], [[-1]])
    with pytest.raises(shiplap.InputError, match="D401"):
        dispatch.compute_metadata([[3]], [[0, 0]])


def test_tables_go_to_rows_and_tensors_and_back():
    made = dispatch.create_qkv_dispatch(5, 40, 3, 3, 4)
    for table in (made.q.forward, made.q.reverse, made.kv.forward, made.kv.reverse):
        again = dispatch.Metadata.from_rows(table.to_rows(), max_cp=table.max_cp,
                                            arrival=table.arrival)
        assert again == table and again.hashes() == table.hashes()
        dense = table.to_dense()
        assert dense.to_sparse() == table and dispatch.validate(dense) == []
        copy = dispatch.DenseMetadata(
            dense.dst_rank, dense.dst_offset, dense.seq_len, dense.num_recv_tokens,
            dense.seq_recv_mask, dense.recv_seq_lens, dense.num_seqs, dense.num_total_recv_tokens,
            arrival=dense.arrival)
        assert copy == dense
        bare = dispatch.DenseMetadata(dense.dst_rank.tolist(), dense.dst_offset.tolist(),
                                      dense.seq_len.tolist(), arrival=dense.arrival)
        assert bare.to_sparse() == table and bare.num_recv_tokens is None
        narrow = dense.normalize_dtype()
        assert narrow.normalized and not dense.normalized
        assert narrow.dst_rank.tolist() == dense.dst_rank.tolist()
        assert pickle.loads(pickle.dumps(table)) == table
        for rank in range(5):
            own, small = dense.get_slice(rank), narrow.get_slice(rank)
            assert own.num_seqs == table.num_seqs(rank) == len(own.seq_len)
            assert own.dst_rank.tolist() == small.dst_rank.tolist()
            assert own.dst_rank.tolist() == dense.dst_rank[rank, :own.num_seqs].tolist()
            assert own.num_recv_tokens.tolist() == table.num_recv_tokens(rank).tolist()


class Foreign:
    """The metadata of another program: lists or arrays under the same names."""

    def __init__(self, table):
        self.dst_rank, self.dst_offset = table.dst_rank.tolist(), table.dst_offset.tolist()
        self.seq_len, self.num_recv_tokens = table.seq_len.tolist(), None
        self.arrival = table.arrival


def forms(table):
    dense = table.to_dense()
    return [table, dense, dense.normalize_dtype(), Foreign(table)]


@pytest.mark.parametrize("seed", range(5))
def test_every_form_of_a_table_is_taken(seed):
    np = pytest.importorskip("numpy")
    made = dispatch.create_qkv_dispatch(3, 24, 3, 3, seed)
    for form in map(forms, (made.q.forward, made.kv.forward, made.kv.reverse)):
        table = form[0]
        for other in form[1:]:
            assert dispatch.Metadata(other) == table
            assert dispatch.Metadata(other).to_dense() == table.to_dense()
            assert dispatch.flows(other) == dispatch.flows(table)
            assert dispatch.validate(other) == []
            for rank in range(3):
                mine, own = (dispatch.exchange_indices(one, rank) for one in (other, table))
                assert mine.send_rows.tolist() == own.send_rows.tolist()
                assert mine.recv_rows.tolist() == own.recv_rows.tolist()
            xs = [np.arange(table.num_send_tokens(rank), dtype=np.float32) for rank in range(3)]
            for simulate in (dispatch.orchestrate_simulate, dispatch.sum_simulate):
                outs = [[np.zeros(24 * 9, dtype=np.float32) for _ in range(3)] for _ in range(2)]
                simulate(xs, outs[0], table)
                simulate(xs, outs[1], other)
                assert all((a == b).all() for a, b in zip(*outs))
    for q, kv in zip(zip(*map(forms, made.q)), zip(*map(forms, made.kv))):
        assert dispatch.MetadataPair(*q) == made.q and dispatch.validate_queries(q) == []
        assert dispatch.QkvDispatch(q, list(kv), made.attention) == made
        assert dispatch.validate_keys(kv) == []
    with pytest.raises(shiplap.InputError, match="expected a table, found int"):
        dispatch.flows(3)
    with pytest.raises(shiplap.InputError, match="expected two tables, found Metadata"):
        dispatch.validate_keys(made.kv.forward)


class Described:
    """The fields of the first description: no arrival, and offsets perhaps in bytes."""

    def __init__(self, table, factor=1, **fields):
        self.dst_rank, self.seq_len = table.dst_rank.tolist(), table.seq_len.tolist()
        self.dst_offset = (table.to_dense().dst_offset * factor).tolist()
        self.num_recv_tokens = table.num_recv_tokens().tolist()
        vars(self).update(fields)


def test_a_reverse_table_without_arrival_sums_copies():
    pytest.importorskip("numpy")
    made = dispatch.create_qkv_dispatch(2, 16, 2, 4, seed=2)
    for forward in (made.kv.forward, Described(made.kv.forward)):
        for reverse in (Described(made.kv.reverse), Described(made.kv.reverse, arrival=None)):
            assert dispatch.MetadataPair(forward, reverse) == made.kv
            assert dispatch.validate_keys((forward, reverse)) == []
    described = [Described(table) for table in (*made.q, *made.kv)]
    again = dispatch.QkvDispatch(described[:2], described[2:], made.attention)
    assert again == made and again.q.reverse.arrival == "placed"
    placed = (made.kv.forward, Described(made.kv.reverse, arrival="placed"))
    assert {one.code for one in dispatch.validate_keys(placed)} >= {"D412"}


def test_offsets_in_bytes_are_found_or_converted():
    pytest.importorskip("numpy")
    made = dispatch.create_qkv_dispatch(2, 16, 2, 2, seed=2)
    for table in (made.q.forward, made.kv.forward):
        assert dispatch.Metadata(Described(table)) == table
        assert dispatch.Metadata(Described(table, offset_unit="tokens")) == table
        converted = Described(table, 8, offset_unit="bytes", row_bytes=8)
        assert dispatch.Metadata(converted) == table
        with pytest.raises(shiplap.InputError, match="D415") as error:
            dispatch.Metadata(Described(table, 8))
        assert "seems to be in bytes, with 8 per token" in str(error.value)
        assert dispatch.Metadata(Described(table, 8, offset_unit="tokens")) != table  # is believed
        for wrong, text in (({"offset_unit": "words"}, "unknown offset_unit `words`"),
                            ({"offset_unit": "bytes"}, "need row_bytes, found None"),
                            ({"offset_unit": "bytes", "row_bytes": 0}, "need row_bytes, found 0"),
                            ({"offset_unit": "bytes", "row_bytes": 16}, "not a multiple of")):
            with pytest.raises(shiplap.InputError, match=text):
                dispatch.Metadata(Described(table, 8, **wrong))
    # A table in tokens may have gaps, such as pieces that are aligned to 8 tokens.
    aligned = dispatch.Metadata.from_rows([[(3, [(0, 0)]), (6, [(1, 0)])],
                                           [(5, [(0, 8)]), (8, [(1, 8)])]])
    assert dispatch.Metadata(Described(aligned)) == aligned


def test_a_table_has_the_tensors_of_its_dense_form():
    table = dispatch.create_qkv_dispatch(4, 30, 3, 3, 2).kv.forward
    dense = table.to_dense()
    for name in ("dst_rank", "dst_offset", "seq_len", "seq_recv_mask", "recv_seq_lens"):
        assert getattr(table, name).tolist() == getattr(dense, name).tolist()
    for name in ("num_recv_tokens", "num_seqs", "num_total_recv_tokens"):
        assert getattr(table, name)().tolist() == getattr(dense, name).tolist()
        of_rank = getattr(table, name)(1)
        assert getattr(of_rank, "tolist", lambda: of_rank)() == getattr(dense, name)[1].tolist()


def test_parameters_have_the_names_of_layouts_and_of_tensors():
    made = dispatch.create_qkv_dispatch(4, 64, 2, 3, 1)
    assert made == dispatch.create_qkv_dispatch(world_size=4, seq_len=64, num_seqs=2, cp_degree=3,
                                                seed=1)
    assert made.routing == dispatch.random_routing(4, num_seqs=2, seq_len=64, cp_degree=3, seed=1)
    lengths, to = [[3, 1, 0], [2, 5, 4]], [[0, 1, -1], [0, 1, 0]]
    pair = dispatch.compute_metadata(lengths, to)
    assert pair == dispatch.compute_metadata(seq_len=lengths, dispatch_plan=to)
    assert pair == dispatch.compute_metadata(seq_lens=lengths, dst_rank=to)
    assert made.q == dispatch.compute_metadata(routing=made.routing)
    for words, both in (({"total_seq_len": 8, "seq_len": 8}, "`total_seq_len` and `seq_len`"),
                        ({"max_cp_degree": 1, "cp_degree": 1}, "`max_cp_degree` and `cp_degree`")):
        with pytest.raises(TypeError, match=both):
            dispatch.create_qkv_dispatch(2, **words)
    with pytest.raises(TypeError, match="`dst_rank` and `dispatch_plan`"):
        dispatch.compute_metadata(lengths, to, dispatch_plan=to)
    with pytest.raises(TypeError, match="needs `dispatch_plan`"):
        dispatch.compute_metadata(lengths)
    with pytest.raises(TypeError, match="both `routing` and"):
        dispatch.compute_metadata(made.routing, to)
    with pytest.raises(shiplap.InputError, match="D400"):
        dispatch.create_qkv_dispatch(2, 0)


def test_a_decision_with_copies_is_completed():
    np = pytest.importorskip("numpy")
    lengths = [[128, 64, 0], [96, 128, 32]]
    to = [[[1, 0], [0, -1], [-1, -1]], [[0, 1], [1, 0], [0, -1]]]
    pair = dispatch.compute_metadata(lengths, to)
    assert pair == dispatch.compute_metadata(np.array(lengths), np.array(to))
    assert pair == dispatch.compute_metadata(lengths, [np.array(rank) for rank in to])
    assert pair.forward.dst_rank.tolist() == to
    assert pair.forward.dst_offset.tolist() == [
        [[0, 0], [128, 0], [0, 0]], [[192, 128], [224, 288], [416, 0]]]
    assert pair.reverse.arrival == "summed" and dispatch.validate_keys(pair) == []
    assert [one.code for one in dispatch.validate([[3]], [[[-1, -1]]])] == ["D402"]


def test_keys_of_mapping_tensors():
    np = pytest.importorskip("numpy")
    words = {"kv_to_q_mapping": [[[(0, 0), (1, 0)]], [[(1, 0), (-1, -1)]]],
             "kv_context_size": [[0], [2]], "seq_len": [[2], [3]], "dispatch_plan": [[1], [0]]}
    pair = dispatch.compute_metadata_kv(**words)
    assert pair.forward.to_rows() == [[(2, [(1, 0), (0, 0)])], [(3, [(0, 2)])]]
    assert dispatch.validate_keys(pair) == []
    assert pair == dispatch.compute_metadata_kv(**{k: np.array(v) for k, v in words.items()})
    with pytest.raises(TypeError, match="needs `kv_context_size`"):
        dispatch.compute_metadata_kv(kv_to_q_mapping=[], seq_len=[], dispatch_plan=[])
    with pytest.raises(TypeError, match="need a routing"):
        dispatch.compute_metadata_kv(**words, mask="full")
    with pytest.raises(shiplap.InputError, match="D408"):
        dispatch.compute_metadata_kv(**{**words, "kv_context_size": [[0], [3]]})


def test_the_whole_dispatch_of_mapping_tensors_is_validated():
    words = {"kv_to_q_mapping": [[[(0, 0), (1, 0)]], [[(1, 0), (-1, -1)]]],
             "kv_context_size": [[0], [2]], "seq_len": [[2], [3]], "dispatch_plan": [[1], [0]]}
    other_names = {"seq_lens": words["seq_len"], "dst_rank": words["dispatch_plan"]}
    q = dispatch.compute_metadata(words["seq_len"], words["dispatch_plan"])
    kv = dispatch.compute_metadata_kv(**words)
    attention = dispatch.compute_attention_layout(**words)
    assert attention == dispatch.compute_attention_layout(
        kv_to_q_mapping=words["kv_to_q_mapping"], kv_context_size=words["kv_context_size"],
        **other_names)
    assert attention.mask == "causal" and attention.cu_seqlens_kv(0).tolist() == [0, 5]
    assert dispatch.validate(dispatch.QkvDispatch(q, kv, attention)) == []
    # The first shard lacks the keys of the second, which a full mask asks for.
    full = dispatch.compute_attention_layout(**words, mask="full")
    found = dispatch.validate(dispatch.QkvDispatch(q, kv, full))
    assert found and {one.code for one in found} == {"D409"}
    routing = dispatch.create_qkv_dispatch(2, 8).routing
    with pytest.raises(TypeError, match="both `routing` and `seq_len`"):
        dispatch.compute_attention_layout(routing, seq_len=[[2]])
    with pytest.raises(TypeError, match="needs `dispatch_plan`"):
        dispatch.compute_attention_layout(**{**words, "dispatch_plan": None})
    with pytest.raises(TypeError, match="`shares_keys` needs a routing"):
        dispatch.compute_attention_layout(**words, shares_keys=True)


@pytest.mark.parametrize("function", [
    dispatch.compute_metadata_kv, dispatch.compute_attention_layout, dispatch.compute_qkv_dispatch])
def test_an_empty_mask_is_not_causal(function):
    with pytest.raises(shiplap.InputError, match="unknown mask"):
        function(dispatch.create_qkv_dispatch(2, 8).routing, mask="")


@pytest.mark.parametrize("mask", ["causal", "window:5", "prefix:6", "full"])
@pytest.mark.parametrize("shares_keys", [False, True])
def test_masks_and_shared_keys(mask, shares_keys):
    made = dispatch.create_qkv_dispatch(4, 64, 2, 3, 1, mask=mask, shares_keys=shares_keys)
    attention = made.attention
    assert dispatch.validate(made) == [] and attention.mask == mask
    assert attention.shares_keys == shares_keys and pickle.loads(pickle.dumps(made)) == made
    assert dispatch.read_dispatch(made.to_json()).to_dispatch() == made
    assert shiplap.check(dispatch.lower(made.routing, made)).sound
    pairs = 0
    lengths = {s.document: max(t.end for t in made.routing.home.all if t.document == s.document)
               for s in made.routing.home.all}
    kind, _, number = mask.partition(":")
    for length in lengths.values():
        for q, k in itertools.product(range(length), repeat=2):
            pairs += (kind == "full" or (k <= q and (kind != "window" or q - k < int(number)))
                      or (kind == "prefix" and k < int(number)))
    assert sum(dispatch.attention_pairs(attention, rank) for rank in range(4)) == pairs
    for rank in range(4):
        ends = [a + b for a, b in zip(attention.kv_begin(rank).tolist(),
                                      attention.kv_length(rank).tolist())]
        assert max(ends, default=0) == attention.num_kv_tokens(rank)
        if not shares_keys:
            assert attention.cu_seqlens_kv(rank).tolist() == [0, *ends]
    if shares_keys:
        with pytest.raises(shiplap.InputError, match="D416"):
            attention.cu_seqlens_kv(0)
    with pytest.raises(shiplap.InputError, match="unknown mask"):
        dispatch.compute_qkv_dispatch(made.routing, mask="sliding")


def test_the_whole_way_of_a_random_dispatch():
    for seed, mask in enumerate(["causal", "window:7", "prefix:9", "full"] * 3):
        made = dispatch.test_qkv_dispatch(world_size=seed % 5 + 1, num_seqs=2, seq_len=30,
                                          cp_degree=4, seed=seed, mask=mask, shares_keys=seed > 5)
        assert made.attention.mask == mask and made.world_size == seed % 5 + 1
    words = {"world_size": 3, "num_seqs": 2, "seq_len": 40, "seed": 5}
    assert dispatch.test_qkv_dispatch(argparse.Namespace(**words, other=1)) == \
        dispatch.create_qkv_dispatch(3, 40, 2, 4, 5)


def test_the_whole_way_takes_its_parameters_in_every_form():
    expected = dispatch.create_qkv_dispatch(2, 24, 2, 3, 0)
    words = {"world_size": 2, "num_seqs": 2, "total_seq_len": 24, "max_cp_degree": 3}
    unset = {"seq_len": None, "cp_degree": None, "seed": None, "hidden_size": None, "mask": None}
    for args in (words, {**words, **unset}):
        assert dispatch.test_qkv_dispatch(**words) == expected
        assert dispatch.test_qkv_dispatch(args) == expected
        assert dispatch.test_qkv_dispatch(argparse.Namespace(**args)) == expected
        assert dispatch.test_qkv_dispatch(args, seq_len=8, max_cp_degree=1) == expected
    with pytest.raises(TypeError, match="both `total_seq_len` and `seq_len`"):
        dispatch.test_qkv_dispatch({**words, "seq_len": 24})
    with pytest.raises(shiplap.InputError, match="hidden_size is 0"):
        dispatch.test_qkv_dispatch(hidden_size=0)


@pytest.mark.parametrize("error, wrong", [
    ("come back", "orchestrate_simulate"), ("not summed", "sum_simulate")])
def test_the_whole_way_finds_wrong_results(monkeypatch, error, wrong):
    right = getattr(dispatch, wrong)

    def off_by_one(tensor, output, table):
        found = right(tensor, output, table)
        found[0][0, 0] += 1
        return found

    monkeypatch.setattr(dispatch, wrong, off_by_one)
    with pytest.raises(AssertionError, match=error):
        dispatch.test_qkv_dispatch(world_size=2, seq_len=16)


def test_everything_can_be_sent_to_another_process():
    made = dispatch.create_qkv_dispatch(3, 30, 3, 3, 4)
    again = pickle.loads(pickle.dumps(made))
    assert again == made and again.routing == made.routing
    assert again._repr_html_() == made._repr_html_()
    bare = dispatch.QkvDispatch(made.q, made.kv, made.attention)
    assert pickle.loads(pickle.dumps(bare)) == made and bare.routing is None
    for part in (made.q, made.kv.forward, made.attention, made.routing, made.routing.home):
        assert pickle.loads(pickle.dumps(part)) == part


def test_a_slice_of_a_rank_without_rows_has_columns():
    np = pytest.importorskip("numpy")
    table = dispatch.Metadata.from_rows([[(3, [(0, 0), (1, 0)])], []], max_cp=2)
    slices = [table.to_dense().get_slice(rank) for rank in range(2)]
    assert [one.dst_rank.shape for one in slices] == [(1, 2), (0, 2)]
    assert np.concatenate([one.dst_rank for one in slices]).shape == (1, 2)


def test_tensors_that_contradict_each_other_are_refused():
    with pytest.raises(shiplap.InputError, match="D401"):
        dispatch.DenseMetadata([[0, 1]], [[0]], [[1, 1]])
    with pytest.raises(shiplap.InputError, match="D403"):
        dispatch.DenseMetadata([[1]], [[0]], [[1]]).to_sparse()
    with pytest.raises(shiplap.InputError):
        dispatch.DenseMetadata([[0]], [[0]], [[1]], num_seqs=[9]).get_slice(0)
    with pytest.raises(shiplap.InputError, match="D410"):
        dispatch.DenseMetadata([[0]], [[2**40]], [[1]]).normalize_dtype()
    with pytest.raises(shiplap.InputError, match="D400"):
        dispatch.DenseMetadata([[0]], [[0]], [[1]]).get_slice(1)
    with pytest.raises(shiplap.InputError, match="D401"):
        dispatch.Metadata.from_rows([[(1, [(0, 0), (0, 1)])]])
    with pytest.raises(shiplap.InputError, match="there is no `later`"):
        dispatch.Metadata.from_rows([[]], arrival="later")


@pytest.mark.parametrize("act", [
    lambda made: made.q.forward.row(4, 0), lambda made: made.q.forward.num_seqs(-1),
    lambda made: made.q.forward.row(0, 99), lambda made: made.attention.cu_seqlens_q(4),
    lambda made: dispatch.attention_pairs(made.attention, 4),
    lambda made: made.routing.home.of(4), lambda made: made.routing.home.tokens(-1),
    lambda made: dispatch.exchange_indices(made.q.forward, 4),
    lambda made: made.q.forward.num_recv_tokens(4)])
def test_a_rank_that_is_not_there_is_refused(act):
    with pytest.raises(shiplap.InputError, match="D400"):
        act(dispatch.create_qkv_dispatch(4, 64, 2, 3, 1))


# ---- findings


def wrong_offset(made):
    rows = made.q.forward.to_rows()
    length, ((rank, offset),) = rows[1][0]
    rows[1][0] = (length, [(rank, offset + 1)])
    q = dispatch.MetadataPair(dispatch.Metadata.from_rows(rows), made.q.reverse)
    return dispatch.QkvDispatch(q, made.kv, made.attention)


def test_findings_are_diagnostics():
    made = dispatch.create_qkv_dispatch(4, 64, 2, 3, 1)
    assert dispatch.validate(made) == []
    assert dispatch.validate(made.routing) == dispatch.validate(made.q.forward) == []
    assert dispatch.validate_keys(made.kv) == dispatch.validate_queries(made.q) == []
    bad = wrong_offset(made)
    found = dispatch.validate(bad)
    assert found and all(one.code.startswith("D4") for one in found)
    assert any(one.rank == 1 and "q_forward" in one.operation for one in found)
    assert found[0].code in str(bad) and "sound:" not in str(bad)
    assert found[0].code in bad._repr_html_()
    assert "D412" in {one.code for one in dispatch.validate_keys(
        dispatch.MetadataPair(made.kv.forward, made.q.reverse))}
    assert [one.code for one in dispatch.validate([[3]], [[-1]])] == ["D402"]
    assert dispatch.validate([[3]], [[0]]) == []
    small = dispatch.validate(made.q.forward, table="mine", buffer_tokens=[1, 1, 1, 1])
    assert small[0].code == "D404" and "mine" in small[0].operation
    assert len(dispatch.validate(made.q.forward, buffer_tokens=[1] * 4, max_per_code=1)) == 2


def test_a_file_is_judged_as_a_whole():
    made = dispatch.create_qkv_dispatch(2, 8, 2, 2, 1)
    file = dispatch.read_dispatch(made.to_json(), "mine.json")
    assert list(file.tables) == ["q_forward", "q_reverse", "kv_forward", "kv_reverse"]
    assert dispatch.validate(file) == [] and file.warnings == [] and file.attention is not None
    alone = dispatch.read_dispatch(made.q.forward.to_json())
    assert alone.tables["metadata"].to_sparse() == made.q.forward
    with pytest.raises(shiplap.InputError, match="D413"):
        alone.to_dispatch()
    with pytest.raises(shiplap.InputError, match="mine.json"):
        dispatch.read_dispatch("{", "mine.json")


# ---- traffic and layouts


def test_flows_add_up():
    made = dispatch.create_qkv_dispatch(6, 48, 3, 3, 8)
    flows = dispatch.flows(made.kv.forward)
    summary = dispatch.summarize(flows, ranks_per_node=2)
    assert summary.tokens == sum(flow.tokens for flow in flows)
    assert summary.between_ranks == sum(f.tokens for f in flows if f.from_ != f.to)
    assert summary.between_nodes == sum(f.tokens for f in flows if f.from_ // 2 != f.to // 2)
    assert summary.largest in flows
    with pytest.raises(shiplap.InputError, match="D400"):
        dispatch.summarize(flows, 0)


def test_layouts_are_values():
    layout = dispatch.Layout([[dispatch.Segment(0, 0, 4)], [(0, 4, 2), [1, 0, 2]]])
    assert layout == dispatch.pack_documents([6, 2], 2) and layout != 3
    assert layout.all == layout.of(0) + layout.of(1) and layout.first(1) == 1
    assert pickle.loads(pickle.dumps(layout)) == layout
    assert layout.of(1)[0].end == 6 and len({*layout.all, *layout.all}) == 3
    with pytest.raises(shiplap.InputError, match="D003"):
        dispatch.Layout([[(0, 0)]])
    with pytest.raises(shiplap.InputError, match="D400"):
        dispatch.Layout([])


def test_pictures_and_words():
    made = dispatch.create_qkv_dispatch(4, 64, 2, 3, 1)
    assert "<svg" in made._repr_html_() or "<div" in made._repr_html_()
    assert repr(made) == "<QkvDispatch: 4 ranks, 16 rows, 28 copies of keys>"
    assert (made.q.forward.rows, made.kv.forward.copies) == (16, 28)
    read = dispatch.read_dispatch(made.to_json()).to_dispatch()
    assert read.routing is None and read._repr_html_().startswith("<pre>")


def test_a_report_is_that_of_the_command_line(tmp_path):
    made = dispatch.create_qkv_dispatch(4, 64, 2, 3, 1)
    made.save_report(tmp_path / "mine.html")
    assert "where the tokens" in (tmp_path / "mine.html").read_text().lower()
    with pytest.raises(shiplap.InputError, match="the routing is missing"):
        dispatch.read_dispatch(made.to_json()).to_dispatch().save_report(tmp_path / "no.html")


# ---- index arrays: against the reference implementation, in numpy


def exchange(table, xs, out_rows):
    """Gather, all_to_all, scatter, as docs/torch.md describes them."""
    np = pytest.importorskip("numpy")
    indices = [dispatch.exchange_indices(table, rank) for rank in range(table.world_size)]
    parts = [np.split(x[i.send_rows], np.cumsum(i.send_counts)[:-1])
             for x, i in zip(xs, indices)]
    outs = []
    for rank, own in enumerate(indices):
        arrived = np.concatenate([part[rank] for part in parts])
        out = np.zeros((out_rows[rank], *xs[0].shape[1:]), dtype=xs[0].dtype)
        if own.arrival == "placed":
            out[own.recv_rows] = arrived
        for begin, end in itertools.pairwise([0, *own.level_ends.tolist()]):
            out[own.level_rows[begin:end]] += arrived[own.level_arrivals[begin:end]]
        outs.append(out)
    return outs


@pytest.mark.parametrize("seed", range(20))
def test_index_arrays_do_what_the_referee_does(seed):
    np = pytest.importorskip("numpy")
    dice = random.Random(seed)
    made = dispatch.create_qkv_dispatch(dice.randint(1, 6), dice.randint(4, 60), dice.randint(1, 4),
                                        dice.randint(1, 5), seed)
    generator = np.random.default_rng(seed)
    for pair in (made.q, made.kv):
        for table, other in ((pair.forward, pair.reverse), (pair.reverse, pair.forward)):
            ranks = range(table.world_size)
            xs = [generator.normal(size=(table.num_send_tokens(r), 3)).astype(np.float32)
                  for r in ranks]
            rows = [other.num_send_tokens(r) for r in ranks]
            expected = [np.zeros((n, 3), dtype=np.float32) for n in rows]
            referee = (dispatch.sum_simulate if table.arrival == "summed"
                       else dispatch.orchestrate_simulate)
            referee(xs, expected, table)
            for found, right in zip(exchange(table, xs, rows), expected):
                assert found.tobytes() == right.tobytes()
