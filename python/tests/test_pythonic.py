"""What Python programmers expect of values, exceptions and modules."""

import copy
import errno
import pickle
import re
import subprocess
import sys
from unittest import mock

import pytest

import shiplap
from shiplap import dispatch
from shiplap.strategy import ModelShape, Weight

PLAN = "shiplap-plan 1\nmesh dp=2\nprogram all on all\n  buffer x rows 1 row_bytes 8 bf16\n"


def made():
    return dispatch.create_qkv_dispatch(2, 16, 2, 2, seed=1)


def routing():
    return dispatch.Routing(dispatch.pack_documents([6, 2], 2), dispatch.pack_documents([6, 2], 2))


def diagnostic():
    with pytest.raises(shiplap.InputError) as caught:
        shiplap.check("no_such.plan")
    return caught.value.diagnostics[0]


VALUES = {
    "AttentionLayout": lambda: made().attention,
    "Copy": lambda: dispatch.Copy(1, 2),
    "TrafficSummary": lambda: dispatch.summarize(dispatch.flows(made().q.forward), 2),
    "DenseMetadata": lambda: made().q.forward.to_dense(),
    "Diagnostic": diagnostic,
    "Flow": lambda: dispatch.flows(made().q.forward)[0],
    "Layout": lambda: dispatch.pack_documents([6, 2], 2),
    "Metadata": lambda: made().q.forward,
    "MetadataPair": lambda: made().kv,
    "ModelShape": lambda: ModelShape(hidden=64),
    "NormalizedMetadata": lambda: made().q.forward.to_dense().normalize_dtype(),
    "Plan": lambda: shiplap.Plan.parse(PLAN),
    "QkvDispatch": made,
    "Routing": routing,
    "Segment": lambda: dispatch.Segment(0, 1, 2),
}


@pytest.mark.parametrize("name", VALUES)
def test_equal_values_have_equal_hashes(name):
    one, other = VALUES[name](), VALUES[name]()
    assert type(one).__name__ == name
    assert one is not other and one == other and not one != other
    assert hash(one) == hash(other) and len({one, other}) == 1


@pytest.mark.parametrize("name", VALUES)
def test_another_type_decides_whether_it_is_equal(name):
    value = VALUES[name]()
    assert value == mock.ANY and type(value).__eq__(value, 42) is NotImplemented
    assert value != 42 and value != "text" and value is not None


def test_different_values_differ_in_their_hash():
    """Not always, but of these."""
    tables = [dispatch.create_qkv_dispatch(2, 16, 2, 2, seed=seed) for seed in range(20)]
    for of in (lambda t: t, lambda t: t.q, lambda t: t.q.forward, lambda t: t.q.forward.to_dense()):
        values = {of(table) for table in tables}
        assert len({hash(value) for value in values}) == len(values) > 1


def test_overlap_measures_once():
    """The text and the numbers are of one measurement."""
    answer = shiplap.overlap(
        op="ag", m=64, n=64, k=64, tp=2, method="ring_exchange", run=True, rounds=1
    )
    for line, name in (("GEMM alone", "gemm_s"), ("communication alone", "communication_s")):
        shown, unit = re.search(rf"{line}.*?([\d.]+) (us|ms|s)\s", answer.text).groups()
        seconds = float(shown) * {"us": 1e-6, "ms": 1e-3, "s": 1}[unit]
        assert seconds == pytest.approx(answer["measured"][name], rel=0.01)


# ---- simulations that do not fit


def test_a_step_that_does_not_fit_is_false_and_says_why():
    simulation = shiplap.simulate(shiplap.train("ddp", ranks=4, layers=2000, batch=16))
    assert not simulation and not simulation.fits
    assert str(simulation.fits).startswith("out of memory: peak ")
    assert simulation.fits.problem == simulation.problems[0]
    assert simulation.fits.problem.code == "D635"
    small = shiplap.simulate(shiplap.train("ddp", ranks=4))
    assert small and small.fits and str(small.fits) == "fits" and small.fits.problem is None


# ---- exceptions are those that Python programmers catch


def test_a_missing_file():
    for read in (shiplap.check, shiplap.Plan.read):
        with pytest.raises(FileNotFoundError, match="D004") as caught:
            read("no/such.plan")
        assert isinstance(caught.value, shiplap.InputError)
        assert caught.value.filename == "no/such.plan" and caught.value.errno == errno.ENOENT
        assert caught.value.diagnostics[0].code == "D004"


def test_a_folder_and_a_file_that_cannot_be_written(tmp_path):
    with pytest.raises(IsADirectoryError, match="D004"):
        shiplap.check(tmp_path)
    with pytest.raises(FileNotFoundError, match="D005"):
        shiplap.Plan.parse(PLAN).save(tmp_path / "no" / "such.plan")


def test_a_rank_that_does_not_exist():
    plan = shiplap.Plan.parse(PLAN)
    trace = shiplap.train("ddp", ranks=2).trace
    for ask in (lambda: plan.show(rank=2), lambda: trace.events(2), lambda: trace.events(-1),
                lambda: made().q.forward.num_send_tokens(2)):
        with pytest.raises(IndexError) as caught:
            ask()
        assert isinstance(caught.value, shiplap.InputError)


def test_maps_of_values_are_mappings():
    found = {}

    async def strategy(model):
        weights, opt_states, *_ = model.storage()
        weights[0], opt_states[0] = model.load_weights(0)
        for name, use in {
            "item": lambda: weights[5],
            "pop": lambda: weights.pop(5),
            "del": lambda: weights.__delitem__(5),
        }.items():
            with pytest.raises(KeyError, match="nothing is stored under") as caught:
                use()
            found[name] = isinstance(caught.value, shiplap.InputError)
        found["get"] = weights.get(5), weights.get(5, None), weights.get(5, default=weights[0])
        found["pop default"] = weights.pop(5, None)
        found["pop"] = weights.pop(0, None)

    with pytest.raises(shiplap.InputError, match="D619"):  # no final weight
        shiplap.train(strategy, ranks=1, layers=1, batch=1)
    assert found["item"] and found["del"] and found["pop"]
    assert found["get"][:2] == (None, None) and found["get"][2] is not None
    assert found["pop default"] is None


def test_a_value_of_the_wrong_type():
    with pytest.raises(TypeError):
        shiplap.check(42)
    with pytest.raises(TypeError) as caught:
        shiplap.Plan.from_dict({"a": 2**70})
    assert isinstance(caught.value, shiplap.InputError)


@pytest.mark.parametrize(
    "kind",
    [getattr(shiplap, name) for name in shiplap.__all__ if "Error" in name]
    + [shiplap.MissingDependency, shiplap.Failure, shiplap.RankFailed, shiplap.Mismatch,
       shiplap.MetadataMismatch],
)
def test_every_error_carries_its_diagnostic(kind):
    error = kind("what happened")
    (found,) = error.diagnostics
    assert str(error) == found.what == "what happened" and found.code in shiplap.explain(found.code)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind and again.diagnostics == error.diagnostics
    assert copy.copy(error).diagnostics == error.diagnostics
    assert kind.__module__ == "shiplap" and getattr(shiplap, kind.__name__) is kind


def test_a_bug_of_ours_has_a_page():
    assert shiplap.InternalError("x").diagnostics[0].code == "D015"


# ---- strategies


def test_an_exception_of_a_strategy_says_where():
    async def fails(model):
        weights, opt_states, *_ = model.storage()
        weights[0], opt_states[0] = model.load_weights(0)
        if model.rank == 3:
            raise RuntimeError("mine")
        await model.barrier() if hasattr(model, "barrier") else None

    with pytest.raises(RuntimeError, match="mine") as caught:
        shiplap.train(fails, ranks=4, layers=1)
    assert caught.value.__notes__ == ["on rank 3, after load_weights(layer 0)"]


def unrepeatable():
    """It can be trained; a plan of it cannot be made, because the updated weights are dropped."""

    async def strategy(model):
        weights, opt_states, activations, grad_activations, grad_weights = model.storage()
        weights[0], opt_states[0] = model.load_weights(0)
        activations[0] = model.get_input_activation([model.rank])
        activations[1] = model.forward(0, activations[0], weights[0])
        grad_activations[1] = model.loss(activations[1])
        grad_weights[0], grad_activations[0] = model.backward(
            0, activations[0], grad_activations[1], weights[0]
        )
        grad_weights[0] = await model.all_reduce(grad_weights[0], 0)
        del activations[0], activations[1], grad_activations[0], grad_activations[1]
        weights[1], opt_states[1] = model.update(0, grad_weights[0], weights[0], opt_states[0])
        del weights[0], opt_states[0], grad_weights[0]
        model.set_final_weight(0, weights[1])

    return shiplap.train(strategy, ranks=2, layers=1, batch=2)


def test_a_property_without_a_value_is_an_attribute_error():
    training = unrepeatable()
    assert not hasattr(training, "plan")
    assert getattr(training, "plan", None) is None
    with pytest.raises(AttributeError) as caught:
        _ = training.plan
    assert isinstance(caught.value, shiplap.InputError)
    with pytest.raises(shiplap.InputError, match="D625"):
        shiplap.check(training)


# ---- modules


def test_modules_load_when_they_are_used():
    script = """
import sys
import shiplap
assert not {"jax", "torch", "numpy"} & set(sys.modules)
try:
    assert shiplap.jax.gemm and "jax" in sys.modules
except ImportError as error:
    assert isinstance(error, shiplap.MissingDependency)
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("call", [
    lambda: dispatch.pack_documents("abc", 2), lambda: dispatch.pack_documents([1.5], 2),
    lambda: dispatch.flows(3), lambda: dispatch.validate_queries(3),
    lambda: Weight(0, 2, shards=3), lambda: Weight(0, 2, shards=["a"]),
    lambda: shiplap.Plan.from_dict({"schema": object()})])
def test_an_argument_of_another_type_is_a_type_error_with_diagnostics(call):
    with pytest.raises(TypeError) as caught:
        call()
    assert isinstance(caught.value, shiplap.InputTypeError) and caught.value.diagnostics


@pytest.mark.parametrize("call", [
    lambda: dispatch.pack_documents([-1], 2), lambda: Weight(0, 2, shards=[-1]),
    lambda: shiplap.check(shiplap.Plan.parse(PLAN), rules="mpich")])
def test_an_argument_of_another_value_is_not(call):
    with pytest.raises(ValueError) as caught:
        call()
    assert not isinstance(caught.value, TypeError)


@pytest.mark.parametrize("name, call", [
    ("rules", lambda: shiplap.check(shiplap.Plan.parse(PLAN), rules=3)),
    ("sends", lambda: shiplap.check(shiplap.Plan.parse(PLAN), sends=None)),
    ("hardware", lambda: shiplap.simulate(shiplap.Plan.parse(PLAN), hardware=3)),
    ("hardware", lambda: shiplap.train("ddp", hardware=None)),
    ("datatype", lambda: shiplap.train("ddp", datatype=16)),
    ("datatype", lambda: shiplap.train("ddp", datatype=0)),
    ("mesh", lambda: shiplap.train("hybrid", mesh={"dp": "2,pp=2"})),
    ("world", lambda: shiplap.postmortem({}, world="4"))])
def test_a_type_error_names_the_argument_of_the_function(name, call):
    with pytest.raises(TypeError, match=f"^{name}: expected"):
        call()


def test_a_timeout_is_also_pythons():
    assert issubclass(shiplap.CommTimeoutError, TimeoutError)
    error = shiplap.CommTimeoutError("timed out")
    assert str(error) == "timed out" and error.args == ("timed out",)


def test_a_name_that_never_was():
    with pytest.raises(AttributeError, match="no attribute 'NoSuchName'"):
        shiplap.NoSuchName


@pytest.mark.parametrize("value", [
    dispatch.Segment(0, 1, 2), dispatch.Copy(1, 2), made().q.forward.row(0, 0),
    dispatch.flows(made().q.forward)[0],
    dispatch.summarize(dispatch.flows(made().q.forward), 2)], ids=lambda v: type(v).__name__)
def test_a_small_value_of_a_dispatch_is_a_named_tuple(value):
    assert tuple(value) == value == type(value)(**value._asdict())
    assert pickle.loads(pickle.dumps(value)) == copy.copy(value) == value
    assert type(value).__module__ == "shiplap.dispatch" and type(value).__doc__


def test_a_pickled_dispatch_is_the_same(tmp_path):
    for shares_keys in (False, True):
        one = dispatch.create_qkv_dispatch(3, 24, 3, 3, seed=2, shares_keys=shares_keys)
        again = pickle.loads(pickle.dumps(one))
        assert again == one and again.attention == one.attention and again.routing == one.routing
        assert again.hashes() == one.hashes() and again.to_dict() == one.to_dict()


def test_a_public_name_is_in_one_module():
    names = [name for module in (shiplap, dispatch, shiplap.strategy) for name in module.__all__]
    assert len(names) == len(set(names)) < 100
