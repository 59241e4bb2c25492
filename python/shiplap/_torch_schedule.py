"""The order in which a schedule of torch.distributed.pipelining executes its actions, as CSV.

A `_PipelineScheduleRuntime` executes `pipeline_order_with_comms`, action by action. Other schedules
execute code, `_step_microbatches`, which `pipeline_order` only describes (that of `Schedule1F1B` of
torch 2.15 lacks a forward). That code is run once per rank, with stages that record what is called
instead of computing it.
"""

from __future__ import annotations

import copy
import importlib
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

from shiplap._errors import InputError

Order = Mapping[int, Sequence[Any]]  # the actions of each rank; None: idle


def to_csv(order: Order) -> str:
    """As torch writes a schedule to a file."""
    rows = (order[rank] for rank in sorted(order))
    return "".join(
        ",".join("" if action is None else str(action) for action in row) + "\n" for row in rows
    )


def executed_order(schedule: Any) -> tuple[str, Order]:
    """Returns the order that a schedule executes, and the attribute that defines it.

    Only ``pipeline_order`` is read of objects that have no ``_step_microbatches``.
    """
    if not hasattr(schedule, "_step_microbatches"):
        return "pipeline_order", schedule.pipeline_order
    lowered = getattr(schedule, "pipeline_order_with_comms", None)
    if lowered and _is_executed_by_torch(schedule):
        return "pipeline_order_with_comms", lowered
    return "_step_microbatches", _trace(schedule)


def _is_executed_by_torch(schedule: Any) -> bool:
    runtime = importlib.import_module(
        "torch.distributed.pipelining.schedules"
    )._PipelineScheduleRuntime
    return type(schedule)._step_microbatches is runtime._step_microbatches


# ---- tracing


class _Work:
    """The handle of posted messages."""

    def __init__(self, row: list[str], sends: list[str]) -> None:
        self._row = row
        self._sends = sends

    def wait(self, *_: object) -> bool:
        self._row += [send.replace("SEND", "WAIT_SEND") for send in self._sends]
        self._sends.clear()
        return True


class _Message(SimpleNamespace):
    """A P2POp of a traced stage."""

    row: list[str]
    cell: str


def _post(messages: list[_Message]) -> list[_Work]:
    row = messages[0].row
    cells = [message.cell for message in messages]
    row.append(cells[0] if len(cells) == 1 else f"({';'.join(cells)})BATCH")
    return [_Work(row, [cell for cell in cells if "SEND" in cell])]


def _post_one(message: _Message, *_: object, **__: object) -> _Work:
    return _post([message])[0]


class _Stage:
    """A stage that records the calls of a schedule in the row of its rank."""

    def __init__(
        self, index: int, rank_of: Mapping[int, int], trains: bool, row: list[str]
    ) -> None:
        self.stage_index = index
        self.num_stages = len(rank_of)
        self.stage_index_to_group_rank = rank_of
        self.group_rank = rank_of[index]
        self.group_size = len(set(rank_of.values()))
        self.is_first = index == 0
        self.is_last = index == len(rank_of) - 1
        self.has_backward = trains
        self.submod = None
        self._row = row

    def __getattr__(self, name: str) -> Any:
        """All that neither computes nor communicates, such as the release of buffers."""
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: None

    def _messages(self, kind: str, other: int, microbatch: int) -> list[_Message]:
        rank = self.stage_index_to_group_rank.get(other)
        if rank is None or rank == self.group_rank:
            return []
        dist = importlib.import_module("torch.distributed")
        message = _Message(
            row=self._row,
            cell=f"{self.stage_index}{kind}{microbatch}",
            op=dist.isend if kind.startswith("SEND") else dist.irecv,
            group=SimpleNamespace(group_name="pp"),
            peer=rank,
            group_peer=rank,
            tag=0,
        )
        message.tensor = message  # what isend and irecv get
        return [message]

    def get_fwd_recv_ops(self, microbatch: int) -> list[_Message]:
        return self._messages("RECV_F", self.stage_index - 1, microbatch)

    def get_fwd_send_ops(self, microbatch: int) -> list[_Message]:
        return self._messages("SEND_F", self.stage_index + 1, microbatch)

    def get_bwd_recv_ops(self, microbatch: int) -> list[_Message]:
        if not self.has_backward:
            return []
        return self._messages("RECV_B", self.stage_index + 1, microbatch)

    def get_bwd_send_ops(self, microbatch: int) -> list[_Message]:
        if not self.has_backward:
            return []
        return self._messages("SEND_B", self.stage_index - 1, microbatch)

    def forward_one_chunk(self, microbatch: int, *_: object, **__: object) -> None:
        self._row.append(f"{self.stage_index}F{microbatch}")

    def backward_one_chunk(
        self, microbatch: int, *_: object, full_backward: bool = True, **__: object
    ) -> None:
        if self.has_backward:
            self._row.append(f"{self.stage_index}{'B' if full_backward else 'I'}{microbatch}")

    def backward_weight_one_chunk(self, microbatch: int, *_: object, **__: object) -> None:
        if self.has_backward:
            self._row.append(f"{self.stage_index}W{microbatch}")

    def perform_reduce_grad(self, *_: object) -> None:
        if self.has_backward:
            self._row.append(f"{self.stage_index}REDUCE_GRAD")


_tracing = threading.Lock()  # the functions of torch.distributed are replaced


@contextmanager
def _recorded_messages() -> Iterator[None]:
    dist = importlib.import_module("torch.distributed")
    new = {"isend": partial(_post_one), "irecv": partial(_post_one), "batch_isend_irecv": _post}
    with _tracing:
        old = {name: getattr(dist, name) for name in new}
        try:
            vars(dist).update(new)
            yield
        finally:
            vars(dist).update(old)


def _trace(schedule: Any) -> dict[int, list[str]]:
    stages = getattr(schedule, "_stages", None)
    some_stage = stages[0] if stages else schedule._stage
    rank_of = getattr(schedule, "stage_index_to_group_rank", None) or {
        stage: stage for stage in range(some_stage.num_stages)
    }
    with _recorded_messages():
        return {
            rank: _trace_rank(schedule, rank, rank_of) for rank in sorted(set(rank_of.values()))
        }


def _trace_rank(schedule: Any, rank: int, rank_of: Mapping[int, int]) -> list[str]:
    row: list[str] = []
    trains = schedule._loss_fn is not None
    stages = [
        _Stage(stage, rank_of, trains, row) for stage, home in rank_of.items() if home == rank
    ]
    traced = copy.copy(schedule)
    traced.rank = rank
    traced._stage, traced._stages = stages[0], stages
    traced._internal_losses = []
    traced._compute_loss = lambda *_, **__: None
    traced._initialize_stage = traced._initialize_stages = lambda *_, **__: None
    targets = [None] * schedule._n_microbatches if trains else None
    try:
        traced._step_microbatches(target_mbs=targets)
    except Exception as error:
        name = type(schedule).__name__
        what = f"{name}._step_microbatches fails on rank {rank}: {type(error).__name__}: {error}"
        why = f"before it: {', '.join(row[-4:]) or 'nothing'}"
        raise InputError.of("D626", what, why=why, rank=rank) from error
    return _with_all_waits(row)


def _with_all_waits(row: list[str]) -> list[str]:
    """A step ends when its sends are complete, whether or not the schedule waits for them."""
    sends = re.findall(r"(\d+)(SEND_[FB]\d+)", ",".join(row))
    waits = (f"{stage}WAIT_{send}" for stage, send in sends)
    return row + [wait for wait in waits if wait not in row]
