"""Former public names still work and say what they are called now."""

import warnings

import pytest

import shiplap
from shiplap import _deprecated, dispatch


@pytest.mark.parametrize("old, new", _deprecated.CLASSES.items())
def test_a_former_class(old, new):
    with pytest.warns(DeprecationWarning, match=f"shiplap.{old} is deprecated: use {new}") as told:
        assert getattr(shiplap, old) is getattr(shiplap, new)
    assert told[0].filename == __file__
    assert new in shiplap.__all__ and old not in shiplap.__all__


def test_a_timeout_is_also_pythons():
    assert issubclass(shiplap.CommTimeoutError, TimeoutError)
    error = shiplap.CommTimeoutError("timed out")
    assert str(error) == "timed out" and error.args == ("timed out",)


def test_a_name_that_never_was():
    with pytest.raises(AttributeError, match="no attribute 'NoSuchName'"):
        shiplap.NoSuchName


def traffic():
    made = dispatch.create_qkv_dispatch(4, 64, 2, 2)
    return dispatch.summarize(dispatch.flows(made.q.forward), ranks_per_node=2)


def test_former_attributes_of_a_summary():
    for old, new in _deprecated.ATTRIBUTES["TrafficSummary"].items():
        with pytest.warns(DeprecationWarning, match=f"{old} is deprecated: use {new}"):
            assert getattr(traffic(), old) == getattr(traffic(), new)


def test_a_former_attribute_of_a_communication():
    seen = []

    async def strategy(model):
        weights, states, activations, grad_activations, grad_weights = model.storage()
        weights[0], states[0] = model.load_weights(0)
        activations[0] = model.get_input_activation(model.samples(model.rank, model.ranks))
        activations[1] = model.forward(0, activations[0], weights[0])
        grad_activations[1] = model.loss(activations[1])
        grad_weights[0], grad_activations[0] = model.backward(
            0, activations[0], grad_activations[1], weights[0])
        coming = model.start_all_reduce(grad_weights[0], 0)
        with pytest.warns(DeprecationWarning, match="Communication.under_way is deprecated"):
            seen.append(coming.under_way)
        grad_weights[0] = await coming
        seen.append(coming.in_flight)
        weights[0], states[0] = model.update(0, grad_weights[0], weights[0], states[0])
        model.set_final_weight(0, weights[0])

    shiplap.train(strategy, ranks=2, layers=1, batch=2)
    assert sorted(seen) == [False, False, True, True]


def test_former_parameters():
    made = dispatch.create_qkv_dispatch(4, 64, 2, 2)
    table = made.q.forward
    with pytest.warns(DeprecationWarning, match="most_of_a_kind is deprecated: use max_per_code"):
        found = dispatch.validate(table, buffer_tokens=[1] * 4, most_of_a_kind=1)
    assert list(map(str, found)) == list(
        map(str, dispatch.validate(table, buffer_tokens=[1] * 4, max_per_code=1)))
    for to_dense in (table.to_dense, lambda **words: dispatch.to_dense(table, **words)):
        with pytest.warns(DeprecationWarning, match="max_elements"), \
                pytest.raises(shiplap.InputError):
            to_dense(largest=1)
        with pytest.raises(shiplap.InputError):
            to_dense(max_elements=1)


def test_a_former_function():
    layout = dispatch.create_qkv_dispatch(4, 64, 2, 2).attention
    with pytest.warns(DeprecationWarning, match="causal_pairs is deprecated: use attention_pairs"):
        assert dispatch.causal_pairs(layout, 1) == dispatch.attention_pairs(layout, 1)


def test_both_names_of_a_parameter_contradict():
    table = dispatch.create_qkv_dispatch(4, 64, 2, 2).q.forward
    with pytest.raises(TypeError, match="both max_elements and largest"):
        table.to_dense(largest=1, max_elements=1)


def test_former_parameters_of_gemm():
    jax = pytest.importorskip("jax.numpy")
    from shiplap.jax import gemm, initialize

    ones = jax.ones((2, 2))
    with pytest.warns(DeprecationWarning, match="size_of_all is deprecated: use global_size"):
        assert gemm(ones, ones, size_of_all=0).shape == (2, 2)
    with pytest.warns(DeprecationWarning, match="store_address"), \
            pytest.raises(shiplap.InputError):
        initialize(meet_at="127.0.0.1:1")


def test_the_names_of_today_do_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table = dispatch.create_qkv_dispatch(4, 64, 2, 2).q.forward
        assert table.to_dense(max_elements=10**6) and not dispatch.validate(table, max_per_code=1)
        assert traffic().max_sent >= 0
