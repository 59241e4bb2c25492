"""Plans and results do not leak: each is created and dropped a thousand times."""

import pytest
from leaks import LIBC, assert_no_leak, growth

import shiplap

SCHEDULE = "0F0,,0B0\n,1F0,1B0\n"
WRONG = shiplap.Plan.from_schedule("1F0,0F0,1B0,0B0\n")  # stage 1 before stage 0
PLAN = shiplap.Plan.from_schedule(SCHEDULE)


def raises():
    with pytest.raises(shiplap.InputError):
        shiplap.Plan.parse("mesh\n")


MAKERS = {
    "Plan": lambda: shiplap.Plan.from_schedule(SCHEDULE),
    "Plan.text": lambda: shiplap.Plan.parse(PLAN.to_text()),
    "Plan.dict": lambda: shiplap.Plan.from_dict(PLAN.to_dict()),
    "Plan.show": lambda: str(PLAN),
    "Report": lambda: shiplap.check(PLAN).to_dict(),
    "Finding": lambda: [str(finding) for finding in shiplap.check(WRONG).findings],
    "Simulation": lambda: shiplap.simulate(PLAN).to_dict(),
    "Trace": lambda: [repr(e) for e in shiplap.simulate(PLAN).trace.events(0)],
    "picture": lambda: shiplap.simulate(PLAN)._repr_html_(),
    "InputError": raises,
    "overlap": lambda: shiplap.overlap(op="ag", m=64, n=64, k=64, tp=2, hardware="h100_80g_nvl8"),
    "explain": lambda: shiplap.explain("D720"),
}


@pytest.mark.parametrize("name", MAKERS)
def test_nothing_stays(name):
    slow = name in ("picture", "overlap", "explain")
    assert_no_leak(MAKERS[name], 200 if slow else 1000)


def test_a_run_leaves_nothing():
    plan = shiplap.train("ddp", ranks=2, batch=2, for_run=True).plan
    assert_no_leak(lambda: shiplap.run(plan, steps=1), 300)


def test_leaks_would_show():
    kept = []
    assert growth(lambda: kept.append([bytearray(400)])).objects >= 1000
    assert growth(lambda: kept.append(str(10**9 + len(kept)))).blocks >= 1000
    assert growth(lambda: kept.append(LIBC.malloc(32))).heap >= 32 * 1000  # never freed
