"""Values in double precision with error bounds for a computation in float32.

Every operation adds what its roundings can do, and carries on what its operands were off by. So a
bound follows from the formats and from the order of operations that the documents promise, and no
tolerance is chosen.
"""

from __future__ import annotations

import numpy as np

# Half a step, relative to a number.
STEP = {"float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}


class Near:
    """``value``, give or take ``error``."""

    def __init__(self, value, error=0.0):
        self.value = np.asarray(value).astype(np.float64)
        self.error = np.zeros_like(self.value) + error

    def __getitem__(self, index):
        return Near(self.value[index], self.error[index])

    @property
    def T(self):
        return Near(self.value.T, self.error.T)

    @property
    def most(self):
        return np.abs(self.value) + self.error

    def rounded(self, dtype, times=1):
        return Near(self.value, self.error + times * STEP[dtype] * self.most)

    def __add__(self, other):
        made = Near(self.value + other.value, self.error + other.error)
        return made.rounded("float32")

    def __mul__(self, other):
        error = (self.most * other.error + self.error * other.most)
        return Near(self.value * other.value, error).rounded("float32")

    def __matmul__(self, other):
        """Summed in float, in any order."""
        depth = self.value.shape[-1]
        error = (self.most @ other.error + self.error @ other.most
                 + (depth + 1) * STEP["float32"] * (self.most @ other.most))
        return Near(self.value @ other.value, error)

    def column_sums(self):
        rows = self.value.shape[0]
        return Near(self.value.sum(0),
                    self.error.sum(0) + rows * STEP["float32"] * self.most.sum(0))


def summed(parts, dtype):
    """Over ranks: each part may be rounded as it leaves, and the sum after every addition."""
    value = sum(part.value for part in parts)
    most = sum(part.most for part in parts)
    error = sum(part.error for part in parts) + len(parts) * STEP[dtype] * most
    return Near(value, error)


def _inner(x):
    return np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)


def gelu(z):
    x = z.value
    value = x / 2 * (1 + np.tanh(_inner(x)))
    # It is nowhere steeper than 1.13; eight roundings of a function of floats.
    return Near(value, 1.13 * z.error + 8 * STEP["float32"] * np.abs(x))


def gelu_grad(z):
    x = z.value
    t = np.tanh(_inner(x))
    value = (1 + t) / 2 + x / 2 * (1 - t * t) * np.sqrt(2 / np.pi) * (1 + 3 * 0.044715 * x**2)
    # Nowhere does the slope change faster than by 0.8.
    return Near(value, 0.8 * z.error + 16 * STEP["float32"] * (1 + np.abs(x)))


def compare(name, found, expected):
    """Raises if an error exceeds its bound."""
    found = np.asarray(found).astype(np.float64)
    assert found.shape == expected.value.shape, \
        f"{name} has the shape {found.shape}, not {expected.value.shape}"
    if found.size == 0:
        return
    off = np.abs(found - expected.value)
    excess = np.where(np.isnan(found), np.inf, off - expected.error)
    worst = np.unravel_index(np.argmax(excess), excess.shape)
    assert excess[worst] <= 0, (
        f"{name}{list(map(int, worst))} is {found[worst]}, not {expected.value[worst]} within "
        f"{expected.error[worst]:.3g}; {int((excess > 0).sum())} of {excess.size} are wrong")


def compare_shards(name, found, expected):
    """The parts that this process has of an array of all devices."""
    assert found.shape == expected.value.shape, \
        f"{name} has the shape {found.shape}, not {expected.value.shape}"
    for shard in found.addressable_shards:
        compare(f"{name} on {shard.device}", shard.data, expected[shard.index])
