"""The pipeline schedules that torch itself makes are sound, and a change in them is found."""

import pytest

import shiplap
from shiplap.testing import assert_sound

schedules = pytest.importorskip("torch.distributed.pipelining.schedules")

IN_A_V = ("ScheduleZBVZeroBubble", "ScheduleDualPipeV")  # stage k and its mirror on one rank
NAMES = (
    "ScheduleInterleaved1F1B",
    "ScheduleLoopedBFS",
    "ScheduleInterleavedZeroBubble",
    *IN_A_V,
)


class Stage:
    """What a schedule asks of a stage of rank 0."""

    def __init__(self, index: int, ranks: int, rank_of: dict[int, int]) -> None:
        self.stage_index = index
        self.num_stages = len(rank_of)
        self.stage_index_to_group_rank = rank_of
        self.group_rank = 0
        self.group_size = ranks
        self.is_first = index == 0
        self.is_last = index == len(rank_of) - 1
        self.has_backward = True
        self.device = "cpu"
        self.submod = None


def schedule(name: str, ranks: int, microbatches: int):
    stages = 2 * ranks
    rank_of = {
        stage: stage if stage < ranks else stages - 1 - stage if name in IN_A_V else stage - ranks
        for stage in range(stages)
    }
    mine = [Stage(stage, ranks, rank_of) for stage in range(stages) if rank_of[stage] == 0]
    return getattr(schedules, name)(mine, microbatches, loss_fn=lambda *_: 0)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_sound(name, ranks):
    report = assert_sound(schedule(name, ranks, 2 * ranks))
    assert report.ranks == ranks and report.plan.name == name
    assert shiplap.simulate(report.plan)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_one_stage_per_rank(ranks):
    """Of torch 2.15, whose order for the last rank of 1F1B begins with microbatch 1."""
    first = Stage(0, ranks, {rank: rank for rank in range(ranks)})
    assert_sound(schedules.ScheduleGPipe(first, 2 * ranks, loss_fn=lambda *_: 0))
    one_f_one_b = schedules.Schedule1F1B(first, 2 * ranks, loss_fn=lambda *_: 0)
    assert str(one_f_one_b.pipeline_order[ranks - 1][0]).endswith("F1"), "torch has mended it"
    assert "D715" in shiplap.check(one_f_one_b).codes


@pytest.mark.parametrize("name", NAMES)
def test_two_actions_in_the_wrong_order(name):
    """The last backward, or half of it, comes first."""
    wrong = schedule(name, 4, 8)
    actions = wrong.pipeline_order[0]
    actions[0], actions[-1] = actions[-1], actions[0]
    with pytest.raises(AssertionError, match=f"{name} is not sound"):
        assert_sound(wrong)
