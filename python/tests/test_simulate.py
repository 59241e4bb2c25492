"""simulate, run and the other commands: the same numbers as the command line."""

import json

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
