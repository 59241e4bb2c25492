"""GEMMs with overlapped communication in JAX: inside jitted functions, across many processes."""

from __future__ import annotations

from shiplap import _errors

_OLDEST = (0, 6, 2)  # the handlers are built with the XLA headers of this version; docs/jax.md


class _Missing(_errors.MissingDependency, ImportError):
    """Callers can catch either base class."""


try:
    import jaxlib.version
    import jax as _jax  # noqa: F401
except ImportError as error:
    raise _Missing("shiplap.jax needs jax, which is not installed: "
                   "pip install 'shiplap[jax]'") from error

if jaxlib.version.__version_info__[:3] < _OLDEST:
    # An older XLA would fail at startup: it does not support such handlers.
    raise _Missing(f"shiplap.jax needs jaxlib {'.'.join(map(str, _OLDEST))} or newer, but "
                   f"{jaxlib.version.__version__} is installed: pip install -U jax")

from shiplap.jax._buffers import create_buffer, destroy_all_buffers, destroy_buffer
from shiplap.jax._dense import collective_dense
from shiplap.jax._gemm import GemmOptions, gemm
from shiplap.jax._group import Group, diagnosed, initialize
from shiplap.jax._grouped import grouped_gemm
from shiplap.jax._quantize import dequantize, quantize

__all__ = ["GemmOptions", "Group", "collective_dense", "create_buffer", "dequantize",
           "destroy_all_buffers", "destroy_buffer", "diagnosed", "gemm", "grouped_gemm",
           "initialize", "quantize"]
