"""The exceptions of Shiplap. A negative result, such as an unsound plan, is a value instead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shiplap._shiplap import Diagnostic


class Error(Exception):
    """Base class of all exceptions of Shiplap; ``diagnostics`` lists the errors."""

    diagnostics: Sequence[Diagnostic] = ()


class InputError(Error, ValueError):
    """An invalid file or argument."""


class MissingDependency(InputError):
    """A missing optional dependency, or a resource that this machine lacks."""


class Failure(Error, RuntimeError):
    """Communication failed. Its communicator can no longer be used."""


class CommTimeoutError(Failure, TimeoutError):
    """A call timed out because other ranks did not take part in it (D301)."""


class RankFailed(Failure):
    """A rank crashed or exited with an exception (D302)."""


class Mismatch(Failure):
    """Mismatched calls between the ranks of a group (D303)."""


class MetadataMismatch(Error, ValueError):
    """The dispatch tables differ between ranks (D420)."""


class InternalError(Error, RuntimeError):
    """A bug in Shiplap."""


for _error in (
    Error,
    InputError,
    MissingDependency,
    Failure,
    CommTimeoutError,
    RankFailed,
    Mismatch,
    MetadataMismatch,
    InternalError,
):
    _error.__module__ = "shiplap"  # the public module, for tracebacks
