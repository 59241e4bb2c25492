"""The communication of LLM training: plan, check, simulate and run it.

>>> import shiplap
>>> training = shiplap.train("1f1b", ranks=4, layers=8, batch=8)
>>> shiplap.check(training.plan).sound
True

Results have ``to_dict()`` and a rich display in notebooks; errors carry diagnostics.
``shiplap.dispatch`` has the Q/KV dispatch, ``shiplap.strategy`` the API for training strategies,
``shiplap.torch`` (if torch is installed) a Dispatcher with autograd.
"""

import importlib

from shiplap._errors import (
    DeadlinePassed,
    Error,
    Failure,
    InputError,
    InternalError,
    MetadataDiffers,
    Mismatch,
    MissingPart,
    RankFailed,
)
from shiplap._shiplap import (
    Diagnostic,
    Event,
    Finding,
    Plan,
    Report,
    Run,
    RuntimePredictor,
    Simulation,
    Trace,
    Training,
    known_systems,
    strategies,
    train,
)
from shiplap._shiplap import version as __version__
from shiplap import dispatch, strategy
from shiplap._plan_builder import PlanBuilder
from shiplap._verbs import Answer, check, explain, overlap, plan_of, run, simulate

__all__ = [
    "Answer",
    "DeadlinePassed",
    "Diagnostic",
    "Error",
    "Event",
    "Failure",
    "Finding",
    "InputError",
    "InternalError",
    "MetadataDiffers",
    "Mismatch",
    "MissingPart",
    "Plan",
    "PlanBuilder",
    "RankFailed",
    "Report",
    "Run",
    "RuntimePredictor",
    "Simulation",
    "Trace",
    "Training",
    "__version__",
    "check",
    "dispatch",
    "explain",
    "known_systems",
    "overlap",
    "plan_of",
    "run",
    "simulate",
    "strategies",
    "strategy",
    "train",
]


def __getattr__(name: str) -> object:
    """Imports `shiplap.torch` and `shiplap.testing` lazily."""
    if name in ("testing", "torch"):
        return importlib.import_module(f"shiplap.{name}")
    raise AttributeError(f"module 'shiplap' has no attribute '{name}'")
