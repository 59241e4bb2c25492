"""simulate, run and the other commands: the same numbers as the command line."""

import dataclasses
import gc
import json
import pickle
import time

import pytest

import shiplap


def test_the_same_as_the_command(root, command):
    for name in ("ddp", "fsdp", "zero_bubble", "interleaved_1f1b", "ring_attention"):
        path = root / "examples" / "plans" / f"{name}.plan"
        said = json.loads(command("simulate", path, "--json", "--no-check").stdout)
        simulation = shiplap.simulate(path)
        assert simulation.to_dict() == said
        assert simulation.total_s == pytest.approx(said["total_s"])
        assert bool(simulation) and simulation.problems == []
        assert "<svg" in simulation._repr_html_() and "<script" not in simulation._repr_html_()


def test_other_hardware():
    assert "b200" in shiplap.known_systems()
    training = shiplap.train("ddp", ranks=8, layers=4, batch=8)
    fast = shiplap.simulate(training, hardware="b200")
    assert fast.total_s < shiplap.simulate(training).total_s
    assert fast.hardware == "b200"
    with pytest.raises(shiplap.InputError):
        shiplap.simulate(training, hardware="b2000")


def test_tensor_parallel_groups_across_nodes_get_a_warning():
    training = shiplap.train("hybrid", ranks=16, mesh={"tp": 2, "pp": 8}, layers=8)
    warned = shiplap.simulate(training)
    assert [one.code for one in warned.warnings] == ["D634"] and bool(warned)
    assert warned.to_dict()["warnings"][0]["help"] == "put `tp` last: dp=1,pp=8,tp=2"
    better = shiplap.train("hybrid", ranks=16, mesh={"pp": 8, "tp": 2}, layers=8)
    assert shiplap.simulate(better).warnings == []


MANY_RANKS = {
    "ddp": {"ranks": 32, "layers": 2},
    "fsdp": {"ranks": 32, "layers": 2},
    "1f1b": {"ranks": 32, "layers": 32, "batch": 32},
    "hybrid": {"mesh": {"dp": 4, "pp": 2, "tp": 4}, "layers": 4},
    "ring": {},
}


def ring(ranks):
    """Every rank sends to the next, modulo their number."""
    b = shiplap.PlanBuilder()
    tp = b.axis("tp", ranks)
    X = b.tensor("X", "Activation", part={"tok": ranks})
    b.program("all")
    x = b.buffer("x", rows=ranks, row_bytes=1024)
    b.given(x(tp, 1), X("tok", tp, 1))
    b.goal(x, X)
    with b.repeat("s", ranks - 1) as s, b.batch():
        b.send(x((tp - s) % ranks, 1), tp.wrap(1))
        b.receive(x((tp - s - 1) % ranks, 1), tp.wrap(-1))
    return b.build("ring")


def plan_of_many(name):
    return ring(32) if name == "ring" else shiplap.train(name, **MANY_RANKS[name]).plan


def close(one, other):
    """Sums over ranks may be rounded differently."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(close(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(close, one, other))
    return one == (pytest.approx(other, rel=1e-12) if isinstance(other, float) else other)


def without_samples(events):
    return [dataclasses.replace(event, samples=frozenset()) for event in events]


@pytest.mark.parametrize("name", MANY_RANKS)
def test_alike_ranks_are_simulated_once_with_the_same_numbers(name):
    plan = plan_of_many(name)
    folded, full = shiplap.simulate(plan), shiplap.simulate(plan, fold=False)
    assert close(folded.to_dict(), full.to_dict()) and str(folded) == str(full)
    assert repr(folded.trace) == repr(full.trace)
    for rank in range(plan.ranks):
        assert without_samples(folded.trace[rank]) == without_samples(full.trace[rank]), rank
    assert folded.trace[0] == full.trace[0]


def test_a_folded_trace_is_saved_in_full(tmp_path):
    plan = shiplap.train("ddp", ranks=32, layers=2).plan
    folded, full = shiplap.simulate(plan), shiplap.simulate(plan, fold=False)
    assert folded.trace != full.trace and folded.trace.to_dict() == full.trace.to_dict()
    for name, simulation in (("folded", folded), ("full", full)):
        simulation.trace.save(tmp_path / name)
    assert (tmp_path / "folded").read_bytes() == (tmp_path / "full").read_bytes()
    again = pickle.loads(pickle.dumps(folded))
    assert again == folded and again.trace[7] == folded.trace[7]
    with pytest.raises(shiplap.InputError, match="fold=False"):
        again.trace.to_dict()


def test_sixteen_thousand_ranks_as_on_the_command_line(command, tmp_path):
    path = tmp_path / "llama.plan"
    command("plan", "--model", "llama3.1-405b", "--from", "megatron",
            "--tensor-model-parallel-size 8 --pipeline-model-parallel-size 16 --sequence-parallel "
            "--decoder-first-pipeline-num-layers 7 --decoder-last-pipeline-num-layers 7 "
            "--micro-batch-size 1 --global-batch-size 2048", "--ranks", 16384, "-o", path)
    simulation = shiplap.simulate(path)
    said = json.loads(command("simulate", path, "--json", "--no-check").stdout)
    assert simulation.to_dict() == said and len(simulation.by_rank) == 16384
    assert [event.rank for event in simulation.trace[16383][:3]] == [16383] * 3
    assert simulation.trace[-1][3].time_s == simulation.trace[15][3].time_s


def test_conditions_are_those_of_the_command_line(command, tmp_path):
    path = tmp_path / "step.plan"
    shiplap.train("fsdp", ranks=16, layers=4).plan.save(path)
    simulation = shiplap.simulate(path, links="shared", queues="one", slow_ranks={3: 1.5},
                                  slow_links={2: 0.25})
    said = json.loads(command("simulate", path, "--json", "--no-check", "--links", "shared",
                              "--queues", "one", "--slow-ranks", "3=1.5", "--slow-links",
                              "2=0.25").stdout)
    assert simulation.to_dict() == said
    assert simulation.conditions == ["contention between transfers", "one hardware queue",
                                     "1 slow rank", "1 slow link"]
    assert simulation.step_s > shiplap.simulate(path, links="shared").step_s
    assert "with contention between transfers" in repr(simulation)


@pytest.mark.parametrize("wrong, given", [
    ("links: expected separate or shared", {"links": "full"}),
    ("there is no rank 4", {"slow_ranks": {4: 2}}),
    ("rank 1: expected a number from 1e-06 to 1, found 5",
     {"links": "shared", "slow_links": {1: 5}}),
    ("links are not shared", {"slow_links": {1: 0.5}})])
def test_conditions_that_cannot_be(wrong, given):
    with pytest.raises(shiplap.InputError, match=wrong):
        shiplap.simulate(shiplap.train("fsdp", ranks=4), **given)


@pytest.mark.parametrize("name, given", [
    ("queues", {"queues": 1}), ("slow_ranks", {"slow_ranks": [3]}),
    ("slow_ranks", {"slow_ranks": {3: "2"}}), ("slow_links", {"slow_links": {"3": 0.5}})])
def test_conditions_of_a_wrong_type(name, given):
    with pytest.raises(TypeError, match=f"^{name}: expected"):
        shiplap.simulate(shiplap.train("fsdp", ranks=4), **given)


def seconds_of(act):
    """The least of some runs, without the garbage collector, whose cost depends on the program."""
    gc.disable()
    try:
        times = []
        for _ in range(4):
            begun = time.process_time()
            act()
            times.append(time.process_time() - begun)
        return min(times)
    finally:
        gc.enable()


def test_many_events_are_made_fast():
    """A frozen dataclass sets its fields one by one; with 100,000 events that took seconds."""
    trace = shiplap.train("1f1b", ranks=8, layers=8, batch=8 * 64).trace
    events = [event for rank in trace for event in rank]
    fields = [(*list(vars(event).values())[:-1], sorted(event.samples)) for event in events]
    by_constructor = seconds_of(lambda: [shiplap.Event(*more, frozenset(samples))
                                         for *more, samples in fields])
    assert len(events) > 3000
    assert seconds_of(lambda: [event for rank in trace for event in rank]) < by_constructor / 1.5
    assert seconds_of(lambda: [trace.columns(rank) for rank in range(8)]) < by_constructor / 4
    again = [shiplap.Event(*more, frozenset(samples)) for *more, samples in fields]
    assert again == events and list(map(hash, again)) == list(map(hash, events))
    with pytest.raises(dataclasses.FrozenInstanceError):
        events[0].rank = 1


def test_the_columns_of_a_rank_are_the_fields_of_its_events():
    trace = shiplap.train("1f1b", ranks=4, layers=4, batch=8).trace
    columns = trace.columns(2)
    for name, values in columns.items():
        found = values if isinstance(values, list) else memoryview(values).tolist()
        assert found == [-1 if value is None else value for value in
                         (getattr(event, name) for event in trace[2])], name
    assert list(columns) == [field.name for field in dataclasses.fields(shiplap.Event)]
    with pytest.raises(IndexError):
        trace.columns(4)


def test_a_deadlock_is_an_answer(root):
    simulation = shiplap.simulate(root / "examples" / "plans" / "pytorch_172668.plan")
    assert not simulation
    assert simulation.problems[0].code == "D630"
    assert "cannot be executed" in repr(simulation)


def test_trace(tmp_path):
    trace = shiplap.simulate(shiplap.train("1f1b", ranks=4, layers=4, batch=8)).trace
    assert len(trace) == 4 and "main" in trace.streams
    events = trace.events(3)
    assert {"forward", "backward"} <= {event.kind for event in events}
    first = next(event for event in events if event.kind == "forward")
    assert first.rank == 3 and first.layer == 3 and first.samples == frozenset({0})
    assert first.end_s == first.time_s + first.duration_s
    assert trace.to_dict()["schema"] == "shiplap.trace/1"
    trace.save(tmp_path / "step.pftrace")
    assert (tmp_path / "step.pftrace").stat().st_size > 1000
    trace.save_report(tmp_path / "step.html")
    assert (tmp_path / "step.html").read_text().startswith("<!doctype html>")
    with pytest.raises(shiplap.InputError, match="ranks 0 to 3"):
        trace.events(4)


def test_run():
    plan = shiplap.train("ddp", ranks=2, batch=2, for_run=True).plan
    run = shiplap.run(plan, steps=4)
    assert run.good and len(run.loss) == len(run.step_s) == 4
    assert run.loss[-1] < run.loss[0]
    assert run.loss == shiplap.run(plan, steps=4).loss, "the same bits every time"
    assert run.loss != shiplap.run(plan, steps=4, seed=2).loss
    assert run.to_dict()["unequal_weights"] == 0
    assert len(run.trace) == 2 and "<svg" in run._repr_html_()
    with pytest.raises(shiplap.InputError, match="1 or more"):
        shiplap.run(plan, steps=0)


def test_run_is_what_the_command_runs(tmp_path, command):
    plan = shiplap.train("fsdp", ranks=2, layers=4, batch=2, for_run=True).plan
    plan.save(tmp_path / "step.plan")
    answer = command("run", tmp_path / "step.plan", "--json")
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout)["loss"] == shiplap.run(plan).loss


def test_overlap(command):
    sizes = {"m": 8192, "n": 8192, "k": 8192, "tp": 8}
    flags = {"op": "ag", **sizes, "method": "auto", "hardware": "h100_80g_nvl8"}
    words = [word for name, value in flags.items() for word in (f"--{name}", value)]
    found = shiplap.overlap(**flags)
    assert found == json.loads(command("overlap", *words, "--json").stdout)
    assert repr(found) == command("overlap", *words).stdout.rstrip()
    assert type(found.to_dict()) is dict
    with pytest.raises(TypeError, match="'mm'"):
        shiplap.overlap(op="ag", mm=3)
    with pytest.raises(shiplap.InputError) as caught:
        shiplap.overlap(op="ag", m=3)
    assert "hardware" in str(caught.value) and "json" not in str(caught.value).lower()


def test_explain():
    assert "D720" in shiplap.explain("D720")
    with pytest.raises(shiplap.InputError):
        shiplap.explain("D999")
