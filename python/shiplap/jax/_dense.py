"""A layer: a product with its communication, in FP8 if asked for."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from shiplap import _errors
from shiplap.jax import _gemm, _primitive
from shiplap.jax._gemm import Way, gemm, multiply
from shiplap.jax._group import Group, group_or_only
from shiplap.jax._quantize import quantize

_E4M3, _E5M2 = jnp.float8_e4m3fn, jnp.float8_e5m2


def _gradient_type(way: Way) -> Any:
    """As TransformerEngine has it: wider where a tensor has one scale."""
    return _E4M3 if way.scaling == _gemm.SCALING_MODES["mxfp8_1d_scaling"] else _E5M2


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _scaled(way: Way, x: Any, w: Any, bias: Any) -> Any:
    return _forward(way, x, w, bias)[0]


def _forward(way: Way, x: Any, w: Any, bias: Any) -> Any:
    x_codes, x_scale = quantize(x, way.scaling, axis=1)
    w_codes, w_scale = quantize(w, way.scaling, axis=0)
    is_gathered = way.comm_type == "all_gather"
    doing = dataclasses.replace(way, gathers=is_gathered)
    y, gathered, before, _ = multiply(doing, x_codes, w_codes, x_scale=x_scale, w_scale=w_scale,
                                      bias=bias, keeps_before=way.activation != "none")
    return y, (gathered if is_gathered else x, w, bias, before)


def _backward(way: Way, kept: Any, dy: Any) -> Any:
    x, w, bias, before = kept
    group = way.group
    dz = dy
    if way.activation != "none":
        dz = (dy.astype(jnp.float32) * _gemm.gelu_slope(before)).astype(dy.dtype)
    # Every rank adds the bias to its own result, so nothing of it is summed here.
    dbias = None if bias is None else dz.astype(jnp.float32).sum(0).astype(bias.dtype)
    if way.comm_type == "all_reduce" and way.sums_gradients:
        assert group is not None
        dz = _gemm.summed_over_ranks(group, dz)
    (dz,) = _primitive.alike((dz,), group.axis if group is not None else None)
    codes, scale = quantize(dz, way.scaling, dtype=_gradient_type(way), axis=1)
    w_codes, w_scale = quantize(w, way.scaling, axis=1)
    back = {"all_gather": "reduce_scatter", "reduce_scatter": "all_gather"}.get(way.comm_type,
                                                                                 "none")
    turned = _gemm.way_back(way, back, scaling=way.scaling, w_is_transposed=True,
                            out=str(x.dtype), rows=x.shape[0] if back == "all_gather" else 0,
                            gathers=back == "all_gather")
    dx, gathered, _, _ = multiply(turned, codes, w_codes, x_scale=scale, w_scale=w_scale)
    dz_all = gathered if back == "all_gather" else dz
    alone = Way(x_is_transposed=True, out=str(x.dtype))
    dw, _, _, _ = multiply(alone, x, dz_all.astype(x.dtype))
    return dx, dw.astype(w.dtype), dbias


_scaled.defvjp(_forward, _backward)


def collective_dense(x: Any, kernel: Any, bias: Any = None, *, comm_type: Any = None,
                     comm_overlap_method: Any = None, atomic_gemm: bool = False,
                     collective_op: Any = None, group: Group | None = None,
                     activation: Any = None, scaling_mode: Any = 0, chunks: int = 1,
                     tapered: bool = False, sum_gradients: bool | None = None) -> Any:
    """A layer of a tensor-parallel network: ``activation(x @ kernel + bias)``.

    A kernel that is cut by columns wants ``comm_type="all_gather"``, one that is cut by rows
    ``"reduce_scatter"`` or ``"all_reduce"``; ``gemm()`` says what lies where. ``x`` may have more
    than two dimensions, the last of which is summed over.

    With a ``scaling_mode``, factors are rounded to FP8 on the way in, and so is the gradient that
    is multiplied by the kernel on the way back; rows that are gathered travel as FP8. The gradient
    of the kernel is made from rows and gradients as they are, but for what was gathered: of that
    there is only what came.
    """
    mode = _gemm.scaling_number(scaling_mode)
    if mode == 0:
        return gemm(x, kernel, comm_type=comm_type, comm_overlap_method=comm_overlap_method,
                    atomic_gemm=atomic_gemm, collective_op=collective_op, group=group, bias=bias,
                    activation=activation, chunks=chunks, tapered=tapered,
                    sum_gradients=sum_gradients)
    if mode == _gemm.SCALING_MODES["delayed_tensor_scaling"]:
        raise _errors.InputError("collective_dense has no memory of steps before: give gemm() "
                                 "codes by a delayed scale, or choose current_tensor_scaling")
    kind, method = _gemm.choice_of(comm_type, comm_overlap_method, atomic_gemm, collective_op)
    if method == "bulk":
        raise _errors.InputError("a layer has nothing to scatter in bulk: use gemm()")
    used = group_or_only(group) if kind != "none" else None
    sum_gradients = _gemm.demand_one_mesh(used, kind, sum_gradients)
    rows, before, _ = _gemm.flat(jnp.asarray(x), -1, "x")
    kernel, _, columns = _gemm.flat(jnp.asarray(kernel), 1, "kernel")
    bias = _gemm.demand_bias(bias, kernel.shape[1:], rows.dtype,
                             used.axis if used is not None and kind == "all_reduce" else None)
    way = Way(comm_type=kind, method=method, atomic=atomic_gemm, group=used,
              chunks=_gemm.demand_chunks(chunks), tapered=tapered, out=str(rows.dtype),
              scaling=mode,
              activation=_gemm.activation_named(activation), sums_gradients=sum_gradients)
    rows, kernel, bias = _gemm.some_alike([rows, kernel, bias], way)
    y = _scaled(way, rows, kernel, bias)
    return y.reshape(*_gemm.shape_back(before, y.shape[0]), *columns)
