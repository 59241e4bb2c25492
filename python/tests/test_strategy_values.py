"""The API for strategies: values, value maps, a single model, the predictor."""

from collections.abc import MutableMapping

import pytest

import shiplap
from shiplap import RuntimePredictor
from shiplap.strategy import (Activation, ActivationGrad, Model, ModelShape, OptState,
                              Weight, WeightGrad)


def test_values_have_the_fields_of_the_puzzles():
    weight = Weight(layer=1, layers=4, step=2, shards=[0, 2], num_shards=4)
    assert (weight.layer, weight.layers, weight.step) == (1, 4, 2)
    assert weight.shards == frozenset({0, 2}) and weight.num_shards == 4
    gradient = WeightGrad(1, 4, range(0, 8, 2), 8)
    assert gradient.samples == {0, 2, 4, 6} and gradient.total_samples == 8
    assert gradient.shards == {0} and gradient.is_complete()
    assert Activation(0, 4, {1}, 8).samples == {1}
    part = ActivationGrad(0, 4, [1], 8, summed=[0], num_summed=2)
    assert part.summed == {0} and part.num_summed == 2 and not part.is_complete()
    assert OptState(0, 4).step == 0


def test_values_are_compared_not_hashed():
    assert Weight(0, 2) == Weight(0, 2, shards=(0,))
    assert Weight(0, 2) != Weight(1, 2)
    assert Weight(0, 2) != OptState(0, 2)
    assert Weight(0, 2) != 0
    with pytest.raises(TypeError):
        hash(Weight(0, 2))
    with pytest.raises(AttributeError):
        Weight(0, 2).layer = 1


@pytest.mark.parametrize("value", [
    Weight(0, 2), OptState(0, 2), WeightGrad(0, 2, range(4), 4), Activation(0, 2, range(4), 4)])
def test_a_value_is_the_sum_of_its_shards(value):
    shards = [value.shard(i, 4) for i in range(4)]
    assert not any(s.is_complete() for s in shards)
    whole = shards[3]
    for shard in shards[:3]:
        whole = whole.combine(shard)
    assert whole.is_complete()
    assert sum(s.memory() for s in shards) == whole.memory() == value.memory()
    with pytest.raises(shiplap.InputError):
        value.combine(type(value).shard(value, 0, 2))


def test_gradients_add_up_to_all_samples():
    parts = [WeightGrad(0, 2, [i], 3) for i in range(3)]
    assert (parts[2] + parts[0] + parts[1]).samples == {0, 1, 2}
    with pytest.raises(shiplap.InputError) as refused:
        parts[0] + parts[0]
    assert refused.value.diagnostics[0].code == "D611"
    with pytest.raises(TypeError):
        parts[0] + Weight(0, 2)
    halves = [ActivationGrad(0, 2, [0], 1, summed=[i], num_summed=2) for i in range(2)]
    assert (halves[0] + halves[1]).is_complete()


def test_memory_is_bytes_by_the_shape():
    puzzles = ModelShape(hidden=512, block=256, moments=1)
    assert Weight(0, 2).memory() == 4096 * 4096 * 2
    assert Weight(0, 2).memory(puzzles) == 512 * 512 * 2 == puzzles.weight
    assert OptState(0, 2).memory(puzzles) == 512 * 512 * 2 == puzzles.opt_state
    assert Activation(0, 2, range(3), 4).memory(puzzles) == 3 * 512 * 256 * 2
    assert puzzles == ModelShape(hidden=512, block=256, moments=1) != ModelShape()
    assert eval(repr(puzzles)) == puzzles
    for wrong in ({"hidden": 0}, {"datatype": "f16"}, {"moments": -1}):
        with pytest.raises(shiplap.InputError) as refused:
            ModelShape(**wrong)
        assert refused.value.diagnostics[0].code == "D003"


@pytest.mark.parametrize("samples", [[], [4], [-1], ["a"], 7, [1 << 40], range(2, 9)])
def test_wrong_samples_are_refused(samples):
    with pytest.raises(shiplap.InputError) as refused:
        Activation(0, 2, samples, 4)
    assert refused.value.diagnostics[0].code == "D003"


def test_an_error_of_an_iterator_passes_through():
    def broken():
        yield 0
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        Activation(0, 2, broken(), 4)


# ---------------------------------------------------------------- value maps


@pytest.fixture
def model():
    return Model(layers=2, batch=4)


def test_a_shelf_is_like_a_dict(model):
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    weights[1], opt_states[1] = model.load_weights(1)
    activations[0, 2] = model.get_input_activation([0])
    activations[0] = model.get_input_activation([1])
    assert 1 in weights and 0 not in weights and (1, 0) not in weights
    assert len(activations) == 2 and list(activations) == [0, (0, 2)]
    assert list(activations.keys()) == [0, (0, 2)] and (0, 2) in activations.keys()
    assert [v.samples for v in activations.values()] == [{1}, {0}]
    assert list(activations.items())[1] == ((0, 2), activations[0, 2])
    assert activations.get(5) is None and activations.get(0).samples == {1}
    taken = activations.pop((0, 2))
    assert taken.samples == {0} and len(activations) == 1
    del activations[0]
    assert list(activations) == []
    assert repr(weights) == "<Weights [1]>"
    weights[0] = weights[1]
    assert weights[0] == weights[1]


def test_a_value_map_is_a_mutable_mapping(model):
    weights, opt_states, *_ = model.storage()
    assert all(isinstance(one, MutableMapping) for one in model.storage())
    weights[0], opt_states[0] = model.load_weights(0)
    copied = dict(weights)
    assert weights == copied == model.storage()[0] and weights != opt_states
    assert weights.setdefault(0, copied[0]) == copied[0] and len(weights) == 1
    weights.update({1: copied[0], (1, 2): copied[0]})
    assert weights.keys() & {1, 5} == {1} and weights.popitem() == (0, copied[0])
    weights.clear()
    assert not weights and {**weights} == {} and model.memory() == opt_states[0].memory()


@pytest.mark.parametrize("key", ["a", 1.0, (1,), (1, 2, 3), (1, "a"), (1, -1), 1 << 40])
def test_other_keys_are_refused(model, key):
    weights = model.storage()[0]
    for use in (lambda: weights[key], lambda: key in weights, lambda: weights.pop(key),
                lambda: weights.__setitem__(key, Weight(0, 2)),
                lambda: weights.__delitem__(key)):
        with pytest.raises(TypeError, match="one or two integers"):
            use()


def test_none_is_no_key(model):
    with pytest.raises(TypeError):
        model.storage()[0][None]


def test_an_empty_place_is_told(model):
    weights = model.storage()[0]
    for use in (lambda: weights[1], lambda: weights.pop(1), lambda: weights.__delitem__(1)):
        with pytest.raises(shiplap.InputError) as refused:
            use()
        assert refused.value.diagnostics[0].code == "D613"


def test_a_shelf_holds_one_kind(model):
    weights, opt_states, *_ = model.storage()
    weight, state = model.load_weights(0)
    with pytest.raises(TypeError, match="type Weight, found OptState"):
        weights[0] = state


def test_a_model_alone_computes(model):
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    for l in range(2):
        weights[l], opt_states[l] = model.load_weights(l)
    activations[0] = model.get_input_activation(range(4))
    for l in range(2):
        activations[l + 1] = model.forward(l, activations[l], weights[l])
    grad_activations[2] = model.loss(activations[2])
    grad_activations[1] = model.backward_input(1, activations[1], grad_activations[2], weights[1])
    grad_weights[1] = model.backward_weight(1, activations[1], grad_activations[2], weights[1])
    weights[1], opt_states[1] = model.update(1, grad_weights[1], weights[1], opt_states[1])
    model.set_final_weight(1, weights[1])
    assert model.final_weights[1].step == 1
    before = model.time
    model.log_event("forward", layer=0, samples=range(4))
    assert model.time - before == pytest.approx(
        RuntimePredictor(1).get_forward_backward_time(4), rel=1e-12)
    assert model.log[-1].typ == "forward" and model.log[-1].samples == {0, 1, 2, 3}
    assert model.samples(1, 2) == range(2, 4)
    with pytest.raises(shiplap.InputError):
        model.log_event("all_reduce")
    with pytest.raises(shiplap.InputError):
        Model(layers=0)


# ---------------------------------------------------------------- the predictor


def test_the_predictor_prices_what_a_model_does():
    predictor = RuntimePredictor(4)
    training = shiplap.train("ddp", ranks=4, layers=2, batch=8)
    events = {e.kind: e for e in training.trace.events(0)}
    gradient = WeightGrad(0, 2, range(2), 8)
    assert predictor.get_collective_time("all_reduce", gradient) == events["all_reduce"].duration_s
    assert predictor.get_weight_load_time() == events["load_weights"].duration_s
    assert predictor.get_update_step_time() == events["update"].duration_s
    assert predictor.get_forward_backward_time(2) == events["forward"].duration_s
    assert predictor.get_comm_bytes(gradient) == events["all_reduce"].bytes
    shard = Weight(0, 2).shard(1, 4)
    assert predictor.get_comm_bytes(shard) * 4 == predictor.get_comm_bytes(Weight(0, 2))
    message = shiplap.train("gpipe", ranks=4, layers=4, batch=4)
    send = next(e for e in message.trace.events(0) if e.kind == "send")
    sample = Activation(1, 4, [0], 4)
    assert predictor.get_send_recv_time(sample, 0, 1) == send.duration_s
    assert predictor.get_send_recv_time(sample) == predictor.get_send_recv_time(sample, 0, 3)


def test_the_predictor_joins_flops_and_bytes():
    predictor = RuntimePredictor(8, "h100_80g_nvl8.json", ModelShape(hidden=512, block=256))
    assert predictor.world_size == 8 and predictor.hardware == "h100_80g_nvl8"
    assert predictor.shape == ModelShape(hidden=512, block=256)
    flops, data = predictor.compute_flops_time(10**12), predictor.compute_mem_time(10**6)
    assert predictor.get_processing_time(10**12, 10**6) >= max(flops, data) > 0


@pytest.mark.parametrize("ask, kind", [
    (lambda p: p.get_collective_time("all_reducing", Weight(0, 2)), shiplap.InputError),
    (lambda p: p.get_collective_time("all_reduce", 3), TypeError),
    (lambda p: p.get_send_recv_time(Weight(0, 2), 0, 8), shiplap.InputError),
    (lambda p: p.get_forward_backward_time(0), shiplap.InputError),
    (lambda p: p.get_update_step_time(0, 1), shiplap.InputError),
    (lambda p: RuntimePredictor(0), shiplap.InputError),
    (lambda p: RuntimePredictor(8, "h1000"), shiplap.InputError),
])
def test_wrong_questions_are_refused(ask, kind):
    with pytest.raises(kind):
        ask(RuntimePredictor(8))
