"""Quantization to FP8 with scales in JAX, with the rounding of TransformerEngine."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from shiplap import _errors
from shiplap.jax._gemm import SCALING_MODES, parse_scaling_mode

BLOCK = 32  # elements of MXFP8 that share a scale
_LARGEST = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}


# Stored mantissa bits, and the negative exponent of the smallest subnormal.
_STEPS = {"float8_e4m3fn": (3, 9), "float8_e5m2": (2, 16)}


def _round_to_fp8(x: Any, dtype: Any, largest: float) -> Any:
    """Rounds to nearest even, once. Older versions of XLA round to float16 first, so the value that
    is converted must already be representable in the format."""
    stored, smallest = _STEPS[str(dtype)]
    x = jnp.clip(x, -largest, largest)
    bits = jax.lax.bitcast_convert_type(x, jnp.int32)
    dropped = 23 - stored
    even = (bits >> dropped) & 1
    bits = (bits + (1 << (dropped - 1)) - 1 + even) & ~((1 << dropped) - 1)
    usual = jax.lax.bitcast_convert_type(bits, jnp.float32)
    small = jnp.round(x * 2.0**smallest) * 2.0**-smallest
    rounded = jnp.where(jnp.abs(x) < 2.0 ** (stored - smallest), small, usual)
    return jnp.where(jnp.isnan(x), x, rounded).astype(dtype)


# XLA flushes subnormals to zero on CPUs. They matter here, so values that may be subnormal are
# inspected as integers, and scaling by a power of two takes two steps.

_INFINITE = 0x7F800000  # as bits; those of NaN are larger


def _bits(x: Any) -> Any:
    """The bits without the sign; they have the order of the absolute values."""
    return jax.lax.bitcast_convert_type(x, jnp.int32) & 0x7FFFFFFF


def _normalized(x: Any, power: Any) -> tuple[Any, Any]:
    """Rewrites ``x * 2^power`` so that the first factor is not subnormal."""
    bits = _bits(x)
    is_small = bits < 0x00800000
    whole = jnp.where(jnp.signbit(x), -1.0, 1.0) * bits.astype(jnp.float32)
    return jnp.where(is_small, whole, x), jnp.where(is_small, power - 149, power)


def _power_of_two(power: Any) -> Any:
    """For -126 to 127."""
    return jax.lax.bitcast_convert_type((power.astype(jnp.int32) + 127) << 23, jnp.float32)


def _times_power(x: Any, power: Any) -> Any:
    """``x * 2^power`` for powers of -252 to 254; smaller ones underflow in FP8."""
    power = jnp.maximum(power, -252)
    first = power // 2
    return x * _power_of_two(first) * _power_of_two(power - first)


def _quantize_tensor(x: Any, dtype: Any, largest: float) -> tuple[Any, Any]:
    bits = jnp.max(_bits(x), initial=0)
    amax = jax.lax.bitcast_convert_type(bits, jnp.float32)
    usable = (bits > 0) & (bits < _INFINITE)
    scale = jnp.where(usable, largest / jnp.where(usable, amax, 1.0), 1.0)
    scale = jnp.clip(scale, 2.0**-126, 2.0**126)
    factor, power = _normalized(x, 0)
    # A subnormal is an integer times 2^-149, which is too small for one step.
    part = jnp.where(power == 0, scale, scale * 2.0**-75)
    factor = jnp.where(power == 0, factor, factor * 2.0**-74)
    return _round_to_fp8(factor * part, dtype, largest), 1 / scale


def _quantize_blocks(x: Any, dtype: Any, largest: float) -> tuple[Any, Any]:
    """Along the last dimension."""
    count = x.shape[-1]
    padding = -count % BLOCK
    blocks = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, padding)])
    blocks = blocks.reshape(*x.shape[:-1], (count + padding) // BLOCK, BLOCK)
    bits = jnp.max(_bits(blocks), axis=-1)
    # The smallest power of two that is at least amax / largest. The largest is 1.75 * 2^n.
    exponent, mantissa = bits >> 23, bits & 0x007FFFFF
    code = exponent - (math.frexp(largest)[1] - 1) + (mantissa > 0x00600000)
    code = jnp.clip(code, 0, 254)
    code = jnp.where(bits == _INFINITE, 254, jnp.where(bits > _INFINITE, 255, code))
    scaled = _times_power(*_normalized(blocks, 127 - code[..., None]))
    codes = _round_to_fp8(scaled, dtype, largest).reshape(*x.shape[:-1], count + padding)
    return codes[..., :count], code.astype(jnp.uint8)


def quantize(x: Any, scaling_mode: Any = "current_tensor_scaling", *, dtype: Any = None,
             axis: int = -1) -> tuple[Any, Any]:
    """Quantizes to FP8. Returns the quantized values and their inverse scale.

    The inverse scale is one float32; for MXFP8 it is one E8M0 byte (a power of two) for every block
    of 32 elements along ``axis``, in an array of the shape of ``x`` with blocks in place of
    elements. ``axis`` must be the contracted one: the last of lhs, the first of rhs.

    >>> import jax.numpy as jnp, shiplap.jax
    >>> codes, scale_inv = shiplap.jax.quantize(jnp.array([[1.0, -448.0]]))
    >>> codes.dtype, float(scale_inv)
    (dtype(float8_e4m3fn), 1.0)
    """
    dtype = jnp.dtype(jnp.float8_e4m3fn if dtype is None else dtype)
    if str(dtype) not in _LARGEST:
        raise _errors.InputError(f"unsupported dtype {dtype}: choose {' or '.join(_LARGEST)}")
    largest = _LARGEST[str(dtype)]
    mode = parse_scaling_mode(scaling_mode)
    wide = jnp.asarray(x, jnp.float32)
    if mode == SCALING_MODES["current_tensor_scaling"]:
        return _quantize_tensor(wide, dtype, largest)
    if mode == SCALING_MODES["mxfp8_1d_scaling"]:
        codes, scales = _quantize_blocks(jnp.moveaxis(wide, axis, -1), dtype, largest)
        return jnp.moveaxis(codes, -1, axis), jnp.moveaxis(scales, -1, axis)
    raise _errors.InputError("unsupported scaling_mode: choose current_tensor_scaling or "
                             "mxfp8_1d_scaling, or quantize with your own scale")


def dequantize(codes: Any, scale_inv: Any, *, axis: int = -1) -> Any:
    """Dequantizes to float32. Results below 2^-126 are flushed to 0, as by XLA on all CPUs."""
    wide = jnp.asarray(codes).astype(jnp.float32)
    scale_inv = jnp.asarray(scale_inv)
    if scale_inv.dtype == jnp.float32:
        return wide * scale_inv
    power = jnp.repeat(scale_inv.astype(jnp.int32) - 127, BLOCK, axis=axis)
    power = jax.lax.slice_in_dim(power, 0, wide.shape[axis], axis=axis)
    return jnp.where(power == 128, jnp.nan, _times_power(wide, power))
