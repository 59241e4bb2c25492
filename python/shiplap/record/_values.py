"""Known values of fake tensors.

A fake tensor has a shape and no data. Trainers still read some numbers that do not depend on
training data: counts of tokens, split sizes, flags. So small tensors carry their value along as
long as everything that they were computed from is known. All other numbers are unknown: a program
that reads one gets the same stand-in on every rank, and the line is remembered.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves, tree_map_only

MAX_ELEMENTS = 1 << 16
_KNOWN = "_shiplap_known"

_aten = torch.ops.aten
_SHAPE_ONLY = {
    _aten.zeros_like,
    _aten.ones_like,
    _aten.full_like,
    _aten.new_zeros,
    _aten.new_ones,
    _aten.new_full,
}
_CONSTANT_FACTORIES = {
    _aten.zeros,
    _aten.ones,
    _aten.full,
    _aten.arange,
    _aten.eye,
    _aten.scalar_tensor,
}

# Of unknown numbers all are as expected: `isfinite(x).all()`, `isnan(x).any()`.
_TRUTH = {_aten.all.default: True, _aten.any.default: False}
# Operators that leave what they write unchanged if all numbers are finite.
_FINITE = {_aten._amp_foreach_non_finite_check_and_unscale_.default}


class KnownValues:
    """Which tensors are known. Values are real tensors on the CPU."""

    def __init__(self) -> None:
        self._changes = 0
        self._forgotten: dict[int, int] = {}  # by storage: when unknown data was written to it

    def get(self, tensor: Any) -> torch.Tensor | None:
        """The value, or None if it is unknown."""
        if not isinstance(tensor, FakeTensor):
            return tensor  # type: ignore[no-any-return]
        known = getattr(tensor, _KNOWN, None)
        if known is None:
            return None
        value, when = known
        return value if self._forgotten.get(tensor.untyped_storage()._cdata, -1) < when else None

    def set(self, tensor: torch.Tensor, value: torch.Tensor) -> None:
        self._changes += 1
        setattr(tensor, _KNOWN, (value, self._changes))

    def forget(self, tensor: torch.Tensor) -> None:
        """Its storage now holds unknown data."""
        if isinstance(tensor, FakeTensor):
            self._changes += 1
            self._forgotten[tensor.untyped_storage()._cdata] = self._changes

    def follow(self, func: Any, args: Any, kwargs: dict[str, Any], out: Any) -> None:
        """Computes the values of the results of an operator, if those of its operands are known."""
        results = [t for t in tree_leaves(out) if isinstance(t, FakeTensor)]
        if not results:
            return
        if func in _TRUTH and results[0].numel() == 1 and not self._all_known(args, kwargs):
            self.set(results[0], torch.full(results[0].shape, _TRUTH[func]))
            return
        values = (
            self._compute(func, args, kwargs)
            if self._is_computable(func, args, kwargs, results)
            else None
        )
        if values is None or len(values) != len(results):
            self._forget_written(func, args)
            return
        for result, value in zip(results, values):
            self.set(result, value)

    def _is_computable(
        self, func: Any, args: Any, kwargs: dict[str, Any], results: list[FakeTensor]
    ) -> bool:
        packet = func._overloadpacket
        operands = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        if any(t.numel() > MAX_ELEMENTS for t in (*operands, *results)):
            return False
        if torch.Tag.nondeterministic_seeded in func.tags:
            return False
        if packet in _SHAPE_ONLY:
            return True
        if not operands:
            return packet in _CONSTANT_FACTORIES
        return self._all_known(args, kwargs)

    def _all_known(self, args: Any, kwargs: dict[str, Any]) -> bool:
        operands = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        return all(self.get(t) is not None for t in operands)

    def _compute(self, func: Any, args: Any, kwargs: dict[str, Any]) -> list[torch.Tensor] | None:
        def real(tensor: torch.Tensor) -> torch.Tensor:
            value = self.get(tensor)
            return value if value is not None else torch.empty(tensor.shape, dtype=tensor.dtype)

        kept = {
            name: value for name, value in kwargs.items() if name not in ("device", "pin_memory")
        }
        real_args, real_kwargs = tree_map_only(torch.Tensor, real, (args, kept))
        try:
            with torch.no_grad():
                out = func(*real_args, **real_kwargs)
        except Exception:  # an operator without a CPU kernel; the value is then unknown
            return None
        return [t for t in tree_leaves(out) if isinstance(t, torch.Tensor)]

    def _forget_written(self, func: Any, args: Any) -> None:
        if not func._schema.is_mutable or func in _FINITE:
            return
        for argument, value in zip(func._schema.arguments, args):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            for tensor in tree_leaves(value):
                if isinstance(tensor, FakeTensor) and self.get(tensor) is not None:
                    self.forget(tensor)
