"""Communication buffers by number, for callers that choose the buffer of a GEMM themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from shiplap import _shiplap
from shiplap.jax import _gemm
from shiplap.jax._group import Group, resolve_group, wait_for_calls

_cpp = _shiplap.jax


def create_buffer(comm_type: Any, comm_overlap_method: Any = None, *,
                  buffer_shape: Sequence[int], buffer_dtype: Any = jnp.bfloat16,
                  out_dtype: Any = None, scaling_mode: Any = 0, atomic_gemm: bool = False,
                  chunks: int = 1, tapered: bool = False, axis_boundary: int = -1,
                  name: str = "", group: Group | None = None) -> int:
    """Creates a buffer and returns its number, for ``gemm(comm_overlap_id=..)``.

    All processes must create buffers in the same order. ``buffer_shape`` is the global shape of the
    communicated array: lhs of an all_gather, the result of a reduce_scatter or all_reduce,
    ``to_scatter`` of bulk. A GEMM without a buffer number uses a cached buffer for its sizes, which
    is enough for most programs.
    """
    kind, method = _gemm.parse_choice(comm_type, comm_overlap_method, atomic_gemm, None)
    wire_dtype = _gemm.dtype_name(buffer_dtype)
    if out_dtype is not None:
        result = _gemm.dtype_name(out_dtype)
    else:
        result = "bf16" if wire_dtype.startswith("fp8") else wire_dtype
    number: int = _cpp.create(
        resolve_group(group).number, kind, method, list(buffer_shape), wire_dtype, result,
        _gemm.parse_scaling_mode(scaling_mode), atomic_gemm, chunks,
        "tapered" if tapered else "even", axis_boundary, name)
    return number


def destroy_buffer(number: int, group: Group | None = None) -> None:
    """Waits for calls in flight, then frees the buffer. All processes call it in the same order."""
    wait_for_calls()
    _cpp.destroy(resolve_group(group).number, number)


def destroy_all_buffers(group: Group | None = None) -> None:
    """Frees all buffers, including cached ones, which are created again when needed."""
    wait_for_calls()
    _cpp.destroy_all(resolve_group(group).number)
