"""The examples in the docstrings of shiplap.dispatch and shiplap.torch."""

import doctest
import importlib

import pytest

import shiplap


@pytest.mark.parametrize("name, needs", [("shiplap.dispatch", "numpy"), ("shiplap.torch", "torch")])
def test_docstrings_say_what_happens(name, needs):
    globs = {"shiplap": shiplap, needs: pytest.importorskip(needs)}
    module = importlib.import_module(name)
    runner = doctest.DocTestRunner()
    parser = doctest.DocTestParser()
    for owner in ["__doc__", *module.__all__]:
        text = module.__doc__ if owner == "__doc__" else getattr(module, owner).__doc__
        assert text, f"{owner} has no docstring"
        runner.run(parser.get_doctest(text, dict(globs), f"{name}.{owner}", None, None))
    results = runner.summarize()
    assert results.failed == 0 and results.attempted > 5
