"""The communication of LLM training: plan, check, simulate and run it.

>>> import shiplap
>>> training = shiplap.train("1f1b", ranks=4, layers=8, batch=8)
>>> shiplap.check(training.plan).sound
True

Results have ``to_dict()`` and a rich display in notebooks; errors carry diagnostics.
``shiplap.dispatch`` has the Q/KV dispatch, ``shiplap.strategy`` the API for training strategies,
``shiplap.torch`` (if torch is installed) a Dispatcher with autograd, ``shiplap.jax`` (if JAX is
installed) overlapped GEMMs.
"""

import importlib

from shiplap._errors import (
    CommTimeoutError,
    Error,
    Failure,
    InputAttributeError,
    InputError,
    InputFileNotFoundError,
    InputIndexError,
    InputIsADirectoryError,
    InputKeyError,
    InputOSError,
    InputPermissionError,
    InputTypeError,
    InternalError,
    MetadataMismatch,
    Mismatch,
    MissingDependency,
    RankFailed,
)
from shiplap._results import (
    Event,
    Finding,
    MemoryFit,
    Postmortem,
    Report,
    Run,
    Simulation,
    Suspect,
    Training,
)
from shiplap._shiplap import (
    Diagnostic,
    Plan,
    RuntimePredictor,
    Trace,
    known_systems,
    strategies,
)
from shiplap._shiplap import version as __version__
from shiplap import dispatch, strategy
from shiplap._plan_builder import PlanBuilder
from shiplap._verbs import (
    Answer,
    check,
    explain,
    overlap,
    plan_of,
    postmortem,
    run,
    simulate,
    train,
)

__all__ = [
    "Answer",
    "CommTimeoutError",
    "Diagnostic",
    "Error",
    "Event",
    "Failure",
    "Finding",
    "InputAttributeError",
    "InputError",
    "InputFileNotFoundError",
    "InputIndexError",
    "InputIsADirectoryError",
    "InputKeyError",
    "InputOSError",
    "InputPermissionError",
    "InputTypeError",
    "InternalError",
    "MemoryFit",
    "MetadataMismatch",
    "Mismatch",
    "MissingDependency",
    "Plan",
    "PlanBuilder",
    "Postmortem",
    "RankFailed",
    "Report",
    "Run",
    "RuntimePredictor",
    "Simulation",
    "Suspect",
    "Trace",
    "Training",
    "__version__",
    "check",
    "dispatch",
    "explain",
    "known_systems",
    "overlap",
    "plan_of",
    "postmortem",
    "run",
    "simulate",
    "strategies",
    "strategy",
    "train",
]


def __getattr__(name: str) -> object:
    """Imports `shiplap.jax`, `shiplap.torch` and `shiplap.testing` lazily."""
    if name in ("jax", "testing", "torch"):
        return importlib.import_module(f"shiplap.{name}")
    raise AttributeError(f"module 'shiplap' has no attribute '{name}'")
