"""What one rank did: the events of a recording, in program order."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar


@dataclass(frozen=True)
class Site:
    """A line of the user's program."""

    file: str
    line: int
    function: str  # and its callers: "save (from main, train.py:9)"
    via: str = ""  # the function of torch that communicates on its behalf

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Region:
    """Bytes of one storage."""

    storage: int
    begin: int
    size: int
    dtype: str  # as in plans: "bf16"


@dataclass
class Call:
    """A collective, a send or a receive. Regions are those of its tensors, in their order."""

    id: int
    kind: str  # "all_reduce", .., "send", "receive"
    group: str
    inputs: list[Region]
    outputs: list[Region]
    site: Site
    stream: int
    on_host: bool  # waiting for it blocks the host, as in gloo, not only a stream
    reduce: str = "sum"
    average: bool = False
    root: int = 0  # a position in the group
    peer: int = -1  # likewise
    tag: int = 0
    # Elements that go to and come from each member; empty: equal parts.
    send_counts: list[int] = field(default_factory=list)
    receive_counts: list[int] = field(default_factory=list)


@dataclass
class Batch:
    """Calls that start together and complete together."""

    calls: list[Call]


@dataclass
class Wait:
    """The stream waits until a call is complete; the host too if the call is on the host."""

    call: int
    stream: int


@dataclass
class StreamWait:
    """Later work of `stream` comes after all work of `other` so far."""

    stream: int
    other: int


@dataclass
class EventRecord:
    """torch.cuda.Event.record."""

    event: int
    stream: int


@dataclass
class EventWait:
    """A stream, or the host (-1), waits for an event."""

    event: int
    stream: int


@dataclass
class HostWait:
    """The host waits for a stream, or for all (-1): `item()`, `synchronize()`."""

    stream: int
    site: Site | None = None


@dataclass
class Touch:
    """A computation uses memory of a call that may still be in flight."""

    stream: int
    call: int
    region: Region
    writes: bool
    operator: str
    site: Site


@dataclass
class GroupCreated:
    """A process group, also one of which the rank is not a member."""

    name: str
    ranks: list[int]
    description: str
    backend: str
    site: Site


@dataclass
class MeshCreated:
    """A DeviceMesh with names: (name, stride, size) of each dimension that is a regular grid."""

    dimensions: list[tuple[str, int, int]]


@dataclass
class Step:
    """The end of an optimizer step."""

    number: int


@dataclass
class ValueRead:
    """The program reads a number that is not known without real data."""

    site: Site


Event = (
    Call
    | Batch
    | Wait
    | StreamWait
    | EventRecord
    | EventWait
    | HostWait
    | Touch
    | GroupCreated
    | MeshCreated
    | Step
    | ValueRead
)


E = TypeVar("E")


def calls_in(events: Iterable[Event]) -> Iterator[Call]:
    for event in events:
        if isinstance(event, Batch):
            yield from event.calls
        elif isinstance(event, Call):
            yield event


@dataclass
class Recording:
    """One rank."""

    rank: int
    world: int
    events: list[Event]
    groups: dict[str, list[int]]  # of which the rank is a member: name to ranks
    error: str = ""  # why the program ended early, with its line
    incomplete: str = ""  # the call that it did not complete, if it ran for real
    seconds: float = 0.0
    peak_bytes: int = 0

    def add(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, GroupCreated) and self.rank in event.ranks:
            self.groups[event.name] = event.ranks

    def calls(self) -> Iterator[Call]:
        """All of them, also those in batches."""
        return calls_in(self.events)

    def of(self, kind: type[E]) -> Iterator[E]:
        """The events of one kind."""
        return (event for event in self.events if isinstance(event, kind))


def events_file(directory: str, rank: int) -> str:
    """Where a real rank keeps its events, in case its process dies."""
    return os.path.join(directory, f"rank{rank}.events")
