"""Detects memory leaks of objects that are created and dropped many times."""

import ctypes
import gc
import os
import pathlib
import sys
from collections.abc import Callable
from typing import NamedTuple


class _Heap(ctypes.Structure):
    """The result of mallinfo2 of the C library."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    ]


LIBC = ctypes.CDLL(None)
LIBC.mallinfo2.restype = _Heap


class Growth(NamedTuple):
    """The memory in use."""

    heap: int  # bytes that C++ holds
    blocks: int  # that Python holds
    objects: int  # that its collector knows


def in_use() -> Growth:
    """More precise than the memory of the process, where leaks first reuse freed memory."""
    gc.collect()
    heap = LIBC.mallinfo2()
    return Growth(heap.uordblks + heap.hblkhd, sys.getallocatedblocks(), len(gc.get_objects()))


def resident() -> int:
    """The resident memory of this process, in bytes."""
    pages = pathlib.Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def growth(make: Callable[[], object], cycles: int = 1000) -> Growth:
    """The growth after `cycles` calls of `make`, after a warm-up of a quarter of them."""
    for _ in range(cycles // 4 + 1):
        make()
    before = in_use()
    for _ in range(cycles):
        make()
    return Growth(*(now - then for now, then in zip(in_use(), before, strict=True)))


def assert_no_leak(make: Callable[[], object], cycles: int = 1000) -> None:
    """The smallest thing that could leak is larger than the limits, for each cycle."""
    stays = growth(make, cycles)
    assert stays.heap < 16 * cycles + 16384, stays  # tables of caches may grow once
    assert stays.blocks < cycles / 4 + 64, stays
    assert stays.objects < cycles / 10 + 16, stays
