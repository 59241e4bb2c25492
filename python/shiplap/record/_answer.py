"""The result of a recording, and what is said about it."""

from __future__ import annotations

import inspect
import os
import pickle
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import shiplap
from shiplap.record import _events as ev
from shiplap.record._launch import RankSettings, launch
from shiplap.record._mesh import Mesh, spans
from shiplap.record._to_plan import channels_of, to_plan

MODES = ("fake", "gloo")
_MAX_NOTES = 5
_MAX_ALL_RANKS = 16


class RecordingError(Exception):
    """The script did not run to its end on some rank."""


@dataclass
class Traffic:
    """The calls of one kind on one group, on the rank that moves most."""

    kind: str
    group: str
    calls: int
    bytes: int


@dataclass
class Recorded:
    """The program of all ranks."""

    plan: shiplap.Plan
    world: int
    kinds: list[list[int]]  # ranks with equal programs
    steps: int
    mesh: str
    rules: Literal["nccl", "gloo"]  # of the library that the script uses: "nccl" or "gloo"
    traffic: list[Traffic]
    recorded: int  # ranks
    value_reads: dict[
        str, int
    ]  # lines that read numbers that depend on data, and on how many ranks
    group_errors: list[str]  # groups that ranks create in a different order
    incomplete: dict[int, str]  # by rank: the call that it did not complete, if it ran for real
    seconds: float
    peak_bytes: int  # of a process

    def check(self) -> shiplap.Report:
        """The report of ``shiplap.check``, by the rules of the library that the script uses."""
        return shiplap.check(self.plan, rules=self.rules)

    def text(self) -> str:
        """What was recorded, without the verdict."""
        kinds = "all alike" if len(self.kinds) == 1 else f"{len(self.kinds)} kinds"
        lines = [
            f"{self.world} ranks ({kinds}), {self.steps} steps, mesh {self.mesh}"
            + (f"; recorded {self.recorded} ranks" if self.recorded < self.world else ""),
            f"{self.seconds:.1f} s, {self.peak_bytes >> 20} MiB a process",
        ]
        if self.traffic:
            width = max(len(row.group) for row in self.traffic) + 2
            lines += ["", f"{'call':<16}{'group':<{width}}{'calls':>8}{'MiB':>12}"]
            for row in self.traffic:
                lines.append(
                    f"{row.kind:<16}{row.group:<{width}}{row.calls:>8}{row.bytes / 2**20:>12.2f}"
                )
        if self.value_reads:
            lines.append("")
        for place in list(self.value_reads)[:_MAX_NOTES]:
            place = place.rpartition("site-packages/")[2]
            lines.append(
                f"note: {place} reads a number that depends on data; "
                "all ranks got the same stand-in"
            )
        if len(self.value_reads) > _MAX_NOTES:
            lines.append(f"note: {len(self.value_reads) - _MAX_NOTES} more lines read such numbers")
        for what, ranks in _by_value(self.incomplete).items():
            lines.append(f"note: rank {spans(ranks)} did not complete {what}")
        return "\n".join(lines) + "\n"


def record_script(
    script: str,
    arguments: list[str] | None = None,
    *,
    world: int,
    steps: int = 2,
    ranks_per_node: int = 8,
    devices: bool = True,
    all_ranks: bool = False,
    jobs: int | None = None,
    is_module: bool = False,
    mode: str = "fake",
    timeout: float = 30.0,
    progress: Callable[[int, int], None] | None = None,
) -> Recorded:
    """Runs a script once for each rank and returns the program of all ranks.

    ``script`` is a file, or the name of a module with ``is_module``, as after ``python -m``.
    Of more than 16 ranks those are recorded that stand for all, unless ``all_ranks`` is given. A
    rank ends after ``steps`` optimizer steps; 0: when the script does. Without ``devices`` the
    ranks have no GPUs. ``jobs`` ranks run at a time. With ``mode="gloo"`` all ranks run at the same
    time, on the CPU and through real process groups; a call that takes longer than ``timeout``
    seconds ends its rank, and the recording says where. ``progress`` is called with the numbers of
    ranks that are done and of all.
    """
    if mode not in MODES:
        raise ValueError(f"there is no mode {mode!r}; modes: {', '.join(MODES)}")
    if not is_module and not os.path.isfile(script):
        raise FileNotFoundError(script)
    start = time.monotonic()
    settings = RankSettings(
        script,
        arguments or [],
        world,
        steps,
        ranks_per_node,
        devices,
        is_module,
        real_timeout=timeout if mode == "gloo" else 0.0,
    )
    find_kinds = world > _MAX_ALL_RANKS and not all_ranks
    launched = launch(settings, jobs or os.cpu_count() or 1, find_kinds, progress)
    recordings = dict(sorted(launched.recordings.items()))
    failed = {rank: recording.error for rank, recording in recordings.items() if recording.error}
    if failed:
        raise RecordingError(_describe_failure(failed, launched.logs))
    converted = to_plan(recordings, launched.like)
    stem = script.rsplit(".", 1)[-1] if is_module else os.path.splitext(os.path.basename(script))[0]
    name = f"{stem}.plan"
    return Recorded(
        plan=shiplap.Plan.parse(converted.text, name),
        world=world,
        kinds=converted.kinds,
        steps=max(len(list(recording.of(ev.Step))) for recording in recordings.values()),
        mesh=converted.mesh.text().replace(" ", ","),
        rules=_rules_of(recordings),
        traffic=_traffic(recordings, converted.mesh),
        recorded=len(recordings),
        value_reads=_value_reads(recordings),
        group_errors=_group_errors(recordings),
        incomplete={rank: one.incomplete for rank, one in recordings.items() if one.incomplete},
        seconds=time.monotonic() - start,
        peak_bytes=max(recording.peak_bytes for recording in recordings.values()),
    )


_DRIVER = """import importlib.util, pickle, sys
sys.path.insert(0, {folder!r})
spec = importlib.util.spec_from_file_location({module!r}, {file!r})
module = sys.modules[{module!r}] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
module.{name}(*pickle.loads({arguments!r}))
"""


def record_function(
    function: Callable[..., Any], *arguments: Any, world: int, **settings: Any
) -> Recorded:
    """Runs a function of a module once for each rank, as ``record_script`` does with a script.

    Its file is imported anew on each rank. ``settings`` are those of ``record_script``.
    """
    file = inspect.getsourcefile(function)
    if file is None or function.__qualname__ != function.__name__:
        raise ValueError(f"{function.__qualname__} is not a function of a module")
    module = function.__module__ if function.__module__ != "__main__" else "__recorded__"
    with tempfile.TemporaryDirectory(prefix="shiplap-record-") as folder:
        script = os.path.join(folder, f"{function.__name__}.py")
        with open(script, "w") as driver:
            driver.write(
                _DRIVER.format(
                    folder=os.path.dirname(os.path.abspath(file)),
                    module=module,
                    file=os.path.abspath(file),
                    name=function.__name__,
                    arguments=pickle.dumps(arguments),
                )
            )
        return record_script(script, world=world, **settings)


def assert_same_program(
    script: str | Callable[..., Any],
    arguments: Sequence[Any] = (),
    *,
    world: int,
    **settings: Any,
) -> Recorded:
    """Fails if the ranks of a script, or of a function, do not fit together: a test to run before a
    launch.

    ``settings`` are those of ``record_script``.

    >>> from shiplap.record import assert_same_program
    >>> assert_same_program("train.py", ["--layers", "4"], world=8)  # doctest: +SKIP
    """
    __tracebackhide__ = True
    if callable(script):
        recorded = record_function(script, *arguments, world=world, **settings)
    else:
        recorded = record_script(script, list(arguments), world=world, **settings)
    problems = [*recorded.group_errors, *map(str, recorded.check().findings)]
    if problems:
        name = script.__name__ if callable(script) else script
        raise AssertionError(f"{name} on {world} ranks\n" + "\n".join(problems))
    return recorded


def _describe_failure(failed: Mapping[int, str], logs: Mapping[int, str]) -> str:
    lines = [f"rank {spans(ranks)}: {error}" for error, ranks in _by_value(failed).items()]
    last = logs.get(next(iter(failed)), "").strip().splitlines()[-8:]
    return "\n".join([*lines, *(f"  | {line}" for line in last)])


def _by_value(texts: Mapping[int, str]) -> dict[str, list[int]]:
    result: dict[str, list[int]] = defaultdict(list)
    for rank, text in texts.items():
        result[text].append(rank)
    return result


def _rules_of(recordings: Mapping[int, ev.Recording]) -> Literal["nccl", "gloo"]:
    calls = (call for recording in recordings.values() for call in recording.calls())
    return "gloo" if all(call.on_host for call in calls) else "nccl"


def _traffic(recordings: Mapping[int, ev.Recording], mesh: Mesh) -> list[Traffic]:
    most: dict[tuple[str, str], Traffic] = {}
    for recording in recordings.values():
        channels = channels_of(recording)
        found: dict[tuple[str, str], Traffic] = {}
        for call in recording.calls():
            ranks = tuple(recording.groups[call.group])
            along = mesh.along(ranks)
            group = mesh.group(ranks) if along is not None else f"{len(ranks)} ranks"
            group += f"/{channels[call.group]}" if channels[call.group] else ""
            row = found.setdefault((call.kind, group), Traffic(call.kind, group, 0, 0))
            row.calls += 1
            row.bytes += sum(region.size for region in call.inputs or call.outputs)
        for key, row in found.items():
            if key not in most or row.bytes > most[key].bytes:
                most[key] = row
    return sorted(most.values(), key=lambda row: (-row.bytes, row.kind, row.group))


def _value_reads(recordings: Mapping[int, ev.Recording]) -> dict[str, int]:
    count: Counter[str] = Counter()
    for recording in recordings.values():
        count.update({str(read.site) for read in recording.of(ev.ValueRead)})
    return dict(sorted(count.items()))


def _group_errors(recordings: Mapping[int, ev.Recording]) -> list[str]:
    """torch numbers groups as they are created, and all ranks take part in every creation: a number
    must stand for the same group on all of them."""
    first: dict[str, tuple[list[int], int, ev.Site]] = {}
    errors = []
    for rank, recording in recordings.items():
        for event in recording.of(ev.GroupCreated):
            if not event.name.isdigit():
                continue
            ranks, other, site = first.setdefault(event.name, (event.ranks, rank, event.site))
            if ranks != event.ranks:
                errors.append(
                    f"{event.site}: process groups are created in a different order: number "
                    f"{event.name} has ranks {spans(event.ranks)} on rank {rank}, "
                    f"and ranks {spans(ranks)} on rank {other} ({site})"
                )
    return errors[:_MAX_NOTES]
