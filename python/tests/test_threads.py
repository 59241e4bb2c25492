"""Other threads of Python go on while C++ works."""

import threading
import time

import shiplap


def ticks_during(work) -> tuple[int, float]:
    """How often another thread came to do something meanwhile, and the seconds it took."""
    done = threading.Event()
    ticks = 0

    def tick():
        nonlocal ticks
        while not done.is_set():
            ticks += 1
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    begun = time.perf_counter()
    work()
    took = time.perf_counter() - begun
    done.set()
    thread.join()
    return ticks, took


def large_plan():
    return shiplap.train("interleaved", ranks=16, layers=64, batch=64, microbatches=64).plan


def test_check_and_simulate_and_run_release_the_lock():
    plan = large_plan()
    text = plan.to_text()
    small = shiplap.train("ddp", ranks=2, batch=2, for_run=True).plan
    for name, work in {
        "check": lambda: shiplap.check(plan, symmetry=False),
        "simulate": lambda: shiplap.simulate(plan),
        "parse": lambda: [shiplap.Plan.parse(text) for _ in range(40)],
        "run": lambda: shiplap.run(small, steps=200),
    }.items():
        ticks, took = ticks_during(work)
        assert took > 0.02, f"{name} is too quick to tell anything: {took:.3f} s"
        assert ticks > took / 0.02, f"{name}: {ticks} ticks in {took:.3f} s"
