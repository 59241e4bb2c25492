"""Former public names. Each still works, with a DeprecationWarning."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., Any])

# Former name: name.
CLASSES = {
    "DeadlinePassed": "CommTimeoutError",
    "MetadataDiffers": "MetadataMismatch",
    "MissingPart": "MissingDependency",
}
ATTRIBUTES = {
    "Communication": {"under_way": "in_flight"},
    "Event": {"duration": "duration_s", "end": "end_s", "time": "time_s"},
    "Simulation": {
        "exposed": "exposed_communication",
        "peak_memory": "peak_bytes",
        "step_time": "step_s",
        "time": "total_s",
    },
    "TrafficSummary": {"most_received": "max_received", "most_sent": "max_sent"},
}
ATTRIBUTES["Training"] = ATTRIBUTES["Simulation"]
PARAMETERS = {
    "dispatch_validate": {"most_of_a_kind": "max_per_code"},
    "gemm": {"size_of_all": "global_size"},
    "grouped_gemm": {"size_of_all": "global_size"},
    "initialize": {"connect_within": "connect_timeout", "meet_at": "store_address"},
    "to_dense": {"largest": "max_elements"},
}


def warn(old: str, new: str) -> None:
    """Warns the caller of the function that calls this one."""
    warnings.warn(f"{old} is deprecated: use {new}", DeprecationWarning, stacklevel=3)


def accept_old_parameters(function: Function) -> Function:
    """A decorator: the function also accepts the former names of its parameters."""
    name = function.__name__
    renamed = PARAMETERS[name]

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        for old in kwargs.keys() & renamed.keys():
            new = renamed[old]
            if new in kwargs:
                raise TypeError(f"{name}() got both {new} and {old}, its former name")
            warn(f"the parameter {old}", new)
            kwargs[new] = kwargs.pop(old)
        return function(*args, **kwargs)

    return cast(Function, call)


def _attribute(owner: str, old: str, new: str) -> property:
    def get(self: Any) -> Any:
        warn(f"{owner}.{old}", new)
        return getattr(self, new)

    return property(get, doc=f"Deprecated: use ``{new}``.")


def add_old_attributes(owner: type) -> None:
    """Adds the former names of the attributes of a class."""
    for old, new in ATTRIBUTES[owner.__name__].items():
        setattr(owner, old, _attribute(owner.__name__, old, new))
