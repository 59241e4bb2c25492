"""Schedules of torch whose executed order is edited: `test_torch_schedules.py` checks each, and
`workers/pipeline.py` executes those that need only gloo. What torch computed the order from,
`pipeline_order`, stays as it is."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Rows = dict[int, list[Any]]


def find(row: list[Any], name: str) -> int:
    """The index of an action, or of the overlap that contains it."""
    return next(i for i, action in enumerate(row) if name in re.split("[(;)]", str(action)))


def take(row: list[Any], name: str) -> Any:
    return row.pop([str(action) for action in row].index(name))


def drop(rank: int, *names: str) -> Callable[[Rows], None]:
    def edit(rows: Rows) -> None:
        for name in names:
            take(rows[rank], name)

    return edit


def repeat(rank: int, name: str) -> Callable[[Rows], None]:
    def edit(rows: Rows) -> None:
        at = find(rows[rank], name)
        rows[rank].insert(at, rows[rank][at])

    return edit


def move(rank: int, *names: str, before: str = "", after: str = "") -> Callable[[Rows], None]:
    """Moves actions; to the end of the row if neither `before` nor `after` is given."""

    def edit(rows: Rows) -> None:
        row = rows[rank]
        moved = [take(row, name) for name in names]
        at = find(row, before) if before else find(row, after) + 1 if after else len(row)
        row[at:at] = moved

    return edit


def swap(rank: int, one: str, other: str) -> Callable[[Rows], None]:
    def edit(rows: Rows) -> None:
        row = rows[rank]
        i, k = find(row, one), find(row, other)
        row[i], row[k] = row[k], row[i]

    return edit


def both(*edits: Callable[[Rows], None]) -> Callable[[Rows], None]:
    def edit(rows: Rows) -> None:
        for each in edits:
            each(rows)

    return edit


@dataclass
class Broken:
    schedule: str
    edit: Callable[[Rows], None]
    code: str  # of a finding
    in_gloo: str  # what 2 processes do: "hangs", "raises", "wrong" values, "fine", "" needs FSDP


INTERLEAVED = "ScheduleInterleaved1F1B"
ZERO_BUBBLE = "ScheduleInterleavedZeroBubble"
DUAL_PIPE = "ScheduleDualPipeV"

# Of 2 ranks with 2 stages each, and 4 microbatches.
BROKEN = {
    "the first activation is sent last of all": Broken(
        INTERLEAVED, move(0, "0SEND_F0", "0WAIT_SEND_F0"), "D720", "hangs"
    ),
    "a gradient is sent last of all": Broken(
        INTERLEAVED, move(1, "3SEND_B0", "3WAIT_SEND_B0"), "D720", "wrong"
    ),
    "an activation is sent last of all, in zero bubble": Broken(
        ZERO_BUBBLE, move(1, "1SEND_F0", "1WAIT_SEND_F0"), "D720", "raises"
    ),
    "a send is missing": Broken(INTERLEAVED, drop(0, "0SEND_F1", "0WAIT_SEND_F1"), "D628", "hangs"),
    "a receive is missing": Broken(INTERLEAVED, drop(1, "1RECV_F1"), "D628", "raises"),
    "a message is missing on both ranks": Broken(
        INTERLEAVED,
        both(drop(0, "0SEND_F1", "0WAIT_SEND_F1"), drop(1, "1RECV_F1")),
        "D628",
        "raises",
    ),
    "a send is not waited for": Broken(INTERLEAVED, drop(0, "0WAIT_SEND_F1"), "D628", "raises"),
    "a send is waited for twice": Broken(
        INTERLEAVED, repeat(0, "0WAIT_SEND_F1"), "D626", "raises"
    ),
    "a send is waited for before it": Broken(
        INTERLEAVED, move(0, "0WAIT_SEND_F1", before="0SEND_F1"), "D626", "raises"
    ),
    "a send is repeated": Broken(INTERLEAVED, repeat(0, "0SEND_F2"), "D628", "raises"),
    "a receive is repeated": Broken(INTERLEAVED, repeat(1, "1RECV_F2"), "D628", "raises"),
    "a forward comes before its receive": Broken(
        INTERLEAVED, move(1, "1RECV_F1", after="1F1"), "D732", "raises"
    ),
    "a backward comes before its receive": Broken(
        INTERLEAVED, move(0, "2RECV_B1", after="2B1"), "D732", "raises"
    ),
    "an overlap comes before its receive": Broken(
        DUAL_PIPE, move(0, "0RECV_B0", after="0B0"), "D732", "raises"
    ),
    "a send comes before its forward": Broken(
        INTERLEAVED, move(0, "0SEND_F1", before="0F1"), "D730", "raises"
    ),
    "two receives are swapped": Broken(
        INTERLEAVED,
        both(move(1, "1RECV_F1", before="1F0"), swap(1, "1RECV_F0", "1RECV_F1")),
        "D720",
        "wrong",
    ),
    "two sends are swapped": Broken(
        INTERLEAVED,
        both(move(0, "0SEND_F0", after="0F1"), swap(0, "0SEND_F0", "0SEND_F1")),
        "D720",
        "wrong",
    ),
    "neighbors send to each other before they receive": Broken(
        INTERLEAVED,
        both(
            move(0, "2RECV_B0", after="0SEND_F2"),
            move(1, "1RECV_F2", after="3SEND_B0"),
        ),
        "D721",
        "fine",
    ),
    "a rank waits for a send before it posts the receive that its neighbor waits for": Broken(
        INTERLEAVED,
        both(
            move(0, "2RECV_B0", after="0SEND_F2"),
            move(0, "0WAIT_SEND_F2", after="0SEND_F2"),
            move(1, "1RECV_F2", after="3SEND_B0"),
            move(1, "3WAIT_SEND_B0", after="3SEND_B0"),
        ),
        "D721",
        "hangs",
    ),
    "a half of a backward is missing": Broken(ZERO_BUBBLE, drop(0, "0W1"), "D628", "wrong"),
    "the halves of a backward are swapped": Broken(
        ZERO_BUBBLE, swap(1, "3I1", "3W1"), "D626", "raises"
    ),
    "a backward comes before its forward": Broken(
        INTERLEAVED, move(1, "3B1", before="3F1"), "D629", "raises"
    ),
    "a forward is repeated": Broken(INTERLEAVED, repeat(1, "1F2"), "D628", "raises"),
    "weights are not gathered": Broken(INTERLEAVED, drop(0, "2UNSHARD"), "D747", ""),
    "weights are freed before their last use": Broken(
        INTERLEAVED, move(0, "2RESHARD", before="2B3"), "D733", ""
    ),
    "weights are freed twice": Broken(INTERLEAVED, repeat(1, "1RESHARD"), "D733", ""),
    "gradients are reduced before the last backward": Broken(
        INTERLEAVED, move(0, "2REDUCE_GRAD", before="2B3"), "D741", ""
    ),
    "a reduction is waited for before it": Broken(
        INTERLEAVED, swap(1, "1REDUCE_GRAD", "1WAIT_REDUCE_GRAD"), "D626", ""
    ),
}
