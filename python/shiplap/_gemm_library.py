"""What multiplies in the engine: oneDNN, if it is installed, else plain loops."""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
import pathlib
import warnings

from shiplap import _shiplap

_PACKAGE = "onednn-cpu-gomp"  # the extras of pyproject.toml name it too
_LIBRARY = "libdnnl.so.3"


class SlowGemmWarning(RuntimeWarning):
    """GEMMs run in plain loops."""


@functools.cache
def load() -> str:
    """Returns the name of what multiplies, and warns once if it is slow."""
    problem = _preload()
    name: str = _shiplap._gemm_backend()
    if name == "reference":
        warnings.warn(
            "GEMMs run in plain loops, many times slower than those of JAX and torch, because "
            f"{problem or 'this build has no oneDNN'}: pip install {_PACKAGE}",
            SlowGemmWarning, stacklevel=3)
    return name


@functools.cache
def is_fast() -> bool:
    """Whether there is a library that multiplies."""
    _preload()
    return bool(_shiplap._gemm_backend() != "reference")


def find() -> pathlib.Path | None:
    """Where pip's oneDNN is."""
    try:
        files = importlib.metadata.files(_PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    return next((pathlib.Path(str(file.locate())) for file in files if file.name == _LIBRARY), None)


def _preload() -> str:
    """Loads pip's oneDNN, wherever it is: the engine alone would look only beside the environment
    that shiplap is in. Returns why it cannot."""
    library = find()
    if library is None:
        return "oneDNN is not installed"
    try:
        ctypes.CDLL(str(library))
    except OSError as error:
        return f"oneDNN cannot be loaded ({error})"
    return ""
