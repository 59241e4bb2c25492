"""Everything that is replaced in torch besides its devices (_devices.py), in one place.

The recorder itself uses documented hooks: a TorchDispatchMode, a subclass of Work, the hooks of
optimizers. This module replaces what has none. Each function says why.
"""

# Assignments to modules and classes of torch are the purpose of this file.
# mypy: disable-error-code="attr-defined,assignment,method-assign,arg-type,misc"

from __future__ import annotations

import contextlib
import functools
import inspect
import types
import weakref
from collections.abc import Iterator
from typing import Any

import torch
import torch._dynamo  # noqa: F401 (it refuses to be imported once functions of torch are replaced)
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
import torch.multiprocessing
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.attention import flex_attention
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._python_dispatch import _disable_current_modes

from shiplap.record._events import GroupCreated, MeshCreated
from shiplap.record._recorder import Recorder


def install(recorder: Recorder) -> None:
    """Patches torch in this process, which then is one rank."""
    _replace_rendezvous(recorder)
    _replace_groups(recorder)
    _name_meshes(recorder)
    _replace_batches(recorder)
    _remember_reductions(recorder)
    _replace_ddp(recorder)
    _replace_value_reads(recorder)
    _replace_processes(recorder)
    _replace_compilation()
    _replace_flex_attention()
    _allow_swaps()
    _skip_checkpoints()
    _count_steps(recorder)


def _replace_rendezvous(recorder: Recorder) -> None:
    """There is nobody to meet."""

    def rendezvous(*_: Any, **__: Any) -> Iterator[Any]:
        yield recorder.store(), recorder.rank, recorder.world

    c10d.rendezvous = rendezvous
    dist.rendezvous = rendezvous
    c10d._store_based_barrier = lambda *_, **__: None


def _replace_groups(recorder: Recorder) -> None:
    """Every backend becomes that of the recorder; the program sees the name that it asked for."""
    create = c10d._new_process_group_helper
    groups: list[Any] = []  # other ranks may still need them when this one destroys them

    def new_process_group(
        size: int,
        group_rank: int,
        global_ranks: list[int],
        backend: Any,
        store: Any,
        name: Any,
        *_: Any,
        **given: Any,
    ) -> Any:
        kept = {key: given[key] for key in ("timeout", "pg_tag", "group_desc") if key in given}
        if recorder.timeout is not None:
            kept["timeout"] = recorder.timeout
        result = create(size, group_rank, global_ranks, recorder.backend, store, name, **kept)
        groups.append(result[0])
        ranks = list(global_ranks) or list(range(size))
        asked = str(backend)
        if asked in ("None", "undefined", ""):
            asked = "cpu:gloo,cuda:nccl"
        if asked == recorder.backend:  # inherited from the default group
            asked = next(iter(recorder.backends.values()), asked)
        recorder.backends[str(name)] = asked
        if recorder.rank in ranks:
            recorder.groups[str(name)] = ranks
        description = str(given.get("group_desc") or "")
        recorder.emit(GroupCreated(str(name), ranks, description, asked, recorder.site()))
        return result

    c10d._new_process_group_helper = new_process_group

    def get_backend(group: Any = None) -> str:
        group = group or c10d._get_default_group()
        asked = recorder.backends.get(str(group.group_name), recorder.backend)
        if ":" not in asked:
            return asked
        by_device = dict(part.split(":") for part in asked.split(","))
        return by_device.get("cuda") or next(iter(by_device.values()))

    for module in (c10d, dist):
        module.get_backend = get_backend
        module.is_nccl_available = lambda: True


def _name_meshes(recorder: Recorder) -> None:
    """The names of its dimensions do not reach process groups that exist already."""
    initialize = DeviceMesh.__init__

    def initialize_named(self: Any, *args: Any, **kwargs: Any) -> None:
        initialize(self, *args, **kwargs)
        dimensions = []
        for k, name in enumerate(self.mesh_dim_names or ()):
            line = self.mesh.tolist()
            for _ in range(k):
                line = line[0]
            firsts = [_first(item) for item in line]
            strides = {b - a for a, b in zip(firsts, firsts[1:])}
            if len(strides) == 1:
                dimensions.append((str(name), strides.pop(), len(firsts)))
        recorder.emit(MeshCreated(dimensions))

    DeviceMesh.__init__ = initialize_named


def _first(ranks: Any) -> int:
    while isinstance(ranks, list):
        ranks = ranks[0]
    return int(ranks)


def _replace_batches(recorder: Recorder) -> None:
    """The borders of a batch do not reach the dispatcher."""

    def batch_isend_irecv(p2p_op_list: list[Any]) -> list[Any]:
        c10d._check_p2p_op_list(p2p_op_list)
        recorder.begin_batch()
        for op in p2p_op_list:
            end = "dst" if op.op is c10d.isend else "src"
            peer = {f"group_{end}": op.group_peer} if hasattr(op, "group_peer") else {end: op.peer}
            op.op(op.tensor, group=op.group, tag=op.tag, **peer)
        work = recorder.end_batch()
        return [] if work is None else [work]

    @contextlib.contextmanager
    def coalescing_manager(
        group: Any = None, device: Any = None, async_ops: bool = False
    ) -> Iterator[Any]:
        manager = c10d._CoalescingManager()
        recorder.begin_batch()
        try:
            yield manager
        finally:
            work = recorder.end_batch()
        if work is not None:
            manager.append(work)
            if not async_ops:
                work.wait()

    for module in (c10d, dist):
        module.batch_isend_irecv = batch_isend_irecv
        module._coalescing_manager = coalescing_manager


def _remember_reductions(recorder: Recorder) -> None:
    """In torch 2.6 and 2.9 the operator of a reduction is opaque to the dispatcher. Those of C++
    code are sums."""
    if hasattr(c10d.ReduceOp, "unbox"):
        return

    def remembering(function: Any) -> Any:
        parameters = inspect.signature(function)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            outer = recorder.reduction
            bound = parameters.bind(*args, **kwargs)
            recorder.reduction = bound.arguments.get("op", c10d.ReduceOp.SUM)
            try:
                return function(*args, **kwargs)
            finally:
                recorder.reduction = outer

        return call

    for name in ("all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor"):
        replaced = remembering(getattr(c10d, name))
        for module in (c10d, dist):
            setattr(module, name, replaced)


def _replace_ddp(recorder: Recorder) -> None:
    """DDP compares shapes in C++, by reading numbers that fake tensors do not have; what it sends
    is known. Its reducer waits in C++ for the futures of its buckets, before backward returns."""
    has_group_src = "group_src" in inspect.signature(dist.broadcast).parameters

    def verify(group: Any, tensors: list[torch.Tensor], logger: Any = None) -> None:
        group = group or c10d._get_default_group()
        counts = [torch.zeros(1, dtype=torch.int64) for _ in range(group.size())]
        dist.all_gather(counts, torch.zeros(1, dtype=torch.int64), group=group)
        shapes = torch.zeros(sum(2 * t.dim() for t in tensors), dtype=torch.int64)
        root = {"group_src": 0} if has_group_src else {"src": dist.get_global_rank(group, 0)}
        dist.broadcast(shapes, group=group, **root)

    dist._verify_params_across_processes = verify
    torch.nn.parallel.distributed._verify_param_shape_across_processes = verify
    dist.Logger.set_construction_data_and_log = lambda *_, **__: None
    backward = torch.autograd.backward

    def run_backward(*args: Any, **kwargs: Any) -> Any:
        try:
            return backward(*args, **kwargs)
        finally:
            recorder.wait_for_futures()

    torch.autograd.backward = run_backward


def _replace_value_reads(recorder: Recorder) -> None:
    """`numpy` and `tolist` read memory without an operator."""

    def reader(name: str) -> Any:
        original = getattr(torch.Tensor, name)

        def read(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            value = recorder.value_of(self)
            with _disable_current_modes():
                return original(value.detach(), *args, **kwargs)

        return read

    for name in ("numpy", "tolist", "__array__"):
        setattr(recorder.tensor_type, name, reader(name))


def _replace_processes(recorder: Recorder) -> None:
    """One process is one rank: a script that spawns its ranks becomes one of them, and data loaders
    load here, since fake tensors cannot be sent to a worker."""

    def spawn(fn: Any, args: Any = (), nprocs: int = 1, *_: Any, **__: Any) -> None:
        fn(recorder.rank % nprocs, *args)

    torch.multiprocessing.spawn = spawn
    torch.multiprocessing.start_processes = spawn
    loader = torch.utils.data.DataLoader
    initialize = loader.__init__

    def initialize_here(self: Any, *args: Any, **kwargs: Any) -> None:
        for name in ("prefetch_factor", "multiprocessing_context"):
            kwargs.pop(name, None)
        kwargs.update(num_workers=0, persistent_workers=False, pin_memory=False, timeout=0)
        initialize(self, *args[:5], **kwargs)

    loader.__init__ = initialize_here


def _replace_compilation() -> None:
    """Compiled code makes the same calls, but hides them from the dispatcher."""

    def compile_nothing(model: Any = None, **_: Any) -> Any:
        return model if model is not None else lambda function: function

    torch.compile = compile_nothing
    torch.nn.Module.compile = lambda *_, **__: None


def _replace_flex_attention() -> None:
    """Its operator takes functions of indices, which have no fake values. Attention does not
    communicate, and its result has the same shape with any mask."""

    def attention(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *_: Any,
        return_lse: bool = False,
        return_aux: Any = None,
        **__: Any,
    ) -> Any:
        repeats = query.shape[1] // key.shape[1]
        key, value = (each.repeat_interleave(repeats, 1) for each in (key, value))
        out = torch.nn.functional.scaled_dot_product_attention(query, key, value)
        logarithms = query.float().sum(-1)
        if return_aux is not None:
            return out, flex_attention.AuxOutput(lse=logarithms, max_scores=logarithms)
        return (out, logarithms) if return_lse else out

    flex_attention.flex_attention = attention


def _allow_swaps() -> None:
    """`Module.to` swaps parameters, and refuses if there is a weak reference; the fake mode itself
    holds one."""
    without = types.SimpleNamespace(
        **{name: getattr(weakref, name) for name in dir(weakref) if name[0] != "_"}
    )
    without.getweakrefs = lambda _: []
    torch.utils.swap_tensors.__globals__["weakref"] = without


def _skip_checkpoints() -> None:
    """Fake tensors cannot be saved, and a recording must not overwrite a checkpoint."""
    torch.save = lambda *_, **__: None


def _count_steps(recorder: Recorder) -> None:
    depth = 0  # an optimizer may consist of optimizers

    def before(*_: Any) -> None:
        nonlocal depth
        depth += 1

    def after(*_: Any) -> None:
        nonlocal depth
        depth -= 1
        if depth == 0:
            recorder.end_step()

    register_optimizer_step_pre_hook(before)
    register_optimizer_step_post_hook(after)
