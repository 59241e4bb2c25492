"""C++ calls release the GIL, so that other Python threads run."""

import threading
import time

import shiplap

ENOUGH = 6  # ticks; a call that holds the GIL has two


def ticks_during(work) -> int:
    """How often another thread came to do something during the call, at most. A call that keeps the
    lock lets it do so when it begins and when it ends; one that does not, every millisecond, if the
    machine has time for it. So some calls are tried."""
    done = threading.Event()
    ticks = 0
    most = 0

    def tick():
        nonlocal ticks
        while not done.is_set():
            ticks += 1
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    for _ in range(100):
        before = ticks
        work()
        most = max(most, ticks - before)
        if most >= ENOUGH:
            break
    done.set()
    thread.join()
    return most


def large_plan():
    return shiplap.train("interleaved", ranks=16, layers=64, batch=64, microbatches=64).plan


def test_check_and_simulate_and_run_release_the_lock():
    plan = large_plan()
    long_text = plan.to_text() + "# a comment\n" * 500_000
    small = shiplap.train("ddp", ranks=2, batch=2, for_run=True).plan
    for name, work in {
        "check": lambda: shiplap.check(plan, symmetry=False),
        "simulate": lambda: shiplap.simulate(plan),
        "parse": lambda: shiplap.Plan.parse(long_text),
        "run": lambda: shiplap.run(small, steps=200),
    }.items():
        ticks = ticks_during(work)
        assert ticks >= ENOUGH, f"{name}: at most {ticks} ticks in a call"
