"""Edge cases of arguments: they raise an error, and never cause out-of-bounds accesses."""

import pickle

import pytest

import shiplap
from shiplap import dispatch
from shiplap.strategy import Model, WeightGrad
from shiplap.testing import assert_sound

PLAN = shiplap.Plan.from_schedule("0F0,,0B0\n,1F0,1B0\n")


def contains_itself():
    values = []
    values.append(values)
    return values


REFUSED = {
    "a number among rows": lambda: dispatch.DenseMetadata(
        [0, [1, 1]], [[0, 0], [0, 0]], [[1, 1], [1, 1]]
    ),
    "rows of different length": lambda: dispatch.DenseMetadata([[0], [1, 1]], [[0]], [[1]]),
    "no copies": lambda: dispatch.DenseMetadata([[[], []]], [[[], []]], [[1, 1]]),
    "a list in itself": lambda: dispatch.pack_documents(contains_itself(), 1),
    "a dict in itself": lambda: shiplap.Plan.from_dict({"a": contains_itself()}),
    "lines": lambda: PLAN.show(rank=0, limit=-1),
    "bytes to send": lambda: shiplap.check(PLAN, eager=-5),
    "bytes to simulate": lambda: shiplap.simulate(PLAN, eager=-5),
    "seed": lambda: shiplap.run(PLAN, seed=-1),
    "length of a row": lambda: dispatch.Metadata.from_rows([[(-1, [(0, 0)])]]),
    "copies": lambda: dispatch.Metadata.from_rows([[(1, [(0, 0)])]], max_cp=-1),
    "keys": lambda: dispatch.AttentionLayout([[(1, -1)]]),
    "degree": lambda: dispatch.cut_documents([4], 2**40),
    "a large number": lambda: shiplap.Plan.from_dict({"a": 2**70}),
    "bytes": lambda: dispatch.pack_documents([b"12"], 2),
    "many samples": lambda: WeightGrad(0, 2, range(2**31), 4),
    "more samples": lambda: Model(batch=4).get_input_activation(range(10**12)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    with pytest.raises(shiplap.InputError) as caught:
        REFUSED[name]()
    assert caught.value.diagnostics


def test_errors_go_from_process_to_process():
    with pytest.raises(shiplap.InputError) as caught:
        shiplap.Plan.parse("mesh dp 4\n", "mine.plan")
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is shiplap.InputError and str(again) == str(caught.value)
    assert again.diagnostics == caught.value.diagnostics
    assert str(again.diagnostics[0]) == str(caught.value.diagnostics[0])


def test_arrays_of_jax_are_not_written_to():
    jnp = pytest.importorskip("jax.numpy")
    np = pytest.importorskip("numpy")
    table = dispatch.Metadata.from_rows([[(1, [(0, 0)])]])
    output = jnp.zeros((1, 1))
    with pytest.raises(shiplap.InputError, match="read-only"):
        dispatch.orchestrate_simulate(np.ones((1, 1), "f4"), output, table)
    assert output[0, 0] == 0


def test_arrays_that_cannot_be_read_say_so():
    np = pytest.importorskip("numpy")
    for array in (np.ones(2, ">i4"), np.array([object()])):
        with pytest.raises(shiplap.InputError, match="unsupported"):
            dispatch.pack_documents(array, 1)


def test_rows_may_be_arrays():
    np = pytest.importorskip("numpy")
    lists = dispatch.DenseMetadata([[0, 0]], [[0, 1]], [[1, 1]])
    arrays = dispatch.DenseMetadata([np.array([0, 0])], [np.array([0, 1])], [np.array([1, 1])])
    assert arrays.to_sparse() == lists.to_sparse()


def test_nobody_goes_on_once_somebody_has_failed():
    ran = []

    async def fails(model):
        ran.append(model.rank)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        shiplap.train(fails, ranks=4)
    assert ran == [0]


def test_what_is_not_awaited_cannot_be_stepped():
    async def steps(model):
        weights, opt_states, *_ = model.storage()
        weights[0], opt_states[0] = model.load_weights(0, model.rank, 2)
        next(model.all_gather(weights[0], 0))

    with pytest.raises(shiplap.InputError):
        shiplap.train(steps, ranks=2, layers=1, batch=2)


def test_codes_are_several():
    with pytest.raises(TypeError, match="several codes"):
        assert_sound(PLAN, allow="D720")


def test_parts_of_the_package_need_no_import_of_their_own():
    assert shiplap.testing.assert_sound is assert_sound
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = shiplap.nothing
