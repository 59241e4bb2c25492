"""The API for training strategies.

A strategy is an ``async def`` that every rank runs with its own ``Model``; ``shiplap.train`` runs
it on all ranks. ``docs/strategy.md`` documents all calls, under the same names.
"""

import copyreg
from collections.abc import Callable, MutableMapping
from typing import Any

from shiplap import _shiplap
from shiplap._shiplap import (
    Activation,
    ActivationGrad,
    Activations,
    Communication,
    GradActivations,
    GradWeights,
    Model,
    ModelShape,
    OptState,
    OptStates,
    Weight,
    WeightGrad,
    Weights,
)
from shiplap._verbs import Strategy

for _map in (Weights, OptStates, Activations, GradActivations, GradWeights):
    for _method in ("__eq__", "__hash__", "clear", "get", "items", "keys", "pop", "popitem",
                    "setdefault", "update", "values", "_MutableMapping__marker"):
        setattr(_map, _method, getattr(MutableMapping, _method))
    MutableMapping.register(_map)


def _pickle_by(kind: type, *fields: str) -> None:
    """A value is made of these attributes again, by keyword."""
    def reduce(value: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _made, (kind, {name: getattr(value, name) for name in fields})

    copyreg.pickle(kind, reduce)


def _made(kind: Callable[..., Any], fields: dict[str, Any]) -> Any:
    return kind(**fields)


_pickle_by(ModelShape, "hidden", "block", "datatype", "moments")
_pickle_by(_shiplap.RuntimePredictor, "world_size", "hardware", "shape")
_pickle_by(Weight, "layer", "layers", "step", "shards", "num_shards")
_pickle_by(OptState, "layer", "layers", "step", "shards", "num_shards")
_pickle_by(WeightGrad, "layer", "layers", "samples", "total_samples", "shards", "num_shards")
_pickle_by(Activation, "layer", "layers", "samples", "total_samples", "shards", "num_shards")
_pickle_by(ActivationGrad, "layer", "layers", "samples", "total_samples", "summed", "num_summed")

__all__ = [
    "Activation",
    "ActivationGrad",
    "Activations",
    "Communication",
    "GradActivations",
    "GradWeights",
    "Model",
    "ModelShape",
    "OptState",
    "OptStates",
    "Strategy",
    "Weight",
    "WeightGrad",
    "Weights",
]
