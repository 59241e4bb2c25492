"""Arrays between C++ and Python: the same memory where that is possible, by address."""

import array
import gc
import subprocess
import sys
import threading
import time

import pytest

import shiplap
from shiplap import _shiplap, dispatch

np = pytest.importorskip("numpy")


def made():
    return dispatch.create_qkv_dispatch(4, 64, 3, 3, seed=1)


def address(value):
    return value.__array_interface__["data"][0]


# ---- out: views of C++ memory


@pytest.mark.parametrize("name", ["cu_seqlens_q", "cu_seqlens_kv"])
def test_views_show_the_same_memory_every_time(name):
    layout = made().attention
    first, second = getattr(layout, name)(1), getattr(layout, name)(1)
    assert address(first) == address(second)
    assert first.dtype == np.uint32 and not first.flags.writeable


def test_tensors_of_a_table_are_views():
    dense = made().kv.forward.to_dense()
    for field in ("dst_rank", "dst_offset", "seq_len", "num_recv_tokens", "seq_recv_mask",
                  "recv_seq_lens", "num_seqs", "num_total_recv_tokens"):
        first, second = getattr(dense, field), getattr(dense, field)
        assert address(first) == address(second) and first.flags.c_contiguous
        assert not first.flags.writeable


def test_a_view_keeps_its_owner_alive():
    view = made().attention.cu_seqlens_q(2)
    expected = made().attention.cu_seqlens_q(2).tolist()
    rows = dispatch.exchange_indices(made().kv.forward, 0).send_rows
    right = dispatch.exchange_indices(made().kv.forward, 0).send_rows.tolist()
    gc.collect()
    for _ in range(100):
        made()  # would take the memory if it were free
    assert view.tolist() == expected and rows.tolist() == right


def test_torch_and_jax_see_the_same_memory():
    torch = pytest.importorskip("torch")
    jax = pytest.importorskip("jax")
    indices = dispatch.exchange_indices(made().kv.forward, 0)
    rows = indices.send_rows
    tensor = torch.from_dlpack(rows)
    assert tensor.data_ptr() == address(rows) and tensor.tolist() == rows.tolist()
    tensor[0] = 77
    assert indices.send_rows[0] == 77
    ends = made().attention.cu_seqlens_q(0)
    # jax takes read-only arrays only by its asarray.
    assert jax.numpy.asarray(ends).tolist() == ends.tolist()


def test_jax_copies_only_what_is_not_aligned_as_it_wants():
    jax = pytest.importorskip("jax")
    kept = []  # all at once, so that their addresses differ: one in four is aligned
    seen = {True: 0, False: 0}
    for k in range(400):
        rows = dispatch.gen_seq_lens(1, 16, 64 + k)[0]
        kept.append((rows, np.empty(16 * (k % 7) + 1, np.uint8)))
        assert rows.dtype == np.uint32  # jax has 64 bits only on request
        aligned = address(rows) % 64 == 0
        as_jax = jax.dlpack.from_dlpack(rows)
        assert (as_jax.unsafe_buffer_pointer() == address(rows)) == aligned
        assert as_jax.tolist() == rows.tolist()
        seen[aligned] += 1
        if k >= 40 and min(seen.values()) > 0:
            break
    assert min(seen.values()) > 0, seen


def test_torch_metadata_has_no_copy_of_what_cpp_wrote():
    torch = pytest.importorskip("torch")
    import shiplap.torch
    arrays = _shiplap._dense_arrays(made().kv.forward)
    for name, value in arrays.items():
        assert torch.from_dlpack(value).data_ptr() == address(value), name
    metadata = shiplap.torch.Metadata.from_dispatch(made().kv.forward)
    metadata.dst_rank[0] = -1  # its own memory: it may be written to
    assert metadata.seq_recv_mask.dtype == torch.bool


# ---- without numpy


def test_without_numpy_arrays_speak_dlpack_and_the_buffer_protocol():
    code = """if True:
        import sys
        sys.modules["numpy"] = None
        import shiplap
        from shiplap import dispatch
        made = dispatch.create_qkv_dispatch(2, 8, 2, 2, seed=1)
        ends = made.attention.cu_seqlens_q(0)
        view = memoryview(ends)
        assert view.format == "I" and view.readonly and view.tolist()[0] == 0, view.format
        assert ends.__dlpack_device__() == (1, 0)
        rows = made.kv.forward.to_dense().dst_rank
        assert memoryview(rows).shape == (2, made.kv.forward.max_seqs, 2)
        assert dispatch.pack_documents(ends, 2).world_size == 2
        assert made.kv.forward.to_dense().to_dict()["world_size"] == 2
        out = bytearray(4)
        table = dispatch.Metadata.from_rows([[(2, [(1, 0)])], [(2, [(0, 0)])]])
        dispatch.orchestrate_simulate(memoryview(b"abcd").cast("B", (2, 2)),
                                      memoryview(out).cast("B", (2, 2)), table)
        assert out == b"cdab", out
        print("right")
    """
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                            timeout=60)
    assert answer.stdout == "right\n", answer.stderr


# ---- in


def test_arguments_that_fit_are_read_where_they_are():
    lengths = np.array([6, 2, 9], dtype=np.uint32)
    assert _shiplap._address_of_lengths(lengths) == address(lengths)
    assert _shiplap._address_of_lengths(lengths[1:]) == address(lengths) + 4
    assert _shiplap._address_of_lengths(lengths[::2]) != address(lengths)
    torch = pytest.importorskip("torch")
    tensor = torch.tensor([6, 2], dtype=torch.uint32)
    assert _shiplap._address_of_lengths(tensor) == tensor.data_ptr()
    jnp = pytest.importorskip("jax.numpy")
    of_jax = jnp.array([6, 2], dtype=jnp.uint32)
    assert _shiplap._address_of_lengths(of_jax) == of_jax.unsafe_buffer_pointer()
    plain = array.array("I", [6, 2])
    assert _shiplap._address_of_lengths(plain) == plain.buffer_info()[0]


@pytest.mark.parametrize("kind", ["b", "B", "h", "H", "i", "I", "q", "Q"])
def test_any_integer_type_is_taken(kind):
    expected = dispatch.pack_documents([6, 2, 9], 2)
    assert dispatch.pack_documents(array.array(kind, [6, 2, 9]), 2) == expected
    strided = np.array([[6, 0], [2, 0], [9, 0]], dtype=kind)[:, 0]
    assert dispatch.pack_documents(strided, 2) == expected
    assert dispatch.pack_documents(strided[::-1], 2) == dispatch.pack_documents([9, 2, 6], 2)


def test_lists_tuples_and_numbers_of_numpy_are_taken():
    expected = dispatch.pack_documents([6, 2], 2)
    assert dispatch.pack_documents((6, 2), 2) == expected
    assert dispatch.pack_documents([np.int8(6), np.uint64(2)], 2) == expected


@pytest.mark.parametrize("wrong, says", [
    ([6, -1], "-1 is out of range 0 to 4294967295"),
    (np.array([6, -1]), "-1 is out of range"),
    (np.array([2**40]), "is out of range"),
    ([2**80], "is too large"),
    ([1.5], "found a float"),
    (np.array([1.5]), "found float64"),
    ([[1, 2], [3]], "rows of 2 and of 1"),
    ([[1, 2]], "expected 1 dimensions"),
    ([1, [2]], "rows"),
    (object(), "found a object"),
    ("12", "found a str"),
    ({1: 2}, "found a dict"),
])
def test_anything_else_is_refused_by_name(wrong, says):
    with pytest.raises(shiplap.InputError) as caught:
        dispatch.pack_documents(wrong, 2)
    assert says in str(caught.value) or (says == "rows" and "dimensions" in str(caught.value))
    assert "lengths" in str(caught.value)


# ---- the reference implementation on arrays


@pytest.mark.parametrize("kind", ["f2", "f4", "f8", "i1", "u8", "?", "c16"])
def test_the_referee_writes_into_the_output_itself(kind):
    table = dispatch.Metadata.from_rows([[(2, [(1, 1)]), (1, [(0, 0)])], [(1, [(1, 0)])]])
    x = np.arange(2 * 3 * 2).reshape(2, 3, 2).astype(kind)
    out = np.zeros((2, 3, 2), dtype=kind)
    before = address(out)
    assert dispatch.orchestrate_simulate(x, out, table) is out and address(out) == before
    assert out[1].tolist() == [x[1, 0].tolist(), x[0, 0].tolist(), x[0, 1].tolist()]
    assert out[0, 0].tolist() == x[0, 2].tolist() and not out[0, 1:].any()


def test_the_referee_takes_lists_of_buffers_of_different_length():
    table = dispatch.Metadata.from_rows([[(2, [(1, 0)])], [(1, [(0, 0)])]])
    outs = [np.zeros(1), np.zeros(2)]
    dispatch.orchestrate_simulate([np.array([1.0, 2.0]), np.array([3.0])], outs, table)
    assert [out.tolist() for out in outs] == [[3], [1, 2]]


@pytest.mark.parametrize("kind", ["f2", "f4", "f8", "i4", "i8"])
def test_the_referee_sums(kind):
    table = dispatch.Metadata.from_rows([[(2, [(0, 0)])], [(2, [(0, 0)])]], arrival="summed")
    out = np.zeros((2, 2, 1), dtype=kind)
    dispatch.sum_simulate(np.array([[[1], [2]], [[10], [20]]], dtype=kind), out, table)
    assert out[0].tolist() == [[11], [22]]


def test_the_referee_sums_bfloat16_in_floats():
    torch = pytest.importorskip("torch")
    table = dispatch.Metadata.from_rows([[(1, [(0, 0)])]] * 3, arrival="summed")
    # 256 + 1 is 256 in bfloat16, but 256 + 1 + 1 is 258.
    x = torch.tensor([[[256.0]], [[1.0]], [[1.0]]], dtype=torch.bfloat16)
    out = torch.zeros_like(x)
    dispatch.sum_simulate(x, out, table)
    assert out[0, 0, 0] == 258


def test_the_referee_refuses_what_does_not_fit():
    table = dispatch.Metadata.from_rows([[(2, [(1, 0)])], []])
    x = np.zeros((2, 2, 3), dtype=np.float32)
    for x_, out, says in [
        (x, np.zeros((2, 2, 3)), "float64"),
        (x, np.zeros((2, 2, 4), dtype=np.float32), "4 numbers"),
        (x, np.zeros((3, 2, 3), dtype=np.float32), "buffers of 3 ranks"),
        (x, np.zeros((2, 1, 3), dtype=np.float32), "D404"),
        (x, np.zeros((2, 2, 6), dtype=np.float32)[:, :, ::2], "contiguous"),
        (x[0, 0], np.zeros((2, 2, 3), dtype=np.float32), "shape"),
    ]:
        with pytest.raises(shiplap.InputError) as caught:
            dispatch.orchestrate_simulate(x_, out, table)
        assert says in str(caught.value)
    sealed = np.zeros((2, 2, 3), dtype=np.float32)
    sealed.flags.writeable = False
    with pytest.raises(shiplap.InputError, match="read-only"):
        dispatch.orchestrate_simulate(x, sealed, table)


# ---- the GIL


def test_other_threads_run_meanwhile():
    routing = dispatch.random_routing(256, 4096, 8, 8, seed=1)
    ticks = []
    done = threading.Event()

    def tick():
        while not done.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.0005)

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        for work in [lambda: _shiplap._compute_qkv_dispatch_often(routing, 60),
                     lambda: dispatch.validate(dispatch.compute_qkv_dispatch(routing)),
                     lambda: [dispatch.create_qkv_dispatch(256, 4096, 8, 8) for _ in range(20)]]:
            begin = time.perf_counter()
            work()
            end = time.perf_counter()
            meanwhile = [tick for tick in ticks if begin < tick < end]
            assert end - begin > 0.01, "too short to say anything"
            assert len(meanwhile) > (end - begin) / 0.1, (len(meanwhile), end - begin)
    finally:
        done.set()
        thread.join()
