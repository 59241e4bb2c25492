"""Executes schedules of torch on gloo, in the orders of `broken_orders.py`."""

from __future__ import annotations

import datetime
import logging

import torch
import torch.distributed as dist
from broken_orders import BROKEN
from torch.distributed import pipelining
from torch.distributed.pipelining import _utils, schedules

STAGES, MICROBATCHES = 4, 4
TIMEOUT = datetime.timedelta(seconds=4)


def weights(stage: int) -> torch.nn.Linear:
    module = torch.nn.Linear(3, 3).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.linspace(-1, 1 + stage, parameter.numel()).view_as(parameter))
    return module


def loss_of(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return ((output - target) ** 2).sum()


def gradients(modules) -> list[torch.Tensor]:
    return [p.grad if p.grad is not None else p * 0 for m in modules for p in m.parameters()]


def expected(samples: torch.Tensor, target: torch.Tensor, mine: list[int]) -> list[torch.Tensor]:
    modules = [weights(stage) for stage in range(STAGES)]
    for x, y in zip(samples.chunk(MICROBATCHES), target.chunk(MICROBATCHES), strict=True):
        for module in modules:
            x = module(x)
        loss_of(x, y).backward()
    return gradients([modules[stage] for stage in mine])


def execute(rank: int, ranks: int, name: str, case: str | None = None) -> str:
    """What happens in one step: it is `fine`, `hangs`, `raises` or is `wrong`."""
    in_a_v = name in ("ScheduleZBVZeroBubble", "ScheduleDualPipeV")
    rank_of = _utils.generate_stage_to_rank_mapping(ranks, STAGES, "v" if in_a_v else "loop")
    mine = [stage for stage in range(STAGES) if rank_of[stage] == rank]
    modules = {stage: weights(stage) for stage in mine}
    dist.barrier()  # the other rank may still wait for its timeout
    group = dist.new_group(timeout=TIMEOUT)
    stages = [
        pipelining.PipelineStage(modules[stage], stage, STAGES, torch.device("cpu"), group=group)
        for stage in mine
    ]
    made = getattr(schedules, name)(stages, MICROBATCHES, loss_fn=loss_of, scale_grads=False)
    if case is not None:
        BROKEN[case].edit(made.pipeline_order_with_comms)
    samples = torch.arange(24, dtype=torch.float64).reshape(8, 3) / 24
    target = samples * 2
    inputs = [samples] if 0 in mine else []
    targets = {"target": target} if STAGES - 1 in mine else {}
    try:
        made.step(*inputs, **targets)
    except Exception as error:
        return "hangs" if "imed out" in str(error) else f"raises {type(error).__name__}: {error}"
    pairs = zip(gradients(modules.values()), expected(samples, target, mine), strict=True)
    return "fine" if all(torch.allclose(found, right) for found, right in pairs) else "wrong"


def execute_all(rank: int, ranks: int, cases: list[str]) -> list[str]:
    logging.disable()  # torch logs the whole schedule of a case that fails
    return [execute(rank, ranks, BROKEN[case].schedule, case) for case in cases]
