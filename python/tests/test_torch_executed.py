"""What `assert_sound` says of orders of torch agrees with what two processes on gloo do."""

import pytest
from broken_orders import BROKEN

pytest.importorskip("torch.distributed.pipelining.schedules")

from workers import pipeline  # noqa: E402
from workers.ranks import values  # noqa: E402

NAMES = ("ScheduleInterleaved1F1B", "ScheduleLoopedBFS", "ScheduleInterleavedZeroBubble",
         "ScheduleZBVZeroBubble", "ScheduleDualPipeV")


def test_broken_orders_fail_in_torch():
    """Two processes on gloo, of which one at least does not end well."""
    cases = [case for case, broken in BROKEN.items() if broken.in_gloo]
    of_ranks = values(pipeline.execute_all, 2, cases, timeout=300)
    for case, outcomes in zip(cases, zip(*of_ranks, strict=True), strict=True):
        kinds = [outcome.split()[0] for outcome in outcomes]
        worst = max(kinds, key=("fine", "wrong", "hangs", "raises").index)
        assert worst == BROKEN[case].in_gloo, f"{case}: {outcomes}"


@pytest.mark.parametrize("name", NAMES)
def test_sound_orders_end_in_torch(name):
    assert values(pipeline.execute, 2, name) == ["fine", "fine"]
