"""GEMMs with their communication, and their derivatives.

``multiply()`` binds the primitive of ``_primitive.py`` to matrices. ``differentiable_gemm`` gives
it a VJP whose GEMMs communicate as well: the backward of all_gather is a reduce_scatter and vice
versa, and rows that the forward pass gathered are saved instead of being gathered again. ``gemm()``
is the public function: it checks arguments, flattens arrays to matrices and restores their shapes.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
from collections.abc import Callable
from typing import Any, Literal, TypeVar, cast

import jax
import jax.numpy as jnp

from shiplap import _errors, _gemm_library, _shiplap
from shiplap.jax import _primitive
from shiplap.jax._group import Group, resolve_group

_cpp = _shiplap.jax

_Function = TypeVar("_Function", bound=Callable[..., Any])
CommType = Literal["none", "all_gather", "reduce_scatter", "all_reduce", "ag", "rs", "ar"]
OverlapMethod = Literal["none", "bulk", "pipeline", "ring_exchange"]
ScalingMode = Literal["no_scaling", "delayed_tensor_scaling", "mxfp8_1d_scaling",
                      "current_tensor_scaling"]
TYPES = ("none", "all_gather", "reduce_scatter", "all_reduce")
# The numbers of TransformerEngine.
SCALING_MODES = {"no_scaling": 0, "delayed_tensor_scaling": 1, "mxfp8_1d_scaling": 2,
                 "current_tensor_scaling": 3}
_SHORT = {"ag": "all_gather", "rs": "reduce_scatter", "ar": "all_reduce"}
_NAMES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "float8_e4m3fn": "fp8_e4m3",
          "float8_e5m2": "fp8_e5m2"}


@dataclasses.dataclass(frozen=True)
class GemmConfig:
    """The static configuration of a GEMM: everything that is known at trace time."""

    comm_type: str = "none"
    method: str = "none"
    atomic: bool = False
    buffer: int = -1  # -1: a cached one
    group: Group | None = None
    chunks: int = 1
    tapered: bool = False
    x_is_transposed: bool = False
    w_is_transposed: bool = False
    rows: int = 0  # of all ranks
    global_size: int = 0
    out: str = ""  # dtype
    activation: str = "none"
    scaling: int = 0
    comm_dtype: str = ""
    x_swizzled: bool = False
    w_swizzled: bool = False
    gathers: bool = False  # return the gathered rows as well
    sums_gradients: bool = False  # the backward of all_reduce sums over ranks

    @property
    def ranks(self) -> int:
        return self.group.size if self.group is not None else 1

    def attributes(self) -> dict[str, Any]:
        return {"group": self.group.number if self.group is not None else 0,
                "comm_type": self.comm_type, "comm_overlap_method": self.method,
                "comm_overlap_id": self.buffer, "atomic_gemm": self.atomic,
                "scaling_mode": self.scaling, "lhs_axis_boundary": -1, "rhs_axis_boundary": -1,
                "lhs_transposed": self.x_is_transposed, "rhs_transposed": self.w_is_transposed,
                "lhs_scale_swizzled": self.x_swizzled, "rhs_scale_swizzled": self.w_swizzled,
                "rows": self.rows, "global_size": self.global_size, "chunks": self.chunks,
                "tapered": self.tapered, "activation": self.activation,
                "comm_dtype": self.comm_dtype}


def dtype_name(dtype: Any) -> str:
    """``bf16`` for ``jnp.bfloat16``."""
    name = str(jnp.dtype(dtype))
    if name in _NAMES:
        return _NAMES[name]
    raise _errors.InputError(f"unsupported dtype {name}: give " + ", ".join(_NAMES))


def is_fp8(array: Any) -> bool:
    return str(jnp.dtype(array.dtype)).startswith("float8_e")


def share(count: int, rank: int, ranks: int) -> int:
    return count // ranks + (1 if rank < count % ranks else 0)


def _local_share(count: int, config: GemmConfig) -> int:
    if count % config.ranks == 0:
        return count // config.ranks
    rank = config.group.rank_known() if config.group is not None else 0
    if rank is None:
        raise _errors.InputError(
            f"{count} rows are not divisible by {config.ranks} ranks, which is required if this "
            "process has several devices")
    return share(count, rank, config.ranks)


def axis_index_of(group: Group | None) -> Any:
    """The device's index along the axis, which the handler compares with its rank, or None."""
    if group is None or not _primitive.in_shard_map_over(group.axis):
        return None
    return jax.lax.axis_index(group.axis).astype(jnp.int32)


# ---- one GEMM of matrices


@dataclasses.dataclass
class Sizes:
    rows: int
    depth: int
    columns: int


def sizes_of(config: GemmConfig, x: Any, w: Any) -> Sizes:
    rows, depth = reversed(x.shape) if config.x_is_transposed else x.shape
    inner, columns = reversed(w.shape[-2:]) if config.w_is_transposed else w.shape[-2:]
    if inner != depth:
        raise _errors.InputError(
            f"shape mismatch: lhs is {rows} x {depth} and rhs {inner} x {columns}, so their inner "
            "dimensions differ (see lhs_transposed and rhs_transposed)")
    return Sizes(rows, depth, columns)


def result_rows(config: GemmConfig, rows: int) -> int:
    if config.comm_type == "all_gather":
        return config.rows or rows * config.ranks
    if config.comm_type == "reduce_scatter" and config.method != "bulk":
        return _local_share(rows, config)
    return rows


def multiply(config: GemmConfig, x: Any, w: Any, *, x_scale: Any = None, w_scale: Any = None,
             bias: Any = None, group_sizes: Any = None, alpha: Any = None, beta: Any = None,
             add: Any = None, to_scatter: Any = None, keep_pre_activation: bool = False
             ) -> tuple[Any, Any, Any, Any]:
    """Calls the handler on matrices. Returns output, gathered, pre-activation, scattered."""
    _gemm_library.load()
    sizes = sizes_of(config, x, w)
    out = jnp.dtype(config.out) if config.out else x.dtype
    rows = result_rows(config, sizes.rows)
    nothing: tuple[tuple[int, ...], Any] = ((0,), jnp.float32)
    results = [((rows, sizes.columns), out), nothing, nothing, nothing]
    if config.gathers:
        gathered_dtype = out if is_fp8(x) or config.comm_dtype.startswith("fp8") else x.dtype
        results[1] = ((rows, sizes.depth), gathered_dtype)
    if keep_pre_activation:
        results[2] = ((rows, sizes.columns), out)
    if to_scatter is not None:
        results[3] = ((_local_share(to_scatter.shape[0], config), to_scatter.shape[1]),
                      to_scatter.dtype)
    operands = [x, x_scale, w, w_scale, bias]
    if group_sizes is not None:
        operands.append(group_sizes)
    operands += [alpha, beta, to_scatter, axis_index_of(config.group)]
    if add is not None:
        operands.append(add)
    made = _primitive.call(
        tuple(operands), results, config.attributes(), is_grouped=group_sizes is not None,
        communicates=config.comm_type != "none", adds=add is not None,
        axis=config.group.axis if config.group is not None else None,
        is_summed=config.comm_type == "all_reduce")
    return made[0], made[1], made[2], made[3]


# ---- the derivative


def backward_config(config: GemmConfig, comm_type: str, **options: Any) -> GemmConfig:
    """The configuration of a backward GEMM: the same method where it exists for ``comm_type``."""
    method, atomic = config.method, config.atomic
    if comm_type == "all_gather" and method in ("pipeline", "bulk"):
        method = "ring_exchange"
    if comm_type == "none":
        method, atomic = "none", False
    return GemmConfig(comm_type=comm_type, method=method, atomic=atomic,
                      group=config.group if comm_type != "none" else None, chunks=config.chunks,
                      tapered=config.tapered, **options)


def gather_rows(group: Group, x: Any, rows: int = 0) -> Any:
    """Gathers the rows of a matrix: an all_gather GEMM with one column of zeros."""
    config = GemmConfig(comm_type="all_gather", method="none", group=group, rows=rows, gathers=True)
    return multiply(config, x, jnp.zeros((x.shape[1], 1), x.dtype))[1]


def scatter_rows(group: Group, x: Any) -> Any:
    """Reduce-scatters the rows of a matrix: bulk communication with a 1 x 1 GEMM."""
    one = jnp.zeros((1, 1), x.dtype)
    config = GemmConfig(comm_type="reduce_scatter", method="bulk", group=group)
    return multiply(config, one, one, to_scatter=x)[3]


def sum_over_ranks(group: Group, x: Any) -> Any:
    """All-reduces a matrix."""
    return gather_rows(group, scatter_rows(group, x), x.shape[0])


def gelu_grad(pre_activation: Any) -> Any:
    x = pre_activation.astype(jnp.float32)
    _, slope = jax.jvp(functools.partial(jax.nn.gelu, approximate=True), (x,), (jnp.ones_like(x),))
    return slope


def weight_gradient(config: GemmConfig, x: Any, dz: Any, w: Any) -> tuple[GemmConfig, Any, Any]:
    """The GEMM that computes the gradient of w: its configuration and operands."""
    # x^T dz, or dz^T x if w is transposed
    if config.w_is_transposed:
        return (GemmConfig(x_is_transposed=True, w_is_transposed=config.x_is_transposed,
                           out=str(w.dtype)), dz, x)
    return GemmConfig(x_is_transposed=not config.x_is_transposed, out=str(w.dtype)), x, dz


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def differentiable_gemm(config: GemmConfig, x: Any, w: Any, bias: Any, to_scatter: Any
                        ) -> tuple[Any, Any, Any]:
    """Returns output, gathered, scattered; those that were not requested are empty."""
    y, gathered, _, scattered = multiply(config, x, w, bias=bias, to_scatter=to_scatter)
    return y, gathered, scattered


def _gemm_fwd(config: GemmConfig, x: Any, w: Any, bias: Any, to_scatter: Any) -> Any:
    is_gathered = config.comm_type == "all_gather"
    saving = dataclasses.replace(config, gathers=is_gathered)
    y, gathered, pre_activation, scattered = multiply(
        saving, x, w, bias=bias, to_scatter=to_scatter,
        keep_pre_activation=config.activation != "none")
    # An empty array varies over the same axes as the others.
    shown = gathered if config.gathers or not is_gathered else scattered
    kept = (gathered if is_gathered else x, w, bias, pre_activation)
    return (y, shown, scattered), kept


def _gemm_bwd(config: GemmConfig, kept: Any, cotangents: Any) -> Any:
    x, w, bias, pre_activation = kept
    dy, dgathered, dscattered = cotangents
    group = config.group
    dz = dy
    if config.activation != "none":
        dz = (dy.astype(jnp.float32) * gelu_grad(pre_activation)).astype(dy.dtype)
    # Every rank adds the bias to its local result, so its gradient is not summed over ranks.
    dbias = None if bias is None else dz.astype(jnp.float32).sum(0).astype(bias.dtype)
    if config.comm_type == "all_reduce" and config.sums_gradients:
        assert group is not None
        (dz,) = _primitive.match_varying((dz,), group.axis)
        dz = sum_over_ranks(group, dz)
    # ---- dx
    other = not config.w_is_transposed
    turns = {"x_is_transposed": False, "w_is_transposed": other, "out": str(x.dtype)}
    if config.comm_type == "all_gather":
        scattering = backward_config(config, "reduce_scatter", global_size=config.global_size,
                                     **turns)
        dx, _, _, _ = multiply(scattering, dz, w)
        dz_all = dz
    elif config.comm_type == "reduce_scatter" and config.method != "bulk":
        rows = x.shape[1] if config.x_is_transposed else x.shape[0]
        dx, dz_all, _, _ = multiply(
            backward_config(config, "all_gather", global_size=config.global_size, rows=rows,
                            gathers=True, **turns), dz, w)
    else:
        (dz,) = _primitive.match_varying((dz,), group.axis if group is not None else None)
        dx, _, _, _ = multiply(backward_config(config, "none", **turns), dz, w)
        dz_all = dz
    # ---- dw, overlapped with a reduce-scatter of dgathered
    x_turned = config.x_is_transposed and config.comm_type != "all_gather"
    oriented = dataclasses.replace(config, x_is_transposed=x_turned)
    local, a, b = weight_gradient(oriented, x, dz_all, w)
    # The GEMM of a bulk transfer must have the same size on all ranks.
    if config.gathers and config.global_size % config.ranks == 0:
        overlapped = dataclasses.replace(local, comm_type="reduce_scatter", method="bulk",
                                         group=group)
        dw, _, _, scattered_gradient = multiply(overlapped, a, b, to_scatter=dgathered)
        dx = dx + scattered_gradient
    else:
        dw, _, _, _ = multiply(local, a, b)
        if config.gathers:
            assert group is not None
            dx = dx + scatter_rows(group, dgathered)
    if config.x_is_transposed:
        dx = dx.T
    dto_scatter = None
    if config.method == "bulk":
        assert group is not None
        dto_scatter = gather_rows(group, dscattered, config.rows)
    return dx, dw, dbias, dto_scatter


differentiable_gemm.defvjp(_gemm_fwd, _gemm_bwd)


# ---- the public function and its checks


def parse_choice(comm_type: Any, method: Any, atomic: bool, collective_op: Any
              ) -> tuple[str, str]:
    """Accepts comm_type and method, or collective_op of recent versions of TransformerEngine."""
    if collective_op is not None:
        if comm_type not in (None, "none"):
            raise _errors.InputError("give comm_type or collective_op, not both")
        number = getattr(collective_op, "value", collective_op)
        if isinstance(number, str):
            comm_type = number
        elif number in (0, 1, 2):
            comm_type = TYPES[number]
        else:
            raise _errors.InputError(f"collective_op = {collective_op}: choose 0 none, "
                                     "1 all_gather, 2 reduce_scatter")
    kind = str(comm_type or "none").lower()
    kind = _SHORT.get(kind, kind)
    if method is None:
        method = "none" if kind == "none" else "ring_exchange"
    method = str(method).lower()
    _cpp.check_supported(kind, method, atomic)
    return kind, method


def parse_scaling_mode(mode: Any) -> int:
    number = SCALING_MODES.get(str(mode).lower(), mode)
    if number in SCALING_MODES.values():
        return int(number)
    raise _errors.InputError(f"scaling_mode = {mode}: choose " + ", ".join(SCALING_MODES))


def parse_activation(activation: Any) -> str:
    name = {None: "none", "gelu": "gelu_tanh"}.get(activation, activation)
    if name not in ("none", "gelu_tanh"):
        raise _errors.InputError(f"activation = {activation}: choose gelu (by tanh) or None")
    return str(name)


def flat(array: Any, boundary: int, name: str) -> Any:
    """Flattens an array to a matrix. Returns it and the dimensions on either side."""
    if array.ndim < 2:
        raise _errors.InputError(f"{name} has {array.ndim} dimensions: at least 2 are required")
    boundary = array.ndim - 1 if boundary == -1 else boundary
    if not 1 <= boundary < array.ndim:
        raise _errors.InputError(f"{name}_axis_boundary = {boundary}: choose 1 to "
                                 f"{array.ndim - 1}, or -1 for the last dimension")
    before, after = array.shape[:boundary], array.shape[boundary:]
    return array.reshape(math.prod(before), math.prod(after)), before, after


def unflatten_rows(shape: tuple[int, ...], rows: int) -> tuple[int, ...]:
    """The dimensions of ``rows`` rows that had the dimensions ``shape``: the first one is adapted.
    One dimension if the others do not divide ``rows``."""
    rest = math.prod(shape[1:])
    if rest == 0:
        return shape
    return (rows // rest, *shape[1:]) if rest and rows % rest == 0 else (rows,)


def resolve_sum_gradients(group: Group | None, comm_type: str, sum_gradients: bool | None) -> bool:
    """Returns whether an all_reduce sums gradients. Rejects a shard_map over another mesh."""
    if group is None:
        return False
    within = _primitive.in_shard_map_over(group.axis)
    if within and group.axis is not None and _primitive.axis_size(group.axis) != group.size:
        raise _errors.InputError(
            f"mesh mismatch: {group!r} in a shard_map whose axis {group.axis!r} has "
            f"{_primitive.axis_size(group.axis)} devices: create the group with that mesh")
    if not within and group.has_several_here() and not _primitive.in_any_shard_map():
        raise _errors.InputError(
            f"{group!r} has several ranks in this process, but a call outside shard_map is made by "
            "one: wrap it in a shard_map over the axis of the group")
    if sum_gradients is not None:
        return sum_gradients
    if comm_type == "all_reduce" and not within and _primitive.in_any_shard_map():
        raise _errors.InputError(
            f"an all_reduce of {group!r} in a shard_map over other axes: create the group with the "
            "mesh and one of its axes, or pass sum_gradients=True or False")
    return within and not _primitive.checks_vma()


def check_bias(bias: Any, shape: tuple[int, ...], out: Any, summed_axis: str | None) -> Any:
    """Returns the bias as an array. It must not vary along ``summed_axis``."""
    if bias is None:
        return None
    bias = jnp.asarray(bias)
    if bias.shape != shape or str(bias.dtype) not in ("float32", str(jnp.dtype(out))):
        raise _errors.InputError(f"bias mismatch: got {bias.shape} of {bias.dtype}, expected "
                                 f"{shape} of {jnp.dtype(out)} or float32")
    if _primitive.varies_along(bias, summed_axis):
        raise _errors.InputError("bias varies over the axis along which the result is summed, so "
                                 "the result would differ between ranks")
    return bias


def check_scales(is_quantized: bool, scaling: int, scales: tuple[Any, ...]) -> list[Any]:
    """Returns the scales as arrays of the dtype that the scaling mode requires."""
    if not is_quantized and (scaling != 0 or any(s is not None for s in scales)):
        raise _errors.InputError("scaling_mode and scales require FP8 operands: quantize with "
                                 "shiplap.jax.quantize(), or use collective_dense()")
    if scaling != SCALING_MODES["mxfp8_1d_scaling"]:
        made = [None if s is None else jnp.asarray(s, jnp.float32) for s in scales]
        if any(s is not None and s.size != 1 for s in made):
            raise _errors.InputError("the scale of a tensor must be a single number")
        return made
    for s in scales:
        if s is not None and str(jnp.asarray(s).dtype) not in ("uint8", "float8_e8m0fnu"):
            raise _errors.InputError("MXFP8 scales must be uint8 or float8_e8m0fnu: "
                                     "shiplap.jax.quantize() returns them")
    return list(scales)


def check_chunks(chunks: int) -> int:
    if chunks < 1:
        raise _errors.InputError(f"chunks = {chunks}: choose 1 or more")
    return chunks


@dataclasses.dataclass(frozen=True)
class GemmOptions:
    """How layers multiply and communicate: the arguments of ``gemm`` that are no arrays, under the
    same names. An argument that is given beside them takes precedence.

    >>> options = shiplap.jax.GemmOptions(comm_type="all_gather", chunks=4)
    >>> options
    GemmOptions(comm_type='all_gather', chunks=4)
    """

    comm_type: CommType | None = None
    comm_overlap_method: OverlapMethod | None = None
    atomic_gemm: bool = False
    comm_overlap_id: int = -1
    group: Group | None = None
    activation: Literal["gelu"] | None = None
    lhs_transposed: bool = False
    rhs_transposed: bool = False
    lhs_axis_boundary: int = -1
    rhs_axis_boundary: int = 1
    scaling_mode: ScalingMode | int = 0
    lhs_scale_swizzled: bool = False
    rhs_scale_swizzled: bool = False
    out_dtype: Any = None
    comm_dtype: Any = None
    rows: int = 0
    global_size: int = 0
    chunks: int = 1
    tapered: bool = False
    return_gathered: bool = False
    sum_gradients: bool | None = None

    def arguments(self) -> dict[str, Any]:
        """Those that are not the default."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {field.name: values[field.name] for field in dataclasses.fields(self)
                if values[field.name] is not field.default}

    def __repr__(self) -> str:
        return f"GemmOptions({', '.join(f'{k}={v!r}' for k, v in self.arguments().items())})"


def accept_options(function: _Function) -> _Function:
    """A decorator: ``options`` stands for the arguments that it has."""
    known = inspect.signature(function).parameters

    @functools.wraps(function)
    def call(*args: Any, options: GemmOptions | None = None, **kwargs: Any) -> Any:
        if options is None:
            return function(*args, **kwargs)
        if not isinstance(options, GemmOptions):
            raise TypeError(f"options: expected GemmOptions, found {type(options).__name__}")
        given = options.arguments()
        if kwargs.get("collective_op") is not None:
            given.pop("comm_type", None)
        if unknown := sorted(given.keys() - known):
            raise TypeError(f"{function.__name__}() does not support the options "
                            f"{', '.join(unknown)}")
        return function(*args, **{**given, **kwargs})

    return cast(_Function, call)


@accept_options
def gemm(lhs: Any, rhs: Any, *, options: GemmOptions | None = None,
         comm_type: CommType | None = None, comm_overlap_method: OverlapMethod | None = None,
         atomic_gemm: bool = False, comm_overlap_id: int = -1, collective_op: Any = None,
         group: Group | None = None, bias: Any = None, activation: Literal["gelu"] | None = None,
         alpha: Any = None, accumulate: Any = None, lhs_transposed: bool = False,
         rhs_transposed: bool = False, lhs_axis_boundary: int = -1, rhs_axis_boundary: int = 1,
         scaling_mode: ScalingMode | int = 0, lhs_scale_inv: Any = None, rhs_scale_inv: Any = None,
         lhs_scale_swizzled: bool = False, rhs_scale_swizzled: bool = False,
         out_dtype: Any = None, comm_dtype: Any = None, rows: int = 0, global_size: int = 0,
         chunks: int = 1, tapered: bool = False, to_scatter: Any = None,
         return_gathered: bool = False, sum_gradients: bool | None = None) -> Any:
    """Computes ``lhs @ rhs`` and overlaps its communication with the GEMM.

    =================  ==================  ==================  ====================
    ``comm_type``      lhs                 rhs                 result
    =================  ==================  ==================  ====================
    none               M x K               K x N               M x N
    all_gather         local M x K         K x local N         global M x local N
    reduce_scatter     global M x local K  local K x N         local M x N
    all_reduce         global M x local K  local K x N         global M x N
    =================  ==================  ==================  ====================

    ``options`` has those of the following arguments that many layers share.
    ``comm_overlap_method`` is ring_exchange, pipeline, bulk or none; ``shiplap overlap --list``
    lists the supported combinations. Further dimensions are flattened: the dimensions of lhs before
    ``lhs_axis_boundary`` are M (K if ``lhs_transposed``), those of rhs before
    ``rhs_axis_boundary`` are K. All ranks have equal shards, unless ``rows`` and ``global_size``
    give the global sizes; then remainders go to the lowest ranks.

    FP8 operands need a ``scaling_mode`` and inverse scales: one float, or, for MXFP8, an E8M0 scale
    for every 32 elements along K (``shiplap.jax.quantize``). ``comm_dtype`` is the dtype on the
    wire.

    ``comm_overlap_method="bulk"`` overlaps the GEMM with a reduce-scatter of the unrelated array
    ``to_scatter`` and returns (output, scattered). ``return_gathered`` returns (output, gathered
    lhs). ``accumulate`` is added to the result in place.

    The derivative communicates by the same method: the backward of all_gather is a reduce_scatter
    and vice versa. The backward of all_reduce uses the gradient of the result as it is; with
    ``sum_gradients`` it first sums it over ranks, as the backward of ``psum`` does in a
    ``shard_map`` with check_vma=False, where this is the default. The gradient of a bias is not
    summed over ranks. FP8 operands, ``comm_dtype``, ``alpha`` and ``accumulate`` have no
    derivative.
    """
    kind, method = parse_choice(comm_type, comm_overlap_method, atomic_gemm, collective_op)
    lhs, rhs = jnp.asarray(lhs), jnp.asarray(rhs)
    x, before_x, after_x = flat(lhs, lhs_axis_boundary, "lhs")
    w, before_w, after_w = flat(rhs, rhs_axis_boundary, "rhs")
    used = resolve_group(group) if kind != "none" else None
    sum_gradients = resolve_sum_gradients(used, kind, sum_gradients)
    out_dtype = check_dtypes(x, w, out_dtype, comm_dtype)
    is_quantized = is_fp8(x) or is_fp8(w) or comm_dtype is not None
    scaling = parse_scaling_mode(scaling_mode)
    lhs_scale_inv, rhs_scale_inv = check_scales(is_quantized, scaling,
                                                (lhs_scale_inv, rhs_scale_inv))
    if (method == "bulk") != (to_scatter is not None):
        raise _errors.InputError("to_scatter and comm_overlap_method='bulk' require each other")
    if return_gathered and kind != "all_gather":
        raise _errors.InputError("return_gathered requires comm_type='all_gather'")
    if to_scatter is not None:
        to_scatter, scattered_rows, scattered_columns = flat(jnp.asarray(to_scatter), -1,
                                                             "to_scatter")
        rows = to_scatter.shape[0]  # for backward
    config = GemmConfig(
        comm_type=kind, method=method, atomic=atomic_gemm, buffer=comm_overlap_id, group=used,
        chunks=check_chunks(chunks), tapered=tapered, x_is_transposed=lhs_transposed,
        w_is_transposed=rhs_transposed, rows=rows, global_size=global_size,
        out=str(jnp.dtype(out_dtype)), activation=parse_activation(activation), scaling=scaling,
        x_swizzled=lhs_scale_swizzled, w_swizzled=rhs_scale_swizzled,
        comm_dtype="" if comm_dtype is None else dtype_name(comm_dtype),
        gathers=return_gathered, sums_gradients=sum_gradients)
    rows_shape = after_x if lhs_transposed else before_x
    columns_shape = before_w if rhs_transposed else after_w
    depth_shape = before_x if lhs_transposed else after_x
    summed = used.axis if used is not None and kind == "all_reduce" else None
    bias = check_bias(bias, (math.prod(columns_shape),), out_dtype, summed)
    all_rows = result_rows(config, sizes_of(config, x, w).rows)
    y_shape = (*unflatten_rows(rows_shape, all_rows), *columns_shape)
    has_derivative = not (is_quantized or accumulate is not None or alpha is not None)
    if kind == "none" and to_scatter is None and (
            0 in (x.size, w.size) or (has_derivative and not _gemm_library.is_fast())):
        return _gemm_of_xla(config, x, w, bias).reshape(y_shape)
    if has_derivative:
        x, w, bias, to_scatter = match_varying_operands([x, w, bias, to_scatter], config)
        y, gathered, scattered = differentiable_gemm(config, x, w, bias, to_scatter)
    else:
        adding = {}
        if accumulate is not None:
            accumulate = jnp.asarray(accumulate)
            if accumulate.shape != y_shape or accumulate.dtype != jnp.dtype(out_dtype):
                raise _errors.InputError(
                    f"accumulate mismatch: got {accumulate.shape} of {accumulate.dtype}, but the "
                    f"result is {y_shape} of {jnp.dtype(out_dtype)}")
            if _primitive.varies_along(accumulate, summed):
                raise _errors.InputError("accumulate varies over the axis along which the result "
                                         "is summed, so the result would differ between ranks")
            adding = {"add": accumulate.reshape(all_rows, math.prod(columns_shape)),
                      "beta": jnp.float32(1)}
        y, gathered, _, scattered = multiply(
            config, x, w, x_scale=lhs_scale_inv, w_scale=rhs_scale_inv, bias=bias,
            alpha=None if alpha is None else jnp.asarray(alpha, jnp.float32).reshape(()),
            to_scatter=to_scatter, **adding)
    y = y.reshape(y_shape)
    if to_scatter is not None:
        back = unflatten_rows(scattered_rows, scattered.shape[0])
        return y, scattered.reshape(*back, *scattered_columns)
    if return_gathered:
        return y, gathered.reshape(*unflatten_rows(rows_shape, gathered.shape[0]), *depth_shape)
    return y


def check_dtypes(x: Any, w: Any, out_dtype: Any, comm_dtype: Any) -> Any:
    """Returns the dtype of the result."""
    for array in (x, w):
        dtype_name(array.dtype)
    is_quantized = is_fp8(x) or is_fp8(w)
    if not is_quantized and x.dtype != w.dtype:
        raise _errors.InputError(f"dtype mismatch: lhs is {x.dtype} and rhs {w.dtype}")
    if out_dtype is None:
        return jnp.bfloat16 if is_quantized else x.dtype
    if not is_quantized and comm_dtype is None and jnp.dtype(out_dtype) != x.dtype:
        raise _errors.InputError(f"unsupported out_dtype {jnp.dtype(out_dtype)} of {x.dtype} "
                                 "operands: only FP8 operands can have another out_dtype")
    return out_dtype


def _gemm_of_xla(config: GemmConfig, x: Any, w: Any, bias: Any) -> Any:
    """A GEMM without communication that is left to XLA: one with a dimension of size 0, and all if
    ours would be plain loops. It is rounded once, as ours is."""
    y = jnp.matmul((x.T if config.x_is_transposed else x).astype(config.out),
                   (w.T if config.w_is_transposed else w).astype(config.out),
                   preferred_element_type=jnp.float32)
    if bias is not None:
        y = y + bias.astype(y.dtype)
    if config.activation != "none":
        y = jax.nn.gelu(y, approximate=True)
    return y.astype(config.out)


def match_varying_operands(operands: list[Any], config: GemmConfig) -> list[Any]:
    """``match_varying`` for lhs, rhs, bias and others, some of which may be None."""
    given = tuple(o for o in operands if o is not None)
    axis = config.group.axis if config.group is not None else None
    made = iter(_primitive.match_varying(
        given, axis, except_for=operands[2] if config.comm_type == "all_reduce" else None))
    return [None if o is None else next(made) for o in operands]
