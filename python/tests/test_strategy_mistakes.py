"""Wrong strategies: each is rejected with its code, its rank, and the wrong line."""

import asyncio
import gc
import linecache
import traceback
import warnings
import weakref

import pytest

import shiplap

MISTAKES = []


def mistake(code, ranks=2):
    """The line with `# wrong` is the one that must be reported."""
    def note(strategy):
        MISTAKES.append(pytest.param(strategy, code, ranks, id=strategy.__name__))
        return strategy
    return note


def until_gradients(model):
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    for l in range(2):
        weights[l], opt_states[l] = model.load_weights(l)
    activations[0] = model.get_input_activation(model.samples(model.rank, model.ranks))
    for l in range(2):
        activations[l + 1] = model.forward(l, activations[l], weights[l])
    grad_activations[2] = model.loss(activations[2])
    for l in (1, 0):
        grad_weights[l], grad_activations[l] = model.backward(
            l, activations[l], grad_activations[l + 1], weights[l])


async def reduce(model):
    grad_weights = model.storage()[4]
    for l in range(2):
        grad_weights[l] = await model.all_reduce(grad_weights[l], l)


def update(model, layers=range(2)):
    weights, opt_states, _, _, grad_weights = model.storage()
    for l in layers:
        weights[l], opt_states[l] = model.update(l, grad_weights[l], weights[l], opt_states[l])
        model.set_final_weight(l, weights[l])


async def right(model):
    until_gradients(model)
    await reduce(model)
    update(model)


@mistake("D615")
async def forgets_to_reduce(model):
    weights, opt_states, _, _, grad_weights = model.storage()
    until_gradients(model)
    model.update(0, grad_weights[0], weights[0], opt_states[0])  # wrong


@mistake("D614")
async def names_the_wrong_layer(model):
    until_gradients(model)
    await model.all_reduce(model.storage()[4][0], 1)  # wrong


@mistake("D614")
async def sums_weights(model):
    until_gradients(model)
    await model.all_reduce(model.storage()[0][0], 0)  # wrong


@mistake("D613")
async def uses_what_is_gone(model):
    until_gradients(model)
    del model.storage()[2][1]
    model.loss(model.storage()[2][1])  # wrong


@mistake("D613")
async def uses_what_was_never_stored(model):
    weights, opt_states = model.load_weights(0)
    model.set_final_weight(0, weights)  # wrong


@mistake("D610")
async def adds_two_layers(model):
    until_gradients(model)
    model.storage()[4][0] + model.storage()[4][1]  # wrong


@mistake("D611")
async def gives_everyone_the_same_samples(model):
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    for l in range(2):
        weights[l], opt_states[l] = model.load_weights(l)
    activations[0] = model.get_input_activation([0, 1])
    for l in range(2):
        activations[l + 1] = model.forward(l, activations[l], weights[l])
    grad_activations[2] = model.loss(activations[2])
    grad_weights[1], grad_activations[1] = model.backward(
        1, activations[1], grad_activations[2], weights[1])
    grad_weights[1] = await model.all_reduce(grad_weights[1], 1)  # wrong


@mistake("D617")
async def leaves_the_others_alone(model):
    until_gradients(model)
    if model.rank == 0:
        await model.all_reduce(model.storage()[4][0], 0)  # wrong


@mistake("D617")
async def sends_both_ways_at_once(model):
    until_gradients(model)
    await model.send(1 - model.rank, model.storage()[2][0])  # wrong
    model.storage()[2][9] = await model.receive(1 - model.rank)


@mistake("D616")
async def meets_in_different_collectives(model):
    until_gradients(model)
    gradients = model.storage()[4]
    call = model.all_reduce if model.rank == 0 else model.all_gather
    await call(gradients[0], 0)  # wrong


@mistake("D620")
async def uses_what_is_being_reduced(model):
    until_gradients(model)
    weights, opt_states, _, _, grad_weights = model.storage()
    coming = model.start_all_reduce(grad_weights[0], 0)
    model.update(0, grad_weights[0], weights[0], opt_states[0])  # wrong
    await coming


@mistake("D621")
async def sends_to_nobody(model):
    until_gradients(model)
    await model.send(2, model.storage()[2][0])  # wrong


@mistake("D621")
async def names_no_axis(model):
    model.position("pp")  # wrong


@mistake("D623")
async def does_not_await(model):
    until_gradients(model)
    gradients = model.storage()[4]
    model.all_reduce(gradients[0], 0)  # wrong
    update(model)


@mistake("D623")
async def loses_what_it_started(model):
    await right(model)
    sent = model.start_send(1 - model.rank, model.storage()[2][0])  # wrong
    model.storage()[2][9] = await model.receive(1 - model.rank)


@mistake("D623")
async def awaits_twice(model):
    until_gradients(model)
    coming = model.start_all_reduce(model.storage()[4][0], 0)
    model.storage()[4][0] = await coming
    await coming  # wrong


@mistake("D627")
async def sleeps_on_the_clock(model):
    await asyncio.sleep(1)  # wrong


@mistake("D627")
async def yields_to_a_loop(model):
    until_gradients(model)
    await asyncio.sleep(0)  # wrong


@mistake("D003")
async def reads_negative_samples(model):
    model.get_input_activation([-1])  # wrong


@mistake("D614")
async def reads_samples_that_are_not_there(model):
    model.get_input_activation([99])  # wrong


@mistake("D003")
async def logs_what_is_no_event(model):
    model.log_event("forwards")  # wrong


def lines_of(strategy):
    first = strategy.__code__.co_firstlineno
    last = max(line for _, _, line in strategy.__code__.co_lines() if line)
    return range(first, last + 1)


@pytest.mark.parametrize("strategy, code, ranks", MISTAKES)
def test_a_mistake_is_told_with_its_line(strategy, code, ranks):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(shiplap.InputError) as refused:
            shiplap.train(strategy, ranks=ranks, layers=2)
    diagnostic = refused.value.diagnostics[0]
    assert diagnostic.code == code
    assert diagnostic.rank in (0, 1)
    assert diagnostic.file == "test_strategy_mistakes.py"
    assert diagnostic.line in lines_of(strategy)
    assert "# wrong" in linecache.getline(__file__, diagnostic.line)
    assert str(diagnostic) in str(refused.value)
    assert "co_await" not in str(refused.value)
    frames = traceback.extract_tb(refused.value.__traceback__)
    told_at_the_end = strategy.__name__ in ("does_not_await", "loses_what_it_started")
    if not told_at_the_end:
        assert any(f.name == strategy.__name__ and "# wrong" in linecache.getline(
            __file__, f.lineno) for f in frames)


def test_the_right_one_is_right():
    assert shiplap.check(shiplap.train(right, ranks=2, layers=2).plan).sound


def test_a_missing_await_is_told_where_its_result_is_used():
    async def forgets(model):
        until_gradients(model)
        gradients = model.storage()[4]
        gradients[0] = model.all_reduce(gradients[0], 0)

    with pytest.raises(TypeError, match="WeightGrad, found Communication; is an `await`"):
        shiplap.train(forgets, ranks=2, layers=2)

    async def passes_on(model):
        until_gradients(model)
        await model.all_reduce(model.all_reduce(model.storage()[4][0], 0), 0)

    with pytest.raises(TypeError, match="found Communication; is an `await` missing"):
        shiplap.train(passes_on, ranks=2, layers=2)


def test_what_a_strategy_raises_passes_through():
    class Mine(Exception):
        pass

    async def inner(model):
        raise Mine("deep")

    async def fails(model):
        until_gradients(model)
        if model.rank == 1:
            await inner(model)
        await model.all_reduce(model.storage()[4][0], 0)

    with pytest.raises(Mine, match="deep") as raised:
        shiplap.train(fails, ranks=3, layers=2)
    names = [f.name for f in traceback.extract_tb(raised.value.__traceback__)]
    assert names[-2:] == ["fails", "inner"]


def test_the_lowest_rank_that_fails_is_told():
    async def fails(model):
        until_gradients(model)
        if model.rank != 2:
            await reduce(model)
        raise ValueError(model.rank)

    with pytest.raises(ValueError, match="2"):
        shiplap.train(fails, ranks=3, layers=2)

    async def all_fail(model):
        raise ValueError(model.rank)

    with pytest.raises(ValueError, match="0"):
        shiplap.train(all_fail, ranks=3)


def test_a_strategy_may_catch_what_its_model_refuses():
    async def careful(model):
        until_gradients(model)
        with pytest.raises(shiplap.InputError):
            await model.all_reduce(model.storage()[4][0], 1)
        with pytest.raises(shiplap.InputError):
            await asyncio.sleep(0)
        await reduce(model)
        update(model)

    assert shiplap.train(careful, ranks=2, layers=2).plan == \
        shiplap.train(right, ranks=2, layers=2).plan


@pytest.mark.parametrize("strategy", [
    lambda model: None,
    lambda model: asyncio.sleep,
    lambda model: (yield),
])
def test_what_is_no_coroutine_is_refused(strategy):
    with pytest.raises(shiplap.InputError, match="async def") as refused:
        shiplap.train(strategy, ranks=2)
    assert refused.value.diagnostics[0].code == "D003"


def test_what_is_no_strategy_is_refused():
    with pytest.raises(TypeError, match="a name or an `async def`, found int"):
        shiplap.train(3)
    with pytest.raises(TypeError, match="missing 1 required positional"):
        async def of_two(model, other):
            pass
        shiplap.train(of_two, ranks=2)
    with pytest.raises(TypeError, match="mesh: expected a dict"):
        shiplap.train(right, mesh=4)


def test_another_ranks_communication_cannot_be_awaited():
    calls = {}

    async def steals(model):
        until_gradients(model)
        calls[model.rank] = model.all_reduce(model.storage()[4][0], 0)
        await (calls[0] if model.rank == 1 else model.all_reduce(model.storage()[4][1], 1))

    with pytest.raises(shiplap.InputError, match="another rank") as refused:
        shiplap.train(steals, ranks=2, layers=2)
    assert refused.value.diagnostics[0].code == "D627"


def test_inside_of_an_event_loop_it_is_the_same():
    async def notebook():
        with pytest.raises(shiplap.InputError, match="unsupported awaitable") as refused:
            shiplap.train(sleeps_on_the_clock, ranks=2)
        assert refused.value.diagnostics[0].code == "D627"
        return shiplap.train(right, ranks=2, layers=2)

    assert asyncio.run(notebook()).plan == shiplap.train(right, ranks=2, layers=2).plan


def test_coroutines_are_closed_whatever_happens():
    closed = []

    async def waits(model):
        try:
            until_gradients(model)
            if model.rank == 3:
                raise ValueError("now")
            await reduce(model)
        finally:
            closed.append(model.rank)

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with pytest.raises(ValueError):
            shiplap.train(waits, ranks=4, layers=2)
        with pytest.raises(TypeError):
            shiplap.train(lambda model: waits(model) if model.rank < 2 else 1 + "", ranks=4)
        gc.collect()
    assert [str(warning.message) for warning in told] == []
    assert sorted(closed) == [0, 1, 2, 3]


@pytest.mark.parametrize("strategy", [
    right, leaves_the_others_alone, forgets_to_reduce, does_not_await, yields_to_a_loop])
def test_nothing_is_left_behind(strategy):
    class Witness:
        pass

    seen = []

    async def watched(model):
        witness = Witness()
        seen.append(weakref.ref(witness))
        await strategy(model)

    gc.collect()
    gc.disable()
    try:
        try:
            shiplap.train(watched, ranks=3, layers=2, batch=12)
        except shiplap.InputError:
            pass
        assert seen, "those after the first that fails are not begun"
        assert all(ref() is None for ref in seen)
    finally:
        gc.enable()
