"""What results and functions are to Python: signatures, names, copies, pictures."""

import concurrent.futures
import copy
import dataclasses
import inspect
import json
import multiprocessing
import pathlib
import pickle
import re
import typing

import pytest

import shiplap
from shiplap import dispatch
from shiplap.strategy import ModelShape, OptState, Weight, WeightGrad

HANG = pathlib.Path(__file__).parents[2] / "data/hung_jobs/real/skips_operation/dumps"
FUNCTIONS = [shiplap.train, shiplap.check, shiplap.simulate, shiplap.run, shiplap.overlap,
             shiplap.postmortem, shiplap.explain]


@pytest.fixture(scope="module")
def trained():
    return shiplap.train("1f1b", ranks=2, layers=4, batch=4)


RESULTS = {
    "Training": lambda t: t,
    "Simulation": shiplap.simulate,
    "Report": shiplap.check,
    "Trace": lambda t: t.trace,
    "Event": lambda t: t.trace[0][3],
    "MemoryFit": lambda t: shiplap.simulate(t).fits,
    "Postmortem": lambda t: shiplap.postmortem(HANG),
    "Suspect": lambda t: shiplap.postmortem(HANG).suspects[0],
    "Run": lambda t: shiplap.run(shiplap.train("ddp", ranks=2, batch=2, for_run=True), steps=1),
}


# ---- functions


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_a_function_has_a_signature_for_completion_and_types(function):
    signature = inspect.signature(function)
    assert not any(p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
                   for p in signature.parameters.values())
    assert set(typing.get_type_hints(function)) == {*signature.parameters, "return"}


@pytest.mark.parametrize("call", [
    lambda **typo: shiplap.train("1f1b", **typo), lambda **typo: shiplap.check("a.plan", **typo),
    lambda **typo: shiplap.simulate("a.plan", **typo), lambda **typo: shiplap.run("a", **typo),
    lambda **typo: shiplap.overlap(**typo)])
def test_a_typo_is_named(call):
    with pytest.raises(TypeError, match="unexpected keyword argument 'rank'"):
        call(rank=4)


@pytest.mark.parametrize("name", ["ranks", "layers", "batch", "hidden", "moments", "eager"])
def test_a_value_of_the_wrong_type_names_its_argument(name):
    with pytest.raises(TypeError, match=f"{name}: expected an int, found '4'"):
        shiplap.train("ddp", **{name: "4"})


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_docstrings_speak_python(function):
    """No flags of the command line; every argument is explained."""
    text = re.sub(r"``shiplap [a-z]+ .*?``", "", inspect.getdoc(function))
    assert not re.search(r"--[a-z]", text) and "flag" not in text
    for name in inspect.signature(function).parameters:
        assert f"``{name}``" in text or f"{name}" in ("code", "plan", "dumps", "steps", "seed")


@pytest.mark.parametrize("call", [
    lambda: shiplap.train("1f1b", ranks=3, layers=4), lambda: shiplap.train("ddp", batch=0),
    lambda: shiplap.train("hybrid", mesh="dp=2,qq=3"), lambda: shiplap.overlap(op="ag", m=3),
    lambda: shiplap.overlap(op="xx"), lambda: shiplap.overlap(run=True, rounds=0)])
def test_errors_speak_python(call):
    with pytest.raises(shiplap.InputError) as caught:
        call()
    assert not re.search(r"--[a-z]", str(caught.value)), str(caught.value)


def test_names_of_files_and_commands_stay_in_errors():
    with pytest.raises(shiplap.InputError, match="/tmp/a--b.json"):
        shiplap.overlap(op="ag", m=1024, n=1024, k=1024, hardware="/tmp/a--b.json")


def test_a_machine_may_be_a_path(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text((pathlib.Path(__file__).parents[2] / "data/hardware/b200.json").read_text())
    assert shiplap.simulate(shiplap.train("ddp", hardware=path), hardware=path).hardware


# ---- results


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_can_be_copied_and_pickled(name, trained):
    result = RESULTS[name](trained)
    assert type(result) is getattr(shiplap, name)
    again = pickle.loads(pickle.dumps(result))
    assert type(again) is type(result) and repr(again) == repr(result) and str(again) == str(result)
    for other in (again, copy.copy(result), copy.deepcopy(result)):
        if name != "Training":  # whose models are not copied
            assert other == result
        for attribute in ("to_dict", "_repr_html_", "summary", "html"):
            if hasattr(result, attribute):
                assert getattr(other, attribute)() == getattr(result, attribute)()


@pytest.mark.parametrize("name", RESULTS)
def test_equal_results_have_equal_hashes(name, trained):
    result = RESULTS[name](trained)
    if name != "Training":  # each is itself
        assert hash(copy.copy(result)) == hash(result)
    assert len({result, result}) == 1


def test_changing_a_dict_does_not_change_the_result(trained):
    again = pickle.loads(pickle.dumps(trained))
    report = shiplap.check(trained)
    for result in (again, report):
        before = result.to_dict()
        for value in result.to_dict().values():
            if isinstance(value, list):
                value.clear()
        result.to_dict().clear()
        assert result.to_dict() == before


def test_two_postmortems_of_a_job_are_equal_and_others_are_not():
    found = shiplap.postmortem(HANG)
    assert found == shiplap.postmortem(HANG) and len({found, shiplap.postmortem(HANG)}) == 1
    assert found != shiplap.postmortem(HANG.parents[1] / "wrong_order/dumps")
    call = found.suspects[0].at
    assert pickle.loads(pickle.dumps(call)) == copy.copy(call) == call and hash(call)
    assert dataclasses.asdict(call)["line"] == call.line


def test_a_copied_training_has_its_plan_and_no_models(trained):
    again = copy.deepcopy(trained)
    assert again.plan == trained.plan and again.by_rank == trained.by_rank
    assert again.step_s == trained.step_s and again.name == trained.name
    assert trained.models and not hasattr(again, "models")
    assert shiplap.simulate(copy.copy(again)) == shiplap.simulate(trained)


def test_a_report_with_findings_keeps_them(root):
    report = shiplap.check(root / "examples/plans/pytorch_172668.plan")
    again = pickle.loads(pickle.dumps(report))
    assert not again and again.codes == report.codes and again.findings == report.findings
    assert [f.rank for f in again.findings] == [f.rank for f in report.findings]
    assert again.text(verbose=True) == report.text(verbose=True)
    assert again.to_sarif() == report.to_sarif()
    (plan, _), (same, _) = report.fix(), again.fix()  # lines are those of the pickled text
    assert plan == same and shiplap.check(plan).sound


def test_another_process_may_simulate(trained):
    plans = [trained.plan, shiplap.train("ddp", ranks=2).plan]
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        assert list(pool.map(shiplap.simulate, plans)) == [shiplap.simulate(p) for p in plans]


@pytest.mark.parametrize("name", ["Simulation", "Report", "Run", "Event", "Training", "Postmortem"])
def test_a_result_is_frozen(name, trained):
    result = RESULTS[name](trained)
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.trace = None


@pytest.mark.parametrize("value", [
    ModelShape(hidden=64), Weight(0, 2, 1, [1, 2], 4), OptState(1, 2), dispatch.Segment(0, 1, 2),
    WeightGrad(0, 2, [1], 4, [0], 2)], ids=lambda v: type(v).__name__)
def test_a_small_value_can_be_pickled(value):
    assert pickle.loads(pickle.dumps(value)) == copy.copy(value) == value


def test_a_predictor_can_be_pickled():
    predictor = shiplap.RuntimePredictor(8, "b200")
    again = pickle.loads(pickle.dumps(predictor))
    assert repr(again) == repr(predictor) and again.shape == predictor.shape
    assert again.get_forward_backward_time(3) == predictor.get_forward_backward_time(3)


@pytest.mark.parametrize("name", ["Training", "Simulation"])
def test_an_attribute_has_the_name_of_its_key(name, trained):
    result = RESULTS[name](trained)
    found = result.to_dict()
    for key in ("total_s", "step_s", "peak_bytes", "bubble", "exposed_communication", "by_rank",
                "hardware"):
        assert getattr(result, key) == found[key], key


def test_a_trace_is_a_sequence_of_ranks(trained):
    trace = trained.trace
    assert len(list(trace)) == len(trace) == 2 and trace[-1] == trace.events(1)
    with pytest.raises(IndexError):
        trace[2]


# ---- pictures


def pictures():
    yield "1f1b", lambda: shiplap.train("1f1b", ranks=64, layers=64)
    yield "interleaved", lambda: shiplap.train("interleaved", ranks=64, layers=128)
    yield "fsdp", lambda: shiplap.train("fsdp", ranks=64, layers=64)
    yield "hybrid", lambda: shiplap.train("hybrid", mesh={"dp": 2, "pp": 16, "tp": 2}, layers=32)
    yield "simulation", lambda: shiplap.simulate(shiplap.train("gpipe", ranks=64, layers=64))
    yield "trace", lambda: shiplap.train("zb_h1", ranks=64, layers=64).trace
    yield "dispatch", lambda: dispatch.create_qkv_dispatch(64, 65536, 500, 16, seed=1)
    yield "report", lambda: shiplap.check(shiplap.train("1f1b", ranks=64, layers=64))


@pytest.mark.parametrize("make", [make for _, make in pictures()],
                         ids=[name for name, _ in pictures()])
def test_a_picture_of_64_ranks_is_smaller_than_1_mb(make):
    """Notebooks are saved with their pictures."""
    assert len(make()._repr_html_().encode()) < 1_000_000


def test_a_picture_says_what_it_leaves_out():
    picture = shiplap.train("1f1b", ranks=64, layers=64)._repr_html_()
    assert "of 64 different rows are drawn" in picture and "merged into one box" in picture


@pytest.mark.parametrize("strategy", ["1f1b", "ddp", "fsdp"])
def test_the_picture_and_the_text_have_the_same_zero_of_time(strategy):
    training = shiplap.train(strategy, ranks=4, layers=8, batch=8)
    for result in (training, shiplap.simulate(training)):
        text = re.search(r"peak memory +(.*) on (rank \d+), (.*)", str(result)).groups()
        shown = re.sub(r"<[^>]*>", "\n", result._repr_html_())
        picture = re.search(r"Peak memory\s+(\S.*?)\s+on (rank \d+), (.*)", shown).groups()
        assert picture == text


# ---- pages


def test_what_an_error_means_ships_with_the_package(root):
    pages = sorted((root / "docs/diagnostics").glob("D*.md"))
    assert len(pages) > 100
    for page in pages:
        assert shiplap.explain(page.stem) == page.read_text(), page.stem


def test_every_page_that_a_docstring_names_ships_with_the_package(root):
    package = pathlib.Path(shiplap.__file__).parent
    sources = [*package.rglob("*.py"), *package.glob("*.pyi")]
    named = {name for source in sources
             for name in re.findall(r"docs/[a-z_/-]+\.md", source.read_text())}
    assert {"docs/strategy.md", "docs/torch.md", "docs/jax.md"} <= named
    for name in named:
        assert shiplap.explain(name) == (root / name).read_text(), name


def test_json_of_a_result_is_its_dict(trained):
    for name in ("Training", "Simulation", "Report", "Run", "Postmortem"):
        found = RESULTS[name](trained).to_dict()
        assert json.loads(json.dumps(found)) == found
