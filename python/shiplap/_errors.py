"""The exceptions of Shiplap. A negative result, such as an unsound plan, is a value instead."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from shiplap._shiplap import Diagnostic

_Error = TypeVar("_Error", bound="Error")


class Error(Exception):
    """Base class of all exceptions of Shiplap; ``diagnostics`` lists the errors."""

    _code = "D003"  # of an exception that is made of a message alone

    @classmethod
    def of(cls: type[_Error], code: str, what: str, **more: Any) -> _Error:
        """Of one diagnostic: ``why``, ``help``, ``rank``, ``operation``."""
        from shiplap._shiplap import _diagnostic

        diagnostic = _diagnostic(code, what, **more)
        error = cls(str(diagnostic))
        error.diagnostics = (diagnostic,)
        return error

    @property
    def diagnostics(self) -> Sequence[Diagnostic]:
        """The errors, at least one."""
        known: Sequence[Diagnostic] | None = self.__dict__.get("_diagnostics")
        if known is None:
            from shiplap._shiplap import _diagnostic

            known = (_diagnostic(self._code, str(self)),)
            self.diagnostics = known
        return known

    @diagnostics.setter
    def diagnostics(self, found: Sequence[Diagnostic]) -> None:
        self._diagnostics = tuple(found)

    def __str__(self) -> str:
        """The message: KeyError would quote it, OSError put the error number before it."""
        return Exception.__str__(self) if len(self.args) != 1 else str(self.args[0])


class InputError(Error, ValueError):
    """An invalid file or argument."""


class InputAttributeError(InputError, AttributeError):
    """A property without a value. So ``hasattr`` is false."""


class InputIndexError(InputError, IndexError):
    """A rank that does not exist."""


class InputKeyError(InputError, KeyError):
    """A key under which nothing is stored."""


class InputTypeError(InputError, TypeError):
    """A value of the wrong type."""


class InputOSError(InputError, OSError):
    """A file that cannot be read or written."""


class InputFileNotFoundError(InputOSError, FileNotFoundError):
    """A missing file or folder."""


class InputIsADirectoryError(InputOSError, IsADirectoryError):
    """A folder where a file is expected."""


class InputPermissionError(InputOSError, PermissionError):
    """A file that may not be read or written."""


_FILE_ERRORS = {
    errno.ENOENT: InputFileNotFoundError,
    errno.EISDIR: InputIsADirectoryError,
    errno.EACCES: InputPermissionError,
    errno.EPERM: InputPermissionError,
}


def file_error(message: str, number: int, file: str) -> InputOSError:
    """The exception for an error number of the operating system."""
    error = _FILE_ERRORS.get(number, InputOSError)(message)
    error.errno, error.filename = number, file
    return error


class MissingDependency(InputError):
    """A missing optional dependency, or a resource that this machine lacks."""

    _code = "D007"


class Failure(Error, RuntimeError):
    """Communication failed. Its communicator can no longer be used."""

    _code = "D302"


class CommTimeoutError(Failure, TimeoutError):
    """A call timed out because other ranks did not take part in it (D301)."""

    _code = "D301"


class RankFailed(Failure):
    """A rank crashed or exited with an exception (D302)."""


class Mismatch(Failure):
    """Mismatched calls between the ranks of a group (D303)."""

    _code = "D303"


class MetadataMismatch(Error, ValueError):
    """The dispatch tables differ between ranks (D420)."""

    _code = "D420"


class InternalError(Error, RuntimeError):
    """A bug in Shiplap."""

    _code = "D015"


for _error in (
    Error,
    InputError,
    InputAttributeError,
    InputFileNotFoundError,
    InputIndexError,
    InputIsADirectoryError,
    InputKeyError,
    InputOSError,
    InputPermissionError,
    InputTypeError,
    MissingDependency,
    Failure,
    CommTimeoutError,
    RankFailed,
    Mismatch,
    MetadataMismatch,
    InternalError,
):
    _error.__module__ = "shiplap"  # the public module, for tracebacks
