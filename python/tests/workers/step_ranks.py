"""Executes the plan of a training step on this rank of a gloo process group, with real numbers.

An interpreter of its own: of the plan it has the operations of its rank in plain numbers
(`shiplap show --rank R --json`) and the tensors' declarations. Rows of buffers are vectors of
float64. Collectives and messages move and sum these, as docs/plan.md says; `step_kernels` computes.
Nothing else changes a row. An operation starts when streams and `after` allow it, and of those that
may start a random one does: an order that is missing in the plan is wrong numbers here.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import queue
import random
import re
import threading
from collections import defaultdict
from typing import Any

import torch
import torch.distributed as dist

from .step_kernels import LEARNING_RATE, MOMENTUM, Cells, Coordinates, Kernels, Missing
from .step_model import Model, Tensors, batch, parameters, reference

Json = dict[str, Any]
REDUCTIONS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}
DTYPE_BYTES = {"f32": 4, "bf16": 2, "i64": 8, "u8": 1}
MAX_TAG = 100_000
TIMEOUT = 60  # seconds without progress


@dataclasses.dataclass
class Job:
    """A plan, and what it trains."""

    model: Model
    sequences: int  # of a microbatch
    samples: int
    tensors: list[Json]
    of_ranks: list[str]  # as JSON
    groups: list[tuple[tuple[int, ...], str]]  # ranks and channel, in one order on all ranks
    channels: list[str]  # of messages
    seed: int = 0


def job_of(model: Model, sequences: int, samples: int, tensors: list[Json], of_ranks: list[str],
           seed: int = 0) -> Job:
    operations = [op for text in of_ranks for op in json.loads(text)["operations"]]
    return Job(model, sequences, samples, tensors, of_ranks, seed=seed,
               groups=sorted({_group_of(op) for op in operations if op.get("group")}),
               channels=sorted({op["channel"] for op in operations if op.get("channel")}))


def _group_of(op: Json) -> tuple[tuple[int, ...], str]:
    return tuple(op["group"]["ranks"]), op["group"]["channel"]


@dataclasses.dataclass
class Found:
    """Largest differences from one process, as parts of the largest number of the tensor."""

    gradients: dict[str, float] = dataclasses.field(default_factory=dict)
    weights: dict[str, float] = dataclasses.field(default_factory=dict)
    # Of the gradients' largest cell: this rank's number by the right one, where it is not tiny.
    ratios: dict[str, float] = dataclasses.field(default_factory=dict)
    cells: set[tuple[str, int, Coordinates]] = dataclasses.field(default_factory=set)
    all_cells: set[tuple[str, int, Coordinates]] = dataclasses.field(default_factory=set)
    losses: dict[Coordinates, float] = dataclasses.field(default_factory=dict)
    loss: float = 0.0  # of one process
    operations: int = 0


class Rank:
    """The state of one rank: rows of buffers, and what is in flight."""

    def __init__(self, rank: int, job: Job) -> None:
        self.job, self.plan = job, json.loads(job.of_ranks[rank])
        self.rank = rank
        self.sizes: dict[str, int] = {}
        self.parts: dict[str, tuple[str, ...]] = {}
        sums: dict[str, tuple[str, ...]] = {}
        for tensor in job.tensors:
            parts, summed = tensor.get("part") or [], tensor.get("sum") or []
            self.sizes |= {d["dimension"]: d["size"] for d in [*parts, *summed]}
            self.parts[tensor["name"]] = tuple(d["dimension"] for d in parts)
            sums[tensor["name"]] = tuple(d["dimension"] for d in summed)
        self.kernels = Kernels(job.model, job.sequences, self.parts, sums, self.sizes)
        self.operations: list[Json] = self.plan["operations"]
        self.row_size = self._row_sizes()
        self.rows = {b["name"]: [self._empty(b["name"])] * b["rows"] for b in self.plan["buffers"]}
        self.groups = {key: dist.new_group(list(key[0]), sort_ranks=False)
                       for key in job.groups if len(key[0]) > 1}
        whole = parameters(job.model)
        loss, gradients = reference(job.model, job.samples, job.sequences)
        self.found = Found(loss=loss, all_cells=self._all_cells(), operations=len(self.operations))
        moments = {name: w / 2 for name, w in whole.items()}
        new_moments = {name: MOMENTUM * m + gradients[name] for name, m in moments.items()}
        self.expected: dict[tuple[str, bool], Tensors] = {
            ("W", False): whole, ("O", False): moments, ("G", False): gradients,
            ("O", True): new_moments,
            ("W", True): {n: w - LEARNING_RATE * new_moments[n] for n, w in whole.items()}}
        self.tokens = batch(job.model, job.samples, job.sequences).double()

    def _all_cells(self) -> set[tuple[str, int, Coordinates]]:
        """Of all gradients of weights."""
        found = set()
        for tensor in self.job.tensors:
            name = tensor["name"]
            if not name.startswith("G_"):
                continue
            layers = self.job.model.layers_with(name[2:]) if tensor.get("instances") else [0]
            places = [range(self.sizes[d]) for d in self.parts[name]]
            found |= set(itertools.product([name], layers, itertools.product(*places)))
        return found

    # ---------------------------------------------------------------- rows and values

    def _keys(self, value: Json) -> list[Coordinates]:
        """The cells of a value, in the order of its rows."""
        parts = self.parts[value["tensor"]]
        runs: dict[str, list[int]] = {}
        for run in value["runs"]:
            if run["dimension"] in parts:
                runs.setdefault(run["dimension"], []).extend(
                    run["begin"] + k * run["stride"] for k in range(run["count"]))
        for dimension in parts:
            runs.setdefault(dimension, list(range(self.sizes[dimension])))
        order = [list(runs).index(dimension) for dimension in parts]
        return [tuple(place[k] for k in order) for place in itertools.product(*runs.values())]

    def _row_sizes(self) -> dict[str, int]:
        """Of each buffer how many numbers a row has: what its values say, and what moves there."""
        sizes: dict[str, set[int]] = defaultdict(set)
        accesses = [a for op in self.operations for a in op.get("accesses") or []]
        for access in [*accesses, *self.plan["given"]]:
            value, region = access["value"], access["region"]
            numbers = len(self._keys(value)) * self.kernels.size(value["tensor"])
            assert numbers % region["count"] == 0, f"{value} does not divide into {region}"
            sizes[region["buffer"]].add(numbers // region["count"])
        moves = [(op["from"]["buffer"], op["to"]["buffer"]) for op in self.operations
                 if op.get("from") and op.get("to")]
        for _ in range(4):
            for a, b in moves:
                sizes[a] |= sizes[b]
                sizes[b] |= sizes[a]
        declared = {b["name"]: b["row_bytes"] // DTYPE_BYTES[b["type"]]
                    for b in self.plan["buffers"]}
        for buffer, found in sizes.items():
            if re.match("(w|g|f|t|st|sw|sg)_", buffer):  # of weights and their gradients
                assert found == {declared[buffer]}, f"{buffer}: {found}, not {declared[buffer]}"
            assert len(found) <= 1, f"rows of {buffer} have {sorted(found)} numbers"
        return {buffer: next(iter(found)) for buffer, found in sizes.items() if found}

    def _empty(self, buffer: str) -> torch.Tensor:
        """What was never written spoils all that is computed of it."""
        return torch.full((self.row_size.get(buffer, 1),), float("nan"), dtype=torch.float64)

    def _take(self, region: Json) -> torch.Tensor:
        begin, end = region["begin"], region["begin"] + region["count"]
        return torch.cat(self.rows[region["buffer"]][begin:end])

    def _put(self, region: Json, numbers: torch.Tensor, add: bool = False) -> None:
        for k, part in enumerate(numbers.chunk(region["count"])):
            row = region["begin"] + k
            assert part.numel() == self.row_size[region["buffer"]]
            old = self.rows[region["buffer"]][row]
            self.rows[region["buffer"]][row] = old + part if add else part.clone()

    def _read(self, access: Json) -> Cells:
        keys = self._keys(access["value"])
        parts = self._take(access["region"]).chunk(len(keys))
        return Cells(self.parts[access["value"]["tensor"]], dict(zip(keys, parts, strict=True)))

    def _right(self, value: Json) -> torch.Tensor:
        """The numbers of a value of W, O or G, from one process."""
        letter = value["tensor"][0]
        whole = self.expected[letter, value["new"]]
        layer = max(value["instance"], 0)
        cells = self.kernels.weight_cells(value["tensor"], layer, whole)
        return torch.cat([cells.numbers[key] for key in self._keys(value)])

    # ---------------------------------------------------------------- computations

    def _compute(self, op: Json) -> None:
        accesses = op["accesses"]
        reads = [a for a in accesses if a["kind"] == "reads"]
        outputs = [a for a in accesses if a["kind"] != "reads"]
        if op["kernel"] == "zero":
            for access in outputs:
                size = self.row_size[access["region"]["buffer"]] * access["region"]["count"]
                self._put(access["region"], torch.zeros(size, dtype=torch.float64))
        elif op["kernel"] == "scale":
            (read,), (written,) = reads, outputs
            a, b = (x["value"]["scale"] for x in (read, written))
            factor = (b[0] * a[1]) / (b[1] * a[0])
            self._put(written["region"], self._take(read["region"]) * factor)
        elif op["kernel"] == "update":
            self._update(reads, outputs)
        elif outputs:
            self._kernel(op, reads, outputs)

    def _kernel(self, op: Json, reads: list[Json], outputs: list[Json]) -> None:
        operands: dict[str, Cells] = {}
        for access in reads:
            tensor = access["value"]["tensor"]
            cells = self._read(access)
            operands.setdefault(tensor, Cells(cells.dimensions)).numbers.update(cells.numbers)
        try:
            found = self.kernels.compute([a["value"]["tensor"] for a in outputs], operands)
        except Missing as missing:
            written = ", ".join(sorted({a["value"]["tensor"] for a in outputs}))
            raise Missing(f"line {op['line']}: {op['kernel']} computes {written} and does not "
                          f"read {missing}") from None
        for access in outputs:
            by_key = found[access["value"]["tensor"]]
            numbers = torch.cat([by_key[key] for key in self._keys(access["value"])])
            self._put(access["region"], numbers, add=access["kind"] == "adds")

    def _update(self, reads: list[Json], outputs: list[Json]) -> None:
        by_letter = {a["value"]["tensor"][0]: a for a in reads}
        gradient = by_letter["G"]
        value, numbers = gradient["value"], self._take(gradient["region"])
        self._compare(self.found.gradients, value, numbers)
        right = self._right(value)
        at = int(right.abs().argmax())
        self.found.ratios.setdefault(value["tensor"], float(numbers[at] / right[at]))
        for key in self._keys(value):
            self.found.cells.add((value["tensor"], value["instance"], key))
        moment = MOMENTUM * self._take(by_letter["O"]["region"]) + numbers
        weight = self._take(by_letter["W"]["region"]) - LEARNING_RATE * moment
        for access in outputs:
            self._put(access["region"], weight if access["value"]["tensor"][0] == "W" else moment)

    def _compare(self, into: dict[str, float], value: Json, numbers: torch.Tensor) -> None:
        right = self._right(value)
        error = float((numbers - right).abs().max() / right.abs().max().clamp(min=1e-30))
        error = error if error == error else float("inf")
        into[value["tensor"]] = max(into.get(value["tensor"], 0.0), error)

    # ---------------------------------------------------------------- communication

    def _start(self, op: Json) -> tuple[Any, Any]:
        """A communication: what to wait for, and what to do then."""
        if op["action"] not in ("send", "receive"):
            return self._start_collective(op)
        tag = self.job.channels.index(op["channel"]) * MAX_TAG + op["tag"]
        if op["action"] == "send":
            numbers = self._take(op["from"])
            return dist.isend(numbers, op["peer"], tag=tag), numbers.numel  # alive until then
        size = self.row_size[op["to"]["buffer"]] * op["to"]["count"]
        into = torch.empty(size, dtype=torch.float64)
        return (dist.irecv(into, op["peer"], tag=tag),
                lambda: self._put(op["to"], into, add=op["add"]))

    def _start_collective(self, op: Json) -> tuple[Any, Any]:
        key = _group_of(op)
        ranks = len(key[0])
        group = self.groups.get(key)
        source, target = op["from"], op["to"] or op["from"]
        numbers = self._take(source)
        action = op["action"]
        assert not op["split"]
        numerator, denominator = op["scale"]
        size = numbers.numel()
        if action == "all_gather":
            size *= ranks
        elif action == "reduce_scatter":
            size //= ranks
        out = numbers.clone() if action == "all_reduce" else numbers.new_empty(size)
        if group is None:
            work, out = None, numbers.clone()
        elif action == "all_reduce":
            work = dist.all_reduce(out, REDUCTIONS[op["operator"]], group=group, async_op=True)
        elif action == "all_gather":
            work = dist.all_gather_into_tensor(out, numbers, group=group, async_op=True)
        elif action == "reduce_scatter":
            work = dist.reduce_scatter_tensor(out, numbers, REDUCTIONS[op["operator"]], group=group,
                                              async_op=True)
        elif action == "all_to_all":
            work = dist.all_to_all_single(out, numbers, group=group, async_op=True)
        else:
            raise NotImplementedError(action)
        return work, lambda: self._put(target, out * numerator / denominator)

    # ---------------------------------------------------------------- the order

    def run(self) -> Found:
        self._set_given()
        members: dict[int, list[int]] = defaultdict(list)
        streams: dict[str, list[int]] = defaultdict(list)
        for k, op in enumerate(self.operations):
            if op["batch"] is not None:
                members[op["batch"]].append(k)
            else:
                streams[op["stream"]].append(k)
        complete: set[int] = set()
        flying: dict[int, list[tuple[Any, Any]]] = {}
        landed: queue.Queue[int] = queue.Queue()
        order = random.Random(1000 * self.job.seed + self.rank)

        def may_start(stream: str) -> bool:
            op = self.operations[streams[stream][0]]
            if not all(k in complete for k in op["after"]):
                return False
            return previous.get(stream) is None or previous[stream] in complete

        def land(k: int) -> None:
            for _, then in flying.pop(k):
                then()
            complete.add(k)

        previous: dict[str, int | None] = {}
        while any(streams.values()) or flying:
            ready = [s for s, waiting in streams.items() if waiting and may_start(s)]
            assert ready or flying, "nothing can start"
            try:
                land(landed.get(block=not ready, timeout=TIMEOUT))
                continue
            except queue.Empty:
                assert ready, f"no progress in {TIMEOUT} s: {sorted(flying)} are not complete"
            stream = order.choice(ready)
            k = streams[stream].pop(0)
            op = self.operations[k]
            previous[stream] = None if op["async"] else k
            if op["action"] in ("compute", "copy", "allocate", "free"):
                self._at_once(op)
                complete.add(k)
                continue
            started = members[k] if op["action"] == "batch" else [k]
            flying[k] = [self._start(self.operations[m]) for m in started]
            threading.Thread(target=_wait, args=(k, flying[k], landed), daemon=True).start()
        self._compare_goals()
        self.found.losses = {key: float(loss) for key, loss in self.kernels.losses.items()}
        return self.found

    def _at_once(self, op: Json) -> None:
        if op["action"] == "compute":
            self._compute(op)
        elif op["action"] == "copy":
            self._put(op["to"], self._take(op["from"]), add=op["add"])
        else:  # what rows had is gone in both cases
            region = op["rows"]
            for row in range(region["begin"], region["begin"] + region["count"]):
                self.rows[region["buffer"]][row] = self._empty(region["buffer"])

    # ---------------------------------------------------------------- begin and end

    def _set_given(self) -> None:
        for fact in self.plan["given"]:
            value = fact["value"]
            if value["tensor"] in ("I", "L", "MI", "ML"):
                self._put(fact["region"], self._given_tokens(value))
            else:
                self._put(fact["region"], self._right(value))

    def _given_tokens(self, value: Json) -> torch.Tensor:
        length = self.kernels.tokens
        shift = {"I": 0, "L": 1, "MI": 1, "ML": 2}[value["tensor"]] + max(value["instance"], 0)
        found = []
        for key in self._keys(value):
            at = dict(zip(self.parts[value["tensor"]], key, strict=True))
            begin = shift + length * (at["tok"] * self.sizes.get("te", 1) + at.get("te", 0))
            found.append(self.tokens[at["sample"], :, begin:begin + length].reshape(-1))
        return torch.cat(found)

    def _compare_goals(self) -> None:
        for fact in self.plan["goal"]:
            self._compare(self.found.weights, fact["value"], self._take(fact["region"]))


def _wait(k: int, works: list[tuple[Any, Any]], landed: queue.Queue[int]) -> None:
    for work, _ in works:
        if work is not None:
            work.wait()
    landed.put(k)


def execute(rank: int, ranks: int, jobs: list[Job]) -> list[Found]:
    """One step of each plan on this rank, compared with one process."""
    torch.set_default_dtype(torch.float64)
    assert all(ranks == len(job.of_ranks) for job in jobs)
    return [Rank(rank, job).run() for job in jobs]
