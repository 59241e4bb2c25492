"""Strategies are type-checked: mypy infers the type of `await model.all_reduce(..)`."""

import pathlib

import pytest
from types_checker import mypy

pytest.importorskip("mypy")

TWINS = pathlib.Path(__file__).with_name("twins.py")

WRONG = """
from shiplap.strategy import Model

async def strategy(model: Model) -> None:
    weights, _, activations, _, grad_weights = model.storage()
    grad_weights[0] = model.all_reduce(grad_weights[0], 0)
    activations[0] = await model.all_gather(weights[0], 0)
    weights["a"] = await model.all_gather(weights[0], 0)
"""


def test_types_of_strategies(tmp_path):
    assert mypy(TWINS, tmp_path / "cache").stdout.startswith("Success")
    (tmp_path / "wrong.py").write_text(WRONG, encoding="utf-8")
    told = mypy(tmp_path / "wrong.py", tmp_path / "cache").stdout
    assert "Communication[WeightGrad]" in told
    assert "expected \"Activation\"" in told
    assert told.count("error:") == 3
