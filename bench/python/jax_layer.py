"""A layer of shiplap.jax without communication over XLA's own `x @ w`. Prints one JSON object.

    PYTHONPATH=build/release/python python bench/python/jax_layer.py [--rounds 31] [--dtype float32]

One process, one device, jitted; forward, and forward with the gradients of x and w. In each round
both run, in alternating order. Medians of the times, and quartiles of the ratios of the rounds: of
wall time, and of processor time (`cpu`), which is less disturbed by other programs.
"""

import argparse
import json
import os
import statistics
import time
import warnings

import jax
import jax.numpy as jnp
import numpy as np

import shiplap.jax
from shiplap import _gemm_library

SIZES = [(256, 256, 1024), (1024, 512, 2048), (1024, 2048, 1024)]  # rows, depth, columns


def timed(act):
    wall, cpu = time.perf_counter(), time.process_time()
    jax.block_until_ready(act())
    return time.perf_counter() - wall, time.process_time() - cpu


def compare(ours, theirs, rounds):
    for act in (ours, theirs, ours, theirs):
        timed(act)
    pairs = []
    for n in range(rounds):
        if n % 2 == 0:
            a, b = timed(ours), timed(theirs)
        else:
            b, a = timed(theirs), timed(ours)
        pairs.append((a, b))
    found = {}
    for index, name in enumerate(("wall", "cpu")):
        ratios = statistics.quantiles([a[index] / b[index] for a, b in pairs], n=4)
        found[name] = {
            "shiplap_ms": round(1e3 * statistics.median(a[index] for a, _ in pairs), 3),
            "xla_ms": round(1e3 * statistics.median(b[index] for _, b in pairs), 3),
            "ratio": round(ratios[1], 3), "quartiles": [round(ratios[0], 3), round(ratios[2], 3)]}
    return found


def measure(shape, dtype, rounds):
    rows, depth, columns = shape
    random = np.random.default_rng(1)
    x = jnp.asarray(random.standard_normal((rows, depth)), dtype)
    w = jnp.asarray(random.standard_normal((depth, columns)) / depth, dtype)

    def gradient(gemm):
        return jax.jit(jax.value_and_grad(lambda x, w: (gemm(x, w).astype(jnp.float32) ** 2).sum(),
                                          argnums=(0, 1)))

    forward = [jax.jit(shiplap.jax.gemm), jax.jit(jnp.matmul)]
    backward = [gradient(shiplap.jax.gemm), gradient(jnp.matmul)]
    np.testing.assert_allclose(*(np.asarray(f(x, w), np.float32) for f in forward), rtol=0.05,
                               atol=0.05)
    return {"rows": rows, "depth": depth, "columns": columns, "dtype": dtype,
            "forward": compare(*((lambda f=f: f(x, w)) for f in forward), rounds),
            "with_gradients": compare(*((lambda f=f: f(x, w)) for f in backward), rounds)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--dtype", nargs="*", default=["float32", "bfloat16"])
    given = parser.parse_args()
    warnings.simplefilter("ignore", _gemm_library.SlowGemmWarning)
    found = [measure(shape, dtype, given.rounds) for dtype in given.dtype for shape in SIZES]
    print(json.dumps({"bench": "python/jax_layer", "version": shiplap.__version__,
                      "jax": jax.__version__, "gemm_backend": _gemm_library.load(),
                      "load": os.getloadavg()[0], "layers": found}, indent=1))


if __name__ == "__main__":
    main()
