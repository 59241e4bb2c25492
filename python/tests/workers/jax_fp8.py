"""Quantization to FP8 as documented (docs/overlap/scaling.md), with ml_dtypes: the reference."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from workers.jax_near import Near

BLOCK = 32
FORMATS = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}
LARGEST = {"e4m3": 448.0, "e5m2": 57344.0}
SMALLEST = {"e4m3": 2.0**-9, "e5m2": 2.0**-16}
RELATIVE = {"e4m3": 2.0**-4, "e5m2": 2.0**-3}  # what rounding changes a number by, at most


def _saturated(x, form):
    with np.errstate(invalid="ignore", over="ignore"):
        return np.clip(x, -LARGEST[form], LARGEST[form]).astype(FORMATS[form])


def tensor_codes(x, form):
    """The largest number becomes the largest of the format."""
    x = np.asarray(x).astype(np.float32)
    amax = np.float64(np.max(np.abs(x), initial=0.0))
    scale = 1.0
    if amax != 0 and np.isfinite(amax):
        scale = min(max(LARGEST[form] / amax, 2.0**-126), 2.0**126)
    scale = np.float32(scale)
    return _saturated(x * scale, form), np.float32(1) / scale


def block_scales(amax, form):
    """The smallest power of two that is at least amax / largest, as E8M0."""
    part, power = np.frexp(np.where(np.isfinite(amax), amax, 1.0))
    of_largest, power_of_largest = np.frexp(LARGEST[form])
    power = power - power_of_largest + (part > of_largest)
    code = np.where(amax == 0, 0, np.clip(power + 127, 0, 254))
    return np.where(np.isnan(amax), 255, np.where(np.isinf(amax), 254, code)).astype(np.uint8)


def block_codes(x, form, axis):
    """Of 32 numbers along the axis, or of as many as are left."""
    x = np.moveaxis(np.asarray(x).astype(np.float64), axis, -1)
    begins = np.arange(0, x.shape[-1], BLOCK)
    scales = block_scales(np.maximum.reduceat(np.abs(x), begins, axis=-1), form)
    powers = np.ldexp(1.0, scales.astype(int) - 127)
    codes = _saturated(x / np.repeat(powers, BLOCK, axis=-1)[..., :x.shape[-1]], form)
    return np.moveaxis(codes, -1, axis), np.moveaxis(scales, -1, axis)


def worth(codes, scales, axis):
    """Dequantizes to double precision."""
    wide = codes.astype(np.float64)
    if np.asarray(scales).dtype == np.float32:
        return wide * np.float64(scales)
    power = np.ldexp(1.0, scales.astype(int) - 127)
    power = np.where(scales == 255, np.nan, power)
    return wide * np.take(power, np.arange(wide.shape[axis]) // BLOCK, axis)


def coded(x, mode, form, axis):
    """Quantized values and scales of a matrix."""
    if mode == "mxfp8_1d_scaling":
        return block_codes(x, form, axis)
    return tensor_codes(x, form)


def rounded(x, mode, form, axis):
    """A matrix after quantization and dequantization."""
    return Near(worth(*coded(x, mode, form, axis), axis))


def off_by_coding(near, form):
    """A matrix that is rounded to FP8 by rows or blocks on its way; scales need not be known."""
    # The scale of a block is a power of two, and so at most twice what it need be.
    inverse = 2 * near.most.max(-1, keepdims=True, initial=0.0) / LARGEST[form]
    return Near(near.value, near.error + np.maximum(RELATIVE[form] * near.most,
                                                    SMALLEST[form] / 2 * inverse))


def swizzled(scales):
    """Tiles of 128 rows by 4 columns, padded with zeros."""
    rows, columns = scales.shape
    padded = np.zeros((-(-rows // 128) * 128, -(-columns // 4) * 4), np.uint8)
    made = np.zeros(padded.size, np.uint8)
    tiles = padded.shape[1] // 4
    for row in range(rows):
        for column in range(columns):
            tile = (row // 128) * tiles + column // 4
            inside = (row % 32) * 16 + (row % 128) // 32 * 4 + column % 4
            made[tile * 512 + inside] = scales[row, column]
    return made.reshape(padded.shape)
