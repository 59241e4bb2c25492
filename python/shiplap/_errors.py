"""What Shiplap raises. An answer of "no" is a value, never one of these."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shiplap._shiplap import Diagnostic


class Error(Exception):
    """What Shiplap raises; ``diagnostics`` has each thing that is wrong."""

    diagnostics: Sequence[Diagnostic] = ()


class InputError(Error, ValueError):
    """A file or an argument that cannot be used."""


class MissingPart(InputError):
    """A part that this machine lacks is needed."""


class Failure(Error, RuntimeError):
    """Communication failed. The communicator that it came from is dead."""


class DeadlinePassed(Failure):
    """Some ranks did not come in time (D301)."""


class RankFailed(Failure):
    """A rank died, or left its work by an exception (D302)."""


class Mismatch(Failure):
    """The ranks of a group do not agree on what they do (D303)."""


class MetadataDiffers(Error, ValueError):
    """The ranks do not hold the same tables (D420)."""


class InternalError(Error, RuntimeError):
    """A bug of Shiplap."""


for _error in (
    Error,
    InputError,
    MissingPart,
    Failure,
    DeadlinePassed,
    RankFailed,
    Mismatch,
    MetadataDiffers,
    InternalError,
):
    _error.__module__ = "shiplap"  # where users find them, and so what tracebacks say
