"""The results of ``train``, ``check``, ``simulate``, ``run`` and ``postmortem``: frozen values.

They pickle and copy. An attribute has the name of its key in ``to_dict()`` and in the JSON of the
command line.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
import os
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from shiplap import _shiplap
from shiplap._errors import InputAttributeError

if TYPE_CHECKING:
    from shiplap._shiplap import Diagnostic, Model, Plan, Trace


@dataclasses.dataclass(frozen=True)
class Event:
    """One event on one rank. Times are in seconds from the first event of all ranks."""

    kind: str  #: ``forward``, ..
    rank: int
    layer: int | None
    stream: int  #: 0 is ``main``
    peer: int | None  #: the other rank of a message
    time_s: float  #: when it starts
    duration_s: float
    bytes: int  #: of communication
    memory: int  #: bytes in use
    samples: frozenset[int]

    @property
    def typ(self) -> str:
        """The kind, under the name that the puzzles have for it."""
        return self.kind

    @property
    def end_s(self) -> float:
        """When it ends."""
        return self.time_s + self.duration_s

    def __repr__(self) -> str:
        where = "" if self.layer is None else f" layer {self.layer}"
        return (
            f"<{self.kind}{where} on rank {self.rank} at {_shiplap._seconds(self.time_s)}, "
            f"{_shiplap._seconds(self.duration_s)}>"
        )


class _Timed:
    """What results with a timeline have in common."""

    if TYPE_CHECKING:  # a dataclass would take them for defaults of its fields

        @property
        def _numbers(self) -> dict[str, Any]: ...
        @property
        def trace(self) -> Trace: ...

    @property
    def total_s(self) -> float:
        """Seconds, with loading the weights."""
        return float(self._numbers["total_s"])

    @property
    def step_s(self) -> float:
        """Seconds of a step, without loading the weights."""
        return float(self._numbers["step_s"])

    @property
    def peak_bytes(self) -> int:
        """The peak memory, the maximum over ranks."""
        return int(self._numbers["peak_bytes"])

    @property
    def bubble(self) -> float | None:
        """The fraction of the ranks' time between the first forward and the last backward in which
        they are idle; None without a pipeline."""
        found: float | None = self._numbers["bubble"]
        return found

    @property
    def exposed_communication(self) -> float:
        """The fraction of the ranks' time with exposed communication."""
        return float(self._numbers["exposed_communication"])

    @property
    def by_rank(self) -> list[dict[str, Any]]:
        """Of each rank, seconds of computation and communication, and its peak memory."""
        return [dict(rank) for rank in self._numbers["by_rank"]]

    def __str__(self) -> str:
        return str(self.trace)

    def _repr_html_(self) -> str:
        return self.trace._repr_html_()


@dataclasses.dataclass(frozen=True)
class MemoryFit:
    """Whether a plan fits into the memory of the device. It is true if it fits; otherwise its text
    says why not."""

    problem: Diagnostic | None  #: D635, or None

    def __bool__(self) -> bool:
        return self.problem is None

    def __str__(self) -> str:
        return "fits" if self.problem is None else self.problem.what

    def __repr__(self) -> str:
        return f"<MemoryFit: {self}>"


@dataclasses.dataclass(frozen=True, repr=False)
class Simulation(_Timed):
    """The result of simulating a plan. It is true if the plan can be executed and fits into the
    memory of the device."""

    plan: Plan
    hardware: str
    trace: Trace
    warnings: list[Diagnostic]  #: D634: tensor-parallel groups that span nodes
    problems: list[Diagnostic]  #: a deadlock, mismatched operations, out of memory
    conditions: list[str]  #: that are not the default, such as "contention between transfers"

    @functools.cached_property
    def _numbers(self) -> dict[str, Any]:
        return self.trace.summary()

    @property
    def fits(self) -> MemoryFit:
        """Whether it fits into the memory of the device, and if not, why."""
        return MemoryFit(next((p for p in self.problems if p.code == "D635"), None))

    def to_dict(self) -> dict[str, Any]:
        """Schema ``shiplap.simulate/1``."""
        return {
            "schema": "shiplap.simulate/1",
            "name": self.plan.name,
            "hardware": self.hardware,
            "conditions": list(self.conditions),
            **self.trace.summary(),
            "warnings": [one.to_dict() for one in self.warnings],
            "problems": [one.to_dict() for one in self.problems],
        }

    def __hash__(self) -> int:
        return hash((type(self), self.plan))

    def __bool__(self) -> bool:
        return not self.problems

    def __repr__(self) -> str:
        fatal = [problem for problem in self.problems if problem.code != "D635"]
        if fatal:
            return f"<Simulation {self.plan.name}: cannot be executed, {fatal[0].what}>"
        where = ", with ".join([self.hardware, *self.conditions])
        return (
            f"<Simulation {self.plan.name} on {where}: step "
            f"{_shiplap._seconds(self.step_s)}, peak memory {_shiplap._bytes(self.peak_bytes)}"
            f"{'' if self.fits else ', out of memory'}>"
        )


@dataclasses.dataclass(frozen=True)
class _Trained:
    """A training without its models: what a pickle keeps."""

    name: str
    title: str
    trace: Trace
    numbers: dict[str, Any]
    planned: Plan | InputAttributeError

    def to_dict(self) -> dict[str, Any]:
        return copy.deepcopy(self.numbers)

    @property
    def plan(self) -> Plan:
        if isinstance(self.planned, InputAttributeError):
            raise self.planned
        return self.planned

    @property
    def models(self) -> NoReturn:
        raise InputAttributeError("models are not copied or pickled with their training")


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class Training(_Timed):
    """The result of training a strategy in virtual time. Its plan and its times are computed when
    they are first used."""

    _live: Any

    @functools.cached_property
    def _numbers(self) -> dict[str, Any]:
        found: dict[str, Any] = self._live.to_dict()
        return found

    @property
    def name(self) -> str:
        """The name of the strategy."""
        return str(self._live.name)

    @property
    def hardware(self) -> str:
        """The name of the machine."""
        return str(self._numbers["hardware"])

    @property
    def plan(self) -> Plan:
        """The recorded plan, to be checked, simulated and run."""
        plan: Plan = self._live.plan
        return plan

    @property
    def trace(self) -> Trace:
        """The events of all ranks."""
        trace: Trace = self._live.trace
        return trace

    @property
    def models(self) -> list[Model]:
        """The final Model of each rank. A copy or a pickle has none."""
        models: list[Model] = self._live.models
        return models

    def to_dict(self) -> dict[str, Any]:
        """Schema ``shiplap.train/1``."""
        found: dict[str, Any] = self._live.to_dict()
        return found

    def __repr__(self) -> str:
        return (
            f"<Training {self._live.title} of {self.hardware}: step "
            f"{_shiplap._seconds(self.step_s)}, peak memory {_shiplap._bytes(self.peak_bytes)}>"
        )

    def __reduce__(self) -> Any:
        if isinstance(self._live, _Trained):
            return (Training, (self._live,))
        planned: Plan | InputAttributeError
        try:
            planned = self.plan
        except InputAttributeError as error:
            planned = error
        return (
            Training,
            (_Trained(self.name, self._live.title, self.trace, self.to_dict(), planned),),
        )


@dataclasses.dataclass(frozen=True, repr=False)
class Run:
    """The result of executing a training plan."""

    plan: Plan
    loss: list[float]  #: after each step
    step_s: list[float]  #: seconds of each step, on the slowest rank
    unequal_weights: int  #: the number of weight elements that differ between two ranks
    trace: Trace  #: of the last step

    def __hash__(self) -> int:
        return hash((type(self), self.plan))

    @property
    def good(self) -> bool:
        """Whether all losses are finite and the weights agree between ranks."""
        return self.unequal_weights == 0 and all(map(math.isfinite, self.loss))

    def to_dict(self) -> dict[str, Any]:
        """Schema ``shiplap.run/1``."""
        return {
            "schema": "shiplap.run/1",
            "name": self.plan.name,
            "backend": "threads",
            "ranks": self.plan.ranks,
            "loss": list(self.loss),
            "step_s": list(self.step_s),
            "clock_uncertainty_s": 0.0,  # threads share a clock
            "unequal_weights": self.unequal_weights,
        }

    def __repr__(self) -> str:
        return (
            f"<Run {self.plan.name}: {len(self.loss)} steps, loss {self.loss[0]:.6f} to "
            f"{self.loss[-1]:.6f}>"
        )

    def _repr_html_(self) -> str:
        return self.trace._repr_html_()


@dataclasses.dataclass(frozen=True, repr=False)
class Finding:
    """One root cause. Follow-on errors are folded into it."""

    diagnostic: Diagnostic
    notes: list[Diagnostic]  #: the witness as text: the wait cycle, the two operations
    rank: int | None = dataclasses.field(compare=False)
    folded: int = dataclasses.field(compare=False)  #: the number of suppressed follow-on errors
    #: whether it is a deadlock only with rendezvous sends
    only_rendezvous: bool = dataclasses.field(compare=False)

    def __hash__(self) -> int:
        return hash(self.diagnostic)

    @property
    def code(self) -> str:
        """``D720``."""
        return self.diagnostic.code

    @property
    def severity(self) -> str:
        """``error`` or ``warning``."""
        return self.diagnostic.severity

    @property
    def what(self) -> str:
        """One line."""
        return self.diagnostic.what

    @property
    def why(self) -> str:
        """The violated rule."""
        return self.diagnostic.why

    @property
    def help(self) -> str:
        """The smallest fix."""
        return self.diagnostic.help

    @property
    def operation(self) -> str:
        """The operation of the finding."""
        return self.diagnostic.operation

    @property
    def line(self) -> int:
        """The line in the plan's text, from 1; 0: unknown."""
        return self.diagnostic.line

    def to_dict(self) -> dict[str, Any]:
        """The diagnostic as JSON."""
        return self.diagnostic.to_dict()

    def __str__(self) -> str:
        return "\n".join(map(str, [self.diagnostic, *self.notes]))

    def __repr__(self) -> str:
        return f"<{self.code}: {self.what}>"


@dataclasses.dataclass(frozen=True, repr=False)
class Report:
    """The result of ``check``. It is true if the plan is sound."""

    plan: Plan
    sound: bool
    findings: list[Finding]  #: errors and warnings, the most severe first
    ranks: int
    operations: int  #: the number of checked operations
    _texts: tuple[str, str] = dataclasses.field(compare=False)  # brief and verbose
    _json: dict[str, Any] = dataclasses.field(compare=False)
    _sarif: dict[str, Any] = dataclasses.field(compare=False)
    _options: dict[str, Any] = dataclasses.field(compare=False)

    def __hash__(self) -> int:
        return hash((type(self), self.plan))

    @property
    def codes(self) -> list[str]:
        """The codes of the findings."""
        return [finding.code for finding in self.findings]

    def text(self, *, verbose: bool = False) -> str:
        """Returns the findings and the verdict; with ``verbose``, also what was proved, how much of
        it, and what was assumed."""
        return self._texts[verbose]

    def fix(self) -> tuple[Plan, str] | None:
        """Returns the plan with the smallest reordering that makes it sound, and a description of
        the change; None if swapping two operations does not fix it."""
        return _shiplap._fix(self.plan, **self._options)

    def to_dict(self) -> dict[str, Any]:
        """Schema ``shiplap.check/1``."""
        return copy.deepcopy(self._json)

    def to_sarif(self) -> dict[str, Any]:
        """SARIF 2.1.0, for code scanning."""
        return copy.deepcopy(self._sarif)

    def __bool__(self) -> bool:
        return self.sound

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        count = len(self.findings)
        return (
            f"<Report {self.plan.name}: {'sound' if self.sound else 'not sound'}, "
            f"{count} finding{'' if count == 1 else 's'}>"
        )

    def _repr_html_(self) -> str:
        return _shiplap._pre(self.text())


@dataclasses.dataclass(frozen=True, repr=False)
class CallSite:
    """A call of a rank."""

    rank: int
    operation: str  #: ``all_reduce``
    group: str  #: the name of the group and its ranks
    sequence: int  #: its number on the group
    arguments: str  #: ``f32 [4096]``
    line: str  #: ``train.py:88``, the innermost line of yours; empty if there is no stack
    function: str

    @classmethod
    def _of(cls, found: dict[str, Any] | None) -> CallSite | None:
        if found is None:
            return None
        frame = found["frame"]
        return cls(found["rank"], found["operation"], found["group"], found["sequence"],
                   found["arguments"], f"{frame['file']}:{frame['line']}" if frame else "",
                   frame["function"] if frame else "")

    def __repr__(self) -> str:
        return f"<{self.operation} {self.arguments} on {self.group}>"


@dataclasses.dataclass(frozen=True, repr=False)
class Suspect:
    """Ranks that may have made a job hang."""

    ranks: list[int]
    fault: Literal["absent", "cpu_stuck", "divergence", "device_stuck", "order_across_groups",
                   "message_cycle", "slow"]
    divergence: str  #: how its program differs: ``skipped``, ``size``, ..; ``none``
    confidence: float  #: 0 to 1
    what: str  #: one line
    evidence: list[str]
    by_plan: str  #: what the plan says of it
    would_help: str  #: what would raise the confidence
    at: CallSite | None  #: its last call, or the one that differs
    expected: CallSite | None  #: the call that the others make, or wait in
    victims: int  #: how many ranks wait for it, directly or not

    def __hash__(self) -> int:
        return hash((type(self), self.what, self.at))

    def __repr__(self) -> str:
        return f"<Suspect {100 * self.confidence:.0f} %: {self.what}>"


@dataclasses.dataclass(frozen=True, repr=False)
class Postmortem:
    """Why a job hung; the result of ``postmortem``."""

    #: ``undecided``: calls are pending, and nothing proves that they will not end
    status: Literal["hung", "slow", "undecided", "finished"]
    suspects: list[Suspect]  #: the most likely first
    proof: list[str]  #: why the job hung
    world: int
    absent: list[int]  #: ranks without a dump
    notes: list[str]  #: about the files
    _json: dict[str, Any]
    _text: str = dataclasses.field(compare=False)
    _html: str = dataclasses.field(compare=False)

    @classmethod
    def _of(cls, json: dict[str, Any], text: str, html: str) -> Postmortem:
        found = copy.deepcopy(json)
        suspects = [
            Suspect(**{**one, "at": CallSite._of(one["at"]),
                       "expected": CallSite._of(one["expected"])})
            for one in found["suspects"]
        ]
        return cls(found["status"], suspects, found["proof"], found["world"], found["absent"],
                   found["notes"], json, text, html)

    def __hash__(self) -> int:
        return hash((type(self), self.status, self.world, *self.suspects))

    @property
    def found_culprit(self) -> bool:
        """Whether a rank is to blame, beyond being late."""
        return self.status == "hung" and bool(self.suspects)

    def to_dict(self) -> dict[str, Any]:
        """Schema ``shiplap.postmortem/1``."""
        return copy.deepcopy(self._json)

    def html(self) -> str:
        """Returns the report as the text of one HTML page."""
        return self._html

    def save_report(self, path: str | os.PathLike[str]) -> None:
        """Writes the report as one HTML file."""
        _shiplap._write_file(os.fsdecode(path), self._html)

    def __str__(self) -> str:
        return self._text.rstrip("\n")

    def __repr__(self) -> str:
        what = self.suspects[0].what if self.suspects else self.status
        return f"<Postmortem of {self.world} ranks: {what}>"

    def _repr_html_(self) -> str:
        return _shiplap._pre(str(self))


for _result in (Event, Finding, MemoryFit, Postmortem, Simulation, Suspect, Training, Run, Report):
    _result.__module__ = "shiplap"  # the public module, also for pickle
