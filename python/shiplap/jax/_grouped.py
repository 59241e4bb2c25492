"""Products of many weights at once: experts. Rows are sorted by group."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shiplap import _errors
from shiplap.jax import _gemm, _primitive
from shiplap.jax._gemm import Way, multiply
from shiplap.jax._group import Group, group_or_only


def _no_gradient(sizes: Any) -> Any:
    return np.zeros(sizes.shape, jax.dtypes.float0)


def _by_groups(x: Any, dz: Any, sizes: Any, dtype: Any) -> Any:
    """The gradient of the weights of each group: x^T dz over its rows."""
    nothing: tuple[tuple[int, ...], Any] = ((0,), jnp.float32)
    shape = (sizes.shape[0], x.shape[1], dz.shape[1])
    operands = (x, None, dz, None, None, sizes, None, None, None, None)
    made = _primitive.call(operands, [(shape, dtype), nothing, nothing, nothing],
                           {"ragged_depth": True}, is_grouped=True, communicates=False)
    return made[0]


def _own_rank(group: Group) -> Any:
    if _primitive.is_within(group.axis):
        return jax.lax.axis_index(group.axis)
    rank = group.rank_known()
    if rank is None:
        raise _errors.InputError("where this process has several devices, groups of rows are "
                                 "scattered only in a shard_map over the axis of the group")
    return rank


def _own_sizes(group: Group, sizes: Any, rows: int) -> Any:
    """Of the rows of this rank: how many belong to each group."""
    rank, ranks = _own_rank(group), group.size
    begin = rank * (rows // ranks) + jnp.minimum(rank, rows % ranks)
    end = begin + rows // ranks + jnp.where(rank < rows % ranks, 1, 0)
    ends = jnp.cumsum(sizes)
    return jnp.clip(jnp.minimum(ends, end) - jnp.maximum(ends - sizes, begin), 0).astype(jnp.int32)


def _sorted(group: Group, sizes: Any, rows: int) -> tuple[Any, Any]:
    """Of gathered rows, which lie by rank and then by group: their order by group, and how many
    each has."""
    (own,) = _primitive.alike((sizes.astype(jnp.float32)[None, :],), group.axis)
    each = _gemm.gather_rows(group, own).astype(jnp.int32)  # by rank and group
    numbers = jnp.tile(jnp.arange(sizes.shape[0]), group.size)
    number = jnp.repeat(numbers, each.reshape(-1), total_repeat_length=rows)
    return jnp.argsort(number, stable=True), each.sum(0).astype(jnp.int32)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _product(way: Way, x: Any, w: Any, bias: Any, sizes: Any) -> Any:
    return multiply(way, x, w, bias=bias, group_sizes=sizes)[0]


def _forward(way: Way, x: Any, w: Any, bias: Any, sizes: Any) -> Any:
    doing = dataclasses.replace(way, gathers=way.comm_type == "all_gather")
    y, gathered, _, _ = multiply(doing, x, w, bias=bias, group_sizes=sizes)
    return y, (gathered if doing.gathers else x, w, bias, sizes)


def _backward(way: Way, kept: Any, dy: Any) -> Any:
    x, w, bias, sizes = kept
    group = way.group
    turned = Way(w_is_transposed=not way.w_is_transposed, out=str(x.dtype))
    if way.comm_type == "all_gather":
        assert group is not None
        order, all_sizes = _sorted(group, sizes, dy.shape[0])
        dz, rows = dy[order], x[order]
        dx, _, _, _ = multiply(turned, dz, w, group_sizes=all_sizes)
        dx = _gemm.scatter_rows(group, jnp.zeros_like(dx).at[order].set(dx))
    elif way.comm_type == "reduce_scatter":
        assert group is not None
        gathering = _gemm.way_back(way, "all_gather", w_is_transposed=turned.w_is_transposed,
                                   out=turned.out, rows=x.shape[0], gathers=True,
                                   size_of_all=way.size_of_all)
        own = _own_sizes(group, sizes, x.shape[0])
        dx, dz, _, _ = multiply(gathering, dy, w, group_sizes=own)
        all_sizes, rows = sizes, x
    else:
        dz = dy
        if way.comm_type == "all_reduce" and way.sums_gradients:
            assert group is not None
            dz = _gemm.summed_over_ranks(group, dz)
        (dz,) = _primitive.alike((dz,), group.axis if group is not None else None)
        dx, _, _, _ = multiply(turned, dz, w, group_sizes=sizes)
        all_sizes, rows = sizes, x
    if way.w_is_transposed:
        dw = _by_groups(dz, rows, all_sizes, w.dtype)
    else:
        dw = _by_groups(rows, dz, all_sizes, w.dtype)
    dbias = None
    if bias is not None:
        number = jnp.repeat(jnp.arange(sizes.shape[0]), all_sizes,
                            total_repeat_length=dz.shape[0])
        dbias = jax.ops.segment_sum(dz.astype(jnp.float32), number, sizes.shape[0])
        dbias = dbias.astype(bias.dtype)
    return dx, dw, dbias, _no_gradient(sizes)


_product.defvjp(_forward, _backward)


def grouped_gemm(lhs: Any, rhs: Any, group_sizes: Any, *, comm_type: Any = None,
                 comm_overlap_method: Any = None, atomic_gemm: bool = False,
                 comm_overlap_id: int = -1, collective_op: Any = None,
                 group: Group | None = None, bias: Any = None, rhs_transposed: bool = False,
                 scaling_mode: Any = 0, lhs_scale_inv: Any = None, rhs_scale_inv: Any = None,
                 out_dtype: Any = None, comm_dtype: Any = None, rows: int = 0,
                 size_of_all: int = 0, chunks: int = 1, tapered: bool = False,
                 sum_gradients: bool | None = None) -> Any:
    """Rows of ``lhs``, sorted by group, each times the matrix of its group in ``rhs``.

    ``rhs`` is groups x depth x columns, ``group_sizes`` how many rows each group has: int32, other
    ones in every call, and any may be 0. The rest is as in ``gemm()``. With all_gather, every
    rank has sizes of its own rows, and the result is rank after rank; otherwise all ranks give the
    same. ``bias`` is a row for each group, of products that are not summed.
    """
    kind, method = _gemm.choice_of(comm_type, comm_overlap_method, atomic_gemm, collective_op)
    if method == "bulk":
        raise _errors.InputError("groups beside a bulk transfer have no derivative and no word "
                                 "here: scatter beside gemm()")
    x, w, sizes = jnp.asarray(lhs), jnp.asarray(rhs), jnp.asarray(group_sizes)
    if x.ndim != 2 or w.ndim != 3 or sizes.shape != w.shape[:1]:
        raise _errors.InputError(
            f"lhs {x.shape}, rhs {w.shape}, group_sizes {sizes.shape}: give rows x depth, groups x "
            "depth x columns, and a number for each group")
    if not jnp.issubdtype(sizes.dtype, jnp.integer):
        raise _errors.InputError(f"group_sizes are of {sizes.dtype}: give int32")
    sizes = sizes.astype(jnp.int32)
    used = group_or_only(group) if kind != "none" else None
    sum_gradients = _gemm.demand_one_mesh(used, kind, sum_gradients)
    out_dtype = _gemm.demand_types(x, w, out_dtype, comm_dtype)
    coded = _gemm.is_fp8(x) or _gemm.is_fp8(w) or comm_dtype is not None
    scaling = _gemm.scaling_number(scaling_mode)
    lhs_scale_inv, rhs_scale_inv = _gemm.demand_scales(coded, scaling,
                                                       (lhs_scale_inv, rhs_scale_inv))
    columns = w.shape[1] if rhs_transposed else w.shape[2]
    bias = _gemm.demand_bias(bias, (w.shape[0], columns), out_dtype, None)
    way = Way(comm_type=kind, method=method, atomic=atomic_gemm, buffer=comm_overlap_id,
              group=used, chunks=_gemm.demand_chunks(chunks), tapered=tapered,
              w_is_transposed=rhs_transposed,
              rows=rows, size_of_all=size_of_all, out=str(jnp.dtype(out_dtype)),
              scaling=scaling,
              comm_dtype="" if comm_dtype is None else _gemm.name_of(comm_dtype),
              sums_gradients=sum_gradients)
    if coded:
        return multiply(way, x, w, x_scale=lhs_scale_inv, w_scale=rhs_scale_inv, bias=bias,
                        group_sizes=sizes)[0]
    x, w, bias, sizes = _gemm.some_alike([x, w, bias, sizes], way)
    return _product(way, x, w, bias, sizes)
