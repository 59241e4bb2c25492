"""shiplap.dispatch: the same as C++, under the same names."""

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
    assert sum(dispatch.causal_pairs(attention, rank) for rank in range(4)) > 0


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
        dense = dispatch.to_dense(table)
        assert dispatch.to_sparse(dense) == table and dispatch.validate(dense) == []
        copy = dispatch.DenseMetadata(
            dense.dst_rank, dense.dst_offset, dense.seq_len, dense.num_recv_tokens,
            dense.seq_recv_mask, dense.recv_seq_lens, dense.num_seqs, dense.num_total_recv_tokens,
            arrival=dense.arrival)
        assert copy == dense
        bare = dispatch.DenseMetadata(dense.dst_rank.tolist(), dense.dst_offset.tolist(),
                                      dense.seq_len.tolist(), arrival=dense.arrival)
        assert bare.to_sparse() == table and bare.num_recv_tokens is None
        narrow = dispatch.normalize_dtype(dense)
        assert narrow.normalized and not dense.normalized
        assert narrow.dst_rank.tolist() == dense.dst_rank.tolist()
        assert pickle.loads(pickle.dumps(table)) == table
        for rank in range(5):
            own, small = dense.get_slice(rank), narrow.get_slice(rank)
            assert own.num_seqs == table.num_seqs(rank) == len(own.seq_len)
            assert own.dst_rank.tolist() == small.dst_rank.tolist()
            assert own.dst_rank.tolist() == dense.dst_rank[rank, :own.num_seqs].tolist()
            assert own.num_recv_tokens.tolist() == table.num_recv_tokens(rank).tolist()


def test_everything_can_be_sent_to_another_process():
    made = dispatch.create_qkv_dispatch(3, 30, 3, 3, 4)
    again = pickle.loads(pickle.dumps(made))
    assert again == made and again.routing == made.routing
    assert again._repr_html_() == made._repr_html_()
    bare = dispatch.QkvDispatch(made.q, made.kv, made.attention)
    assert pickle.loads(pickle.dumps(bare)) == made and bare.routing is None
    for part in (made.q, made.kv.forward, made.attention, made.routing, made.routing.home):
        assert pickle.loads(pickle.dumps(part)) == part


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
    lambda made: dispatch.causal_pairs(made.attention, 4),
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
    assert dispatch.validate([[3]], [[0]]) == [] and dispatch.bytes_at(3, 8) == 24
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
