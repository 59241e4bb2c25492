"""The commands of the command line, with the same names and defaults."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, Union

from shiplap import _shiplap
from shiplap._shiplap import Plan, Postmortem, Report, Run, Simulation
from shiplap._torch_schedule import executed_order, to_csv


class HasPlan(Protocol):
    """An object that has a plan, such as the result of ``train``."""

    @property
    def plan(self) -> Plan:
        """The plan."""
        ...


class TorchSchedule(Protocol):
    """A schedule of torch.distributed.pipelining."""

    pipeline_order: Any  # the actions of each rank; None: idle


Order = Mapping[int, Sequence[Any]]  # the actions of each rank, such as a ``pipeline_order``
Subject = Union[Plan, HasPlan, TorchSchedule, Order, str, "os.PathLike[str]"]


def plan_of(subject: Subject) -> Plan:
    """Returns the plan of a Plan, a training, a schedule of torch, or a file.

    A file is a ``.plan``, its JSON, or a pipeline schedule of torch as ``.csv``. Of a schedule
    object, the order is used that torch executes, and the name of the plan says which that is:
    ``ScheduleDualPipeV.pipeline_order_with_comms``, or ``ScheduleGPipe._step_microbatches`` if the
    order is defined by code.
    """
    if isinstance(subject, Plan):
        return subject
    if isinstance(subject, (str, os.PathLike)):
        path = os.fsdecode(subject)
        if path.endswith(".csv"):
            return Plan.from_schedule(_shiplap._read_file(path), path)
        return Plan.read(path)
    plan = subject.plan if hasattr(type(subject), "plan") else getattr(subject, "plan", None)
    if isinstance(plan, Plan):
        return plan
    if isinstance(subject, Mapping) and all(isinstance(rank, int) for rank in subject):
        return Plan.from_schedule(to_csv(subject), "schedule")
    if hasattr(subject, "pipeline_order"):
        attribute, order = executed_order(subject)
        name = f"{type(subject).__name__}.{attribute}"
        return Plan.from_schedule(to_csv(order), name)
    raise TypeError(
        "expected a Plan, an object with a plan, a pipeline schedule of torch, the actions of each "
        f"rank, or a file name; got {subject!r}"
    )


def check(
    plan: Subject,
    *,
    rules: str = "any",
    sends: str = "both",
    eager: int | None = None,
    symmetry: bool = True,
) -> Report:
    """Checks whether a plan is sound. The result is proved for every rank.

    ``rules`` is the communication library: ``nccl``, ``mpi``, ``gloo``, or ``any`` of them.
    ``sends`` is when a send completes: ``eager`` (at once), ``rendezvous`` (when its receive has
    started), or ``both`` are checked. If ``eager`` is given, sends of up to ``eager`` bytes are
    eager and others rendezvous. Without ``symmetry``, equivalent ranks are all checked, instead of
    one representative.

    >>> report = shiplap.check(shiplap.train("1f1b", ranks=4, layers=4, batch=8))
    >>> report
    <Report 1f1b on 4 ranks: sound, 0 findings>
    """
    return _shiplap.check(
        plan_of(plan), rules=rules, sends=sends, eager=eager, symmetry=symmetry
    )


def simulate(
    plan: Subject, *, hardware: str = "h100_80g_nvl8", eager: int = 0
) -> Simulation:
    """Simulates a plan: its step time and memory.

    ``hardware`` is one of ``known_systems()``, or a file. Messages of up to ``eager`` bytes are
    sent eagerly.

    >>> simulation = shiplap.simulate(shiplap.train("ddp", ranks=8, layers=4, batch=8))
    >>> simulation
    <Simulation ddp on 8 ranks on h100_80g_nvl8: step 1.66 ms, peak memory 536 MiB>
    """
    return _shiplap.simulate(plan_of(plan), hardware=hardware, eager=eager)


def run(plan: Subject, *, steps: int = 5, seed: int = 1) -> Run:
    """Executes a training plan in f32, on one thread per rank.

    To run it in the processes of an MPI job: ``shiplap run step.plan --backend mpi``.

    >>> result = shiplap.run(shiplap.train("fsdp", ranks=2, batch=2, for_run=True), steps=3)
    >>> result.good, len(result.loss)
    (True, 3)
    """
    return _shiplap.run(plan_of(plan), steps=steps, seed=seed)


Contents = Union[bytes, str]
Dumps = Union[
    str,
    "os.PathLike[str]",
    Sequence[Union[str, "os.PathLike[str]"]],
    Mapping[int, Union[Contents, Sequence[Contents]]],
]


def postmortem(
    dumps: Dumps, *, plan: Subject | None = None, hung: bool | str = False, world: int = 0
) -> Postmortem:
    """Says why a job hung: which rank, which call, which line.

    ``dumps`` are flight recorder dumps and stacks: their files or folders, or, by rank, their
    contents (pickle, JSON, or the text of a stack; several of a rank as a list). ``plan`` is what
    the job should do, as recorded by ``shiplap record``. With ``hung``, which may say how it is
    known, the job hangs for sure and needs no proof. ``world`` is the number of ranks, if the dumps
    of the last ones are missing.

    >>> answer = shiplap.postmortem("data/hung_jobs/real/skips_operation/dumps")
    >>> answer.suspects[0].ranks, answer.suspects[0].fault
    ([2], 'divergence')
    """
    intended = None if plan is None else plan_of(plan)
    reason = hung if isinstance(hung, str) else "assumed" if hung else ""
    if isinstance(dumps, (str, os.PathLike)):
        dumps = [dumps]
    if not isinstance(dumps, Mapping):
        paths = [os.fsdecode(path) for path in dumps]
        return _shiplap._postmortem_files(paths, reason, world, intended)
    contents = []
    for rank, each in dumps.items():
        several = [each] if isinstance(each, (bytes, str)) else each
        contents += [(rank, one.encode() if isinstance(one, str) else one) for one in several]
    return _shiplap._postmortem_contents(contents, reason, world, intended)


class Answer(dict[str, Any]):
    """The ``--json`` output of a command as a dict; ``text`` is the readable output."""

    text: str = ""

    def to_dict(self) -> dict[str, Any]:
        """A plain dict."""
        return dict(self)

    def __repr__(self) -> str:
        return self.text.rstrip()


def _arguments(flags: dict[str, Any]) -> list[str]:
    arguments = []
    for name, value in flags.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            arguments.append(flag)
        elif value is not None and value is not False:
            arguments += [flag, str(value)]
    return arguments


def overlap(**flags: Any) -> Answer:
    """Overlaps a GEMM with its communication: how to split it into chunks, and the time saved.

    The arguments are the flags of ``shiplap overlap``:

    >>> shiplap.overlap(op="ag", m=8192, n=8192, k=8192, tp=8, method="auto",
    ...                 hardware="h100_80g_nvl8")["schema"]
    'shiplap.overlap.auto/1'
    """
    for name in {"json", "help"} & flags.keys():
        raise TypeError(f"{name} is unsupported: the result is a dict; help is in the docstring")
    if "backend" in flags:
        raise TypeError("backend is unsupported: for MPI jobs, run `shiplap overlap`")
    answer = Answer()
    found, answer.text = _shiplap._overlap(_arguments(flags))
    answer.update(found)
    return answer


def explain(code: str) -> str:
    """Returns the documentation of a diagnostic.

    >>> print(shiplap.explain("D720").splitlines()[0])
    # D720: a deadlock
    """
    return _shiplap._explain(code)
