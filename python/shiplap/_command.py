"""Commands that have no objects of their own in Python yet: their flags are keyword arguments."""

import json
from typing import Any

from shiplap import _shiplap


class Answer(dict[str, Any]):
    """What a command answers with ``--json``: a dict, whose ``text`` is what people are shown."""

    text: str

    def to_dict(self) -> dict[str, Any]:
        """A plain dict."""
        return dict(self)

    def __repr__(self) -> str:
        return self.text


def _words(arguments: dict[str, Any]) -> list[str]:
    words = []
    for name, value in arguments.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            words.append(flag)
        elif value is not None and value is not False:
            words += [flag, str(value)]
    return words


def _raise_if_wrong(code: int, out: str, err: str) -> None:
    if code < 2:
        return
    try:
        found = json.loads(out)
    except ValueError:
        found = {}
    kind = {2: _shiplap.InputError, 3: _shiplap.MissingPart}.get(code, _shiplap.InternalError)
    error = kind(err.rstrip())
    error.diagnostics = found.get("diagnostics", [])
    raise error


def ask(verb: str, *words: str, **flags: Any) -> Answer:
    """Runs a command: ``ask("overlap", op="ag", m=1024, ..)`` is ``shiplap overlap --op ag ..``."""
    arguments = [verb, *words, *_words(flags)]
    code, out, err = _shiplap._command([*arguments, "--json"])
    _raise_if_wrong(code, out, err)
    answer = Answer(json.loads(out))
    answer.text = _shiplap._command(arguments)[1]
    return answer


def overlap(**flags: Any) -> Answer:
    """A product whose communication is hidden: how to cut it, and what that saves.

    The flags are those of ``shiplap overlap``:

    >>> found = shiplap.overlap(op="ag", m=8192, n=8192, k=8192, tp=8, method="auto")
    >>> print(found.text.splitlines()[0])
    """
    return ask("overlap", **flags)


def explain(code: str) -> str:
    """The page about a diagnostic.

    >>> print(shiplap.explain("D720").splitlines()[0])
    """
    status, out, err = _shiplap._command(["explain", code])
    _raise_if_wrong(status, out, err)
    return out
