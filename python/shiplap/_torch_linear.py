"""A linear layer of tensor parallelism whose communication overlaps its GEMMs.

Every layer is two steps: the GEMM of the forward pass, y = x W^T, and that of the gradient of x,
dx = dy W. The communication of one is the transpose of the other's: an all-gather of rows belongs
to a reduce-scatter, an all-reduce to none. The gradient of the weights needs no communication,
because the rows that a step gathers are kept for it.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from typing import Any

import torch
import torch.distributed as dist

from shiplap import _gemm_library, _shiplap
from shiplap._torch_engine import DTYPES, OverlapGroup

_MIN_CHUNK_ROWS = 128  # GEMMs of fewer rows are slow: docs/overlap/gemm.md
_MIN_OVERLAPPED_ROWS = 64  # of a rank: GEMMs of fewer lose more than overlap gains
_MAX_CHUNKS = 4  # more gain nothing: docs/performance.md, "Overlap"
_OVERLAPS = ("auto", "ring_exchange", "pipeline", "none")

# Options of te.Linear that are not supported, with the values that mean that they are not used.
_UNSUPPORTED = {
    "fuse_wgrad_accumulation": "gradients are accumulated by torch",
    "get_rng_state_tracker": "seed torch before the layer is created",
    "rng_tracker_name": "seed torch before the layer is created",
    "init_method": "initialize `weight` after the layer is created",
    "return_bias": "add the bias outside: bias=False",
    "parameters_split": "create one layer for each part",
    "delay_wgrad_compute": "the gradient of the weights is computed in backward",
    "symmetric_ar_type": "there is no symmetric memory on CPU ranks",
    "save_original_input": "the gathered rows are kept for backward",
    "ub_split_ag": "its name now is ub_overlap_ag",
    "ub_split_rs": "its name now is ub_overlap_rs",
    "ub_atomic_gemm_ag": "atomic GEMMs are not supported in torch: use ub_overlap_ag",
    "ub_atomic_gemm_rs": "atomic GEMMs are not supported in torch: use ub_overlap_rs",
}


def _raise(what: str, why: str = "", help_: str = "") -> None:
    _shiplap._raise("D818", what, why, help_)


# ---- what a layer communicates


@dataclasses.dataclass(frozen=True)
class _Step:
    """A GEMM and its communication."""

    comm_type: str  # none, all_gather, reduce_scatter, all_reduce
    method: str  # auto: depends on the number of rows


_STEPS = {("column", True): ("all_gather", "reduce_scatter"),
          ("row", True): ("reduce_scatter", "all_gather"),
          ("column", False): ("none", "all_reduce"),
          ("row", False): ("all_reduce", "none"),
          (None, True): ("none", "none"),
          (None, False): ("none", "none")}


def _step(comm_type: str, overlap: str) -> _Step:
    if comm_type == "none":
        return _Step("none", "none")
    if overlap == "pipeline" and comm_type == "all_gather":
        return _Step(comm_type, "ring_exchange")  # collectives gather rows in the wrong order
    return _Step(comm_type, overlap)


def _steps(mode: str | None, sequence_parallel: bool, overlap: str,
           flags: dict[str, bool | None]) -> tuple[_Step, _Step]:
    """The steps of the forward and the backward pass. If a flag of te.Linear is given, the flags
    decide, and a step whose flag is not given is not overlapped."""
    forward, backward = _STEPS[mode, sequence_parallel]
    if all(flag is None for flag in flags.values()):
        return _step(forward, overlap), _step(backward, overlap)
    if overlap != "auto":
        _raise(f"overlap={overlap!r} and {', '.join(k for k, v in flags.items() if v is not None)}",
               "both say what is overlapped", "give one of them")
    if not sequence_parallel:
        return _step(forward, "none"), _step(backward, "none")
    on = {name: "ring_exchange" if flag else "none" for name, flag in flags.items()}
    if mode == "column":
        bulk = flags["ub_bulk_wgrad"] and not flags["ub_overlap_rs_dgrad"]
        return (_step(forward, on["ub_overlap_ag"]),
                _step(backward, "bulk" if bulk else on["ub_overlap_rs_dgrad"]))
    return _step(forward, on["ub_overlap_rs"]), _step(backward, on["ub_overlap_ag"])


# ---- GEMMs with communication


def _has_engine(device: torch.device) -> bool:
    return device.type == "cpu"


@dataclasses.dataclass(frozen=True)
class _Plan:
    """How a layer multiplies. It does not refer to the layer, which would be a cycle."""

    group: OverlapGroup
    forward: _Step
    backward: _Step
    chunks: int | None

    def multiply(self, step: _Step, x: torch.Tensor, weight: torch.Tensor, transposed: str,
                 bias: torch.Tensor | None = None, *, gathers: bool = False
                 ) -> tuple[torch.Tensor, torch.Tensor]:
        """x W^T + bias if ``transposed`` is "w", otherwise x W. Also returns the rows of x of all
        ranks; without ``gathers`` they may be missing."""
        if step.comm_type == "none":
            return _local(x, weight, transposed, bias), x
        if not _has_engine(x.device):
            return self._multiply_with_torch(step, x, weight, transposed, bias)
        ranks = self.group.size
        rows = {"all_gather": len(x) * ranks, "reduce_scatter": len(x) // ranks,
                "all_reduce": len(x)}[step.comm_type]
        y = x.new_empty(rows, weight.shape[0 if transposed == "w" else 1])
        kept = step.comm_type == "all_gather" and gathers
        gathered = x.new_empty(rows, x.shape[1]) if kept else None
        method, chunks = self._split(step, max(rows, len(x)) // ranks)
        self.group.multiply(step.comm_type, method, chunks, transposed, x=x, w=weight, y=y,
                            gathered=gathered, bias=None if bias is None else bias.reshape(1, -1))
        return y, x if gathered is None else gathered

    def _split(self, step: _Step, rows: int) -> tuple[str, int]:
        """The method, and the number of chunks of the rows of a rank."""
        method = step.method
        if method == "auto":
            method = "ring_exchange" if rows >= _MIN_OVERLAPPED_ROWS else "none"
        if method == "none":
            return method, 1
        return method, self.chunks or min(max(rows // _MIN_CHUNK_ROWS, 1), _MAX_CHUNKS)

    def _multiply_with_torch(self, step: _Step, x: torch.Tensor, weight: torch.Tensor,
                             transposed: str, bias: torch.Tensor | None
                             ) -> tuple[torch.Tensor, torch.Tensor]:
        """The same without overlap, by the collectives of torch."""
        group = self.group.group
        if step.comm_type == "all_gather":
            gathered = x.new_empty(len(x) * self.group.size, x.shape[1])
            dist.all_gather_into_tensor(gathered, x, group=group)
            return _local(gathered, weight, transposed, bias), gathered
        y = _local(x, weight, transposed, None)
        if step.comm_type == "all_reduce":
            dist.all_reduce(y, group=group)
        else:
            partial, y = y, y.new_empty(len(y) // self.group.size, y.shape[1])
            dist.reduce_scatter_tensor(y, partial, group=group)
        return (y if bias is None else y + bias), x

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        """The rows of all ranks: an all-gather with a GEMM of a single column."""
        step = _Step("all_gather", "none")
        return self.multiply(step, x, x.new_zeros(x.shape[1], 1), "", gathers=True)[1]

    def multiply_bulk(self, dy: torch.Tensor, rows: torch.Tensor, weight: torch.Tensor
                      ) -> tuple[torch.Tensor, torch.Tensor]:
        """dx and dW, where the reduce-scatter of dx overlaps the GEMM of dW."""
        partial = dy @ weight
        dx = partial.new_empty(len(partial) // self.group.size, partial.shape[1])
        dweight = torch.empty_like(weight)
        self.group.multiply("reduce_scatter", "bulk", 1, "x", x=dy, w=rows, y=dweight,
                            to_scatter=partial, scattered=dx)
        return dx, dweight


def _local(x: torch.Tensor, weight: torch.Tensor, transposed: str,
           bias: torch.Tensor | None) -> torch.Tensor:
    return torch.nn.functional.linear(x, weight if transposed == "w" else weight.t(), bias)


class _LinearFunction(torch.autograd.Function):
    """Of contiguous matrices. All ranks need the same gradients."""

    @staticmethod
    def forward(ctx: Any, plan: _Plan, x: torch.Tensor, weight: torch.Tensor,
                bias: torch.Tensor | None, keeps_rows: bool) -> torch.Tensor:
        y, rows = plan.multiply(plan.forward, x, weight, "w", bias, gathers=keeps_rows)
        ctx.plan = plan
        ctx.save_for_backward(rows if keeps_rows else None, weight)
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator, unused-ignore]
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[Any, ...]:
        plan: _Plan = ctx.plan
        rows, weight = ctx.saved_tensors
        _, for_x, for_weight, for_bias, _ = ctx.needs_input_grad
        with torch.autocast(dy.device.type, enabled=False):
            return (None, *_gradients(plan, dy.contiguous(), rows, weight,
                                      (for_x, for_weight, for_bias)), None)


def _gradients(plan: _Plan, dy: torch.Tensor, rows: torch.Tensor | None, weight: torch.Tensor,
               needed: tuple[bool, bool, bool]) -> tuple[torch.Tensor | None, ...]:
    """Of x, the weights and the bias."""
    for_x, for_weight, for_bias = needed
    dx = dweight = None
    step = plan.backward
    if step.method == "bulk" and for_x and rows is not None and _has_engine(dy.device):
        dx, dweight = plan.multiply_bulk(dy, rows, weight)
    else:
        step = dataclasses.replace(step, method="none") if step.method == "bulk" else step
        if for_x:
            dx, dy = plan.multiply(step, dy, weight, "", gathers=for_weight or for_bias)
        elif step.comm_type == "all_gather" and (for_weight or for_bias):
            dy = plan.gather(dy)
        if rows is not None and for_weight:
            dweight = dy.t() @ rows
    # Where dy was gathered, this is the sum over the rows of all ranks.
    return dx, dweight, dy.sum(0) if for_bias else None


# ---- the layer


class OverlappedLinear(torch.nn.Module):
    """``torch.nn.Linear`` over the ranks of a group: its communication overlaps its GEMMs.

    ``in_features`` and ``out_features`` are those of all ranks. ``parallel_mode="column"`` splits
    ``out_features``, ``"row"`` splits ``in_features``; ``None`` is a plain linear layer. The
    parameters are the shard of this rank of those of ``torch.nn.Linear``, under the same names.

    With ``sequence_parallel``, the first dimension of activations outside a column-row pair is
    split over the ranks: a column layer gathers it before its GEMM, a row layer reduce-scatters its
    result. Without, they are replicated: a row layer all-reduces its result, a column layer the
    gradient of its input. All ranks call the layers of a group in the same order, with inputs of
    the same shape.

    ``overlap`` is ``"ring_exchange"``, ``"pipeline"`` or ``"none"`` (docs/overlap/methods.md), or
    ``"auto"``: ``"ring_exchange"`` if a rank has at least 64 rows. ``chunks`` is the number of
    chunks of the rows of a rank; the default is up to 4, with at least 128 rows each. ``deadline``
    is how long a rank waits for the others, in seconds; if a rank fails, the others raise
    RankFailed.

    The other arguments have the names of ``te.Linear`` of TransformerEngine
    (docs/overlap/transformer-engine.md).

    Tensors of CPU ranks are overlapped: float32, bfloat16 and float16. For other devices the layer
    uses the collectives of torch, without overlap, and warns once.

        up = OverlappedLinear(4096, 16384, parallel_mode="column", group=tp_group)
        down = OverlappedLinear(16384, 4096, parallel_mode="row", group=tp_group)
        y = down(torch.nn.functional.gelu(up(x)))  # x: this rank's part of the sequence
    """

    _warned = False
    bias: torch.nn.Parameter | None

    # The third positional argument of torch.nn.Linear is `bias`, that of te.Linear is
    # `sequence_parallel`: here there is none, so that neither is taken for the other.
    def __init__(self, in_features: int, out_features: int, *, parallel_mode: str | None,
                 bias: bool = True, group: Any = None, sequence_parallel: bool = True,
                 overlap: str = "auto", chunks: int | None = None, deadline: float = 60.0,
                 device: Any = None, dtype: torch.dtype | None = None, tp_group: Any = None,
                 tp_size: int | None = None, params_dtype: torch.dtype | None = None,
                 ub_overlap_ag: bool | None = None, ub_overlap_rs: bool | None = None,
                 ub_overlap_rs_dgrad: bool | None = None, ub_bulk_dgrad: bool | None = None,
                 ub_bulk_wgrad: bool | None = None, ub_name: str | None = None,
                 name: str | None = None, **te_options: Any) -> None:
        super().__init__()
        self._group = OverlapGroup(tp_group if group is None else group, deadline)
        self.in_features, self.out_features = in_features, out_features
        self.parallel_mode, self.sequence_parallel = parallel_mode, sequence_parallel
        self.name = name or ub_name or "OverlappedLinear"
        flags = {"ub_overlap_ag": ub_overlap_ag, "ub_overlap_rs": ub_overlap_rs,
                 "ub_overlap_rs_dgrad": ub_overlap_rs_dgrad, "ub_bulk_dgrad": ub_bulk_dgrad,
                 "ub_bulk_wgrad": ub_bulk_wgrad}
        self._check_options(group, tp_group, tp_size, overlap, chunks, te_options)
        self._check_sizes()
        steps = _steps(parallel_mode, sequence_parallel, overlap, flags)
        self._plan = _Plan(self._group, *steps, chunks)
        factory = {"device": device, "dtype": dtype if params_dtype is None else params_dtype}
        rows, columns = out_features // self._ranks("column"), in_features // self._ranks("row")
        self.weight = torch.nn.Parameter(torch.empty(rows, columns, **factory))
        self.register_parameter(
            "bias", torch.nn.Parameter(torch.empty(rows, **factory)) if bias else None)
        self.reset_parameters()

    @classmethod
    def from_linear(cls, linear: torch.nn.Linear, *, parallel_mode: str | None,
                    **options: Any) -> OverlappedLinear:
        """A layer with this rank's shard of the parameters of ``linear``, which every rank has."""
        options = {"device": linear.weight.device, "dtype": linear.weight.dtype, **options}
        made = cls(linear.in_features, linear.out_features, bias=linear.bias is not None,
                   parallel_mode=parallel_mode, **options)
        with torch.no_grad():
            made.weight.copy_(made._shard(linear.weight))
            if made.bias is not None:
                made.bias.copy_(made._split(linear.bias, "column", 0))
        return made

    def reset_parameters(self) -> None:
        """Initializes the weights as ``torch.nn.Linear`` does: ranks with the same seed get shards
        of one matrix. The bias is 0, so that ranks with other seeds agree on it."""
        with torch.no_grad():
            whole = self.weight.new_empty(self.out_features, self.in_features)
            torch.nn.init.kaiming_uniform_(whole, a=math.sqrt(5))
            self.weight.copy_(self._shard(whole))
            if self.bias is not None:
                self.bias.zero_()

    def _ranks(self, mode: str) -> int:
        return self._group.size if self.parallel_mode == mode else 1

    def _shard(self, whole: torch.Tensor) -> torch.Tensor:
        return self._split(self._split(whole, "column", 0), "row", 1)

    def _split(self, whole: torch.Tensor, mode: str, dim: int) -> torch.Tensor:
        ranks = self._ranks(mode)
        return whole.tensor_split(ranks, dim)[self._group.rank if ranks > 1 else 0]

    # ---- checks

    def _check_options(self, group: Any, tp_group: Any, tp_size: int | None, overlap: str,
                       chunks: int | None, te_options: dict[str, Any]) -> None:
        for name, value in te_options.items():
            if name not in _UNSUPPORTED:
                raise TypeError(f"OverlappedLinear() got an unexpected keyword argument {name!r}")
            if value not in (None, False):
                _raise(f"{self.name}: {name} of te.Linear is unsupported", _UNSUPPORTED[name],
                       "see docs/overlap/transformer-engine.md")
        if self.parallel_mode not in ("column", "row", None):
            _raise(f"{self.name}: parallel_mode is {self.parallel_mode!r}", "",
                   "choose 'column', 'row' or None")
        if overlap not in _OVERLAPS:
            _raise(f"{self.name}: overlap is {overlap!r}", "", "choose " + ", ".join(_OVERLAPS))
        if chunks is not None and chunks < 1:
            _raise(f"{self.name}: chunks is {chunks}", "", "choose 1 or more")
        if group is not None and tp_group is not None and group is not tp_group:
            _raise(f"{self.name}: group and tp_group differ", "both are the group of the ranks",
                   "give one of them")
        if tp_size is not None and tp_size != self._group.size:
            _raise(f"{self.name}: tp_size is {tp_size}, but the group has {self._group.size} ranks",
                   "", "leave tp_size out, or pass the group as tp_group")

    def _check_sizes(self) -> None:
        for mode, name in (("column", "out_features"), ("row", "in_features")):
            count, ranks = getattr(self, name), self._ranks(mode)
            if count < 1 or count % ranks:
                _raise(f"{self.name}: {name} is {count}, which is not divisible by {ranks} ranks",
                       f"parallel_mode='{mode}' splits it over the ranks",
                       f"choose a multiple of {ranks}, or another group")

    def _check_input(self, x: torch.Tensor, weight: torch.Tensor) -> None:
        if x.dim() < 2 or x.shape[-1] != weight.shape[1] or x.numel() == 0:
            _raise(f"{self.name}: the input has the shape {tuple(x.shape)}",
                   f"this rank multiplies by {weight.shape[1]} of {self.in_features} in_features",
                   f"pass (sequence, .., {weight.shape[1]})")
        if x.dtype != weight.dtype or x.device != weight.device:
            _raise(f"{self.name}: the input is {x.dtype} on {x.device}, the weights are "
                   f"{weight.dtype} on {weight.device}", "",
                   "convert one of them, or use torch.autocast")
        if _has_engine(x.device) and x.dtype not in DTYPES:
            _raise(f"{self.name}: unsupported dtype {x.dtype}", "",
                   "choose " + ", ".join(map(str, DTYPES)))
        ranks = self._group.size
        if self._plan.forward.comm_type == "reduce_scatter" and x.shape[0] % ranks:
            _raise(f"{self.name}: the input has {x.shape[0]} rows in its first dimension, which is "
                   f"not divisible by {ranks} ranks",
                   "a row layer with sequence_parallel splits it over the ranks",
                   f"pad the sequence to a multiple of {ranks}, or pass sequence_parallel=False")

    # ---- forward

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of an input (sequence, .., features of this rank)."""
        weight: torch.Tensor = self.weight
        bias: torch.Tensor | None = self.bias
        if torch.is_autocast_enabled(x.device.type):
            dtype = torch.get_autocast_dtype(x.device.type)
            x, weight = x.to(dtype), weight.to(dtype)
            bias = None if bias is None else bias.to(dtype)
        if self._group.size == 1 or self.parallel_mode is None:
            return torch.nn.functional.linear(x, weight, bias)
        with self._group.abort_peers_on_exception():
            self._check_input(x, weight)
        self._prepare_engine(x.device)
        keeps_rows = torch.is_grad_enabled() and weight.requires_grad
        flat = x.reshape(-1, x.shape[-1]).contiguous()
        bias = None if bias is None else bias.contiguous()
        y: torch.Tensor = _LinearFunction.apply(self._plan, flat, weight.contiguous(), bias,
                                                keeps_rows)
        return y.reshape(len(y) // math.prod(x.shape[1:-1]), *x.shape[1:-1], y.shape[1])

    def _prepare_engine(self, device: torch.device) -> None:
        if _has_engine(device):
            _gemm_library.load()
            return
        if OverlappedLinear._warned:
            return
        OverlappedLinear._warned = True
        warnings.warn(f"shiplap.torch.OverlappedLinear does not overlap on {device.type}: it uses "
                      "the collectives of torch. Only CPU tensors are overlapped", stacklevel=3)

    def extra_repr(self) -> str:
        forward, backward = self._plan.forward, self._plan.backward
        return (f"in_features={self.in_features}, out_features={self.out_features}, "
                f"bias={self.bias is not None}, parallel_mode={self.parallel_mode!r}, "
                f"rank {self._group.rank} of {self._group.size}, "
                f"forward: {forward.comm_type} by {forward.method}, "
                f"backward: {backward.comm_type} by {backward.method}")
