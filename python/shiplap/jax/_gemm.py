"""Products with their communication, and their derivatives."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp

from shiplap import _errors, _shiplap
from shiplap.jax import _primitive
from shiplap.jax._group import Group, group_or_only

_cpp = _shiplap.jax

TYPES = ("none", "all_gather", "reduce_scatter", "all_reduce")
# Of TransformerEngine.
SCALING_MODES = {"no_scaling": 0, "delayed_tensor_scaling": 1, "mxfp8_1d_scaling": 2,
                 "current_tensor_scaling": 3}
_SHORT = {"ag": "all_gather", "rs": "reduce_scatter", "ar": "all_reduce"}
_NAMES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "float8_e4m3fn": "fp8_e4m3",
          "float8_e5m2": "fp8_e5m2"}


@dataclasses.dataclass(frozen=True)
class Way:
    """How a product is done, as far as it is known when it is traced."""

    comm_type: str = "none"
    method: str = "none"
    atomic: bool = False
    buffer: int = -1  # -1: one is made
    group: Group | None = None
    chunks: int = 1
    tapered: bool = False
    x_is_transposed: bool = False
    w_is_transposed: bool = False
    rows: int = 0  # of all ranks
    size_of_all: int = 0
    out: str = ""  # dtype
    activation: str = "none"
    scaling: int = 0
    comm_dtype: str = ""
    x_swizzled: bool = False
    w_swizzled: bool = False
    gathers: bool = False  # whether gathered rows are a result
    sums_gradients: bool = False  # of all_reduce

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
                "rows": self.rows, "size_of_all": self.size_of_all, "chunks": self.chunks,
                "tapered": self.tapered, "activation": self.activation,
                "comm_dtype": self.comm_dtype}


def name_of(dtype: Any) -> str:
    """``bf16`` for ``jnp.bfloat16``."""
    name = str(jnp.dtype(dtype))
    if name in _NAMES:
        return _NAMES[name]
    raise _errors.InputError(f"arrays of {name} are not multiplied: give "
                             + ", ".join(_NAMES))


def is_fp8(array: Any) -> bool:
    return str(jnp.dtype(array.dtype)).startswith("float8_e")


def share(count: int, rank: int, ranks: int) -> int:
    return count // ranks + (1 if rank < count % ranks else 0)


def _own_share(count: int, way: Way) -> int:
    if count % way.ranks == 0:
        return count // way.ranks
    rank = way.group.rank_known() if way.group is not None else 0
    if rank is None:
        raise _errors.InputError(
            f"{count} rows over {way.ranks} ranks: where this process has several devices, "
            "the number of ranks must divide them")
    return share(count, rank, way.ranks)


def place_of(group: Group | None) -> Any:
    """Where a device is along the axis, so that the handler can compare; None: nobody knows."""
    if group is None or not _primitive.is_within(group.axis):
        return None
    return jax.lax.axis_index(group.axis).astype(jnp.int32)


# ---- one product of matrices


@dataclasses.dataclass
class Sizes:
    rows: int
    depth: int
    columns: int


def sizes_of(way: Way, x: Any, w: Any) -> Sizes:
    rows, depth = reversed(x.shape) if way.x_is_transposed else x.shape
    inner, columns = reversed(w.shape[-2:]) if way.w_is_transposed else w.shape[-2:]
    if inner != depth:
        raise _errors.InputError(
            f"lhs is {rows} x {depth} and rhs {inner} x {columns}: their inner sizes differ"
            " (lhs_transposed and rhs_transposed say which way they lie)")
    return Sizes(rows, depth, columns)


def result_rows(way: Way, rows: int) -> int:
    if way.comm_type == "all_gather":
        return way.rows or rows * way.ranks
    if way.comm_type == "reduce_scatter" and way.method != "bulk":
        return _own_share(rows, way)
    return rows


def multiply(way: Way, x: Any, w: Any, *, x_scale: Any = None, w_scale: Any = None,
             bias: Any = None, group_sizes: Any = None, alpha: Any = None, beta: Any = None,
             add: Any = None, to_scatter: Any = None, keeps_before: bool = False
             ) -> tuple[Any, Any, Any, Any]:
    """The handler itself, on matrices: output, gathered, before_activation, scattered."""
    sizes = sizes_of(way, x, w)
    out = jnp.dtype(way.out) if way.out else x.dtype
    rows = result_rows(way, sizes.rows)
    nothing: tuple[tuple[int, ...], Any] = ((0,), jnp.float32)
    results = [((rows, sizes.columns), out), nothing, nothing, nothing]
    if way.gathers:
        wide = out if is_fp8(x) or way.comm_dtype.startswith("fp8") else x.dtype
        results[1] = ((rows, sizes.depth), wide)
    if keeps_before:
        results[2] = ((rows, sizes.columns), out)
    if to_scatter is not None:
        results[3] = ((_own_share(to_scatter.shape[0], way), to_scatter.shape[1]),
                      to_scatter.dtype)
    operands = [x, x_scale, w, w_scale, bias]
    if group_sizes is not None:
        operands.append(group_sizes)
    operands += [alpha, beta, to_scatter, place_of(way.group)]
    if add is not None:
        operands.append(add)
    made = _primitive.call(
        tuple(operands), results, way.attributes(), is_grouped=group_sizes is not None,
        communicates=way.comm_type != "none", adds=add is not None,
        axis=way.group.axis if way.group is not None else None,
        is_summed=way.comm_type == "all_reduce")
    return made[0], made[1], made[2], made[3]


# ---- its derivative


def way_back(way: Way, comm_type: str, **more: Any) -> Way:
    """A product of the way back: by the same method if there is such a one."""
    method, atomic = way.method, way.atomic
    if comm_type == "all_gather" and method in ("pipeline", "bulk"):
        method = "ring_exchange"
    if comm_type == "none":
        method, atomic = "none", False
    return Way(comm_type=comm_type, method=method, atomic=atomic,
               group=way.group if comm_type != "none" else None, chunks=way.chunks,
               tapered=way.tapered, **more)


def gather_rows(group: Group, x: Any, rows: int = 0) -> Any:
    """All rows, of a matrix. A product of one column is what JAX's handlers have for it."""
    way = Way(comm_type="all_gather", method="none", group=group, rows=rows, gathers=True)
    return multiply(way, x, jnp.zeros((x.shape[1], 1), x.dtype))[1]


def scatter_rows(group: Group, x: Any) -> Any:
    """Own rows of the sum over ranks, of a matrix."""
    one = jnp.zeros((1, 1), x.dtype)
    way = Way(comm_type="reduce_scatter", method="bulk", group=group)
    return multiply(way, one, one, to_scatter=x)[3]


def summed_over_ranks(group: Group, x: Any) -> Any:
    """All rows of the sum, of a matrix."""
    return gather_rows(group, scatter_rows(group, x), x.shape[0])


def gelu_slope(before: Any) -> Any:
    x = before.astype(jnp.float32)
    _, slope = jax.jvp(functools.partial(jax.nn.gelu, approximate=True), (x,), (jnp.ones_like(x),))
    return slope


def weights_gradient(way: Way, x: Any, dz: Any, w: Any) -> tuple[Way, Any, Any]:
    """The product that it is: x as it lay, all rows of dz."""
    # x^T dz, or dz^T x if the weights lie the other way round
    if way.w_is_transposed:
        return (Way(x_is_transposed=True, w_is_transposed=way.x_is_transposed,
                    out=str(w.dtype)), dz, x)
    return Way(x_is_transposed=not way.x_is_transposed, out=str(w.dtype)), x, dz


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def product(way: Way, x: Any, w: Any, bias: Any, to_scatter: Any) -> tuple[Any, Any, Any]:
    """Output, gathered, scattered; what is not asked for has no elements."""
    y, gathered, _, scattered = multiply(way, x, w, bias=bias, to_scatter=to_scatter)
    return y, gathered, scattered


def _product_forward(way: Way, x: Any, w: Any, bias: Any, to_scatter: Any) -> Any:
    is_gathered = way.comm_type == "all_gather"
    doing = dataclasses.replace(way, gathers=is_gathered)
    y, gathered, before, scattered = multiply(
        doing, x, w, bias=bias, to_scatter=to_scatter, keeps_before=way.activation != "none")
    # What has no elements varies as the rest does.
    shown = gathered if way.gathers or not is_gathered else scattered
    kept = (gathered if is_gathered else x, w, bias, before)
    return (y, shown, scattered), kept


def _product_backward(way: Way, kept: Any, cotangents: Any) -> Any:
    x, w, bias, before = kept
    dy, dgathered, dscattered = cotangents
    group = way.group
    dz = dy
    if way.activation != "none":
        dz = (dy.astype(jnp.float32) * gelu_slope(before)).astype(dy.dtype)
    # Every rank adds the bias to its own result, so nothing of it is summed here.
    dbias = None if bias is None else dz.astype(jnp.float32).sum(0).astype(bias.dtype)
    if way.comm_type == "all_reduce" and way.sums_gradients:
        assert group is not None
        (dz,) = _primitive.alike((dz,), group.axis)
        dz = summed_over_ranks(group, dz)
    # ---- of x
    other = not way.w_is_transposed
    turns = {"x_is_transposed": False, "w_is_transposed": other, "out": str(x.dtype)}
    if way.comm_type == "all_gather":
        scattering = way_back(way, "reduce_scatter", size_of_all=way.size_of_all, **turns)
        dx, _, _, _ = multiply(scattering, dz, w)
        dz_all = dz
    elif way.comm_type == "reduce_scatter" and way.method != "bulk":
        rows = x.shape[1] if way.x_is_transposed else x.shape[0]
        dx, dz_all, _, _ = multiply(
            way_back(way, "all_gather", size_of_all=way.size_of_all, rows=rows, gathers=True,
                     **turns), dz, w)
    else:
        (dz,) = _primitive.alike((dz,), group.axis if group is not None else None)
        dx, _, _, _ = multiply(way_back(way, "none", **turns), dz, w)
        dz_all = dz
    # ---- of w, beside what is left to be scattered
    x_turned = way.x_is_transposed and way.comm_type != "all_gather"
    lying = dataclasses.replace(way, x_is_transposed=x_turned)
    alone, a, b = weights_gradient(lying, x, dz_all, w)
    # What goes on beside a bulk transfer has to be as large on all ranks.
    if way.gathers and way.size_of_all % way.ranks == 0:
        beside = dataclasses.replace(alone, comm_type="reduce_scatter", method="bulk", group=group)
        dw, _, _, more = multiply(beside, a, b, to_scatter=dgathered)
        dx = dx + more
    else:
        dw, _, _, _ = multiply(alone, a, b)
        if way.gathers:
            assert group is not None
            dx = dx + scatter_rows(group, dgathered)
    if way.x_is_transposed:
        dx = dx.T
    dto_scatter = None
    if way.method == "bulk":
        assert group is not None
        dto_scatter = gather_rows(group, dscattered, way.rows)
    return dx, dw, dbias, dto_scatter


product.defvjp(_product_forward, _product_backward)


# ---- what users call


def choice_of(comm_type: Any, method: Any, atomic: bool, collective_op: Any
              ) -> tuple[str, str]:
    """By the words of the original, or TransformerEngine's present ones."""
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
    _cpp.demand_legal(kind, method, atomic)
    return kind, method


def scaling_number(mode: Any) -> int:
    number = SCALING_MODES.get(str(mode).lower(), mode)
    if number in SCALING_MODES.values():
        return int(number)
    raise _errors.InputError(f"scaling_mode = {mode}: choose " + ", ".join(SCALING_MODES))


def activation_named(activation: Any) -> str:
    name = {None: "none", "gelu": "gelu_tanh"}.get(activation, activation)
    if name not in ("none", "gelu_tanh"):
        raise _errors.InputError(f"activation = {activation}: choose gelu (by tanh) or None")
    return str(name)


def flat(array: Any, boundary: int, name: str) -> Any:
    """As a matrix, and the dimensions on either side."""
    if array.ndim < 2:
        raise _errors.InputError(f"{name} has {array.ndim} dimensions: at least 2 are needed")
    boundary = array.ndim - 1 if boundary == -1 else boundary
    if not 1 <= boundary < array.ndim:
        raise _errors.InputError(f"{name}_axis_boundary = {boundary}: choose 1 to "
                                 f"{array.ndim - 1}, or -1 for the last dimension")
    before, after = array.shape[:boundary], array.shape[boundary:]
    return array.reshape(math.prod(before), math.prod(after)), before, after


def shape_back(shape: tuple[int, ...], rows: int) -> tuple[int, ...]:
    """Rows of several dimensions, of which the first has become longer or shorter; one dimension
    if they are not whole then."""
    rest = math.prod(shape[1:])
    if rest == 0:
        return shape
    return (rows // rest, *shape[1:]) if rest and rows % rest == 0 else (rows,)


def demand_one_mesh(group: Group | None, comm_type: str, sum_gradients: bool | None) -> bool:
    """Whether gradients of an all_reduce are summed. Refuses a shard_map of another mesh."""
    if group is None:
        return False
    within = _primitive.is_within(group.axis)
    if within and group.axis is not None and _primitive.size_within(group.axis) != group.size:
        raise _errors.InputError(
            f"{group!r} in a shard_map whose axis {group.axis!r} has "
            f"{_primitive.size_within(group.axis)} devices: make the group with that mesh")
    if not within and group.has_several_here() and not _primitive.is_within_any():
        raise _errors.InputError(
            f"{group!r} has several ranks in this process, and a call without shard_map is made by "
            "one: put a shard_map over the axis of the group around it")
    if sum_gradients is not None:
        return sum_gradients
    if comm_type == "all_reduce" and not within and _primitive.is_within_any():
        raise _errors.InputError(
            f"an all_reduce of {group!r} in a shard_map over other axes: make the group with the "
            "mesh and an axis of it, or say sum_gradients=True or False")
    return within and not _primitive.is_checked()


def demand_bias(bias: Any, shape: tuple[int, ...], out: Any, way_axis: str | None) -> Any:
    """As an array. ``way_axis``: along which it must be the same."""
    if bias is None:
        return None
    bias = jnp.asarray(bias)
    if bias.shape != shape or str(bias.dtype) not in ("float32", str(jnp.dtype(out))):
        raise _errors.InputError(
            f"bias is {bias.shape} of {bias.dtype}: give {shape} of {jnp.dtype(out)} or float32")
    if _primitive.varies_along(bias, way_axis):
        raise _errors.InputError("bias varies over the axis along which the result is summed, so "
                                 "the result would not be the same everywhere")
    return bias


def demand_scales(coded: bool, scaling: int, scales: tuple[Any, ...]) -> list[Any]:
    """As arrays of the types that go with it."""
    if not coded and (scaling != 0 or any(s is not None for s in scales)):
        raise _errors.InputError("scaling_mode and scales belong to codes of FP8: round with "
                                 "shiplap.jax.quantize(), or use collective_dense()")
    if scaling != SCALING_MODES["mxfp8_1d_scaling"]:
        made = [None if s is None else jnp.asarray(s, jnp.float32) for s in scales]
        if any(s is not None and s.size != 1 for s in made):
            raise _errors.InputError("a scale of a tensor is one number")
        return made
    for s in scales:
        if s is not None and str(jnp.asarray(s).dtype) not in ("uint8", "float8_e8m0fnu"):
            raise _errors.InputError("scales of MXFP8 are uint8 or float8_e8m0fnu: "
                                     "shiplap.jax.quantize() gives them")
    return list(scales)


def demand_chunks(chunks: int) -> int:
    if chunks < 1:
        raise _errors.InputError(f"chunks = {chunks}: choose 1 or more")
    return chunks


def gemm(lhs: Any, rhs: Any, *, comm_type: Any = None, comm_overlap_method: Any = None,
         atomic_gemm: bool = False, comm_overlap_id: int = -1, collective_op: Any = None,
         group: Group | None = None, bias: Any = None, activation: Any = None,
         alpha: Any = None, accumulate: Any = None, lhs_transposed: bool = False,
         rhs_transposed: bool = False, lhs_axis_boundary: int = -1, rhs_axis_boundary: int = 1,
         scaling_mode: Any = 0, lhs_scale_inv: Any = None, rhs_scale_inv: Any = None,
         lhs_scale_swizzled: bool = False, rhs_scale_swizzled: bool = False,
         out_dtype: Any = None, comm_dtype: Any = None, rows: int = 0, size_of_all: int = 0,
         chunks: int = 1, tapered: bool = False, to_scatter: Any = None,
         return_gathered: bool = False, sum_gradients: bool | None = None) -> Any:
    """``lhs @ rhs`` with its communication hidden behind it.

    =================  ====================  =========================  ===========================
    ``comm_type``      lhs                   rhs                        result
    =================  ====================  =========================  ===========================
    none               rows x depth          depth x columns            rows x columns
    all_gather         own rows x depth      depth x own columns        all rows x own columns
    reduce_scatter     all rows x own depth  own depth x columns        own rows x columns
    all_reduce         all rows x own depth  own depth x columns        all rows x columns
    =================  ====================  =========================  ===========================

    ``comm_overlap_method`` is ring_exchange, pipeline, bulk or none; ``shiplap overlap --list``
    has what there is. More dimensions are flattened: those of lhs before ``lhs_axis_boundary``
    are its rows (its depth, if ``lhs_transposed``), those of rhs before ``rhs_axis_boundary`` its
    depth. Ranks have equal parts, unless ``rows`` and ``size_of_all`` say how much all have
    together: then the first ranks have one more.

    FP8 comes with ``scaling_mode`` and scales to multiply by: one float, or, of MXFP8, an E8M0 for
    every 32 numbers along the depth (``shiplap.jax.quantize``). ``comm_dtype`` is what travels.

    ``method="bulk"`` multiplies while ``to_scatter``, which has nothing to do with it, is summed
    and scattered: the result is (output, scattered). With ``return_gathered``, it is (output, lhs
    of all ranks). ``accumulate`` is added to the result, where it lies.

    The derivative communicates by the same method: that of all_gather is a reduce_scatter, and
    the other way round. That of all_reduce takes the gradient of the result as it is; it sums it
    over ranks first if ``sum_gradients``, which is what ``psum`` does in a ``shard_map`` with
    check_vma=False, and so the default there. No gradient of a bias is summed over ranks.
    FP8 as it is given, ``comm_dtype``, ``alpha`` and ``accumulate`` have no derivative.
    """
    kind, method = choice_of(comm_type, comm_overlap_method, atomic_gemm, collective_op)
    lhs, rhs = jnp.asarray(lhs), jnp.asarray(rhs)
    x, before_x, after_x = flat(lhs, lhs_axis_boundary, "lhs")
    w, before_w, after_w = flat(rhs, rhs_axis_boundary, "rhs")
    used = group_or_only(group) if kind != "none" else None
    sum_gradients = demand_one_mesh(used, kind, sum_gradients)
    out_dtype = demand_types(x, w, out_dtype, comm_dtype)
    coded = is_fp8(x) or is_fp8(w) or comm_dtype is not None
    scaling = scaling_number(scaling_mode)
    lhs_scale_inv, rhs_scale_inv = demand_scales(coded, scaling, (lhs_scale_inv, rhs_scale_inv))
    if (method == "bulk") != (to_scatter is not None):
        raise _errors.InputError("to_scatter belongs to comm_overlap_method='bulk', and to nothing "
                                 "else")
    if return_gathered and kind != "all_gather":
        raise _errors.InputError("return_gathered belongs to comm_type='all_gather'")
    if to_scatter is not None:
        to_scatter, scattered_rows, scattered_columns = flat(jnp.asarray(to_scatter), -1,
                                                             "to_scatter")
        rows = to_scatter.shape[0]  # for the way back
    way = Way(comm_type=kind, method=method, atomic=atomic_gemm, buffer=comm_overlap_id,
              group=used, chunks=demand_chunks(chunks), tapered=tapered,
              x_is_transposed=lhs_transposed,
              w_is_transposed=rhs_transposed, rows=rows, size_of_all=size_of_all,
              out=str(jnp.dtype(out_dtype)), activation=activation_named(activation),
              scaling=scaling, x_swizzled=lhs_scale_swizzled,
              w_swizzled=rhs_scale_swizzled,
              comm_dtype="" if comm_dtype is None else name_of(comm_dtype),
              gathers=return_gathered, sums_gradients=sum_gradients)
    rows_shape = after_x if lhs_transposed else before_x
    columns_shape = before_w if rhs_transposed else after_w
    depth_shape = before_x if lhs_transposed else after_x
    summed = used.axis if used is not None and kind == "all_reduce" else None
    bias = demand_bias(bias, (math.prod(columns_shape),), out_dtype, summed)
    all_rows = result_rows(way, sizes_of(way, x, w).rows)
    y_shape = (*shape_back(rows_shape, all_rows), *columns_shape)
    if kind == "none" and 0 in (x.size, w.size) and to_scatter is None:
        return _of_nothing(way, x, w, bias).reshape(y_shape)
    has_derivative = not (coded or accumulate is not None or alpha is not None)
    if has_derivative:
        x, w, bias, to_scatter = some_alike([x, w, bias, to_scatter], way)
        y, gathered, scattered = product(way, x, w, bias, to_scatter)
    else:
        adding = {}
        if accumulate is not None:
            accumulate = jnp.asarray(accumulate)
            if accumulate.shape != y_shape or accumulate.dtype != jnp.dtype(out_dtype):
                raise _errors.InputError(
                    f"accumulate is {accumulate.shape} of {accumulate.dtype}, and the result "
                    f"{y_shape} of {jnp.dtype(out_dtype)}")
            if _primitive.varies_along(accumulate, summed):
                raise _errors.InputError("accumulate varies over the axis along which the result "
                                         "is summed, so the result would not be the same")
            adding = {"add": accumulate.reshape(all_rows, math.prod(columns_shape)),
                      "beta": jnp.float32(1)}
        y, gathered, _, scattered = multiply(
            way, x, w, x_scale=lhs_scale_inv, w_scale=rhs_scale_inv, bias=bias,
            alpha=None if alpha is None else jnp.asarray(alpha, jnp.float32).reshape(()),
            to_scatter=to_scatter, **adding)
    y = y.reshape(y_shape)
    if to_scatter is not None:
        back = shape_back(scattered_rows, scattered.shape[0])
        return y, scattered.reshape(*back, *scattered_columns)
    if return_gathered:
        return y, gathered.reshape(*shape_back(rows_shape, gathered.shape[0]), *depth_shape)
    return y


def demand_types(x: Any, w: Any, out_dtype: Any, comm_dtype: Any) -> Any:
    """That of the result."""
    for array in (x, w):
        name_of(array.dtype)
    coded = is_fp8(x) or is_fp8(w)
    if not coded and x.dtype != w.dtype:
        raise _errors.InputError(f"lhs is of {x.dtype} and rhs of {w.dtype}: give both the same")
    if out_dtype is None:
        return jnp.bfloat16 if coded else x.dtype
    if not coded and comm_dtype is None and jnp.dtype(out_dtype) != x.dtype:
        raise _errors.InputError(f"the result of {x.dtype} is of {x.dtype}, not of "
                                 f"{jnp.dtype(out_dtype)}: out_dtype belongs to FP8")
    return out_dtype


def _of_nothing(way: Way, x: Any, w: Any, bias: Any) -> Any:
    """A product in which some size is 0: XLA has no less to do."""
    y = (x.T if way.x_is_transposed else x).astype(way.out) @ (
        w.T if way.w_is_transposed else w).astype(way.out)
    if bias is not None:
        y = y + bias.astype(y.dtype)
    return y if way.activation == "none" else jax.nn.gelu(y, approximate=True)


def some_alike(operands: list[Any], way: Way) -> list[Any]:
    """Lhs, rhs, bias and others, of which some are None."""
    given = tuple(o for o in operands if o is not None)
    axis = way.group.axis if way.group is not None else None
    made = iter(_primitive.alike(
        given, axis, but_for=operands[2] if way.comm_type == "all_reduce" else None))
    return [None if o is None else next(made) for o in operands]
