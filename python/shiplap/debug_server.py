"""A page of torch's debug server that says why the job hangs.

On every rank, after ``init_process_group`` (torch 2.15 or newer)::

    from shiplap.debug_server import PostmortemHandler
    from torch.distributed.debug import start_debug_server
    from torch.distributed.debug._debug_handlers import default_handlers

    start_debug_server(handlers=[*default_handlers(), PostmortemHandler()])

Then rank 0 serves ``/postmortem``, the answer of ``shiplap.postmortem`` about this moment, with
``/postmortem_report`` and ``/postmortem_json``. The module of torch is private and may change.
"""

from __future__ import annotations

import base64
import html
import json
import sys
import threading
import time
from typing import Any

from shiplap import _errors
from shiplap._results import Postmortem
from shiplap._shiplap import Plan
from shiplap._verbs import Contents, Subject, plan_of, postmortem

try:
    from torch._C import _distributed_c10d as _c10d
    from torch.distributed.debug import _frontend, _store
except ImportError as error:

    class _Missing(_errors.MissingDependency, ImportError):
        """Callers can catch either base class."""

    raise _Missing(
        "shiplap.debug_server needs the debug server of torch 2.15 and what it needs: "
        f"pip install torch jinja2 tabulate aiohttp ({error})"
    ) from error

__all__ = ["PostmortemHandler"]

_ENDPOINT = "shiplap_dump"
_TORCHS_ENDPOINTS = ("dump_nccl_trace_json", "fr_trace_json", "dump_traceback")
_LOOK = """
<style>pre { font-size: 0.9rem; overflow-x: auto; white-space: pre-wrap }</style>
<h1>Postmortem</h1>
<p><a href="/postmortem_report">report</a> <a href="/postmortem_json">JSON</a></p>
"""


def _stack_of_main_thread() -> str:
    """In the format of faulthandler, which needs a file."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    lines = ["Thread main (most recent call first):"]
    while frame is not None:
        code = frame.f_code
        lines.append(f'  File "{code.co_filename}", line {frame.f_lineno} in {code.co_name}')
        frame = frame.f_back
    return "\n".join(lines) + "\n"


def _dump(request: Any, response: Any) -> None:
    """The answer of a rank: its recorders, with the lines of calls, and its stack."""
    dumps = [
        dump() for dump in (_c10d._dump_nccl_trace, _c10d._dump_fr_trace)
    ]
    answer = {
        "dumps": [base64.b64encode(dump).decode() for dump in dumps if dump],
        "stack": _stack_of_main_thread(),
    }
    response.set_content(json.dumps(answer), "application/json")
    response.set_status(200)


class PostmortemHandler(_frontend.DebugHandler):
    """Serves ``/postmortem``, and writes it with the periodic dumps (``dump_dir``).

    Construct it on every rank: each then gives the lines of its calls. Of ranks without it, only
    what torch's own endpoints tell is known. ``plan`` is what the job should do, as recorded by
    ``shiplap record``. If no rank has made a call for ``still`` seconds between two requests, or
    between two periodic dumps, the job is taken to hang.
    """

    def __init__(self, plan: Subject | None = None, *, still: float = 30.0) -> None:
        self._plan: Plan | None = None if plan is None else plan_of(plan)
        self._still = still
        self._seen: tuple[str, float] | None = None  # where all ranks were, since when
        _c10d._register_handler(_ENDPOINT, _dump)

    def routes(self) -> list[Any]:
        """The pages."""
        return [
            _frontend.Route("/postmortem", self._page),
            _frontend.Route("/postmortem_report", self._report),
            _frontend.Route("/postmortem_json", self._json),
        ]

    def nav_links(self) -> list[Any]:
        """Its link in the headline of all pages."""
        return [_frontend.NavLink("/postmortem", "Postmortem")]

    def templates(self) -> dict[str, str]:
        """The page."""
        return {
            "postmortem.html": '{% extends "base.html" %}{% block title %}Postmortem{% endblock %}'
            "{% block content %}" + _LOOK + "<pre>{{ text | safe }}</pre>{% endblock %}"
        }

    def dump(self) -> str:
        """For the periodic dumps; ``enabled_dumps`` must have ``postmortem``."""
        return str(self.ask())

    def dump_filename(self) -> str:
        """The beginning of the names of its files."""
        return "postmortem"

    def ask(self) -> Postmortem:
        """Asks all ranks, on rank 0."""
        contents = self._fetch()
        world = _store.get_world_size()
        answer = postmortem(contents, plan=self._plan, world=world)
        if answer.status == "undecided" and self._is_still(answer):
            reason = f"no rank has made a call for {self._still:g} s"
            answer = postmortem(contents, plan=self._plan, world=world, hung=reason)
        return answer

    def _is_still(self, answer: Postmortem) -> bool:
        now = time.monotonic()
        where = json.dumps(answer.to_dict()["positions"])
        if self._seen is None or self._seen[0] != where:
            self._seen = (where, now)
        return now - self._seen[1] >= self._still

    def _fetch(self) -> dict[int, list[Contents]]:
        contents: dict[int, list[Contents]] = {}
        others = []
        for rank, response in enumerate(self._all(_ENDPOINT)):
            if response.status_code == 404:
                others.append(rank)
            elif response.status_code == 200:
                answer = response.json()
                contents[rank] = [base64.b64decode(dump) for dump in answer["dumps"]]
                contents[rank].append(answer["stack"])
        if others:  # they have no handler of ours
            for endpoint in _TORCHS_ENDPOINTS:
                responses = self._all(endpoint)
                for rank in others:
                    if responses[rank].status_code == 200 and responses[rank].text:
                        contents.setdefault(rank, []).append(responses[rank].text)
        return contents

    def _all(self, endpoint: str) -> list[Any]:
        _, responses = _frontend.fetch_all(endpoint, timeout=self.fetch_timeout)
        return responses

    def _page(self, request: Any) -> bytes:
        text = html.escape(str(self.ask()))
        return request.frontend.render_template("postmortem.html", text=text)

    def _report(self, request: Any) -> bytes:
        return self.ask().html().encode()

    def _json(self, request: Any) -> bytes:
        return json.dumps(self.ask().to_dict()).encode()
