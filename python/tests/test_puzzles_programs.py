"""Programs of the LLM Training Puzzles: what they train, how long it takes, and their plans."""

import pytest

import shiplap
from puzzle_programs import BATCH, LAYERS, PROGRAMS, data_parallel, groups, run, train
from shiplap import puzzles
from shiplap.puzzles import (
    BYTES_PER_ELEMENT,
    Dist,
    Model,
    RuntimePredictor,
    Weight,
    WeightGrad,
)


@pytest.fixture(scope="module")
def trained():
    return {(program.__name__, ranks): train(program, ranks) for program, ranks in PROGRAMS}


NAMES = [(program.__name__, ranks) for program, ranks in PROGRAMS]


@pytest.mark.parametrize("name", NAMES, ids=str)
def test_a_program_trains_every_layer_once(name, trained):
    finals = {}
    for model in trained[name]:
        finals.update(model.final_weights)
    assert sorted(finals) == list(range(LAYERS))
    for layer, weight in finals.items():
        assert (weight.layer, weight.layers, weight.step) == (layer, LAYERS, 1)
        assert weight.is_complete()


@pytest.mark.parametrize("name", NAMES, ids=str)
def test_time_and_memory_are_those_of_the_events(name, trained):
    for model in trained[name]:
        assert model.time == model.log[-1].time + model.log[-1].duration
        for before, after in zip(model.log, model.log[1:], strict=False):
            assert after.time >= before.time + before.duration
        assert all(event.rank == model.rank for event in model.log)
        assert all(isinstance(event.time, int) for event in model.log)


@pytest.mark.parametrize("name", NAMES, ids=str)
def test_all_samples_pass_every_layer(name, trained):
    for kind in ("forward", "backward"):
        seen = sorted((event.layer, sample) for model in trained[name] for event in model.log
                      if event.typ == kind for sample in event.samples)
        assert seen == [(layer, sample) for layer in range(LAYERS) for sample in range(BATCH)]


def test_programs_take_the_time_that_can_be_computed_by_hand(trained):
    predictor = RuntimePredictor(1)
    nanoseconds = lambda seconds: round(seconds * 1e9)  # noqa: E731
    (alone,) = trained["single", 1]
    assert alone.time == LAYERS * sum(map(nanoseconds, [
        predictor.get_weight_load_time(1, 1), 2 * 0, predictor.get_forward_backward_time(BATCH),
        predictor.get_forward_backward_time(BATCH), predictor.get_update_step_time(1, 1)]))
    predictor = RuntimePredictor(8)
    times = {model.time for model in trained["data_parallel", 8]}
    assert times == {LAYERS * sum(map(nanoseconds, [
        predictor.get_weight_load_time(1, 1), predictor.get_forward_backward_time(1),
        predictor.get_forward_backward_time(1), predictor.get_update_step_time(1, 1),
        predictor.get_collective_time("all_reduce", WeightGrad(0, 1, frozenset([0]), 1))]))}


def test_sharding_saves_memory_and_pipelines_overlap(trained):
    peak = {name: max(event.memory for model in models for event in model.log)
            for name, models in trained.items()}
    last = {name: max(model.time for model in models) for name, models in trained.items()}
    assert peak["accumulation", 1] < peak["single", 1]
    assert peak["zero", 4] < 0.5 * peak["data_parallel", 2]
    assert peak["pipeline", 4] < peak["pipeline", 2] < peak["accumulation", 1]
    assert last["data_parallel", 8] < last["single", 1]
    assert last["pipeline", 4] < last["pipeline", 2] < last["accumulation", 1]


def test_a_group_of_ranks_has_a_dist_of_its_own():
    world, pairs = Dist(4), [Dist(2), Dist(2)]
    models = run(*[groups(Model(rank, world, 1, 4), pairs[rank % 2], rank // 2)
                   for rank in range(4)])
    assert all(model.final_weights[0].step == 1 for model in models)
    assert {len(model.log) for model in models} == {6}


# ---- timelines and plans


@pytest.mark.parametrize("name", NAMES, ids=str)
def test_a_trace_has_all_events(name, trained, tmp_path):
    models = trained[name]
    trace = puzzles.to_trace(models, name[0])
    assert len(trace) == name[1]
    for rank, model in enumerate(models):
        for found, event in zip(trace.events(rank), model.log, strict=True):
            assert (found.kind, found.layer, found.rank) == (event.typ, event.layer, rank)
            assert found.samples == event.samples
            assert found.time_s == pytest.approx(event.time * 1e-9)
            assert found.duration_s == pytest.approx(event.duration * 1e-9)
            assert found.memory == event.memory * BYTES_PER_ELEMENT
    trace.save_report(tmp_path / "report.html")
    trace.save(tmp_path / "step.pftrace")
    assert name[0] in (tmp_path / "report.html").read_text()
    assert "</svg>" in trace._repr_html_()
    assert trace.summary()["peak_bytes"] == max(
        event.memory for model in models for event in model.log) * BYTES_PER_ELEMENT


KINDS = ("load_weights", "forward", "loss", "backward", "update", "all_reduce", "all_gather",
         "reduce_scatter", "send", "recv")


@pytest.mark.parametrize("name", NAMES, ids=str)
def test_a_program_is_a_strategy_of_the_engine(name, trained):
    models = trained[name]
    training = puzzles.to_training(models, name[0])
    assert training.name == name[0] and len(training.models) == name[1]
    report = shiplap.check(training.plan, sends="eager", eager=1 << 40)
    assert report.sound, report
    for rank, model in enumerate(models):
        kinds = [event.typ for event in training.trace.events(rank)]
        assert [kind for kind in kinds if kind in KINDS] == [event.typ for event in model.log]
        assert training.models[rank].final_weights.keys() == model.final_weights.keys()


def test_the_engine_has_the_same_data_parallel(trained):
    training = puzzles.to_training(trained["data_parallel", 8])
    known = shiplap.train("ddp", ranks=8, layers=LAYERS, batch=BATCH, moments=1)
    assert training.peak_bytes == known.peak_bytes
    assert training.total_s == known.total_s


def test_a_program_runs_with_real_numbers(trained):
    expected = shiplap.run(puzzles.to_training(trained["single", 1], for_run=True), steps=3).loss
    for name in ("data_parallel", 2), ("zero", 4), ("unstored", 2), ("pipeline", 4), ("hybrid", 4):
        found = shiplap.run(puzzles.to_training(trained[name], for_run=True), steps=3)
        assert found.good and found.loss == pytest.approx(expected, rel=1e-4), name


def test_what_the_puzzles_allow_and_the_engine_does_not():
    def wrong(models):
        with pytest.raises(shiplap.InputError) as refused:
            puzzles.to_training(models)
        return refused.value.diagnostics[0].code

    world, pairs = Dist(4), [Dist(2), Dist(2)]
    models = run(*[groups(Model(rank, world, 1, 4), pairs[rank % 2], rank // 2)
                   for rank in range(4)])
    assert wrong(models) == "D613"  # a value that no call made
    assert wrong(models[:3]) == "D003"
    assert wrong([]) == "D003"

    async def twice(model):
        model.weights[0], model.opt_states[0] = model.load_weights(0)
        model.grad_weights[0] = WeightGrad(0, 1, frozenset([0]), 1)
        model.weights[0], model.opt_states[0] = model.update(
            0, model.grad_weights[0], model.weights[0], model.opt_states[0])
        return model

    assert wrong(run(twice(Model(0, Dist(1), 1, 1)))) == "D613"


def test_sends_that_wait_for_each_other_deadlock_without_buffers(trained):
    with pytest.raises(shiplap.InputError, match="deadlock") as refused:
        puzzles.to_training(trained["hybrid", 4], eager=0)
    assert refused.value.diagnostics[0].code == "D617"


def test_sizes_are_those_of_the_module(monkeypatch):
    monkeypatch.setattr(puzzles, "HIDDEN_SIZE", 512)
    monkeypatch.setattr(puzzles, "BLOCK_SIZE", 256)
    assert Weight(0, 1, 0).memory() == 512 * 512
    models = train(data_parallel, 2)
    assert models[0].memory() == 2 * LAYERS * 512 * 512
    elements = max(event.memory for event in models[0].log)
    assert puzzles.to_training(models).by_rank[0]["peak_bytes"] < 2 * elements * 2
