"""Builds plans in Python: the statements of the ``.plan`` format (docs/plan.md) as calls.

The builder generates that text and parses it once at the end, so the rules of the format are
implemented in one place, and errors are shown in the text with their line.
"""

from __future__ import annotations

import contextlib
import dataclasses
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Union

from shiplap._shiplap import Plan

Number = Union["Expr", int]
Name = Union[str, "tuple[Any, ...]"]

_SUM, _PRODUCT, _ATOM = 1, 2, 3


class Expr:
    """An integer expression, which may depend on the rank: ``2 * tp + u``, ``(tp - s) % 4``.

    ``//`` rounds down and ``%`` has the sign of the divisor, as in Python. Comparisons are for
    ``when``, in tuples: ``(u, "<", 3)``.
    """

    def __init__(self, value: int | str, binding: int = _ATOM) -> None:
        if isinstance(value, str):
            self._text, self._binding = value, binding
        else:
            number = operator.index(value)
            self._text, self._binding = (f"({number})" if number < 0 else str(number)), _ATOM

    def __str__(self) -> str:
        return self._text

    def _within(self, needed: int) -> str:
        return self._text if self._binding >= needed else f"({self._text})"

    def __add__(self, other: Number) -> Expr:
        return _joined(self, "+", other, _SUM)

    def __sub__(self, other: Number) -> Expr:
        return _joined(self, "-", other, _SUM)

    def __mul__(self, other: Number) -> Expr:
        return _joined(self, "*", other, _PRODUCT)

    def __floordiv__(self, other: Number) -> Expr:
        return _joined(self, " div ", other, _PRODUCT)

    def __mod__(self, other: Number) -> Expr:
        return _joined(self, " mod ", other, _PRODUCT)

    def __radd__(self, other: int) -> Expr:
        return _joined(other, "+", self, _SUM)

    def __rsub__(self, other: int) -> Expr:
        return _joined(other, "-", self, _SUM)

    def __rmul__(self, other: int) -> Expr:
        return _joined(other, "*", self, _PRODUCT)

    def __rfloordiv__(self, other: int) -> Expr:
        return _joined(other, " div ", self, _PRODUCT)

    def __rmod__(self, other: int) -> Expr:
        return _joined(other, " mod ", self, _PRODUCT)

    def __neg__(self) -> Expr:
        return Expr(f"(-{self._within(_ATOM)})")


def _number(value: Number) -> Expr:
    return value if isinstance(value, Expr) else Expr(value)


def _joined(left: Number, sign: str, right: Number, binding: int) -> Expr:
    inside = _number(left)._within(binding) + sign + _number(right)._within(binding + 1)
    return Expr(inside, binding)


class Axis(Expr):
    """An axis or alias of the mesh; as a number, the coordinate of the rank along it."""

    def shift(self, by: Number) -> str:
        """The peer ``by`` positions further: ``tp+1``."""
        return f"{self}+{_number(by)._within(_ATOM)}"

    def wrap(self, by: Number) -> str:
        """The same with wraparound at the end of the axis: ``tp+1 wrap``."""
        return f"{self.shift(by)} wrap"


class List:
    """A list of numbers: ``cut[tp + 1]`` is one of them."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __str__(self) -> str:
        return self._name

    def __getitem__(self, index: Number) -> Expr:
        return Expr(f"{self}[{_number(index)}]")

    def size(self, index: Number) -> Expr:
        """From one entry to the next: ``cut[index + 1] - cut[index]``."""
        return self[_number(index) + 1] - self[index]


class Buffer:
    """A buffer of a program: all of its rows; ``x(begin, count)`` is a range of them."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __str__(self) -> str:
        return self._name

    def __call__(self, begin: Number, count: Number) -> str:
        return f"{self}[{_number(begin)} +{_number(count)}]"

    def cut(self, index: Number, cuts: List) -> str:
        """From one entry of a list to the next: ``x[index of cuts]``."""
        return f"{self}[{_number(index)} of {cuts}]"

    def listed(self, rows: List, begin: Number, count: Number) -> str:
        """The rows that a list names, for ``copy``: ``x[from rows[begin +count]]``."""
        return f"{self}[from {rows}[{_number(begin)} +{_number(count)}]]"


Region = Union[Buffer, str]


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A tensor or a selection of it, built step by step: ``W[l].updated()("shard", dp, 1)``."""

    _name: str
    _sum: tuple[str, ...] = ()  # the dimensions that are summed
    _runs: tuple[tuple[str, str], ...] = ()
    _index: str = ""
    _new: str = ""
    _end: str = ""

    def __call__(self, dimension: str, begin: Number, count: Number, stride: Number = 1) -> Tensor:
        by = "" if stride == 1 else f" by {_number(stride)}"
        run = f"{_number(begin)} +{_number(count)}{by}"
        if self._runs and self._runs[-1][0] == dimension:
            joined = (dimension, f"{self._runs[-1][1]} | {run}")
            return dataclasses.replace(self, _runs=(*self._runs[:-1], joined))
        return dataclasses.replace(self, _runs=(*self._runs, (dimension, run)))

    def listed(self, dimension: str, coordinates: List, begin: Number, count: Number) -> Tensor:
        """The coordinates in ``count`` entries of a list, from entry ``begin``."""
        run = f"from {coordinates}[{_number(begin)} +{_number(count)}]"
        return dataclasses.replace(self, _runs=(*self._runs, (dimension, run)))

    def __getitem__(self, index: Number) -> Tensor:
        return dataclasses.replace(self, _index=f"[{_number(index)}]")

    def updated(self) -> Tensor:
        """The version after the step: ``new``."""
        return dataclasses.replace(self, _new="new ")

    def zero(self) -> Tensor:
        """None of its contributions: ``sum none``."""
        return dataclasses.replace(self, _end=" sum none")

    def scaled(self, numerator: int, denominator: int = 1) -> Tensor:
        """``scale 1/8``."""
        return dataclasses.replace(self, _end=f" scale {numerator}/{denominator}")

    def __str__(self) -> str:
        part = [f" {name} {run}" for name, run in self._runs if name not in self._sum]
        summed = [f" {name} {run}" for name, run in self._runs if name in self._sum]
        head = f"{self._new}{self._name}{self._index}"
        return "".join([head, *part, " sum" if summed else "", *summed, self._end])


Access = Sequence["tuple[Region, Tensor]"]


def _reference(name: Name) -> str:
    if isinstance(name, str):
        return name
    return f"{name[0]}[{', '.join(str(_number(index)) for index in name[1:])}]"


def _work(work: Mapping[str, Any]) -> str:
    known = {"seconds", "times"} if "seconds" in work else {"kernel_class", "flop", "bytes", "type"}
    if unknown := sorted(set(work) - known):
        raise TypeError(f"work has no {unknown[0]!r}: its keys are {', '.join(sorted(known))}")
    if "seconds" in work:
        times = f" times {_number(work['times'])}" if "times" in work else ""
        return f"{float(work['seconds'])!r} seconds{times}"
    amounts = [f" {_number(work[unit])} {unit}" for unit in ("flop", "bytes") if unit in work]
    kind = f" {work['type']}" if "type" in work else ""
    return f"{work['kernel_class']}{''.join(amounts)}{kind}"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


class PlanBuilder:
    """Builds a Plan, statement by statement, as in the ``.plan`` format.

    >>> b = shiplap.PlanBuilder()
    >>> tp = b.axis("tp", 2)
    >>> X = b.tensor("X", "Activation", part={"tok": 8})
    >>> b.program("all")
    >>> x = b.buffer("x", rows=8, row_bytes=64)
    >>> b.given(x(4 * tp, 4), X("tok", 4 * tp, 4))
    >>> b.goal(x, X)
    >>> with b.repeat("u", 2) as u, b.batch(name=("swap", u)):
    ...     b.send(x(4 * tp + 2 * u, 2), tp.wrap(1))
    ...     b.receive(x(4 * (1 - tp) + 2 * u, 2), tp.wrap(-1))
    >>> plan = b.build("swap")
    >>> plan, shiplap.check(plan).sound
    (<Plan swap: 2 ranks (tp=2), 1 program>, True)

    Every operation takes ``name``, ``stream``, ``after`` (a list of names), ``async_``, ``joined``,
    ``work`` (``{"kernel_class": "gemm", "flop": 2 * n, "bytes": n, "type": "bf16"}`` or
    ``{"seconds": 1e-3, "times": n}``) and ``label``. A name is a string, or a tuple with its
    indices. ``build`` raises if the plan is invalid.
    """

    def __init__(self) -> None:
        self._mesh: list[str] = []
        self._lines: list[str] = []
        self._depth = 0

    @property
    def rank(self) -> Expr:
        """The global rank."""
        return Expr("rank")

    def _line(self, text: str) -> None:
        self._lines.append("  " * self._depth + text)

    # ---- declarations shared by all programs

    def axis(self, name: str, size: int) -> Axis:
        """The next axis of the mesh; the last one varies fastest."""
        self._mesh.append(f" {name}={operator.index(size)}")
        return Axis(name)

    def alias(self, name: str, axes: Sequence[Axis]) -> Axis:
        """Several axes flattened to one."""
        self._line(f"alias {name} = {' '.join(str(axis) for axis in axes)}")
        return Axis(name)

    def list(self, name: str, values: Sequence[int]) -> List:
        """A named list of numbers."""
        self._line(f"list {name} = {' '.join(str(operator.index(value)) for value in values)}")
        return List(name)

    def tensor(self, name: str, kind: str, *, part: Mapping[str, int] | None = None,
               sum: Mapping[str, int] | None = None, instances: int = 0,
               scale: tuple[int, int] = (1, 1), mask: str = "") -> Tensor:
        """A tensor with the sizes of its dimensions; ``mask`` as in the plan format."""
        many = f"[{operator.index(instances)}]" if instances else ""
        sizes = "".join(f" {d} {operator.index(size)}" for d, size in (part or {}).items())
        summed = "".join(f" {d} {operator.index(size)}" for d, size in (sum or {}).items())
        self._line(
            f"tensor {name}{many} {kind}{sizes}{' sum' if summed else ''}{summed}"
            f"{'' if scale == (1, 1) else f' scale {scale[0]}/{scale[1]}'}"
            f"{f' mask {mask}' if mask else ''}"
        )
        return Tensor(name, tuple(sum or ()))

    def table(self, name: str, messages: Sequence[tuple[int, int, int, int, int]]) -> str:
        """The messages of an exchange: source, destination, first row, rows, destination row."""
        self._line(f"table {name}")
        self._lines += [f"  message {' '.join(str(n) for n in message)}" for message in messages]
        return name

    def spare(self, on: str) -> None:
        """Ranks without a program: ``rank=7``."""
        self._depth = 0
        self._line(f"spare on {on}")

    # ---- a program

    def program(self, name: str, on: str = "all") -> None:
        """Begins a program. ``on`` is as in the plan format: ``dp=0 tp=1..3|6``."""
        self._depth = 0
        self._line(f"program {name} on {on}")
        self._depth = 1

    def buffer(self, name: str, *, rows: Number, row_bytes: Number, type: str = "bf16",
               memory: str = "device") -> Buffer:
        """A buffer of rows of an element type, on the device or the host."""
        size = f"rows {_number(rows)} row_bytes {_number(row_bytes)}"
        self._line(f"buffer {name} {size} {type} {memory}")
        return Buffer(name)

    def stream(self, name: str) -> str:
        """Declares a stream in addition to ``main``."""
        self._line(f"streams {name}")
        return name

    def given(self, region: Region, value: Tensor) -> None:
        """The content of a region at the beginning of the step."""
        self._line(f"given {region} = {value}")

    def goal(self, region: Region, value: Tensor) -> None:
        """The required content of a region at the end of the step."""
        self._line(f"goal {region} = {value}")

    def keep(self, region: Region, value: Tensor) -> None:
        """Both: the old version at the beginning, the new one at the end."""
        self._line(f"keep {region} = {value}")

    def let(self, variable: str, value: Number) -> Expr:
        """Defines a variable until the end of the block."""
        self._line(f"let {variable} = {_number(value)}")
        return Expr(variable)

    # ---- blocks

    @contextlib.contextmanager
    def _block(self, line: str) -> Iterator[None]:
        before = len(self._lines)
        self._line(line)
        self._depth += 1
        try:
            yield
        except BaseException:
            del self._lines[before:]  # roll back the block
            raise
        finally:
            self._depth -= 1
        self._line("end")

    @contextlib.contextmanager
    def repeat(self, variable: str, count: Number) -> Iterator[Expr]:
        """``with b.repeat("u", 4) as u:`` counts from 0."""
        with self._block(f"repeat {variable} {_number(count)}"):
            yield Expr(variable)

    @contextlib.contextmanager
    def when(self, *conditions: tuple[Number, str, Number]) -> Iterator[None]:
        """``with b.when((tp, "<", 3)):``, if all of them hold."""
        texts = [f"{_number(left)}{sign}{_number(right)}" for left, sign, right in conditions]
        with self._block(f"when {' and '.join(texts)}"):
            yield

    @contextlib.contextmanager
    def batch(self, **words: Any) -> Iterator[None]:
        """Communication that starts and completes together."""
        with self._block(self._operation("batch", words)):
            yield

    # ---- operations

    @staticmethod
    def _operation(text: str, words: Mapping[str, Any]) -> str:
        known = {"name", "stream", "after", "async_", "joined", "work", "label"}
        if unknown := set(words) - known:
            raise TypeError(f"an operation has no {', '.join(sorted(unknown))}")
        name = f"{_reference(words['name'])}: " if "name" in words else ""
        stream = f"@{words['stream']} " if words.get("stream", "main") != "main" else ""
        after = ", ".join(_reference(each) for each in words.get("after", ()))
        return "".join([
            name, stream, text, f" after {after}" if after else "",
            " async" if words.get("async_") else "", " joined" if words.get("joined") else "",
            f" work {_work(words['work'])}" if "work" in words else "",
            f" label {_quoted(words['label'])}" if words.get("label") else "",
        ])

    def compute(self, kernel: str, *, reads: Access = (), writes: Access = (), adds: Access = (),
                **words: Any) -> None:
        """A kernel, with regions and their contents: ``reads=[(x, X)], writes=[(y, Y)]``."""
        self._line(self._operation(f"compute {kernel}", words))
        for kind, accesses in (("reads", reads), ("writes", writes), ("adds", adds)):
            for region, value in accesses:
                self._line(f"  {kind} {region} = {value}")

    def copy(self, source: Region, to: Region, *, add: bool = False, **words: Any) -> None:
        """Copies rows to other rows of the rank."""
        self._line(self._operation(f"copy {source} to {to}{' add' if add else ''}", words))

    def send(self, source: Region, to: str | Number, *, tag: Number = 0, channel: str = "main",
             **words: Any) -> None:
        """Sends to a peer: ``tp.shift(1)``, ``tp.wrap(-1)``, or a rank."""
        peer = to if isinstance(to, str) else f"rank {_number(to)}"
        rest = f"tag {_number(tag)} channel {channel}"
        self._line(self._operation(f"send {source} to {peer} {rest}", words))

    def receive(self, to: Region, source: str | Number, *, add: bool = False, tag: Number = 0,
                channel: str = "main", **words: Any) -> None:
        """Receives from a peer; ``add`` accumulates into the region."""
        peer = source if isinstance(source, str) else f"rank {_number(source)}"
        rest = f"{'add ' if add else ''}tag {_number(tag)} channel {channel}"
        self._line(self._operation(f"receive {to} from {peer} {rest}", words))

    def collective(self, kind: str, source: Region | None = None, to: Region | None = None, *,
                   over: Axis | str, split: List | None = None, operator: str = "",
                   scale: tuple[int, int] | None = None, root: Number | None = None,
                   **words: Any) -> None:
        """``all_reduce``, ``all_gather``, ``reduce_scatter``, ``all_to_all``, ``broadcast``,
        ``reduce`` or ``barrier``, over an axis or a group of the plan format: ``(dp, tp)``,
        ``pp{0, 3}``.
        """
        self._line(self._operation("".join([
            kind, f" {source}" if source is not None else "", f" to {to}" if to is not None else "",
            f" over {over}", f" split {split}" if split is not None else "",
            f" operator {operator}" if operator else "",
            f" scale {scale[0]}/{scale[1]}" if scale else "",
            f" root {_number(root)}" if root is not None else "",
        ]), words))

    def exchange(self, source: Region, to: Region, *, by: str, over: Axis | str,
                 reversed: bool = False, add: bool = False, **words: Any) -> None:
        """An irregular all-to-all described by a table."""
        table = f"{by} reversed" if reversed else by
        group = f"{over} add" if add else f"{over}"
        self._line(self._operation(f"exchange {source} to {to} by {table} over {group}", words))

    def allocate(self, rows: Region, **words: Any) -> None:
        """Allocates rows that were freed."""
        self._line(self._operation(f"allocate {rows}", words))

    def free(self, rows: Region, **words: Any) -> None:
        """Frees rows."""
        self._line(self._operation(f"free {rows}", words))

    # ---- the plan

    def build(self, name: str = "plan") -> Plan:
        """Returns the plan. Raises InputError with all errors, shown in its text."""
        mesh = f"mesh{''.join(self._mesh)}"
        return Plan.parse("\n".join(["shiplap-plan 1", mesh, *self._lines, ""]), name)
