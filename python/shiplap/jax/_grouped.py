"""Grouped GEMM, for experts: one weight matrix per group. Rows are sorted by group."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shiplap import _errors
from shiplap.jax import _gemm, _primitive
from shiplap.jax._gemm import GemmConfig, multiply
from shiplap.jax._group import Group, resolve_group


def _no_gradient(sizes: Any) -> Any:
    return np.zeros(sizes.shape, jax.dtypes.float0)


def _grouped_weight_gradient(x: Any, dz: Any, sizes: Any, dtype: Any) -> Any:
    """The gradient of the weights of each group: x^T dz over its rows."""
    nothing: tuple[tuple[int, ...], Any] = ((0,), jnp.float32)
    shape = (sizes.shape[0], x.shape[1], dz.shape[1])
    operands = (x, None, dz, None, None, sizes, None, None, None, None)
    made = _primitive.call(operands, [(shape, dtype), nothing, nothing, nothing],
                           {"ragged_depth": True}, is_grouped=True, communicates=False)
    return made[0]


def _local_rank(group: Group) -> Any:
    if _primitive.in_shard_map_over(group.axis):
        return jax.lax.axis_index(group.axis)
    rank = group.rank_known()
    if rank is None:
        raise _errors.InputError("a grouped reduce_scatter in a process with several devices needs "
                                 "a shard_map over the axis of the group")
    return rank


def _local_sizes(group: Group, sizes: Any, rows: int) -> Any:
    """The number of local rows that belong to each group."""
    rank, ranks = _local_rank(group), group.size
    begin = rank * (rows // ranks) + jnp.minimum(rank, rows % ranks)
    end = begin + rows // ranks + jnp.where(rank < rows % ranks, 1, 0)
    ends = jnp.cumsum(sizes)
    return jnp.clip(jnp.minimum(ends, end) - jnp.maximum(ends - sizes, begin), 0).astype(jnp.int32)


def _order_by_group(group: Group, sizes: Any, rows: int) -> tuple[Any, Any]:
    """Gathered rows are ordered by rank, then by group. Returns the permutation that orders them by
    group, and the global size of each group."""
    (own,) = _primitive.match_varying((sizes.astype(jnp.float32)[None, :],), group.axis)
    each = _gemm.gather_rows(group, own).astype(jnp.int32)  # by rank and group
    numbers = jnp.tile(jnp.arange(sizes.shape[0]), group.size)
    number = jnp.repeat(numbers, each.reshape(-1), total_repeat_length=rows)
    return jnp.argsort(number, stable=True), each.sum(0).astype(jnp.int32)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _differentiable_gemm(config: GemmConfig, x: Any, w: Any, bias: Any, sizes: Any) -> Any:
    return multiply(config, x, w, bias=bias, group_sizes=sizes)[0]


def _forward(config: GemmConfig, x: Any, w: Any, bias: Any, sizes: Any) -> Any:
    saving = dataclasses.replace(config, gathers=config.comm_type == "all_gather")
    y, gathered, _, _ = multiply(saving, x, w, bias=bias, group_sizes=sizes)
    return y, (gathered if saving.gathers else x, w, bias, sizes)


def _backward(config: GemmConfig, kept: Any, dy: Any) -> Any:
    x, w, bias, sizes = kept
    group = config.group
    transposed = GemmConfig(w_is_transposed=not config.w_is_transposed, out=str(x.dtype))
    if config.comm_type == "all_gather":
        assert group is not None
        order, all_sizes = _order_by_group(group, sizes, dy.shape[0])
        dz, rows = dy[order], x[order]
        dx, _, _, _ = multiply(transposed, dz, w, group_sizes=all_sizes)
        dx = _gemm.scatter_rows(group, jnp.zeros_like(dx).at[order].set(dx))
    elif config.comm_type == "reduce_scatter":
        assert group is not None
        gathering = _gemm.backward_config(
            config, "all_gather", w_is_transposed=transposed.w_is_transposed, out=transposed.out,
            rows=x.shape[0], gathers=True, global_size=config.global_size)
        own = _local_sizes(group, sizes, x.shape[0])
        dx, dz, _, _ = multiply(gathering, dy, w, group_sizes=own)
        all_sizes, rows = sizes, x
    else:
        dz = dy
        if config.comm_type == "all_reduce" and config.sums_gradients:
            assert group is not None
            dz = _gemm.sum_over_ranks(group, dz)
        (dz,) = _primitive.match_varying((dz,), group.axis if group is not None else None)
        dx, _, _, _ = multiply(transposed, dz, w, group_sizes=sizes)
        all_sizes, rows = sizes, x
    if config.w_is_transposed:
        dw = _grouped_weight_gradient(dz, rows, all_sizes, w.dtype)
    else:
        dw = _grouped_weight_gradient(rows, dz, all_sizes, w.dtype)
    dbias = None
    if bias is not None:
        number = jnp.repeat(jnp.arange(sizes.shape[0]), all_sizes,
                            total_repeat_length=dz.shape[0])
        dbias = jax.ops.segment_sum(dz.astype(jnp.float32), number, sizes.shape[0])
        dbias = dbias.astype(bias.dtype)
    return dx, dw, dbias, _no_gradient(sizes)


_differentiable_gemm.defvjp(_forward, _backward)


@_gemm.accept_options
def grouped_gemm(lhs: Any, rhs: Any, group_sizes: Any, *,
                 options: _gemm.GemmOptions | None = None,
                 comm_type: _gemm.CommType | None = None,
                 comm_overlap_method: _gemm.OverlapMethod | None = None,
                 atomic_gemm: bool = False,
                 comm_overlap_id: int = -1, collective_op: Any = None,
                 group: Group | None = None, bias: Any = None, rhs_transposed: bool = False,
                 scaling_mode: _gemm.ScalingMode | int = 0,
                 lhs_scale_inv: Any = None, rhs_scale_inv: Any = None,
                 out_dtype: Any = None, comm_dtype: Any = None, rows: int = 0,
                 global_size: int = 0, chunks: int = 1, tapered: bool = False,
                 sum_gradients: bool | None = None) -> Any:
    """Grouped GEMM: multiplies each row of ``lhs`` by the matrix of its group in ``rhs``.

    The rows are sorted by group. ``rhs`` is groups x K x N, ``group_sizes`` the number of rows of
    each group: int32, may change between calls, and may be 0. Everything else is as in ``gemm()``.
    With all_gather, each rank gives the sizes of its local rows, and the result is ordered by rank;
    otherwise all ranks give the same sizes. ``bias`` is one row per group; it needs a GEMM whose
    result is not summed over ranks.
    """
    kind, method = _gemm.parse_choice(comm_type, comm_overlap_method, atomic_gemm, collective_op)
    if method == "bulk":
        raise _errors.InputError("comm_overlap_method='bulk' is unsupported for grouped_gemm(): "
                                 "use gemm()")
    x, w, sizes = jnp.asarray(lhs), jnp.asarray(rhs), jnp.asarray(group_sizes)
    if x.ndim != 2 or w.ndim != 3 or sizes.shape != w.shape[:1]:
        raise _errors.InputError(
            f"shape mismatch: lhs {x.shape}, rhs {w.shape}, group_sizes {sizes.shape}: give M x K, "
            "groups x K x N, and a number for each group")
    if not jnp.issubdtype(sizes.dtype, jnp.integer):
        raise _errors.InputError(f"group_sizes are of {sizes.dtype}: give int32")
    sizes = sizes.astype(jnp.int32)
    used = resolve_group(group) if kind != "none" else None
    sum_gradients = _gemm.resolve_sum_gradients(used, kind, sum_gradients)
    out_dtype = _gemm.check_dtypes(x, w, out_dtype, comm_dtype)
    is_quantized = _gemm.is_fp8(x) or _gemm.is_fp8(w) or comm_dtype is not None
    scaling = _gemm.parse_scaling_mode(scaling_mode)
    lhs_scale_inv, rhs_scale_inv = _gemm.check_scales(is_quantized, scaling,
                                                       (lhs_scale_inv, rhs_scale_inv))
    columns = w.shape[1] if rhs_transposed else w.shape[2]
    bias = _gemm.check_bias(bias, (w.shape[0], columns), out_dtype, None)
    config = GemmConfig(
        comm_type=kind, method=method, atomic=atomic_gemm, buffer=comm_overlap_id, group=used,
        chunks=_gemm.check_chunks(chunks), tapered=tapered, w_is_transposed=rhs_transposed,
        rows=rows, global_size=global_size, out=str(jnp.dtype(out_dtype)), scaling=scaling,
        comm_dtype="" if comm_dtype is None else _gemm.dtype_name(comm_dtype),
        sums_gradients=sum_gradients)
    if is_quantized:
        return multiply(config, x, w, x_scale=lhs_scale_inv, w_scale=rhs_scale_inv, bias=bias,
                        group_sizes=sizes)[0]
    x, w, bias, sizes = _gemm.match_varying_operands([x, w, bias, sizes], config)
    return _differentiable_gemm(config, x, w, bias, sizes)
