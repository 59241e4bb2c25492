"""Runs a script as one rank, in this process."""

from __future__ import annotations

import contextlib
import os
import resource
import runpy
import sys
import time
import traceback
from datetime import timedelta

import torch

from shiplap.record import _devices, _patches
from shiplap.record._events import Recording
from shiplap.record._fake import FakeRecorder
from shiplap.record._launch import Mailbox, RankSettings
from shiplap.record._real import RealRecorder, Stuck
from shiplap.record._recorder import Recorder, StepLimit

_HERE = os.path.dirname(os.path.abspath(__file__))
_TORCH = os.path.dirname(os.path.abspath(torch.__file__))


def _set_environment(rank: int, world: int, ranks_per_node: int) -> None:
    local, node = rank % ranks_per_node, rank // ranks_per_node
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(world),
        LOCAL_RANK=str(local),
        LOCAL_WORLD_SIZE=str(ranks_per_node),
        GROUP_RANK=str(node),
        NODE_RANK=str(node),
        GROUP_WORLD_SIZE=str(-(-world // ranks_per_node)),
        ROLE_RANK=str(rank),
        ROLE_WORLD_SIZE=str(world),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT="29500",
        TORCHELASTIC_RUN_ID="shiplap",
        TORCHELASTIC_RESTART_COUNT="0",
        TORCHELASTIC_MAX_RESTARTS="0",
        TORCH_COMPILE_DISABLE="1",
    )


def record_rank(rank: int, settings: RankSettings, mailbox: Mailbox | None = None) -> Recording:
    """Changes this process for good: torch is patched, the environment is that of the rank."""
    ranks_per_node = min(settings.ranks_per_node, settings.world)
    torch.set_num_threads(1)  # several ranks run at a time
    _set_environment(rank, settings.world, ranks_per_node)
    recorder = _make_recorder(rank, settings, mailbox)
    if settings.devices:
        _devices.install(recorder, ranks_per_node)
    _patches.install(recorder)
    sys.argv = [settings.script, *settings.arguments]
    folder = (
        os.getcwd() if settings.is_module else os.path.dirname(os.path.abspath(settings.script))
    )
    sys.path.insert(0, folder)
    start = time.monotonic()
    error = incomplete = ""
    try:
        with recorder:
            _run_script(settings)
            recorder.finish()
    except Stuck as stuck:
        incomplete = str(stuck)
    except SystemExit as request:
        if request.code not in (None, 0):
            error = f"the script called sys.exit({request.code!r})"
    except BaseException as raised:  # whatever the script raises is a result
        error = _describe(raised)
        traceback.print_exc()  # to the log of the rank
    seconds = time.monotonic() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return Recording(
        rank,
        settings.world,
        recorder.events,
        recorder.groups,
        error,
        incomplete,
        seconds,
        peak,
    )


def _run_script(settings: RankSettings) -> None:
    with contextlib.suppress(StepLimit):
        if settings.is_module:
            runpy.run_module(settings.script, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(settings.script, run_name="__main__")


def _make_recorder(rank: int, settings: RankSettings, mailbox: Mailbox | None) -> Recorder:
    if not settings.real_timeout:
        return FakeRecorder(rank, settings.world, settings.steps, mailbox)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    timeout = timedelta(seconds=settings.real_timeout)
    return RealRecorder(rank, settings.world, settings.steps, timeout, settings.directory)


def _describe(raised: BaseException) -> str:
    frames = [
        frame for frame in traceback.extract_tb(raised.__traceback__) if frame.filename[0] != "<"
    ]
    user = [frame for frame in frames if not frame.filename.startswith((_HERE, _TORCH))]
    place = f" at {user[-1].filename}:{user[-1].lineno}" if user else ""
    return f"{type(raised).__name__}: {raised}{place}"
