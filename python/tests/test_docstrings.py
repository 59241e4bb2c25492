"""Every public name has a docstring, and their examples are correct."""

import doctest
import importlib
import inspect
import pkgutil
import sys

import pytest

import shiplap

FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


def modules():
    """The modules of the package, without those whose dependencies are missing."""
    found = [shiplap]
    for info in pkgutil.iter_modules(shiplap.__path__):
        if info.name == "__main__":
            continue
        try:
            found.append(importlib.import_module(f"shiplap.{info.name}"))
        except ImportError as error:
            assert "pip install" in str(error), error
    return found


def documented(owner, name, seen):
    """The object, and of a class its public members."""
    if id(owner) in seen:
        return
    seen[id(owner)] = owner
    yield name, owner
    if not inspect.isclass(owner):
        return
    for member in vars(owner):
        if not member.startswith("_"):
            yield f"{name}.{member}", inspect.getattr_static(owner, member)


def everything():
    seen = {}
    for module in modules():
        yield module.__name__, module
        for name, value in vars(module).items():
            own = str(getattr(value, "__module__", "")).startswith("shiplap")
            callable_ = inspect.isclass(value) or callable(value)
            if own and callable_ and not name.startswith("_"):
                yield from documented(value, f"{module.__name__}.{name}", seen)


EVERYTHING = list(everything())


def namespace():
    """What examples may use without saying so."""
    names = {"shiplap": shiplap}
    if "torch" in sys.modules:
        names["torch"] = sys.modules["torch"]
    return names


def test_there_is_something():
    assert len(EVERYTHING) > 50


@pytest.mark.parametrize(("name", "value"), EVERYTHING, ids=[name for name, _ in EVERYTHING])
def test_examples(name, value):
    text = inspect.getdoc(value) or ""
    test = doctest.DocTestParser().get_doctest(text, namespace(), name, None, None)
    if not test.examples:
        return
    said = []
    results = doctest.DocTestRunner(optionflags=FLAGS).run(test, out=said.append)
    assert results.failed == 0, "".join(said)


def test_classes_and_functions_have_docstrings():
    without = [
        name
        for name, value in EVERYTHING
        if name.count(".") < 3 and not (inspect.getdoc(value) or "").strip()
    ]
    assert without == []
