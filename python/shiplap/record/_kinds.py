"""Few ranks that stand for all.

Ranks are alike if their programs are equal once groups and peers are named by places on the mesh.
That is found by recording, not assumed: ranks along each axis are compared with rank 0; where all
agree, the axis does not matter, and one position of it is recorded. Then the last position of every
such axis is recorded for every kind and compared with it. If one differs, its axis matters after
all.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

from shiplap.record._events import Recording
from shiplap.record._mesh import Axis
from shiplap.record._to_plan import mesh_of, program_texts

_MAX_ROUNDS = 8

# Records ranks. The value of each is the rank that it is compared with, or itself.
Record = Callable[[dict[int, int]], None]


def find_kinds(
    world: int, record: Record, recordings: Mapping[int, Recording]
) -> dict[int, int] | None:
    """By rank: the recorded rank that it is like. None if all ranks have to be recorded."""
    record({0: 0})
    matters: set[tuple[int, int]] = set()  # axes, by stride and size
    for _ in range(_MAX_ROUNDS):
        mesh = mesh_of(recordings)
        record({rank: 0 for axis in mesh.axes for rank in _along(axis)})
        texts = program_texts(recordings, mesh)
        if texts is None:
            return None
        matters |= {
            (axis.stride, axis.size)
            for axis in mesh.axes
            if any(texts[rank] != texts[0] for rank in _along(axis))
        }
        varying = [axis for axis in mesh.axes if (axis.stride, axis.size) in matters]
        uniform = [axis for axis in mesh.axes if axis not in varying and axis.size > 1]
        kinds = [
            sum(position * axis.stride for position, axis in zip(positions, varying))
            for positions in itertools.product(*(range(axis.size) for axis in varying))
        ]
        if 2 * len(kinds) > world:
            return None
        record({rank: rank for rank in kinds})
        checks = {
            kind + (axis.size - 1) * axis.stride: (kind, axis) for kind in kinds for axis in uniform
        }
        record({rank: kind for rank, (kind, _axis) in checks.items()})
        texts = program_texts(recordings, mesh)
        if texts is None:
            return None
        wrong = {axis for rank, (kind, axis) in checks.items() if texts[rank] != texts[kind]}
        if not wrong and mesh.axes == mesh_of(recordings).axes:
            return {
                rank: sum(mesh.position(rank, axis) * axis.stride for axis in varying)
                for rank in range(world)
            }
        matters |= {(axis.stride, axis.size) for axis in wrong}
    return None


def _along(axis: Axis) -> list[int]:
    """A few ranks along an axis from rank 0, without it."""
    positions = {1, axis.size // 2, axis.size - 1} - {0}
    return [position * axis.stride for position in sorted(positions) if position < axis.size]
