"""The device mesh of a recording, found from its process groups."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# Words that cannot name an axis of a plan.
_RESERVED = set(
    "add after all and async by channel div from joined label mask mod new none of on operator "
    "over rank ranks reversed root scale split sum tag to work wrap".split()
)


def grid_of(ranks: Sequence[int]) -> list[tuple[int, int]] | None:
    """Ranks as a grid: (stride, count) of each dimension, the fastest first; None if it is none."""
    offsets = [rank - ranks[0] for rank in ranks]
    grid: list[tuple[int, int]] = []
    size = 1
    while size < len(offsets):
        stride = offsets[size]
        count = 1
        while (count + 1) * size <= len(offsets) and offsets[count * size] == count * stride:
            count += 1
        if count < 2 or stride < 1:
            return None
        grid.append((stride, count))
        size *= count
    expected = [0]
    for stride, count in grid:
        expected = [base + k * stride for k in range(count) for base in expected]
    return grid if size == len(offsets) and expected == offsets else None


@dataclass(frozen=True)
class Axis:
    """Neighbours along it are `stride` ranks apart."""

    name: str
    stride: int
    size: int


class Mesh:
    """Axes such that most groups lie along some of them."""

    def __init__(
        self, world: int, groups: Iterable[tuple[int, ...]], names: dict[tuple[int, int], str]
    ) -> None:
        """`names` are those of one-dimensional groups, by stride and size."""
        self.world = world
        cuts = {1, world}
        for ranks in groups:
            for stride, count in grid_of(ranks) or ():
                cuts |= {stride, stride * count}
        chain = [1]
        for cut in sorted(cuts):
            if cut > chain[-1] and cut % chain[-1] == 0 and world % cut == 0:
                chain.append(cut)
        axes: list[Axis] = []
        for number, (stride, end) in enumerate(zip(chain, chain[1:])):
            name = names.get(
                (stride, end // stride), "world" if len(chain) == 2 else f"axis{number}"
            )
            if name in _RESERVED or any(axis.name == name for axis in axes):
                name = f"{name}_{stride}"
            axes.append(Axis(name, stride, end // stride))
        self.axes = axes[::-1] or [Axis("world", 1, 1)]  # the slowest first
        self._along: dict[tuple[int, ...], list[Axis] | None] = {}

    def text(self) -> str:
        """As in a plan: "pp=2 dp=4"."""
        return " ".join(f"{axis.name}={axis.size}" for axis in self.axes)

    def position(self, rank: int, axis: Axis) -> int:
        return rank // axis.stride % axis.size

    def along(self, ranks: tuple[int, ...]) -> list[Axis] | None:
        """The axes of a group, the slowest first; None if it does not lie along axes."""
        if ranks not in self._along:
            self._along[ranks] = self._find_axes(ranks)
        return self._along[ranks]

    def _find_axes(self, ranks: tuple[int, ...]) -> list[Axis] | None:
        grid = grid_of(ranks)
        if grid is None or len(ranks) == 1:
            return None
        found = [
            axis
            for axis in self.axes
            if any(
                axis.stride >= stride and axis.stride * axis.size <= stride * count
                for stride, count in grid
            )
        ]
        starts = all(self.position(ranks[0], axis) == 0 for axis in found)
        return found if starts and math.prod(axis.size for axis in found) == len(ranks) else None

    def group(self, ranks: tuple[int, ...]) -> str:
        """As in a plan: "dp", "(pp, tp)", "ranks{0, 5}"."""
        axes = self.along(ranks)
        if len(ranks) == 1:
            return "ranks{rank}"
        if axes is None:
            return "ranks{" + ", ".join(map(str, ranks)) + "}"
        return axes[0].name if len(axes) == 1 else "(" + ", ".join(axis.name for axis in axes) + ")"

    def place(self, ranks: tuple[int, ...]) -> str | None:
        """The position of a rank in its group, as an expression for all ranks, if there is one."""
        axes = self.along(ranks)
        if axes is None:
            return "0" if len(ranks) == 1 else None
        text = axes[0].name
        for axis in axes[1:]:
            text = f"({text}*{axis.size}+{axis.name})"
        return text

    def peer(self, rank: int, other: int) -> str:
        """Relative to the rank if the two differ along one axis."""
        differ = [
            axis for axis in self.axes if self.position(rank, axis) != self.position(other, axis)
        ]
        if len(differ) != 1:
            return f"rank {other}"
        axis = differ[0]
        shift = self.position(other, axis) - self.position(rank, axis)
        if axis.size > 2 and abs(shift) == axis.size - 1:
            return f"{axis.name}{'-' if shift > 0 else '+'}1 wrap"
        return f"{axis.name}{shift:+d}"

    def pair(self, rank: int, other: int) -> str:
        """A name for two ranks, the same for both and for the same places elsewhere on the mesh."""
        differ = [a for a in self.axes if self.position(rank, a) != self.position(other, a)]
        places = [
            "_".join(f"{axis.name}{self.position(one, axis)}" for axis in differ)
            for one in sorted((rank, other))
        ]
        return f"p_{places[0]}_{places[1]}"

    def selector(self, ranks: Sequence[int]) -> str:
        """`on ..` of a program for exactly these ranks."""
        if len(ranks) == self.world:
            return "all"
        positions = [sorted({self.position(rank, axis) for rank in ranks}) for axis in self.axes]
        if math.prod(map(len, positions)) != len(ranks):
            return f"rank={spans(sorted(ranks))}"
        return " ".join(
            f"{axis.name}={spans(where)}"
            for axis, where in zip(self.axes, positions)
            if len(where) < axis.size
        )


def spans(numbers: Sequence[int]) -> str:
    """0, 1, 2, 5 is "0..2|5"."""
    parts: list[tuple[int, int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1] = (parts[-1][0], number)
        else:
            parts.append((number, number))
    return "|".join(str(first) if first == last else f"{first}..{last}" for first, last in parts)


def axis_name(description: str) -> str:
    """The name of a dimension of a DeviceMesh, from the description of its group; may be empty."""
    name = description.removeprefix("mesh_")
    return (
        name
        if description.startswith("mesh_") and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name)
        else ""
    )
