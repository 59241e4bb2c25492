"""A dense layer: a GEMM with its communication, optionally in FP8."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from shiplap import _errors
from shiplap.jax import _gemm, _primitive
from shiplap.jax._gemm import GemmConfig, gemm, multiply
from shiplap.jax._group import Group, resolve_group
from shiplap.jax._quantize import quantize

_E4M3, _E5M2 = jnp.float8_e4m3fn, jnp.float8_e5m2


def _gradient_type(config: GemmConfig) -> Any:
    """As in TransformerEngine: E5M2, with its wider range, where a tensor has a single scale."""
    return _E4M3 if config.scaling == _gemm.SCALING_MODES["mxfp8_1d_scaling"] else _E5M2


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _quantized_dense(config: GemmConfig, x: Any, w: Any, bias: Any) -> Any:
    return _forward(config, x, w, bias)[0]


def _forward(config: GemmConfig, x: Any, w: Any, bias: Any) -> Any:
    x_quantized, x_scale = quantize(x, config.scaling, axis=1)
    w_quantized, w_scale = quantize(w, config.scaling, axis=0)
    is_gathered = config.comm_type == "all_gather"
    saving = dataclasses.replace(config, gathers=is_gathered)
    y, gathered, before, _ = multiply(
        saving, x_quantized, w_quantized, x_scale=x_scale, w_scale=w_scale, bias=bias,
        keep_pre_activation=config.activation != "none")
    return y, (gathered if is_gathered else x, w, bias, before)


def _backward(config: GemmConfig, kept: Any, dy: Any) -> Any:
    x, w, bias, before = kept
    group = config.group
    dz = dy
    if config.activation != "none":
        dz = (dy.astype(jnp.float32) * _gemm.gelu_grad(before)).astype(dy.dtype)
    # Every rank adds the bias to its local result, so its gradient is not summed over ranks.
    dbias = None if bias is None else dz.astype(jnp.float32).sum(0).astype(bias.dtype)
    if config.comm_type == "all_reduce" and config.sums_gradients:
        assert group is not None
        dz = _gemm.sum_over_ranks(group, dz)
    (dz,) = _primitive.match_varying((dz,), group.axis if group is not None else None)
    dz_quantized, dz_scale = quantize(dz, config.scaling, dtype=_gradient_type(config), axis=1)
    w_quantized, w_scale = quantize(w, config.scaling, axis=1)
    back = {"all_gather": "reduce_scatter", "reduce_scatter": "all_gather"}.get(config.comm_type,
                                                                                 "none")
    transposed = _gemm.backward_config(
        config, back, scaling=config.scaling, w_is_transposed=True, out=str(x.dtype),
        rows=x.shape[0] if back == "all_gather" else 0, gathers=back == "all_gather")
    dx, gathered, _, _ = multiply(transposed, dz_quantized, w_quantized, x_scale=dz_scale,
                                  w_scale=w_scale)
    dz_all = gathered if back == "all_gather" else dz
    local = GemmConfig(x_is_transposed=True, out=str(x.dtype))
    dw, _, _, _ = multiply(local, x, dz_all.astype(x.dtype))
    return dx, dw.astype(w.dtype), dbias


_quantized_dense.defvjp(_forward, _backward)


def collective_dense(x: Any, kernel: Any, bias: Any = None, *, comm_type: Any = None,
                     comm_overlap_method: Any = None, atomic_gemm: bool = False,
                     collective_op: Any = None, group: Group | None = None,
                     activation: Any = None, scaling_mode: Any = 0, chunks: int = 1,
                     tapered: bool = False, sum_gradients: bool | None = None) -> Any:
    """A dense layer of a tensor-parallel network: ``activation(x @ kernel + bias)``.

    A column-parallel kernel needs ``comm_type="all_gather"``, a row-parallel one
    ``"reduce_scatter"`` or ``"all_reduce"``; ``gemm()`` documents the layout. ``x`` may have more
    than two dimensions; the last one is contracted.

    With a ``scaling_mode``, both operands are quantized to FP8 in the forward pass, and so is the
    gradient that is multiplied by the kernel in the backward pass; gathered rows are sent as FP8.
    The gradient of the kernel is computed in high precision, except that gathered rows have
    already been quantized.
    """
    mode = _gemm.parse_scaling_mode(scaling_mode)
    if mode == 0:
        return gemm(x, kernel, comm_type=comm_type, comm_overlap_method=comm_overlap_method,
                    atomic_gemm=atomic_gemm, collective_op=collective_op, group=group, bias=bias,
                    activation=activation, chunks=chunks, tapered=tapered,
                    sum_gradients=sum_gradients)
    if mode == _gemm.SCALING_MODES["delayed_tensor_scaling"]:
        raise _errors.InputError("delayed_tensor_scaling is unsupported here, because "
                                 "collective_dense keeps no history of amax: quantize with a "
                                 "delayed scale and call gemm(), or choose current_tensor_scaling")
    kind, method = _gemm.parse_choice(comm_type, comm_overlap_method, atomic_gemm, collective_op)
    if method == "bulk":
        raise _errors.InputError("comm_overlap_method='bulk' is unsupported here: use gemm()")
    used = resolve_group(group) if kind != "none" else None
    sum_gradients = _gemm.resolve_sum_gradients(used, kind, sum_gradients)
    rows, before, _ = _gemm.flat(jnp.asarray(x), -1, "x")
    kernel, _, columns = _gemm.flat(jnp.asarray(kernel), 1, "kernel")
    bias = _gemm.check_bias(bias, kernel.shape[1:], rows.dtype,
                             used.axis if used is not None and kind == "all_reduce" else None)
    config = GemmConfig(
        comm_type=kind, method=method, atomic=atomic_gemm, group=used,
        chunks=_gemm.check_chunks(chunks), tapered=tapered, out=str(rows.dtype), scaling=mode,
        activation=_gemm.parse_activation(activation), sums_gradients=sum_gradients)
    rows, kernel, bias = _gemm.match_varying_operands([rows, kernel, bias], config)
    y = _quantized_dense(config, rows, kernel, bias)
    return y.reshape(*_gemm.unflatten_rows(before, y.shape[0]), *columns)
