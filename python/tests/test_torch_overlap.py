"""shiplap.torch.OverlappedLinear on processes: torch.nn.Linear on gathered tensors is the
reference, and no rank hangs when one fails."""

import pytest

torch = pytest.importorskip("torch")

import shiplap  # noqa: E402
from shiplap.torch import OverlappedLinear  # noqa: E402
from workers import linear  # noqa: E402
from workers.ranks import run, values  # noqa: E402

# Sums of at most 280 products in float32, whose unit roundoff is 2^-24: their errors grow like the
# square root of the number of terms, to about 17 roundoffs.
MAX_ERROR_F32 = 40 * 2.0**-24


def max_error_bf16(size):
    """The unit roundoff of bfloat16 is 2^-9. The partial sum of each rank is rounded once before it
    is sent, and their sum once more; all GEMMs accumulate in float32. A partial sum may be up to
    about twice as large as the largest result."""
    return 2 * (size + 1) * 2.0**-9


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_results_and_gradients_are_those_of_one_process(size, dtype):
    allowed = MAX_ERROR_F32 if dtype == torch.float32 else max_error_bf16(size)
    for found in values(linear.cases, size, dtype, timeout=120):
        assert len(found) == 38
        wrong = {name: errors for name, errors in found.items()
                 if not max(errors.values()) <= allowed}
        assert not wrong
        assert set(found["row three dimensions"]) == {"y", "x", "weight", "bias"}


def test_float16_is_supported():
    # 11 bits: eight times as precise as bfloat16.
    for errors in values(linear.one_case, 2, "row", True, torch.float16):
        assert max(errors.values()) <= max_error_bf16(2) / 8


def test_without_engine_it_uses_the_collectives_of_torch_and_warns_once():
    for found in values(linear.by_torch, 2):
        assert all(max(errors.values()) <= MAX_ERROR_F32 for errors in found["errors"].values())
        assert len(found["warnings"]) == 1
        assert "does not overlap on cpu" in found["warnings"][0]


@pytest.mark.parametrize("size", [2, 4])
def test_an_mlp_trains_as_on_one_process(size):
    for errors in values(linear.mlp, size, 5):
        assert max(errors) <= 1e-5


def test_it_works_in_the_contexts_of_torch():
    for found in values(linear.contexts, 2):
        assert found["names"] == ["bias", "weight"]
        error, requires_grad = found["no_grad"]
        assert error <= MAX_ERROR_F32 and not requires_grad
        error, *dtypes = found["autocast"]
        assert error <= max_error_bf16(1)
        assert dtypes == ["torch.bfloat16", "torch.float32", "torch.float32"]
        assert found["checkpoint"]


def test_groups_of_a_part_of_the_ranks_work():
    assert max(max(errors) for errors in values(linear.subgroups, 4)) <= MAX_ERROR_F32


def test_new_layers_are_shards_of_one_matrix():
    assert values(linear.initial, 2) == [[0.0] * 4] * 2


def test_a_bias_that_is_not_contiguous_is_added_as_it_is():
    for error, contiguous in values(linear.bias_not_contiguous, 2):
        assert error <= MAX_ERROR_F32 and not contiguous


def test_connections_end_with_their_group():
    for sockets in values(linear.groups_come_and_go, 2):
        assert sockets == sockets[:1] * 4


# ---- one rank


def test_one_rank_is_a_plain_layer():
    whole = torch.nn.Linear(6, 4)
    x = torch.randn(3, 6)
    for mode in ("column", "row", None):
        layer = OverlappedLinear.from_linear(whole, parallel_mode=mode)
        assert torch.equal(layer(x), whole(x))
        layer.load_state_dict(whole.state_dict())
    assert "parallel_mode=None, rank 0 of 1, forward: none by none" in repr(layer)
    assert OverlappedLinear(6, 4, parallel_mode=None, device="meta").weight.is_meta


@pytest.mark.parametrize("options,steps", [
    ({}, ("all_gather by auto", "reduce_scatter by auto")),
    ({"overlap": "ring_exchange"},
     ("all_gather by ring_exchange", "reduce_scatter by ring_exchange")),
    ({"overlap": "pipeline"}, ("all_gather by ring_exchange", "reduce_scatter by pipeline")),
    ({"overlap": "none"}, ("all_gather by none", "reduce_scatter by none")),
    ({"sequence_parallel": False}, ("none by none", "all_reduce by auto")),
    ({"parallel_mode": "row"}, ("reduce_scatter by auto", "all_gather by auto")),
    ({"parallel_mode": "row", "ub_overlap_rs": True},
     ("reduce_scatter by ring_exchange", "all_gather by none")),
    ({"parallel_mode": "row", "ub_overlap_ag": True},
     ("reduce_scatter by none", "all_gather by ring_exchange")),
    ({"ub_overlap_ag": True}, ("all_gather by ring_exchange", "reduce_scatter by none")),
    ({"ub_overlap_rs_dgrad": True}, ("all_gather by none", "reduce_scatter by ring_exchange")),
    ({"ub_bulk_wgrad": True}, ("all_gather by none", "reduce_scatter by bulk")),
    ({"ub_bulk_dgrad": True}, ("all_gather by none", "reduce_scatter by none")),
    ({"ub_bulk_wgrad": True, "ub_overlap_rs_dgrad": True},
     ("all_gather by none", "reduce_scatter by ring_exchange")),
    ({"ub_overlap_ag": True, "sequence_parallel": False}, ("none by none", "all_reduce by none"))])
def test_options_choose_the_communication(options, steps):
    layer = OverlappedLinear(8, 8, **{"parallel_mode": "column", **options})
    assert repr(layer).endswith(f"forward: {steps[0]}, backward: {steps[1]})")


@pytest.mark.parametrize("options,text", [
    ({"parallel_mode": "columns"}, "choose 'column', 'row' or None"),
    ({"overlap": "split"}, "choose auto, ring_exchange, pipeline, none"),
    ({"chunks": 0}, "choose 1 or more"),
    ({"tp_size": 2}, "tp_size is 2, but the group has 1 ranks"),
    ({"overlap": "none", "ub_overlap_ag": True}, "both say what is overlapped"),
    ({"fuse_wgrad_accumulation": True}, "fuse_wgrad_accumulation of te.Linear is unsupported"),
    ({"ub_atomic_gemm_ag": True, "ub_name": "qkv"}, "qkv: ub_atomic_gemm_ag"),
    ({"chunks": 0, "name": "layer 3 fc1", "ub_name": "fc1"}, "layer 3 fc1: chunks is 0"),
    ({"out_features": 0}, "out_features is 0")])
def test_unsupported_options_are_rejected(options, text):
    arguments = {"in_features": 8, "out_features": 8, "parallel_mode": "column", **options}
    with pytest.raises(shiplap.InputError, match="D818") as error:
        OverlappedLinear(**arguments)
    assert text in str(error.value)


def test_unused_options_of_te_linear_are_accepted_and_unknown_ones_are_not():
    OverlappedLinear(8, 8, parallel_mode="row", return_bias=False, init_method=None, tp_size=1,
                     params_dtype=torch.bfloat16)
    with pytest.raises(TypeError, match="unexpected keyword argument 'ub_overlap'"):
        OverlappedLinear(8, 8, parallel_mode="row", ub_overlap=True)


def test_sizes_alone_are_positional():
    # The third argument is `bias` in torch.nn.Linear and `sequence_parallel` in te.Linear.
    with pytest.raises(TypeError, match="positional arguments"):
        OverlappedLinear(8, 8, False, parallel_mode="row")


# ---- mistakes and failures


def test_sizes_that_do_not_divide_are_rejected():
    for found in values(linear.indivisible, 2):
        for (error, text, _), said in zip(found, (
                "out_features is 41, which is not divisible by 2 ranks",
                "in_features is 25, which is not divisible by 2 ranks",
                "7 rows in its first dimension, which is not divisible by 2 ranks"), strict=True):
            assert error == "InputError" and "D818" in text and said in text, text


@pytest.mark.parametrize("connected", [False, True])
def test_a_rank_with_a_wrong_input_is_heard_by_the_others(connected):
    for rank, (first, later) in enumerate(values(linear.one_has_a_wrong_input, 4, connected)):
        assert first[0] == ("InputError" if rank == 1 else "RankFailed"), first
        assert "the input has the shape (6, 23)" in first[1] and first[2] < 5  # of 20
        assert later[0] == "Failure" and "D305" in later[1]


@pytest.mark.parametrize("fails,raised,text", [
    (linear.one_fails_in_another_layer, "InputError", "the input has the shape (6, 23)"),
    (linear.one_fails_in_a_dispatcher, "InputError", "a bug of the user"),
    (linear.one_times_out_in_a_dispatcher, "CommTimeoutError", "timed out after 1 s"),
    (linear.one_times_out_in_another_layer, "CommTimeoutError", "missing: rank 0"),
    (linear.one_gives_the_engine_a_view, "InputError", "the matrix x is not contiguous")])
def test_a_failure_outside_of_an_engine_is_heard_in_all_engines(fails, raised, text):
    for rank, (error, message, seconds) in enumerate(values(fails, 4)):
        assert error == (raised if rank == 1 else "RankFailed"), message
        assert text in message and seconds < 5, message  # of 20
        assert rank == 1 or "rank 1" in message, message


@pytest.mark.parametrize("differs", [linear.one_has_other_rows, linear.one_has_another_layer])
def test_layers_that_differ_are_rejected_on_all_ranks(differs):
    for error, text, seconds in values(differs, 2):
        assert error == "InputError" and "D808" in text and seconds < 5


def test_a_rank_that_cannot_create_its_layer_is_waited_for_until_the_deadline():
    for rank, (error, text, seconds) in enumerate(values(linear.one_cannot_create, 2)):
        assert error == ("InputError" if rank == 1 else "CommTimeoutError"), text
        assert ("out_features is 41" if rank == 1 else "missing: rank 1") in text and seconds < 5


def test_the_death_of_a_rank_is_noticed():
    outcomes = run(linear.one_dies, 4)
    assert [each.error for each in outcomes] == ["", "died", "", ""]
    for rank in (0, 2, 3):
        error, text, seconds = outcomes[rank].value
        assert error == "RankFailed" and "D302" in text and seconds < 5
        assert "rank 1 is rank 1 of the job" in text


def test_a_rank_that_does_not_call_is_waited_for_until_the_deadline():
    outcomes = values(linear.one_sleeps, 2)
    assert outcomes[0][0] == "CommTimeoutError" and outcomes[0][2] < 4
    assert "missing: rank 1" in outcomes[0][1]
