"""Makes a plan of recordings: a mesh, one program for each kind of rank, and a line for each call.

Order. An operation of a plan runs on a stream, after its predecessor there and after the operations
that it names. Each CUDA stream becomes a stream, and so does each communicator, as in NCCL. The
*clock* of a CUDA stream says which operation of every stream its next one comes after: a call
starts after the clock of the stream that makes it, `wait` merges the call into that clock, events
and synchronizations merge clocks. Calls of gloo are asynchronous operations for which the host
waits.

Memory. A call names regions of storages. A buffer of the plan stands for several storages, one
after the other: it is taken again only by an operation that is ordered after all its uses, so that
this never makes a race.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from shiplap.record import _events as ev
from shiplap.record._mesh import Mesh, axis_name, grid_of, spans

_MAX_PERIOD = 64  # operations of a loop
_MIN_SAVED = 3  # operations that a loop must save
_SIZES = {
    "f64": 8,
    "f32": 4,
    "f16": 2,
    "bf16": 2,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "i64": 8,
    "i32": 4,
    "i16": 2,
    "i8": 1,
    "u8": 1,
}
_OPERATORS = {
    "product": " operator product",
    "min": " operator min",
    "max": " operator max",
    "band": " operator min",
    "bor": " operator max",
    "bxor": " operator max",
}

Clock = dict[str, int]  # by stream of the plan: its last operation that comes before


@dataclass
class _Buffer:
    name: str
    dtype: str
    elements: int
    uses: list[tuple[str, int]] = field(default_factory=list)  # stream and operation
    storage: int = 0  # which it stands for now


@dataclass
class _Operation:
    number: int
    stream: str
    text: str
    after: list[int]
    is_async: bool
    site: ev.Site
    members: list[tuple[str, ev.Site]] = field(default_factory=list)
    accesses: list[str] = field(default_factory=list)


@dataclass
class _Shared:
    """What the programs of all ranks refer to."""

    mesh: Mesh
    # Rows of irregular exchanges, by name and rank: word, peer, first element, count.
    tables: dict[str, dict[int, list[tuple[str, int, int, int]]]] = field(default_factory=dict)
    sources: dict[tuple[str, str], str] = field(default_factory=dict)  # names, by file and function

    def source(self, site: ev.Site) -> str:
        key = (site.file, site.function)
        return self.sources.setdefault(key, f"s{len(self.sources)}")


class _Program:
    """The program of one rank."""

    def __init__(self, recording: ev.Recording, shared: _Shared) -> None:
        self._recording, self._shared, self._mesh = recording, shared, shared.mesh
        self._rank = recording.rank
        self._groups = {name: tuple(ranks) for name, ranks in recording.groups.items()}
        self._channels = channels_of(recording)
        self._operations: list[_Operation] = []
        self._last: Clock = {}
        self._named: set[int] = set()
        self._streams: dict[str, str] = {}  # by what they are for
        self._clocks: dict[int, Clock] = {}  # of CUDA streams
        self._host: Clock = {}  # what the host has waited for
        self._events: dict[int, Clock] = {}
        # Stream and operation of each call, and whether it is on the host.
        self._calls: dict[int, tuple[str, int, bool]] = {}
        self._buffers: list[_Buffer] = []
        self._buffer_of: dict[tuple[int, str], _Buffer] = {}
        self._extents: dict[tuple[int, str], int] = {}  # bytes, by storage and type
        self._exchanges: dict[str, int] = defaultdict(int)
        regions = [one for call in recording.calls() for one in (*call.inputs, *call.outputs)]
        for region in (*regions, *(touch.region for touch in recording.of(ev.Touch))):
            key = (region.storage, region.dtype)
            self._extents[key] = max(self._extents.get(key, 0), region.begin + region.size)

    def text(self) -> str:
        """Its lines, without `program`."""
        for event in self._recording.events:
            self._add(event)
        return self._lines()

    # ---- events

    def _add(self, event: ev.Event) -> None:
        if isinstance(event, ev.Call):
            self._communicate([event], batched=False)
        elif isinstance(event, ev.Batch):
            self._communicate(event.calls, batched=True)
        elif isinstance(event, ev.Wait):
            stream, number, on_host = self._calls[event.call]
            self._merge(None if on_host else event.stream, {stream: number})
        elif isinstance(event, ev.StreamWait):
            self._merge(event.stream, self._clock(event.other))
        elif isinstance(event, ev.EventRecord):
            self._events[event.event] = dict(self._clock(event.stream))
        elif isinstance(event, ev.EventWait):
            self._merge(
                None if event.stream < 0 else event.stream, self._events.get(event.event, {})
            )
        elif isinstance(event, ev.HostWait):
            self._merge(None, dict(self._last if event.stream < 0 else self._clock(event.stream)))
        elif isinstance(event, ev.Touch):
            self._touch(event)

    def _clock(self, stream: int) -> Clock:
        return self._clocks.setdefault(stream, dict(self._host))

    def _merge(self, stream: int | None, later: Clock) -> None:
        """What the stream does from now on comes after these operations; None: all streams."""
        clocks = [self._host, *self._clocks.values()] if stream is None else [self._clock(stream)]
        for clock in clocks:
            for name, number in later.items():
                clock[name] = max(clock.get(name, -1), number)

    def _stream(self, purpose: str, prefix: str) -> str:
        return self._streams.setdefault(purpose, f"{prefix}{len(self._streams)}")

    def _issue(
        self, stream: str, clock: Clock, text: str, site: ev.Site, *, is_async: bool = False
    ) -> _Operation:
        after = sorted(number for name, number in clock.items() if is_async or name != stream)
        self._named.update(after)
        operation = _Operation(len(self._operations), stream, text, after, is_async, site)
        self._operations.append(operation)
        self._last[stream] = operation.number
        return operation

    def _communicate(self, calls: list[ev.Call], *, batched: bool) -> None:
        first = calls[0]
        clock = self._clock(first.stream)
        channel = self._channel(first, batched)
        stream = self._stream(f"{first.group} {channel}", "comm")
        number = len(self._operations)
        use = _Use(self, stream, clock, number)
        members = [(line, call.site) for call in calls for line in self._call(call, channel, use)]
        text = members[0][0] if len(members) == 1 and not batched else "batch"
        operation = self._issue(stream, clock, text, first.site, is_async=first.on_host)
        if text == "batch":
            operation.members = members
        for call in calls:
            self._calls[call.id] = (stream, number, first.on_host)

    def _channel(self, call: ev.Call, batched: bool) -> str:
        """A message of NCCL that is not in a batch has a communicator for its pair of ranks."""
        channel = self._channels[call.group]
        if call.kind in ("send", "receive") and not batched and not call.on_host:
            channel += self._mesh.pair(self._rank, self._groups[call.group][call.peer])
        return channel

    def _touch(self, touch: ev.Touch) -> None:
        clock = self._clock(touch.stream)
        stream = "main" if touch.stream == 0 else self._stream(f"cuda {touch.stream}", "cuda")
        number = len(self._operations)
        region = _Use(self, stream, clock, number).region(touch.region)
        operation = self._issue(stream, clock, "compute other", touch.site)
        operation.accesses = [f"{'writes' if touch.writes else 'reads '} {region}"]
        self._clocks[touch.stream] = {**clock, stream: number}

    # ---- lines

    def _call(self, call: ev.Call, channel: str, use: _Use) -> list[str]:
        ranks = self._groups[call.group]
        over = f" over {self._mesh.group(ranks)}" + (f"/{channel}" if channel else "")
        reduction = _OPERATORS.get(call.reduce, "")
        if call.average and len(ranks) > 1:
            reduction += f" scale 1/{len(ranks)}"
        root = f" root {call.root}" if call.root else ""
        if call.kind == "barrier":
            return ["barrier" + over]
        if call.kind in ("send", "receive"):
            tail = (f" tag {call.tag}" if call.tag else "") + (
                f" channel {channel}" if channel else ""
            )
            way = "to" if call.kind == "send" else "from"
            peer = self._mesh.peer(self._rank, ranks[call.peer])
            return [
                f"{call.kind} {use.region(one)} {way} {peer}{tail}"
                for one in call.inputs or call.outputs
            ]
        if call.kind in ("all_reduce", "broadcast", "reduce"):
            tail = (
                over
                + ("" if call.kind == "broadcast" else reduction)
                + ("" if call.kind == "all_reduce" else root)
            )
            targets: list[ev.Region | None] = [*call.outputs] or [None] * len(call.inputs)
            return [
                f"{call.kind} {use.region(a)}"
                + (f" to {use.region(b)}" if b is not None else "")
                + tail
                for a, b in zip(call.inputs, targets)
            ]
        if call.kind in ("all_gather", "reduce_scatter"):
            return self._parts(call, ranks, over, reduction, use)
        if call.kind == "all_to_all" and not call.send_counts and not call.receive_counts:
            return [
                f"all_to_all {use.region(call.inputs[0])} to {use.region(call.outputs[0])}{over}"
            ]
        return [self._exchange(call, over, use)]

    def _parts(
        self, call: ev.Call, ranks: tuple[int, ...], over: str, reduction: str, use: _Use
    ) -> list[str]:
        """A call with one part for each member."""
        gathers = call.kind == "all_gather"
        whole, parts = (call.outputs, call.inputs) if gathers else (call.inputs, call.outputs)
        if len({one.size for one in whole}) > 1:  # torch makes one call for each part
            kind, tail = ("broadcast", "") if gathers else ("reduce", reduction)
            return [
                f"{kind} {use.region(one)}{over}{tail}" + (f" root {k}" if k else "")
                for k, one in enumerate(whole)
            ]
        if len(whole) == 1:
            all_of_it = use.region(whole[0])
            part = use.region(parts[0], self._begin_in(whole[0], parts[0], ranks))
        else:
            all_of_it = use.joined(whole)
            part = use.region(parts[0])
        if gathers:
            return [f"all_gather {part} to {all_of_it}{over}"]
        return [f"reduce_scatter {all_of_it} to {part}{over}{reduction}"]

    def _begin_in(self, whole: ev.Region, part: ev.Region, ranks: tuple[int, ...]) -> str | None:
        """Where the part of a rank begins in the whole, as an expression for all ranks."""
        place = self._mesh.place(ranks)
        here = whole.begin + ranks.index(self._rank) * part.size
        if place is None or part.storage != whole.storage or part.begin != here:
            return None
        width = _SIZES[part.dtype]
        return (f"{whole.begin // width}+" if whole.begin else "") + f"{place}*{part.size // width}"

    def _exchange(self, call: ev.Call, over: str, use: _Use) -> str:
        """Parts of different sizes: an exchange by a table, which has rows for all ranks."""
        ranks = self._groups[call.group]
        dtype = (call.inputs or call.outputs)[0].dtype

        def counts(given: list[int], regions: list[ev.Region], only_root: bool) -> list[int]:
            sizes = [one.size // _SIZES[dtype] for one in regions]
            if given:
                return given
            if only_root:
                return [sizes[0] if k == call.root else 0 for k in range(len(ranks))]
            if len(sizes) == 1:
                return [sizes[0] // len(ranks)] * len(ranks)
            return sizes or [0] * len(ranks)

        send = counts(call.send_counts, call.inputs, call.kind == "gather")
        receive = counts(call.receive_counts, call.outputs, call.kind == "scatter")
        name = (
            f"{call.kind}_{self._exchanges[call.group]}_over_{_word(over.removeprefix(' over '))}"
        )
        self._exchanges[call.group] += 1
        table = self._shared.tables.setdefault(name, {}).setdefault(self._rank, [])
        for word, rows in (("send", send), ("receive", receive)):
            begin = 0
            for k, count in enumerate(rows):
                if count:
                    table.append((word, ranks[k], begin, count))
                begin += count
        nothing = ev.Region(0, 0, 0, dtype)
        sides = [
            use.joined(side) if len(side) > 1 else use.region((side or [nothing])[0])
            for side in (call.inputs, call.outputs)
        ]
        return f"exchange {sides[0]} to {sides[1]} by {name}{over}"

    def _lines(self) -> str:
        lines = [
            f"  buffer {buffer.name} rows {buffer.elements} "
            f"row_bytes {_SIZES[buffer.dtype]} {buffer.dtype}"
            for buffer in self._buffers
        ]
        if self._streams:
            lines.append("  streams " + ", ".join(self._streams.values()))
        lines += _folded([self._operation_text(operation) for operation in self._operations])
        if not self._operations:  # a program is not empty
            lines.append("  compute other")
        return "\n".join(lines)

    def _operation_text(self, operation: _Operation) -> str:
        name = f"o{operation.number}: " if operation.number in self._named else ""
        stream = "" if operation.stream == "main" else f"@{operation.stream} "
        names = ", ".join(f"o{number}" for number in operation.after)
        after = f" after {names}" if names else ""
        flags = " async" if operation.is_async else ""
        label = f" label {operation.site.via}" if operation.site.via else ""
        lines = [f"  {name}{stream}{operation.text}{after}{flags}{self._at(operation.site)}{label}"]
        lines += [f"    {access}" for access in operation.accesses]
        if operation.text == "batch":
            lines += [f"    {text}{self._at(site)}" for text, site in operation.members]
            lines.append("  end")
        return "\n".join(lines)

    def _at(self, site: ev.Site) -> str:
        return f" at {self._shared.source(site)}:{site.line}"

    def buffer(self, storage: int, dtype: str, use: _Use) -> _Buffer:
        """The buffer of a storage; a free one if it has none."""
        found = self._buffer_of.get((storage, dtype))
        if found is not None and found.storage == storage:
            return found
        elements = max(1, self._extents.get((storage, dtype), 0) // _SIZES[dtype])

        def is_free(buffer: _Buffer) -> bool:
            return all(
                use.clock.get(name, -1) >= last
                or (
                    name == use.stream and last < use.number and not self._operations[last].is_async
                )
                for name, last in buffer.uses
            )

        for buffer in self._buffers:
            if buffer.dtype == dtype and buffer.elements == elements and is_free(buffer):
                break
        else:
            buffer = _Buffer(f"b{len(self._buffers)}", dtype, elements)
            self._buffers.append(buffer)
        buffer.uses, buffer.storage = [], storage
        self._buffer_of[storage, dtype] = buffer
        return buffer

    def join(self, regions: list[ev.Region]) -> ev.Region:
        """One region for a list of tensors."""
        storage = -1 - len(self._extents)
        dtype, size = regions[0].dtype, sum(region.size for region in regions)
        self._extents[storage, dtype] = size
        return ev.Region(storage, 0, size, dtype)


@dataclass
class _Use:
    """Regions of one operation."""

    program: _Program
    stream: str
    clock: Clock
    number: int

    def region(self, region: ev.Region, begin: str | None = None) -> str:
        """`begin` replaces the number by an expression with the same value."""
        width = _SIZES[region.dtype]
        buffer = self.program.buffer(region.storage, region.dtype, self)
        buffer.uses.append((self.stream, self.number))
        count = region.size // width
        if begin is None and region.begin == 0 and count == buffer.elements:
            return buffer.name
        return f"{buffer.name}[{begin or region.begin // width} +{count}]"

    def joined(self, regions: list[ev.Region]) -> str:
        return self.region(self.program.join(regions))


def channels_of(recording: ev.Recording) -> dict[str, str]:
    """Groups of the same ranks are told apart by the order in which they were created."""
    count: dict[tuple[int, ...], int] = defaultdict(int)
    channels = {}
    for name, ranks in recording.groups.items():
        number = count[tuple(ranks)]
        count[tuple(ranks)] += 1
        channels[name] = f"c{number}" if number else ""
    return channels


def _word(text: str) -> str:
    return "_".join(part for part in "".join(c if c.isalnum() else " " for c in text).split())


@dataclass
class Converted:
    """A plan as text."""

    text: str
    mesh: Mesh
    kinds: list[list[int]]  # the ranks of each program


def mesh_of(recordings: Mapping[int, ev.Recording]) -> Mesh:
    """A mesh along which the groups in use lie, with the names of DeviceMesh if there are any."""
    groups: set[tuple[int, ...]] = set()
    names: dict[tuple[int, int], str] = {}
    world = 1
    for recording in recordings.values():
        world = recording.world
        used = {call.group for call in recording.calls()}
        groups |= {tuple(ranks) for name, ranks in recording.groups.items() if name in used}
        for mesh in recording.of(ev.MeshCreated):
            for name, stride, size in mesh.dimensions:
                names.setdefault((stride, size), axis_name(f"mesh_{name}") or f"axis_{stride}")
        for group in recording.of(ev.GroupCreated):
            grid = grid_of(group.ranks)
            if axis_name(group.description) and grid is not None and len(grid) == 1:
                names.setdefault(grid[0], axis_name(group.description))
    return Mesh(world, sorted(groups), names)


def _folded(operations: list[str]) -> list[str]:
    """Operations that are repeated exactly, one after the other, as loops."""
    lines: list[str] = []
    loops = at = 0
    while at < len(operations):
        best, length = 1, 1  # repetitions, operations of each
        for period in range(1, min(_MAX_PERIOD, (len(operations) - at) // 2) + 1):
            if operations[at + period] != operations[at]:
                continue
            block, count = operations[at : at + period], 1
            while operations[at + count * period : at + (count + 1) * period] == block:
                count += 1
            if count > 1 and count * period > best * length:
                best, length = count, period
        block = operations[at : at + length]
        if best * length - length >= _MIN_SAVED:
            lines += [f"  repeat again{loops} {best}", *block, "  end"]
            loops += 1
        else:
            lines += block * best
        at += best * length
    return lines


def program_texts(recordings: Mapping[int, ev.Recording], mesh: Mesh) -> dict[int, str] | None:
    """What must be equal for ranks to be alike: their programs, and their rows of exchange tables
    with peers relative to the rank. None if a rank failed."""
    if any(recording.error for recording in recordings.values()):
        return None
    shared = _Shared(mesh)
    texts = {rank: _Program(one, shared).text() for rank, one in sorted(recordings.items())}
    for name, rows in shared.tables.items():
        for rank, own in rows.items():
            relative = [(word, peer - rank, begin, count) for word, peer, begin, count in own]
            texts[rank] += f"\n{name} {relative}"
    return texts


def to_plan(
    recordings: Mapping[int, ev.Recording], like: Mapping[int, int] | None = None
) -> Converted:
    """`like` names the recorded rank that each rank is like; without it, all are recorded."""
    shared = _Shared(mesh_of(recordings))
    like = like or {rank: rank for rank in recordings}
    texts = {rank: _Program(recordings[rank], shared).text() for rank in sorted({*like.values()})}
    kinds: dict[str, list[int]] = defaultdict(list)
    for rank in sorted(like):
        kinds[texts[like[rank]]].append(rank)
    lines = ["shiplap-plan 1", f"mesh {shared.mesh.text()}", "values undeclared"]
    for (file, function), name in shared.sources.items():
        inside = f" in {_quoted(function)}" if function else ""
        lines.append(f"source {name} {_quoted(file)}{inside}")
    for name, rows_of in shared.tables.items():
        lines.append(f"table {name}")
        for rank in sorted(like):
            shift = rank - like[rank]
            for word, peer, begin, count in rows_of.get(like[rank], ()):
                lines.append(f"  {word} {rank} {peer + shift} {begin} {count}")
    for number, (text, ranks) in enumerate(kinds.items()):
        lines += [f"program p{number} on {shared.mesh.selector(ranks)}", text]
    missing = sorted(set(range(shared.mesh.world)) - set(like))
    if missing:
        lines.append(f"spare on rank={spans(missing)}")
    return Converted("\n".join(lines) + "\n", shared.mesh, list(kinds.values()))


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
