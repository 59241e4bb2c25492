#!/usr/bin/env python3
"""Reads Perfetto files of ours with Perfetto's own classes and compares them with the JSON.

    perfetto_test.py SAMPLE    SAMPLE is the program trace_sample

Exit code: 0 all is well, 1 something is wrong, 77 the classes are not here.
"""

import json
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

try:
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb
except ImportError:
    print("perfetto: SKIPPED, nobody reads our files back here: run tools/setup")
    sys.exit(77)

SAMPLES = [("1f1b", "4", "8"), ("sharded", "4", "6"), ("1f1b", "64", "16"),
           *(("random", str(seed), "0") for seed in range(20))]
COMMUNICATION = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce",
                 "barrier", "exchange", "send", "recv"}
CATEGORIES = {"load_weights": "load", "update": "update"}
NEEDS_STATE = pb.TracePacket.SequenceFlags.SEQ_NEEDS_INCREMENTAL_STATE
CLEARED = pb.TracePacket.SequenceFlags.SEQ_INCREMENTAL_STATE_CLEARED


def nanoseconds(seconds):
    return round(seconds * 1e9)


class Tracks:
    """What the descriptors say."""

    def __init__(self):
        self.processes = {}  # uuid -> name
        self.threads = {}  # uuid -> (process, name)
        self.counters = {}  # uuid -> (process, name)
        self.others = {}

    def add(self, track):
        if track.HasField("process"):
            assert track.process.pid not in self.pids(), "a pid is used twice"
            self.processes[track.uuid] = (track.process.pid, track.process.process_name)
        elif track.HasField("thread"):
            pid, name = self.processes[track.parent_uuid]
            assert track.thread.pid == pid, "a thread is in the process of its parent"
            self.threads[track.uuid] = (name, track.thread.thread_name)
        elif track.HasField("counter"):
            assert track.counter.unit == pb.CounterDescriptor.Unit.UNIT_SIZE_BYTES
            self.counters[track.uuid] = (self.processes[track.parent_uuid][1], track.name)
        else:
            self.others[track.uuid] = track.name

    def pids(self):
        return {pid for pid, _ in self.processes.values()}


class Names:
    """What was interned so far."""

    def __init__(self):
        self.known = defaultdict(dict)

    def add(self, data):
        for kind in ("event_categories", "event_names", "debug_annotation_names",
                     "debug_annotation_string_values"):
            for entry in getattr(data, kind):
                text = entry.str if kind.endswith("values") else entry.name
                text = text.decode() if isinstance(text, bytes) else text
                assert entry.iid not in self.known[kind], "a number is given twice"
                self.known[kind][entry.iid] = text

    def __getitem__(self, kind):
        return self.known[kind]


def annotations(event, names):
    found = {}
    for each in event.debug_annotations:
        name = names["debug_annotation_names"][each.name_iid]
        found[name] = (names["debug_annotation_string_values"][each.string_value_iid]
                       if each.HasField("string_value_iid") else each.int_value)
    return found


class Reading:
    """A file as a reader would understand it: packets by time, in the order of the file."""

    def __init__(self, data):
        trace = pb.Trace()
        trace.ParseFromString(data)
        self.tracks, self.names = Tracks(), Names()
        self.slices, self.counters, self.title = [], defaultdict(list), None
        self.flows = {}  # id -> the slice that it leaves
        self.arrows = []
        self.open = {}
        events = []
        for index, packet in enumerate(trace.packet):
            assert packet.trusted_packet_sequence_id == 1
            if index == 0:
                assert packet.sequence_flags & CLEARED, "the state begins anew"
            self.names.add(packet.interned_data)
            if packet.HasField("track_descriptor"):
                self.tracks.add(packet.track_descriptor)
            if packet.HasField("track_event"):
                assert packet.sequence_flags & NEEDS_STATE
                events.append((packet.timestamp, packet.track_event))
        events.sort(key=lambda each: each[0])  # which keeps the order of equal times
        for time, event in events:
            self.read(time, event)
        assert not self.open, "every slice ends"

    def read(self, time, event):
        if event.type == pb.TrackEvent.Type.TYPE_COUNTER:
            self.counters[self.tracks.counters[event.track_uuid]].append((time,
                                                                          event.counter_value))
        elif event.type == pb.TrackEvent.Type.TYPE_SLICE_END:
            begun = self.open.pop(event.track_uuid)
            if begun:
                begun["end"] = time
                self.slices.append(begun)
        elif event.track_uuid in self.tracks.others:
            self.title = event.name
            self.open[event.track_uuid] = None
        else:
            self.begin(time, event)

    def begin(self, time, event):
        assert event.track_uuid not in self.open, "slices of a thread do not overlap"
        process, thread = self.tracks.threads[event.track_uuid]
        begun = {"rank": int(process.removeprefix("rank ")), "stream": thread.split(" (")[0],
                 "begin": time, "name": self.names["event_names"][event.name_iid],
                 "categories": [self.names["event_categories"][iid]
                                for iid in event.category_iids],
                 "notes": annotations(event, self.names)}
        self.open[event.track_uuid] = begun
        for flow in event.flow_ids:
            assert flow not in self.flows, "a flow leaves once"
            self.flows[flow] = begun
        for flow in event.terminating_flow_ids:
            self.arrows.append((self.flows.pop(flow), begun))


def text_of(runs):
    """Samples of one run, as in the names."""
    (begin, count, stride), = runs
    assert stride == 1
    return str(begin) if count == 1 else f"{begin}-{begin + count - 1}"


def expected_slice(rank, event, streams):
    kind, layer, samples, peer = event["kind"], event["layer"], event["samples"], event["peer"]
    name = kind + (f" L{layer}" if layer >= 0 else "")
    notes = {"memory": event["memory"]}
    if samples:
        notes["samples"] = text_of(samples)
        name += " s" + notes["samples"]
    if kind in COMMUNICATION:
        notes["bytes"] = event["bytes"]
        if peer >= 0:
            name += (" from " if kind == "recv" else " to ") + str(peer)
    notes.update({key: event[key] for key in ("layer", "operation", "peer") if event[key] >= 0})
    category = "communication" if kind in COMMUNICATION else CATEGORIES.get(kind, "compute")
    return {"rank": rank, "stream": streams[event["stream"]], "begin": nanoseconds(event["time_s"]),
            "end": nanoseconds(event["time_s"] + event["duration_s"]), "name": name,
            "categories": [category], "notes": notes}


def countable(slices):
    return Counter(json.dumps(each, sort_keys=True) for each in slices)


def compare(data, told):
    found = Reading(data)
    streams = told["streams"]
    expected, sends, receives = [], {}, {}
    for rank, content in enumerate(told["ranks"]):
        for row in content["events"]:
            event = dict(zip(told["columns"], row))
            made = expected_slice(rank, event, streams)
            expected.append(made)
            if event["match"] >= 0:
                (receives if event["kind"] == "recv" else sends)[event["match"]] = made
        counted = found.counters[(f"rank {rank}", "memory")]
        points = [(nanoseconds(time), value) for time, value in content["memory"]]
        assert counted == points, f"memory of rank {rank}"
    assert countable(found.slices) == countable(expected), "every event is a slice"
    assert not found.flows, "every flow arrives"
    arrows = [(sends[match], receives[match]) for match in receives]
    assert (sorted(json.dumps(arrow, sort_keys=True) for arrow in found.arrows) ==
            sorted(json.dumps(arrow, sort_keys=True) for arrow in arrows)), "flows pair"
    assert {name for _, name in found.tracks.processes.values()} == {
        f"rank {rank}" for rank in range(len(told["ranks"]))}
    return len(expected), len(arrows), found.title


def main():
    events = arrows = 0
    with tempfile.TemporaryDirectory() as folder:
        for sample in SAMPLES:
            files = [Path(folder) / name for name in ("a.pftrace", "a.json")]
            subprocess.run([sys.argv[1], *sample, *map(str, files)], check=True)
            try:
                found = compare(files[0].read_bytes(), json.loads(files[1].read_text()))
                assert found[2], "there is a title"
            except (AssertionError, KeyError) as error:
                print(f"perfetto: {' '.join(sample)}: {type(error).__name__} {error}")
                raise
            events, arrows = events + found[0], arrows + found[1]
    print(f"perfetto: {len(SAMPLES)} files, {events} events and {arrows} flows read back")


if __name__ == "__main__":
    main()
