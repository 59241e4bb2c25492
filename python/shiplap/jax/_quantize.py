"""Numbers as FP8 with scales, in JAX, as TransformerEngine rounds them."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from shiplap import _errors
from shiplap.jax._gemm import SCALING_MODES, scaling_number

BLOCK = 32  # numbers of MXFP8 that share a scale
_LARGEST = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}


# Bits of the mantissa that are stored, and the power of two of the smallest number.
_STEPS = {"float8_e4m3fn": (3, 9), "float8_e5m2": (2, 16)}


def _codes(x: Any, dtype: Any, largest: float) -> Any:
    """Rounded once, to nearest even. XLA of older versions rounds to float16 first, so what it is
    given to convert is a number of the format already."""
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


# XLA takes subnormal numbers as zero on a CPU. They count here, so what may be one is looked at as
# an integer, and powers of two are multiplied by in two steps.

_INFINITE = 0x7F800000  # as bits; those of NaN are larger


def _bits(x: Any) -> Any:
    """Without the sign: in the order of the numbers."""
    return jax.lax.bitcast_convert_type(x, jnp.int32) & 0x7FFFFFFF


def _normal(x: Any, power: Any) -> tuple[Any, Any]:
    """``x * 2^power``, as such a product whose factor is not subnormal."""
    bits = _bits(x)
    is_small = bits < 0x00800000
    whole = jnp.where(jnp.signbit(x), -1.0, 1.0) * bits.astype(jnp.float32)
    return jnp.where(is_small, whole, x), jnp.where(is_small, power - 149, power)


def _power_of_two(power: Any) -> Any:
    """For -126 to 127."""
    return jax.lax.bitcast_convert_type((power.astype(jnp.int32) + 127) << 23, jnp.float32)


def _times_power(x: Any, power: Any) -> Any:
    """By -252 to 254; what is less leaves nothing that FP8 has."""
    power = jnp.maximum(power, -252)
    first = power // 2
    return x * _power_of_two(first) * _power_of_two(power - first)


def _by_tensor(x: Any, dtype: Any, largest: float) -> tuple[Any, Any]:
    bits = jnp.max(_bits(x), initial=0)
    amax = jax.lax.bitcast_convert_type(bits, jnp.float32)
    usable = (bits > 0) & (bits < _INFINITE)
    scale = jnp.where(usable, largest / jnp.where(usable, amax, 1.0), 1.0)
    scale = jnp.clip(scale, 2.0**-126, 2.0**126)
    factor, power = _normal(x, 0)
    # A subnormal number is 2^-149 of a whole one: too far for one step.
    part = jnp.where(power == 0, scale, scale * 2.0**-75)
    factor = jnp.where(power == 0, factor, factor * 2.0**-74)
    return _codes(factor * part, dtype, largest), 1 / scale


def _by_blocks(x: Any, dtype: Any, largest: float) -> tuple[Any, Any]:
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
    scaled = _times_power(*_normal(blocks, 127 - code[..., None]))
    codes = _codes(scaled, dtype, largest).reshape(*x.shape[:-1], count + padding)
    return codes[..., :count], code.astype(jnp.uint8)


def quantize(x: Any, scaling_mode: Any = "current_tensor_scaling", *, dtype: Any = None,
             axis: int = -1) -> tuple[Any, Any]:
    """Codes of FP8, and what they are to be multiplied by.

    That is one float32; or, of MXFP8, a byte for every 32 numbers along ``axis`` that stands for
    a power of two (E8M0), in an array of the shape of ``x`` with blocks in place of numbers. As
    ``axis`` give the one that is summed over: the last of lhs, the first of rhs.

    >>> import jax.numpy as jnp, shiplap.jax
    >>> codes, scale_inv = shiplap.jax.quantize(jnp.array([[1.0, -448.0]]))
    >>> codes.dtype, float(scale_inv)
    (dtype(float8_e4m3fn), 1.0)
    """
    dtype = jnp.dtype(jnp.float8_e4m3fn if dtype is None else dtype)
    if str(dtype) not in _LARGEST:
        raise _errors.InputError(f"numbers are rounded to {' or '.join(_LARGEST)}, not to {dtype}")
    largest = _LARGEST[str(dtype)]
    mode = scaling_number(scaling_mode)
    wide = jnp.asarray(x, jnp.float32)
    if mode == SCALING_MODES["current_tensor_scaling"]:
        return _by_tensor(wide, dtype, largest)
    if mode == SCALING_MODES["mxfp8_1d_scaling"]:
        codes, scales = _by_blocks(jnp.moveaxis(wide, axis, -1), dtype, largest)
        return jnp.moveaxis(codes, -1, axis), jnp.moveaxis(scales, -1, axis)
    raise _errors.InputError("give codes by a scale of your own, or choose current_tensor_scaling "
                             "or mxfp8_1d_scaling")


def dequantize(codes: Any, scale_inv: Any, *, axis: int = -1) -> Any:
    """What codes stand for, in float32; less than 2^-126 is 0, as for all of XLA on a CPU."""
    wide = jnp.asarray(codes).astype(jnp.float32)
    scale_inv = jnp.asarray(scale_inv)
    if scale_inv.dtype == jnp.float32:
        return wide * scale_inv
    power = jnp.repeat(scale_inv.astype(jnp.int32) - 127, BLOCK, axis=axis)
    power = jax.lax.slice_in_dim(power, 0, wide.shape[axis], axis=axis)
    return jnp.where(power == 128, jnp.nan, _times_power(wide, power))
