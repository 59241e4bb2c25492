"""The small values of ``shiplap.dispatch``. C++ makes them, and reads them as tuples."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple


class Segment(NamedTuple):
    """Consecutive tokens of a document."""

    document: int = 0
    begin: int = 0  #: in the document
    length: int = 0

    @property
    def end(self) -> int:
        """Its end in the document."""
        return self.begin + self.length


class Copy(NamedTuple):
    """One destination of a row."""

    rank: int = -1  #: -1: none
    offset: int = 0  #: the offset in the buffer of that rank, in tokens


class Row(NamedTuple):
    """Consecutive tokens of a rank's buffer, and their destinations."""

    begin: int  #: in the sending rank's buffer
    length: int
    copies: list[Copy]

    def __repr__(self) -> str:
        copies = ", ".join(f"(rank {copy.rank}, {copy.offset})" for copy in self.copies)
        return f"<Row: tokens {self.begin} to {self.begin + self.length} -> {copies}>"


class Flow(NamedTuple):
    """The traffic from one rank to another."""

    from_: int = 0
    to: int = 0
    tokens: int = 0
    pieces: int = 0


class TrafficSummary(NamedTuple):
    """Totals of flows."""

    tokens: int  #: all tokens, including those that stay on their rank
    between_ranks: int  #: tokens that leave their rank
    between_nodes: int  #: tokens that leave their node
    largest: Flow  #: the largest between two ranks; the first if several are equal
    max_sent: int  #: the maximum that one rank sends to other ranks
    max_received: int

    def __repr__(self) -> str:
        return (f"<TrafficSummary: {self.tokens} tokens, {self.between_ranks} between ranks, "
                f"{self.between_nodes} between nodes>")


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class MetadataSlice:
    """The slice of one rank: its rows, without padding."""

    rank: int
    world_size: int
    max_cp: int
    arrival: str
    num_seqs: int
    num_total_recv_tokens: int
    dst_rank: Any
    dst_offset: Any
    seq_len: Any
    num_recv_tokens: Any
    seq_recv_mask: Any
    recv_seq_lens: Any

    def __repr__(self) -> str:
        return f"<MetadataSlice: rank {self.rank} of {self.world_size}, {self.num_seqs} rows>"


for _value in (Segment, Copy, Row, Flow, TrafficSummary, MetadataSlice):
    _value.__module__ = "shiplap.dispatch"  # the public module, also for pickle
