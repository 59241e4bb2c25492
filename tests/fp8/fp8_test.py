#!/usr/bin/env python3
"""Compares numbers of eight bits with those of ml_dtypes.

    fp8_test.py CODES    CODES is the program fp8_codes

Exit code: 0 all is well, 1 something is wrong, 77 ml_dtypes is not here.
"""

import subprocess
import sys

try:
    import ml_dtypes
    import numpy as np
except ImportError:
    print("fp8: SKIPPED, nobody compares our codes here: run tools/setup")
    sys.exit(77)

SEED = 1
RANDOM_FLOATS = 100_000
FORMATS = [("e4m3", ml_dtypes.float8_e4m3fn, 8), ("e5m2", ml_dtypes.float8_e5m2, 15)]
ALL_CODES = np.arange(256, dtype=np.uint8)


def ours(program, what, floats=None):
    given = b"" if floats is None else floats.tobytes()
    return subprocess.run([program, what], input=given, stdout=subprocess.PIPE, check=True).stdout


def largest(dtype):
    return np.float32(ml_dtypes.finfo(dtype).max)


def near_ties(dtype):
    """Numbers, the middles between neighbours, a quarter off them, and the floats next to all."""
    numbers = ALL_CODES.view(dtype).astype(np.float32)
    numbers = np.unique(numbers[np.isfinite(numbers)])
    middles = (numbers[1:] + numbers[:-1]) / 2
    quarters = (numbers[1:] + middles) / 2
    values = np.concatenate([numbers, middles, quarters])
    up, down = np.float32(np.inf), np.float32(-np.inf)
    return np.concatenate([values, np.nextafter(values, up), np.nextafter(values, down)])


def all_floats():
    random = np.random.default_rng(SEED)
    bits = random.integers(0, 2**32, RANDOM_FLOATS, dtype=np.uint32)
    usual = random.standard_normal(RANDOM_FLOATS) * 2.0 ** random.integers(-24, 24, RANDOM_FLOATS)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 448, 464, 465, 57344, 61440, 61441, 3.4e38]
    return np.concatenate([bits.view(np.float32), usual.astype(np.float32),
                           np.array(special, dtype=np.float32),
                           *(near_ties(dtype) for _, dtype, _ in FORMATS)])


def rounded(floats, dtype):
    """ml_dtypes does not saturate, so what is too large is cut before."""
    most = largest(dtype)
    return np.clip(floats, -most, most).astype(dtype)


def scales(sizes, dtype, power):
    """round_up by searching the table of all scales, ocp_floor by the logarithm."""
    table = ALL_CODES[:255].view(ml_dtypes.float8_e8m0fnu).astype(np.float64)
    up = np.minimum(np.searchsorted(table * np.float64(largest(dtype)), sizes), 254)
    with np.errstate(divide="ignore"):
        floor = np.floor(np.log2(sizes)) - power + 127
    return up, np.clip(floor, 0, 254)


def differing(name, floats, found, expected):
    wrong = np.flatnonzero(found != expected)
    for i in wrong[:5]:
        print(f"{name} of {floats[i]!r}: {found[i]}, but ml_dtypes has {expected[i]}")
    return len(wrong)


def check_table(program):
    table = np.frombuffer(ours(program, "table"), dtype=np.float32).reshape(256, 3)
    wrong = 0
    for column, dtype in enumerate([ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2,
                                    ml_dtypes.float8_e8m0fnu]):
        expected = ALL_CODES.view(dtype).astype(np.float32)
        same = (table[:, column] == expected) | (np.isnan(table[:, column]) & np.isnan(expected))
        for code in np.flatnonzero(~same):
            print(f"code {code} of {dtype.__name__} is {table[code, column]}, not {expected[code]}")
        wrong += np.count_nonzero(~same)
    return wrong


def check_rounding(program):
    floats = all_floats()
    found = np.frombuffer(ours(program, "round", floats), dtype=np.uint8).reshape(-1, 6)
    assert len(found) == len(floats)
    is_nan = np.isnan(floats)
    wrong = 0
    for column, (name, dtype, power) in enumerate(FORMATS):
        codes = found[:, column]
        nans = np.isnan(codes.view(dtype).astype(np.float32))
        wrong += differing(f"{name} is NaN", floats, nans, is_nan)
        wrong += differing(name, floats[~is_nan], codes[~is_nan],
                           rounded(floats[~is_nan], dtype).view(np.uint8))
        sizes = np.abs(floats[~is_nan]).astype(np.float64)
        for rule, expected in enumerate(scales(sizes, dtype, power)):
            wrong += differing(f"scale by rule {rule} of {name}", floats[~is_nan],
                               found[~is_nan, 2 + 2 * column + rule], expected)
    wrong += differing("scale of NaN", floats[is_nan], found[is_nan, 2:].min(axis=1), 255)
    print(f"fp8: {len(floats)} floats, seed {SEED}, ml_dtypes {ml_dtypes.__version__}: "
          f"{wrong} differ")
    return wrong


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    program = sys.argv[1]
    return 1 if check_table(program) + check_rounding(program) else 0


if __name__ == "__main__":
    sys.exit(main())
