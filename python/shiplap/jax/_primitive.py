"""The call of a handler as a primitive of JAX.

What communicates has an ordered effect: every such call takes a token of the one before, in a
program and from program to program, so that XLA runs them on each rank in the order in which they
were written. JAX has no public way to say so; what is used of ``jax._src`` is in this file.
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
# Of other versions of JAX some names are others, and not all of them have types.
core: Any = _core_of_jax
lax: Any = jax.lax
_tokens: Any = dispatch.runtime_tokens
_Spec: Any = jax.sharding.PartitionSpec
_HANDLERS = {False: "shiplap_gemm", True: "shiplap_grouped_gemm"}
jax.ffi.register_ffi_target(_HANDLERS[False], _cpp.gemm_handler(), platform="cpu")
jax.ffi.register_ffi_target(_HANDLERS[True], _cpp.grouped_gemm_handler(), platform="cpu")


class _Communicates(effects.Effect):  # type: ignore[misc, unused-ignore]
    """All such calls are of one order."""

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


def forget_order() -> None:
    """After a call that failed: those that wait for it would fail with it, for ever."""
    _tokens.current_tokens.pop(_EFFECT, None)
    _tokens.output_runtime_tokens.clear()  # of all effects, but only for who waits for the end


def forget_failures() -> None:
    """The same if one is known to have failed; nothing is waited for."""
    last = getattr(_tokens.current_tokens.get(_EFFECT), "_buf", None)
    try:
        if last is not None and last.is_ready():
            last.block_until_ready()
    except Exception:
        forget_order()


# ---- which axes of a mesh a value varies over


def _varying(aval: Any) -> frozenset[str]:
    if hasattr(aval, "mat"):  # from 0.10 on
        return frozenset(aval.mat.varying)
    return frozenset(getattr(aval, "vma", ()))


def _shaped(shape: tuple[int, ...], dtype: Any, like: Any, axes: frozenset[str]) -> Any:
    """Of a result that varies over these axes of the mesh that an operand is on."""
    if not axes:
        return core.ShapedArray(shape, dtype)
    sharding = like.sharding.update(spec=_Spec(*(None for _ in shape)))
    if hasattr(like, "mat"):
        return core.ShapedArray(shape, dtype, sharding=sharding,
                                manual_axis_type=like.mat.update(varying=axes))
    return core.ShapedArray(shape, dtype, sharding=sharding, vma=axes)


def is_checked() -> bool:
    """Whether shard_map keeps account of which axes a value varies over (check_vma)."""
    from jax._src import config
    state = getattr(config, "_check_vma", None)
    return state is not None and bool(state.value)


def is_within(axis: str | None) -> bool:
    """Whether what is traced now is in a shard_map over the axis."""
    return axis is not None and core.get_axis_env().axis_exists(axis)


def size_within(axis: str) -> int:
    return int(core.get_axis_env().axis_size(axis))


def is_within_any() -> bool:
    return bool(core.get_axis_env().axis_sizes)


def varies_along(array: Any, axis: str | None) -> bool:
    """By the account that shard_map keeps."""
    return axis is not None and is_checked() and axis in _varying(jax.typeof(array))


def _varied(array: Any, axes: frozenset[str]) -> Any:
    lacking = tuple(sorted(axes - _varying(jax.typeof(array))))
    if not lacking:
        return array
    if hasattr(lax, "pcast"):
        return lax.pcast(array, lacking, to="varying")
    return lax.pvary(array, lacking)


def alike(arrays: tuple[Any, ...], axis: str | None, *, but_for: Any = None) -> tuple[Any, ...]:
    """The same, all varying over whatever one of them does, and over the axis. ``but_for``: one
    that is added to what is the same along the axis, and so is to stay the same."""
    if not is_checked():
        return arrays
    every = frozenset[str]().union(*(_varying(jax.typeof(a)) for a in arrays))
    own = frozenset((axis,)) if axis is not None and is_within(axis) else frozenset[str]()
    return tuple(_varied(a, every - own if a is but_for else every | own) for a in arrays)


# ---- the primitive

_product = core.Primitive("shiplap_gemm")
_product.multiple_results = True
_product.def_impl(functools.partial(dispatch.apply_primitive, _product))


def _abstract(*operands: Any, results: Any, same_along: Any, communicates: bool,
              **_: Any) -> tuple[list[Any], set[Any]]:
    axes = frozenset().union(*(_varying(operand) for operand in operands)) - set(same_along)
    made = [_shaped(shape, dtype, operands[0], axes) for shape, dtype in results]
    return made, {_EFFECT} if communicates else set()


_product.def_effectful_abstract_eval(_abstract)


def _no_derivative(*_: Any, **__: Any) -> Any:
    raise _errors.InputError(
        "this product has no derivative: one of FP8 as it is given, with comm_dtype, alpha or "
        "accumulate. collective_dense(scaling_mode=..) has one of FP8; alpha "
        "and sums may be written beside the product")


ad.primitive_jvps[_product] = _no_derivative


def _lower(ctx: Any, *operands: Any, attributes: Any, is_grouped: bool, communicates: bool,
           adds: bool, **_: Any) -> Any:
    # What is added to lies where the output will.
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


mlir.register_lowering(_product, _lower, platform="cpu")

_NUMBERS = {bool: np.bool_, int: np.int64, str: str}


def call(operands: tuple[Any, ...], results: list[tuple[tuple[int, ...], Any]],
         attributes: dict[str, Any], *, is_grouped: bool, communicates: bool, adds: bool = False,
         axis: str | None = None, is_summed: bool = False) -> list[Any]:
    """Operands that are None, and results of no size, are not given. ``adds``: the last operand is
    what the output is added to."""
    given = tuple(jnp.zeros((0,), jnp.float32) if o is None else o for o in operands)
    given = alike(given, axis)
    words = tuple(sorted((key, _NUMBERS[type(value)](value)) for key, value in attributes.items()))
    in_checked_map = axis is not None and any(_varying(jax.typeof(o)) for o in given)
    made: list[Any] = _product.bind(
        *given, results=tuple((tuple(shape), np.dtype(dtype)) for shape, dtype in results),
        attributes=words, is_grouped=is_grouped, communicates=communicates, adds=adds,
        same_along=(axis,) if is_summed and in_checked_map else ())
    return made
