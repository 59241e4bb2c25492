"""The notebook with the puzzles runs, and its stored outputs are up to date."""

import json
import pathlib
import sys

import nbformat
import pytest

import shiplap
from twins import TWINS

ROOT = pathlib.Path(__file__).resolve().parents[2]
PATH = ROOT / "examples" / "puzzles.ipynb"
sys.path.insert(0, str(ROOT / "tools"))

import notebook as tool  # noqa: E402

FIGURES = """
import json
print(json.dumps({n: {"plan": t.plan.to_text(), "time": t.total_s, "step": t.step_s,
                      "peak": t.peak_bytes, "ranks": len(t.models), "loss": curves[n]}
                  for n, t in results.items()}))
"""


@pytest.fixture(scope="module")
def stored():
    return nbformat.read(PATH, as_version=4)


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    asking = nbformat.read(PATH, as_version=4)
    asking.cells.append(nbformat.v4.new_code_cell(FIGURES))
    path = tmp_path_factory.mktemp("notebook") / "puzzles.ipynb"
    nbformat.write(asking, path)
    return tool.executed(path)


@pytest.fixture(scope="module")
def figures(executed):
    return json.loads(executed.cells[-1].outputs[0].text)


def outputs(notebook):
    """What each cell prints, and what it shows: the two may come in either order."""
    return [("".join(output.get("text", "") for output in cell.outputs),
             [dict(output["data"]) for output in cell.outputs if "data" in output])
            for cell in notebook.cells if cell.cell_type == "code"]


def test_what_is_stored_is_what_it_gives(stored, executed):
    found = outputs(executed)[:-1]
    assert outputs(stored) == found, "run tools/notebook.py examples/puzzles.ipynb"
    assert PATH.stat().st_size < 1_500_000


def test_all_eight_puzzles_have_a_picture(stored):
    titles = [line for cell in stored.cells if cell.cell_type == "markdown"
              for line in cell.source.splitlines() if line.startswith("## ")]
    assert [title[3] for title in titles[:8]] == list("01234567")
    pictures = [shown["text/html"] for _, all_shown in outputs(stored) for shown in all_shown]
    assert len(pictures) == 8
    assert all("</svg>" in picture for picture in pictures)


def test_every_puzzle_is_sound_and_takes_what_its_plan_takes(figures):
    assert len(figures) == 8
    for name, found in figures.items():
        plan = shiplap.Plan.parse(found["plan"], name)
        assert shiplap.check(plan).sound, name
        simulation = shiplap.simulate(plan)
        assert simulation.total_s == pytest.approx(found["time"], rel=1e-12), name
        assert simulation.peak_bytes == found["peak"], name


def test_every_puzzle_trains_to_the_losses_of_one_rank(figures):
    alone = shiplap.train("single", layers=8, batch=16, for_run=True)
    expected = shiplap.run(alone.plan, steps=5).loss
    for name, found in figures.items():
        assert found["loss"] == pytest.approx(expected, rel=1e-4), name


def test_data_parallel_is_that_of_the_library(figures):
    for same in ("ddp", TWINS["ddp"]):
        training = shiplap.train(same, ranks=4, layers=8, batch=16)
        assert training.plan == shiplap.Plan.parse(figures["ddp"]["plan"])


# They free the same in another order, which takes no time.
@pytest.mark.parametrize("puzzle, strategy", [
    ("ddp", "ddp"), ("weights_sharded", "weight_sharded"), ("fully_sharded", "fsdp")])
def test_those_that_the_library_has_take_the_same(figures, puzzle, strategy):
    training = shiplap.train(strategy, ranks=4, layers=8, batch=16)
    assert training.total_s == figures[puzzle]["time"]
    assert training.peak_bytes == figures[puzzle]["peak"]


def test_each_puzzle_improves_on_what_came_before(figures):
    step = {name: found["step"] for name, found in figures.items()}
    peak = {name: found["peak"] for name, found in figures.items()}
    assert peak["accumulation"] < 0.7 * peak["standard"]
    assert step["ddp"] < 0.4 * step["standard"]
    assert peak["weights_sharded"] < 0.6 * peak["ddp"]
    assert step["fully_sharded"] < 0.7 * step["weights_sharded"]
    assert peak["pipeline"] < 0.5 * peak["standard"]
    assert step["gpipe"] < 0.7 * step["pipeline"]
    assert peak["pipeline_fsdp"] < peak["gpipe"]
