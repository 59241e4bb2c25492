"""Whether what is made and dropped many times leaves memory behind."""

import gc
import os
from collections.abc import Callable


def resident() -> int:
    """Bytes of this process that are in memory."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def growth(make: Callable[[], object], cycles: int = 1000) -> tuple[float, int]:
    """Bytes per cycle that stay, and objects of Python that stay, after `cycles` times `make`.

    The first cycles fill caches and pools, so they do not count. Of three rounds the least counts:
    what leaks, leaks in each.
    """
    for _ in range(cycles // 4 + 1):
        make()
    rounds = []
    for _ in range(3):
        gc.collect()
        objects, bytes_ = len(gc.get_objects()), resident()
        for _ in range(cycles):
            make()
        gc.collect()
        rounds.append(((resident() - bytes_) / cycles, len(gc.get_objects()) - objects))
    return min(rounds)


def assert_no_leak(make: Callable[[], object], cycles: int = 1000, most: int = 32) -> None:
    """The smallest thing that could leak, a small object, is larger than the limit."""
    bytes_, objects = growth(make, cycles)
    assert bytes_ < most, f"{bytes_:.0f} bytes stay per cycle"
    assert objects < cycles // 10, f"{objects} objects stay after {cycles} cycles"
