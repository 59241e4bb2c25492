"""Strategies in Python: the same plans, times and losses as those in C++."""

import concurrent.futures
import doctest
import functools
import pathlib
import re

import pytest

import shiplap
from twins import TWINS

NAMES = list(TWINS)


def ranks_of(name):
    return {"single": 1, "hybrid": 8}.get(name, 4)


def both(name, **size):
    """A strategy of the library and its twin, of one size."""
    ours = shiplap.train(name, **size)
    known = ours.to_dict()
    given = {**size, "mesh": known["mesh"], "microbatches": known["microbatches"],
             "chunks": known["chunks"]}
    return ours, shiplap.train(TWINS[name], **given)


@pytest.mark.parametrize("stage", (0, 1, 2, 3))
def test_hybrid_takes_a_stage_of_zero(stage):
    training = shiplap.train("hybrid", ranks=8, layers=4, zero_stage=stage)
    assert training.to_dict()["zero_stage"] == training.models[0].zero_stage == stage
    assert shiplap.check(training.plan).sound
    with pytest.raises(shiplap.InputError, match="expected 0 to 3, found 4"):
        shiplap.train("hybrid", ranks=8, zero_stage=4)


def test_every_strategy_of_the_library_has_a_twin():
    assert NAMES == list(shiplap.strategies())


@pytest.mark.parametrize("name", NAMES)
def test_a_twin_gives_the_same_plan_and_the_same_times(name):
    ours, twin = both(name, ranks=ranks_of(name), layers=8)
    assert twin.plan == ours.plan
    assert twin.total_s == ours.total_s
    assert twin.by_rank == ours.by_rank
    known, found = ours.to_dict(), twin.to_dict()
    assert {**found, "name": ""} == {**known, "name": ""}
    assert len(twin.trace) == len(ours.trace) == ranks_of(name)
    for rank in range(ranks_of(name)):
        assert [repr(e) for e in twin.trace.events(rank)] == \
            [repr(e) for e in ours.trace.events(rank)]


@pytest.mark.parametrize("name", NAMES)
def test_a_plan_from_python_is_sound_and_replays_to_the_same_times(name):
    _, training = both(name, ranks=ranks_of(name), layers=8)
    assert shiplap.check(training.plan).sound
    simulation = shiplap.simulate(training.plan)
    assert simulation.total_s == pytest.approx(training.total_s, rel=1e-12)
    assert simulation.step_s == pytest.approx(training.step_s, rel=1e-12)
    assert simulation.peak_bytes == training.peak_bytes


@pytest.mark.parametrize("name", NAMES)
def test_a_plan_from_python_runs_to_the_same_losses(name):
    ours, twin = both(name, ranks=ranks_of(name), layers=8, for_run=True)
    found = shiplap.run(twin.plan, steps=3)
    assert found.good
    assert found.loss == shiplap.run(ours.plan, steps=3).loss


def test_names_of_a_twin_are_those_of_its_function():
    training = shiplap.train(TWINS["ddp"], ranks=2)
    assert training.name == "ddp"
    assert training.plan.name == "ddp on 2 ranks"
    assert repr(training).startswith("<Training ddp on 2 ranks of h100_80g_nvl8: step ")
    assert "</svg>" in training._repr_html_()
    partial = shiplap.train(functools.partial(TWINS["ddp"]), ranks=2)
    assert partial.plan == training.plan


def test_sizes_are_those_of_the_command_line():
    training = shiplap.train("ddp")
    known = training.to_dict()
    assert known["schema"] == "shiplap.train/1"
    assert (len(training.models), known["layers"], known["batch"]) == (4, 4, 16)
    small = shiplap.train("ddp", for_run=True)
    assert small.models[0].storage()[0][0].memory(
        shiplap.strategy.ModelShape(hidden=64, datatype="float32")) == 64 * 64 * 4
    assert small.models[0].memory() == 4 * 3 * 64 * 64 * 4
    alone = shiplap.train("single")
    assert len(alone.models) == 1
    grid = shiplap.train("hybrid", mesh={"dp": 1, "pp": 2, "tp": 2}, layers=2)
    assert grid.plan.mesh == {"dp": 1, "pp": 2, "tp": 2}
    assert shiplap.train("hybrid", mesh="dp=1,pp=2,tp=2", layers=2).plan == grid.plan
    assert shiplap.train("hybrid", mesh={"pp": 2, "tp": 2}, ranks=4, layers=2).plan == grid.plan
    assert shiplap.train("1f1b", ranks=8).to_dict()["layers"] == 8
    slow = shiplap.train("ddp", hardware="a100_80g")
    assert slow.total_s > training.total_s


@pytest.mark.parametrize("arguments, code, where", [
    ({"strategy": "ddpp"}, "D624", ""),
    ({"ranks": 0}, "D003", "ranks"),
    ({"batch": -1}, "D003", "batch"),
    ({"layers": 1 << 40}, "D003", "layers"),
    ({"batch": 7}, "D622", ""),
    ({"mesh": "dp"}, "D003", "mesh"),
    ({"mesh": {"dp": "many"}}, "D003", "mesh"),
    ({"mesh": {"pp": 2}}, "D622", ""),
    ({"mesh": {"dp": 2}, "ranks": 3}, "D622", ""),
    ({"datatype": "float61"}, "D003", "datatype"),
    ({"moments": -1}, "D003", "moments"),
    ({"eager": -1}, "D003", "eager"),
    ({"hidden": 1 << 20, "block": 1 << 20}, "D003", "hidden"),
    ({"hardware": "h1000"}, "D601", ""),
])
def test_wrong_sizes_are_refused(arguments, code, where):
    with pytest.raises(shiplap.InputError) as refused:
        shiplap.train(**{"strategy": "ddp", **arguments})
    diagnostic = refused.value.diagnostics[0]
    assert diagnostic.code == code
    assert diagnostic.to_dict().get("where", {}).get("flag", "") == where


def test_models_can_be_asked_when_they_have_ended():
    training = shiplap.train(TWINS["fsdp"], ranks=2, layers=3)
    for rank, model in enumerate(training.models):
        weights, opt_states, activations, grad_activations, grad_weights = model.storage()
        assert (model.rank, model.ranks, model.world_size) == (rank, 2, 2)
        assert (model.layers, model.num_layers) == (3, 3)
        assert (model.batch, model.global_batch_size) == (8, 8)
        assert list(weights) == [0, 1, 2] == list(opt_states)
        assert weights[1].step == 1 and weights[1].shards == {rank}
        assert not list(activations) + list(grad_activations) + list(grad_weights)
        assert model.final_weights == {l: weights[l] for l in range(3)}
        assert model.time <= training.total_s
        assert [e.kind for e in model.log][:3] == ["load_weights"] * 3
        assert model.status().startswith(f"rank {rank} at ")
        assert model.memory() == sum(v.memory() for v in [*weights.values(), *opt_states.values()])


def test_a_model_outlives_its_training():
    model = shiplap.train(TWINS["ddp"], ranks=2).models[1]
    weights = model.storage()[0]
    del model
    assert weights[0].step == 1


def test_trainings_nest():
    times = []

    async def outer(model):
        times.append(shiplap.train(TWINS["ddp"], ranks=2).total_s)
        await TWINS["ddp"](model)

    training = shiplap.train(outer, ranks=2)
    assert times == [training.total_s] * 2


def test_the_same_strategy_gives_the_same_bytes():
    first, second = (shiplap.train(TWINS["hybrid"], mesh="dp=2,pp=2,tp=2", microbatches=4)
                     for _ in range(2))
    assert first.plan.to_text() == second.plan.to_text()
    assert first.to_dict() == second.to_dict()


def documented():
    texts = {name: getattr(shiplap.strategy, name).__doc__ or ""
             for name in shiplap.strategy.__all__}
    return [pytest.param(text, id=name) for name, text in texts.items() if ">>>" in text]


def test_what_cannot_be_repeated_has_a_picture_but_no_plan():
    async def elsewhere(model):
        weights, opt_states, activations, grad_activations, grad_weights = model.storage()
        weights[0], opt_states[0] = model.load_weights(0)
        activations[0] = model.get_input_activation(range(4))
        activations[1] = model.forward(0, activations[0], weights[0])
        grad_activations[1] = model.loss(activations[1])
        grad_weights[0], grad_activations[0] = model.backward(
            0, activations[0], grad_activations[1], weights[0])
        weights[7], opt_states[0] = model.update(0, grad_weights[0], weights[0], opt_states[0])
        model.set_final_weight(0, weights[7])

    training = shiplap.train(elsewhere, ranks=1, layers=1)
    for _ in range(2):
        with pytest.raises(shiplap.InputError) as refused:
            training.plan
        assert refused.value.diagnostics[0].code == "D625"
    assert "</svg>" in training._repr_html_()
    assert training.total_s > training.step_s > 0


def test_a_picture_shows_the_step_and_its_memory():
    training = shiplap.train("ddp", ranks=2, layers=2)
    assert "Loading the weights" in training._repr_html_()
    assert ": load_weights" not in training._repr_html_()
    assert "ctrl and the wheel" not in training._repr_html_()


def test_threads_may_ask_for_the_plan_at_once():
    training = shiplap.train("1f1b", ranks=4, layers=8)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        plans = list(pool.map(lambda _: training.plan, range(32)))
        several = list(pool.map(lambda n: shiplap.train(TWINS[n], ranks=2).total_s,
                                ["ddp", "fsdp"] * 8))
    assert all(plan == plans[0] for plan in plans)
    assert len(set(several)) == 2


def test_the_page_about_strategies_is_true():
    page = (pathlib.Path(__file__).parents[2] / "docs" / "strategy.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert blocks
    runner = doctest.DocTestRunner()
    for block in blocks:
        runner.run(doctest.DocTestParser().get_doctest(block, {}, "strategy.md", None, 0))
    assert runner.failures == 0 and runner.tries > 0


@pytest.mark.parametrize("text", documented())
def test_examples_in_the_documentation_are_true(text):
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    runner.run(doctest.DocTestParser().get_doctest(text, {"shiplap": shiplap}, "doc", None, 0))
    assert runner.failures == 0
    assert runner.tries > 0
