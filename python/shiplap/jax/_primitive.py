"""The handler call as a JAX primitive.

A call that communicates has an ordered effect: it takes the token of the previous call, within a
program and across programs, so that XLA runs the calls on each rank in program order. Without it,
two ranks could run two collectives in different orders and deadlock. JAX has no public API for
custom ordered effects; all uses of ``jax._src`` for it are in this file.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import core as _core_of_jax
from jax._src import dispatch, effects
from jax._src.interpreters import ad, mlir

from shiplap import _errors, _shiplap

_cpp = _shiplap.jax
# Some names differ between versions of JAX, and some are untyped.
core: Any = _core_of_jax
lax: Any = jax.lax
_tokens: Any = dispatch.runtime_tokens
_Spec: Any = jax.sharding.PartitionSpec
_HANDLERS = {False: "shiplap_gemm", True: "shiplap_grouped_gemm"}
jax.ffi.register_ffi_target(_HANDLERS[False], _cpp.gemm_handler(), platform="cpu")
jax.ffi.register_ffi_target(_HANDLERS[True], _cpp.grouped_gemm_handler(), platform="cpu")


class _Communicates(effects.Effect):  # type: ignore[misc, unused-ignore]
    """All instances are equal, so all such calls share one order."""

    def __hash__(self) -> int:
        return hash("shiplap.jax")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __repr__(self) -> str:
        return "Communicates"


_EFFECT = _Communicates()
for _kind in (effects.lowerable_effects, effects.ordered_effects,
              effects.shardable_ordered_effects, effects.control_flow_allowed_effects,
              effects.custom_derivatives_allowed_effects, effects.remat_allowed_effects):
    _kind.add_type(_Communicates)


def reset_order() -> None:
    """Drops the token of a failed call; otherwise all later calls would fail with it."""
    _tokens.current_tokens.pop(_EFFECT, None)
    _tokens.output_runtime_tokens.clear()  # of all effects; only effects_barrier() uses them


def reset_order_after_failure() -> None:
    """Calls ``reset_order()`` if the last call has already failed. Does not block."""
    last = getattr(_tokens.current_tokens.get(_EFFECT), "_buf", None)
    try:
        if last is not None and last.is_ready():
            last.block_until_ready()
    except Exception:
        reset_order()


# ---- which axes of a mesh a value varies over


def _varying(aval: Any) -> frozenset[str]:
    if hasattr(aval, "mat"):  # from 0.10 on
        return frozenset(aval.mat.varying)
    return frozenset(getattr(aval, "vma", ()))


def _shaped(shape: tuple[int, ...], dtype: Any, like: Any, axes: frozenset[str]) -> Any:
    """The abstract value of a result that varies over these axes of an operand's mesh."""
    if not axes:
        return core.ShapedArray(shape, dtype)
    sharding = like.sharding.update(spec=_Spec(*(None for _ in shape)))
    if hasattr(like, "mat"):
        return core.ShapedArray(shape, dtype, sharding=sharding,
                                manual_axis_type=like.mat.update(varying=axes))
    return core.ShapedArray(shape, dtype, sharding=sharding, vma=axes)


def checks_vma() -> bool:
    """Whether shard_map tracks which axes a value varies over (check_vma)."""
    from jax._src import config
    state = getattr(config, "_check_vma", None)
    return state is not None and bool(state.value)


def in_shard_map_over(axis: str | None) -> bool:
    """Whether the current trace is inside a shard_map over the axis."""
    return axis is not None and core.get_axis_env().axis_exists(axis)


def axis_size(axis: str) -> int:
    return int(core.get_axis_env().axis_size(axis))


def in_any_shard_map() -> bool:
    return bool(core.get_axis_env().axis_sizes)


def varies_along(array: Any, axis: str | None) -> bool:
    """Whether shard_map tracks the array as varying over the axis."""
    return axis is not None and checks_vma() and axis in _varying(jax.typeof(array))


def _as_varying(array: Any, axes: frozenset[str]) -> Any:
    lacking = tuple(sorted(axes - _varying(jax.typeof(array))))
    if not lacking:
        return array
    if hasattr(lax, "pcast"):
        return lax.pcast(array, lacking, to="varying")
    return lax.pvary(array, lacking)


def match_varying(arrays: tuple[Any, ...], axis: str | None, *, except_for: Any = None
                  ) -> tuple[Any, ...]:
    """Casts all arrays to vary over the union of their axes, and over the axis. ``except_for`` is
    an array that does not vary along the axis because it is added to a value that does not."""
    if not checks_vma():
        return arrays
    every = frozenset[str]().union(*(_varying(jax.typeof(a)) for a in arrays))
    own = frozenset((axis,)) if axis is not None and in_shard_map_over(axis) else frozenset[str]()
    return tuple(_as_varying(a, every - own if a is except_for else every | own) for a in arrays)


# ---- the primitive

_gemm_p = core.Primitive("shiplap_gemm")
_gemm_p.multiple_results = True
_gemm_p.def_impl(functools.partial(dispatch.apply_primitive, _gemm_p))


def _abstract(*operands: Any, results: Any, same_along: Any, communicates: bool,
              **_: Any) -> tuple[list[Any], set[Any]]:
    axes = frozenset().union(*(_varying(operand) for operand in operands)) - set(same_along)
    made = [_shaped(shape, dtype, operands[0], axes) for shape, dtype in results]
    return made, {_EFFECT} if communicates else set()


_gemm_p.def_effectful_abstract_eval(_abstract)


def _no_derivative(*_: Any, **__: Any) -> Any:
    raise _errors.InputError(
        "unsupported derivative: a gemm() of FP8 operands, or with comm_dtype, alpha or "
        "accumulate, has none. Use collective_dense(scaling_mode=..) for FP8; write alpha and sums "
        "outside the GEMM")


ad.primitive_jvps[_gemm_p] = _no_derivative


def _lower(ctx: Any, *operands: Any, attributes: Any, is_grouped: bool, communicates: bool,
           adds: bool, **_: Any) -> Any:
    # The output is written in place of the accumulated operand.
    aliases = {len(operands) - 1: 0} if adds else None
    call = jax.ffi.ffi_lowering(_HANDLERS[is_grouped], has_side_effect=communicates,
                                operand_output_aliases=aliases)
    if not communicates:
        return call(ctx, *operands, **dict(attributes))
    token = ctx.tokens_in.get(_EFFECT)
    within = ctx.replace(avals_in=(*ctx.avals_in, core.abstract_token),
                         avals_out=(*ctx.avals_out, core.abstract_token))
    *made, token = call(within, *operands, token, **dict(attributes))
    ctx.set_tokens_out(ctx.tokens_in.update_tokens(mlir.TokenSet({_EFFECT: token})))
    return made


mlir.register_lowering(_gemm_p, _lower, platform="cpu")

_NUMBERS = {bool: np.bool_, int: np.int64, str: str}


def call(operands: tuple[Any, ...], results: list[tuple[tuple[int, ...], Any]],
         attributes: dict[str, Any], *, is_grouped: bool, communicates: bool, adds: bool = False,
         axis: str | None = None, is_summed: bool = False) -> list[Any]:
    """Binds the primitive. Operands that are None and results of size 0 are absent. With ``adds``,
    the output is added to the last operand."""
    given = tuple(jnp.zeros((0,), jnp.float32) if o is None else o for o in operands)
    given = match_varying(given, axis)
    static = tuple(sorted((key, _NUMBERS[type(value)](value)) for key, value in attributes.items()))
    in_checked_map = axis is not None and any(_varying(jax.typeof(o)) for o in given)
    made: list[Any] = _gemm_p.bind(
        *given, results=tuple((tuple(shape), np.dtype(dtype)) for shape, dtype in results),
        attributes=static, is_grouped=is_grouped, communicates=communicates, adds=adds,
        same_along=(axis,) if is_summed and in_checked_map else ())
    return made
