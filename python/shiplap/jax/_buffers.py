"""Buffers by number, for those who want to say which memory a product communicates in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from shiplap import _shiplap
from shiplap.jax import _gemm
from shiplap.jax._group import Group, group_or_only, wait_for_calls

_cpp = _shiplap.jax


def create_buffer(comm_type: Any, comm_overlap_method: Any = None, *,
                  buffer_shape: Sequence[int], buffer_dtype: Any = jnp.bfloat16,
                  out_dtype: Any = None, scaling_mode: Any = 0, atomic_gemm: bool = False,
                  chunks: int = 1, tapered: bool = False, axis_boundary: int = -1,
                  name: str = "", group: Group | None = None) -> int:
    """A number for ``gemm(comm_overlap_id=..)``. All processes create buffers in the same order.

    ``buffer_shape`` is that of what is communicated, over all ranks: lhs of an all_gather, the
    result of a reduce_scatter or all_reduce, ``to_scatter`` of bulk. Without a number of a buffer,
    a product gets one that is made for products of its sizes, and kept; few need more.
    """
    kind, method = _gemm.choice_of(comm_type, comm_overlap_method, atomic_gemm, None)
    travels = _gemm.name_of(buffer_dtype)
    if out_dtype is not None:
        result = _gemm.name_of(out_dtype)
    else:
        result = "bf16" if travels.startswith("fp8") else travels
    number: int = _cpp.create(
        group_or_only(group).number, kind, method, list(buffer_shape), travels, result,
        _gemm.scaling_number(scaling_mode), atomic_gemm, chunks, "tapered" if tapered else "even",
        axis_boundary, name)
    return number


def destroy_buffer(number: int, group: Group | None = None) -> None:
    """All processes, in the same order. It waits for calls that are under way."""
    wait_for_calls()
    _cpp.destroy(group_or_only(group).number, number)


def destroy_all_buffers(group: Group | None = None) -> None:
    """Also those that products made for themselves, which they make again."""
    wait_for_calls()
    _cpp.destroy_all(group_or_only(group).number)
