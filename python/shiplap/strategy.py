"""The API for training strategies.

A strategy is an ``async def`` that every rank runs with its own ``Model``; ``shiplap.train`` runs
it on all ranks. ``docs/strategy.md`` documents all calls, under the same names.
"""

from collections.abc import Callable, Coroutine
from typing import Any

from shiplap import _deprecated
from shiplap._shiplap import (
    Activation,
    ActivationGrad,
    Activations,
    Communication,
    Event,
    GradActivations,
    GradWeights,
    Model,
    ModelShape,
    OptState,
    OptStates,
    RuntimePredictor,
    Training,
    Weight,
    WeightGrad,
    Weights,
    strategies,
    train,
)

_deprecated.add_old_attributes(Communication)

Strategy = Callable[[Model], Coroutine[Any, Any, object]]

__all__ = [
    "Activation",
    "ActivationGrad",
    "Activations",
    "Communication",
    "Event",
    "GradActivations",
    "GradWeights",
    "Model",
    "ModelShape",
    "OptState",
    "OptStates",
    "RuntimePredictor",
    "Strategy",
    "Training",
    "Weight",
    "WeightGrad",
    "Weights",
    "strategies",
    "train",
]
