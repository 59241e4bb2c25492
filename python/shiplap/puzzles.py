"""The library of the *LLM Training Puzzles*: programs of asyncio that train on simulated ranks.

Each rank is a coroutine with a ``Model`` of its own; the ranks meet in a ``Dist``:

>>> import asyncio
>>> from shiplap.puzzles import Dist, Model
>>> async def ddp(model):
...     weights, opt_states, activations, grad_activations, grad_weights = model.storage()
...     weights[0], opt_states[0] = model.load_weights(0)
...     activations[0] = model.get_input_activation([model.rank])
...     activations[1] = model.forward(0, activations[0], weights[0])
...     grad_activations[0] = model.loss(activations[1])
...     grad_weights[0], grad_activations[-1] = model.backward(
...         0, activations[0], grad_activations[0], weights[0])
...     grad_weights[0] = await model.all_reduce(grad_weights[0], 0)
...     weights[0], opt_states[0] = model.update(0, grad_weights[0], weights[0], opt_states[0])
...     model.set_final_weight(0, weights[0])
...     return model
>>> async def ranks(dist):
...     return await asyncio.gather(*[ddp(Model(rank, dist, 1, 2)) for rank in range(2)])
>>> models = asyncio.run(ranks(Dist(2)))
>>> models[1].final_weights
{0: Weight(layer=0, layers=1, step=1, shards=frozenset({0}), num_shards=1)}

Memory is counted in elements, time in whole nanoseconds. ``to_trace`` makes a timeline of these
events, ``to_training`` repeats the program as a strategy of ``shiplap.train``, which can be
checked, simulated and run. docs/puzzles.md compares both.
"""

from __future__ import annotations

import copy
import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, FrozenSet, Union

from shiplap import _shiplap
from shiplap._puzzles_dist import (
    TO,
    Barrier,
    Dist,
    Gatherable,
    O,
    PuzzleError,
    Reduceable,
    ReduceableGatherable,
    T,
    error,
)
from shiplap._puzzles_replay import Call, Replay
from shiplap._results import Training
from shiplap._verbs import train

HIDDEN_SIZE = 4096
BLOCK_SIZE = 1024
DATATYPE = "float16"
BYTES_PER_ELEMENT = 2
NANOSECONDS = 1_000_000_000  # in a second

# ---- values


class _Value:
    # How a value was derived from others, for to_training(): ("add", a, b). Not a field.
    _origin: Any = None

    def _derived(self, *origin: Any, **changes: Any) -> Any:
        value = dataclasses.replace(self, **changes)  # type: ignore[type-var]
        value._origin = origin
        return value

    def _check_alike(self, other: Any, call: str, *names: str) -> None:
        if type(other) is not type(self):
            raise error("D610", f"cannot {call} {self!r} and {other!r}",
                         why="they are values of different types")
        for name in names:
            if getattr(self, name) != getattr(other, name):
                raise error("D610", f"cannot {call} {self!r} and {other!r}",
                             why=f"{name} must be the same")


class _Sharded(_Value):
    """The members that all values with shards have."""

    shards: FrozenSet[int]
    num_shards: int

    def shard(self, shard: int, num_shards: int) -> Any:
        """Shard number ``shard`` of ``num_shards``. The value must be complete."""
        if not self.is_complete():
            raise error("D612", f"cannot shard {self!r}", why="some of its shards are missing",
                         help="gather it first: `await model.all_gather(..)`")
        if not 0 <= shard < num_shards:
            raise error("D614", f"there is no shard {shard} of {num_shards}",
                         why="shards count from 0")
        return self._derived("shard", self, shard, num_shards,
                             shards=frozenset([shard]), num_shards=num_shards)

    def is_complete(self) -> bool:
        """Whether no shard is missing."""
        return len(self.shards) == self.num_shards

    def _combined(self, other: Any, *names: str) -> Any:
        self._check_alike(other, "combine", "layer", "num_shards", *names)
        return self._derived("combine", self, other, shards=self.shards | other.shards)

    def memory(self) -> float:
        """Elements."""
        return len(self.shards) / self.num_shards * HIDDEN_SIZE * HIDDEN_SIZE


class _Sampled(_Value):
    """The members that activations and their gradients have."""

    samples: FrozenSet[int]

    def memory(self) -> int:
        """Elements."""
        return len(self.samples) * HIDDEN_SIZE * BLOCK_SIZE


@dataclasses.dataclass
class Weight(_Sharded, Gatherable["Weight"]):
    """The weight of a layer, or some shards of it.

    >>> weight = shiplap.puzzles.Weight(layer=0, layers=2, step=0)
    >>> half = weight.shard(1, 2)
    >>> half.memory() / weight.memory(), half.is_complete()
    (0.5, False)
    >>> weight.shard(0, 2).combine(half).is_complete()
    True
    """

    layer: int
    layers: int
    step: int
    shards: FrozenSet[int] = frozenset([0])
    num_shards: int = 1

    def combine(self, other: Weight) -> Weight:
        """The shards of both. They must be of the same layer and step."""
        combined: Weight = self._combined(other, "step")
        return combined


@dataclasses.dataclass
class Activation(_Sampled):
    """The activations of some samples, the input of layer ``layer``.

    >>> shiplap.puzzles.Activation(0, 2, frozenset([0, 1]), 4).memory()
    8388608
    """

    layer: int
    layers: int
    samples: FrozenSet[int]
    total_samples: int


@dataclasses.dataclass
class WeightGrad(_Sharded, Reduceable["WeightGrad"], Gatherable["WeightGrad"]):
    """The gradient of a weight, or some shards of it, summed over some samples.

    >>> WeightGrad = shiplap.puzzles.WeightGrad
    >>> both = WeightGrad(1, 2, frozenset([0]), 2) + WeightGrad(1, 2, frozenset([1]), 2)
    >>> both.samples
    frozenset({0, 1})
    >>> WeightGrad(0, 2, frozenset([0]), 2) + WeightGrad(1, 2, frozenset([1]), 2)
    Traceback (most recent call last):
    ...
    shiplap.puzzles.PuzzleError: error[D610]: cannot add ...
    """

    layer: int
    layers: int
    samples: FrozenSet[int]
    total_samples: int
    shards: FrozenSet[int] = frozenset([0])
    num_shards: int = 1

    def __add__(self, other: WeightGrad) -> WeightGrad:
        self._check_alike(other, "add", "layer", "shards", "num_shards")
        total: WeightGrad = self._derived("add", self, other, samples=self.samples | other.samples)
        return total

    def combine(self, other: WeightGrad) -> WeightGrad:
        """The shards of both. They must be of the same layer and samples."""
        combined: WeightGrad = self._combined(other, "samples")
        return combined


@dataclasses.dataclass
class OptState(_Sharded, Gatherable["OptState"]):
    """The optimizer state of a weight, or some shards of it. It has the size of the weight."""

    layer: int
    layers: int
    step: int
    shards: FrozenSet[int] = frozenset([0])
    num_shards: int = 1

    def combine(self, other: OptState) -> OptState:
        """The shards of both. They must be of the same layer and step."""
        combined: OptState = self._combined(other, "step")
        return combined


@dataclasses.dataclass
class ActivationGrad(_Sampled):
    """The gradient of the output of layer ``layer``, for some samples."""

    layer: int
    layers: int
    samples: FrozenSet[int]
    total_samples: int


Value = Union[Weight, OptState, Activation, ActivationGrad, WeightGrad]


@dataclasses.dataclass
class Event:
    """What a rank did: when, for how long, on what; in nanoseconds and elements."""

    typ: str
    layer: int | None
    rank: int
    time: int
    duration: int
    memory: int
    samples: FrozenSet[int] = frozenset()

    def __post_init__(self) -> None:
        # For to_trace(): the moved value, and the other rank of a message.
        self._input: Any = None
        self._peer: int | None = None


# ---- times


class RuntimePredictor:
    """Predicts how long operations take on a machine, in seconds.

    ``config_file_name`` is one of ``shiplap.known_systems()``, or a file (docs/hardware.md).

    >>> predictor = shiplap.puzzles.RuntimePredictor(8)
    >>> predictor.get_comm_bytes(shiplap.puzzles.Weight(0, 2, 0))
    33554432
    >>> f"{predictor.get_forward_backward_time(4) * 1e6:.0f} us"
    '184 us'
    """

    def __init__(self, world_size: int, config_file_name: str = "h100_80g_nvl8.json") -> None:
        # Without moments, an update moves three times the weight, and loading reads the weight.
        shape = _shiplap.ModelShape(hidden=HIDDEN_SIZE, block=BLOCK_SIZE, datatype=DATATYPE,
                                    moments=0)
        self.world_size = world_size
        self._engine = _shiplap.RuntimePredictor(world_size, config_file_name, shape)
        self.processor = self._engine.processor
        self.mem_hbm = self._engine.mem_hbm
        self.mem_pcie = self._engine.mem_pcie
        self.network = self._engine.network

    def compute_flops_time(self, flops: int) -> float:
        """The time of the matrix unit."""
        return self._engine.compute_flops_time(int(flops))

    def compute_mem_time(self, bytes_read_write: int) -> float:
        """The time of the device memory."""
        return self._engine.compute_mem_time(int(bytes_read_write))  # memory() is a float

    def get_processing_time(self, flops: int, bytes_read_write: int) -> float:
        """The longer of both."""
        return self._engine.get_processing_time(int(flops), int(bytes_read_write))

    def get_forward_backward_time(self, batch_size: int) -> float:
        """One GEMM: a layer, forward or backward, on ``batch_size`` samples."""
        return self._engine.get_forward_backward_time(batch_size)

    def get_update_step_time(self, num_shards_on_device: int, num_shards: int) -> float:
        """An update of these shards of a weight: three times their bytes."""
        return self._engine.get_update_step_time(num_shards_on_device, num_shards)

    def get_comm_bytes(self, v: Any) -> int:
        """The bytes of a value: of a Weight or WeightGrad, those of all its shards."""
        if isinstance(v, (Weight, WeightGrad)):
            return HIDDEN_SIZE * HIDDEN_SIZE * BYTES_PER_ELEMENT
        if isinstance(v, (Activation, ActivationGrad, OptState)):
            return int(v.memory() * BYTES_PER_ELEMENT)
        raise TypeError(f"the bytes of a {type(v).__name__} are not known: give a Weight, "
                        "WeightGrad, OptState, Activation or ActivationGrad")

    def get_collective_time(self, collective_name: str, v: Any) -> float:
        """A collective of all ranks: all_reduce, all_gather or reduce_scatter."""
        return self._engine.collective_time(collective_name, self.get_comm_bytes(v))

    def get_send_recv_time(self, v: Any) -> float:
        """A message, over the network that connects all ranks."""
        return self._engine.message_time(self.get_comm_bytes(v))

    def get_weight_load_time(self, num_shards_on_device: int, num_shards: int) -> float:
        """Loading these shards of a weight over the bus."""
        return self._engine.get_weight_load_time(num_shards_on_device, num_shards)


# ---- a rank


class Model:
    """One rank's view of training: what it stores, computes and communicates.

    >>> model = shiplap.puzzles.Model(num_layers=2, global_batch_size=4)
    >>> model.weights["first"], model.opt_states["first"] = model.load_weights(0)
    >>> activation = model.get_input_activation([0, 1])
    >>> model.forward(0, activation, model.weights["first"])
    Activation(layer=1, layers=2, samples=frozenset({0, 1}), total_samples=4)
    >>> model.memory() / 4096 / 4096
    2.0
    >>> model.log[-1].typ, model.log[-1].duration, model.time
    ('forward', 95240, 760600)
    """

    def __init__(
        self, rank: int = 1, dist: Dist = Dist(1), num_layers: int = 2, global_batch_size: int = 1
    ) -> None:
        dist.check_rank(rank, "Model")
        self.rank = rank
        self.dist = dist
        self.num_layers = num_layers
        self.global_batch_size = global_batch_size
        self.log: list[Event] = []
        self.time = 0
        self.final_weights: dict[int, Weight] = {}
        self.runtime_predictor = RuntimePredictor(dist.world_size)
        self.weights: dict[Any, Weight] = {}
        self.opt_states: dict[Any, OptState] = {}
        self.activations: dict[Any, Activation] = {}
        self.grad_activations: dict[Any, ActivationGrad] = {}
        self.grad_weights: dict[Any, WeightGrad] = {}
        self._calls: list[Call] = []
        self._stored: dict[tuple[int, Any], Any] = {}  # at the last call

    # ---- storage

    def storage(self) -> tuple[
        dict[Any, Weight],
        dict[Any, OptState],
        dict[Any, Activation],
        dict[Any, ActivationGrad],
        dict[Any, WeightGrad],
    ]:
        """The five dictionaries of stored values, by any key."""
        return (self.weights, self.opt_states, self.activations, self.grad_activations,
                self.grad_weights)

    def memory(self) -> int:
        """The elements of all stored values."""
        return int(sum(v.memory() for held in self._dictionaries() for v in held.values()))

    def _dictionaries(self) -> tuple[dict[Any, Any], ...]:
        return self.storage()

    def status(self) -> None:
        """Prints what is stored."""
        print(f"rank {self.rank} at {self.time / NANOSECONDS * 1e3:.3f} ms, "
              f"{self.memory()} elements")
        names = ("weights", "opt_states", "activations", "grad_activations", "grad_weights")
        for name, held in zip(names, self._dictionaries(), strict=True):
            for key, value in held.items():
                print(f"  {name}[{key!r}] = {value}")

    # ---- events

    def log_event(
        self,
        typ: str,
        layer: int | None = None,
        samples: FrozenSet[int] = frozenset({}),
        input: Any | None = None,
        num_shards_on_device: int | None = None,
        num_shards: int | None = None,
    ) -> None:
        """Logs an event that takes the predicted time, and advances the time of this rank.

        Events of communication need ``input``, the communicated value.
        """
        seconds = self._seconds(typ, samples, input, num_shards_on_device, num_shards)
        event = Event(typ, layer, self.rank, self.time, round(seconds * NANOSECONDS),
                      self.memory(), frozenset(samples))
        event._input = input
        self.log.append(event)
        self.time += event.duration

    def _seconds(self, typ: str, samples: FrozenSet[int], input: Any, on_device: int | None,
                 num_shards: int | None) -> float:
        predictor = self.runtime_predictor
        shards = (1 if on_device is None else on_device, 1 if num_shards is None else num_shards)
        if typ in ("forward", "backward"):
            return predictor.get_forward_backward_time(len(samples))
        if typ == "update":
            return predictor.get_update_step_time(*shards)
        if typ == "load_weights":
            return predictor.get_weight_load_time(*shards)
        if typ in ("send", "recv"):
            return predictor.get_send_recv_time(input)
        if typ in ("all_reduce", "all_gather", "reduce_scatter"):
            return predictor.get_collective_time(typ, input)
        if typ == "loss":
            return 0
        raise error("D003", f"unknown event type `{typ}`", rank=self.rank, operation="log_event",
                     help="known types: load_weights, forward, loss, backward, update, "
                     "all_reduce, all_gather, reduce_scatter, send, recv")

    def _changes_since(
        self, before: dict[tuple[int, Any], Any]
    ) -> tuple[list[tuple[tuple[int, Any], Any]], dict[tuple[int, Any], Any]]:
        """The slots that changed, with their new values, and all slots."""
        now = {(number, key): value for number, held in enumerate(self._dictionaries())
               for key, value in held.items()}
        changes = [(slot, value) for slot, value in now.items() if before.get(slot) is not value]
        changes += [(slot, None) for slot in before if slot not in now]
        return changes, now

    def _record(self, name: str, numbers: tuple[Any, ...], values: tuple[Any, ...],
                results: tuple[Any, ...]) -> None:
        changes, self._stored = self._changes_since(self._stored)
        self._calls.append(Call(name, numbers, values, results, changes))

    def _check(self, good: bool, call: str, code: str, what: str, **more: Any) -> None:
        if not good:
            raise error(code, what, rank=self.rank, operation=call, **more)

    def _check_layer(self, call: str, layer: int) -> None:
        self._check(0 <= layer < self.num_layers, call, "D614", f"there is no layer {layer}",
                    why=f"the model has layers 0 to {self.num_layers - 1}")

    def _check_is_of(self, call: str, layer: int, *values: Value) -> None:
        for value in values:
            self._check(value.layer == layer, call, "D614", f"{value!r} is of another layer",
                        why=f"layer {layer} was expected")

    def _check_stored(self, call: str, *values: Value) -> None:
        for value in values:
            stored = any(value in held.values() for held in self._dictionaries())
            self._check(stored, call, "D613", f"{value!r} is not in storage",
                        help="store a value before it is used: `weights[layer] = ..`")

    def _check_complete(self, call: str, weight: Weight) -> None:
        self._check(weight.is_complete(), call, "D612", f"{weight!r} is not complete",
                    help="gather its shards: `await model.all_gather(..)`")

    # ---- computations

    def load_weights(
        self, layer: int, shard: int = 0, num_shards: int = 1
    ) -> tuple[Weight, OptState]:
        """The weight of a layer and its optimizer state, at step 0, or a shard of each."""
        call = f"load_weights({layer})"
        self._check_layer(call, layer)
        self._check(0 <= shard < num_shards, call, "D614",
                    f"there is no shard {shard} of {num_shards}", why="shards count from 0")
        shards = frozenset([shard])
        results = (Weight(layer, self.num_layers, 0, shards, num_shards),
                   OptState(layer, self.num_layers, 0, shards, num_shards))
        self._record("load_weights", (layer, shard, num_shards), (), results)
        self.log_event("load_weights", layer, num_shards_on_device=1, num_shards=num_shards)
        return results

    def set_final_weight(self, layer: int, weight: Weight) -> None:
        """Declares a result of the training."""
        self._check_is_of(f"set_final_weight({layer})", layer, weight)
        self._record("set_final_weight", (layer,), (weight,), ())
        self.final_weights[layer] = weight

    def get_input_activation(self, samples: Sequence[int]) -> Activation:
        """The input of layer 0."""
        inside = all(0 <= sample < self.global_batch_size for sample in samples)
        self._check(inside, "get_input_activation", "D614", f"samples {list(samples)} do not exist",
                    why=f"the batch has samples 0 to {self.global_batch_size - 1}")
        inp = Activation(0, self.num_layers, frozenset(samples), self.global_batch_size)
        self._record("get_input_activation", (sorted(inp.samples),), (), (inp,))
        return inp

    def forward(self, layer: int, inp: Activation, weight: Weight) -> Activation:
        """The output of a layer, which the next layer reads."""
        call = f"forward({layer})"
        self._check_layer(call, layer)
        self._check_complete(call, weight)
        self._check_is_of(call, layer, weight, inp)
        self._check_stored(call, weight)
        out = Activation(layer + 1, self.num_layers, inp.samples, inp.total_samples)
        self._record("forward", (layer,), (inp, weight), (out,))
        self.log_event("forward", layer, inp.samples)
        return out

    def backward(
        self, layer: int, inp: Activation, grad: ActivationGrad, weight: Weight
    ) -> tuple[WeightGrad, ActivationGrad]:
        """The gradients of the weight and of the input of a layer."""
        call = f"backward({layer})"
        self._check_layer(call, layer)
        self._check_complete(call, weight)
        self._check_is_of(call, layer, weight, inp, grad)
        self._check(inp.samples == grad.samples, call, "D614",
                    f"{grad!r} is of other samples than {inp!r}")
        self._check_stored(call, weight, inp, grad)
        of = (inp.samples, inp.total_samples)
        results = (WeightGrad(layer, self.num_layers, *of),
                   ActivationGrad(layer - 1, self.num_layers, *of))
        self._record("backward", (layer,), (inp, grad, weight), results)
        self.log_event("backward", layer, inp.samples)
        return results

    def loss(self, inp: Activation) -> ActivationGrad:
        """The gradient of what the last layer wrote."""
        self._check_is_of("loss", self.num_layers, inp)
        grad = ActivationGrad(self.num_layers - 1, self.num_layers, inp.samples, inp.total_samples)
        self._record("loss", (), (inp,), (grad,))
        self.log_event("loss", self.num_layers - 1, inp.samples)
        return grad

    def update(
        self, layer: int, weight_grad: WeightGrad, weight: Weight, opt_state: OptState
    ) -> tuple[Weight, OptState]:
        """The weight and its optimizer state, one step later."""
        call = f"update({layer})"
        self._check_layer(call, layer)
        self._check_is_of(call, layer, weight_grad, weight, opt_state)
        missing = set(range(self.global_batch_size)) - weight_grad.samples
        self._check(not missing, call, "D615", f"{weight_grad!r} misses samples {sorted(missing)}",
                    help="sum it over the ranks that have the other samples: "
                    "`await model.all_reduce(..)`")
        for value in (weight_grad, opt_state):
            same = value.num_shards == weight.num_shards and weight.shards <= value.shards
            self._check(value.is_complete() or same, call, "D614",
                        f"{value!r} lacks shards of {weight!r}")
        self._check(weight.step == opt_state.step, call, "D614",
                    f"{opt_state!r} is of another step than {weight!r}")
        results = (dataclasses.replace(weight, step=weight.step + 1),
                   dataclasses.replace(opt_state, step=opt_state.step + 1))
        self._record("update", (layer,), (weight_grad, weight, opt_state), results)
        self.log_event("update", layer, num_shards_on_device=len(weight.shards),
                       num_shards=weight.num_shards)
        return results

    # ---- communication

    def _check_communicable(self, call: str, v: Any, *operations: str) -> None:
        self._check(isinstance(v, _Value), call, "D610", f"cannot communicate {v!r}",
                    why="its bytes are not known",
                    help="give a Weight, WeightGrad, OptState, Activation or ActivationGrad, one "
                    "in each call")
        for operation in operations:
            self._check(hasattr(v, operation), call, "D610", f"cannot {call} {v!r}",
                        why=f"a {type(v).__name__} has no method {operation}",
                        help="reduce gradients; gather weights, optimizer states and gradients")

    def _collective(self, name: str, layer: int, v: Any, result: Any, time: int) -> Any:
        busy = self.time  # later than the collective began, if it overlaps other calls
        self.time = time
        self._record(name, (layer,), (v,), (result,))
        self.log_event(name, layer, getattr(v, "samples", frozenset()), v)
        self.time = max(self.time, busy)
        return result

    async def all_reduce(self, v: T, layer: int) -> T:
        """The sum of the values of all ranks."""
        self._check_communicable("all_reduce", v, "__add__")
        result, time = await self.dist.all_reduce(self.rank, v, self.time)
        reduced: T = self._collective("all_reduce", layer, v, copy.copy(result), time)
        return reduced

    async def reduce_scatter(self, v: TO, layer: int) -> TO:
        """This rank's shard of the sum of the values of all ranks."""
        self._check_communicable("reduce_scatter", v, "__add__", "shard")
        result, time = await self.dist.reduce_scatter(self.rank, v, self.time)
        shard: TO = self._collective("reduce_scatter", layer, v, copy.copy(result), time)
        return shard

    async def all_gather(self, v: O, layer: int) -> O:
        """The shards of all ranks."""
        self._check_communicable("all_gather", v, "combine")
        result, time = await self.dist.all_gather(self.rank, v, self.time)
        gathered: O = self._collective("all_gather", layer, v, copy.copy(result), time)
        return gathered

    async def send(self, dest: int, v: Any) -> None:
        """Sends a value to a rank, which receives it. Does not block."""
        self._check_communicable("send", v)
        await self.dist.send(self.rank, dest, (v, self.time))
        self._record("send", (dest,), (v,), ())
        self._log_message("send", dest, v)

    async def receive(self, source: int) -> Any:
        """Receives the next value from a rank, not before that rank sent it."""
        v, sent = await self.dist.receive(source, self.rank)
        result = copy.copy(v)
        self.time = max(self.time, sent)
        self._record("receive", (source,), (), (result,))
        self._log_message("recv", source, result)
        return result

    def _log_message(self, typ: str, peer: int, v: Any) -> None:
        layer = getattr(v, "layer", None)
        self.log_event(typ, layer, getattr(v, "samples", frozenset()), v)
        self.log[-1]._peer = peer


# ---- results


def _by_rank(models: Sequence[Model]) -> list[Model]:
    """One model of each rank, in order."""
    ranks = sorted(models, key=lambda model: model.rank)
    found = [model.rank for model in ranks]
    world = ranks[0].dist.world_size if ranks else 0
    if not found or len(found) != world or (world > 1 and found != list(range(world))):
        raise error("D003", f"models of the ranks {found}, expected one of each rank",
                     why=f"the Dist has {world} ranks" if ranks else "there is no model",
                     help="give the models of all ranks: `to_training(models)`")
    return ranks


def _rows(models: Sequence[Model]) -> list[list[tuple[Any, ...]]]:
    """The events of each rank, in seconds and bytes. A send and its receive share a number."""
    numbers: dict[tuple[int, int, int], int] = {}
    rows: list[list[tuple[Any, ...]]] = []
    for model in models:
        sent: defaultdict[tuple[str, int], int] = defaultdict(int)
        rows.append([])
        for event in model.log:
            peer, match = -1, -1
            if event._peer is not None:
                peer = event._peer
                ends = (model.rank, peer) if event.typ == "send" else (peer, model.rank)
                count = sent[event.typ, peer]
                sent[event.typ, peer] += 1
                match = numbers.setdefault((*ends, count), len(numbers))
            moved = 0
            if event._input is not None:
                moved = model.runtime_predictor.get_comm_bytes(event._input)
            rows[-1].append((
                event.typ, -1 if event.layer is None else event.layer, event.time / NANOSECONDS,
                event.duration / NANOSECONDS, moved, event.memory * BYTES_PER_ELEMENT,
                event.samples, peer, match))
    return rows


def to_trace(models: Sequence[Model], name: str = "puzzle") -> _shiplap.Trace:
    """The logged events of all ranks as a timeline: to print, to draw, to save as a report.

    >>> model = shiplap.puzzles.Model()
    >>> weight, opt_state = model.load_weights(0)
    >>> shiplap.puzzles.to_trace([model])
    <Trace puzzle: 1 ranks, 1 events>
    """
    assumed = ["Times are those of the logged events."]
    return _shiplap._trace_of_events(name, _rows(_by_rank(models)), assumed)


def to_training(models: Sequence[Model], name: str = "puzzle", **options: Any) -> Training:
    """Repeats the calls of all ranks as a strategy of ``shiplap.train``.

    Its plan can be checked, simulated and run. ``options`` are those of ``train``, such as
    ``hardware``, ``mesh`` or ``for_run``. Sends do not block, as in the puzzles; ``eager=0`` makes
    them wait for their receive.
    """
    ranks = _by_rank(models)
    calls = [[*model._calls, Call("end", (), (), (), model._changes_since(model._stored)[0])]
             for model in ranks]

    async def program(model: Any) -> None:
        await Replay(calls[model.rank], model).run()

    program.__name__ = name
    defaults = {"mesh": {"dp": len(ranks)}, "layers": ranks[0].num_layers,
                "batch": ranks[0].global_batch_size, "eager": 1 << 62}
    if not options.get("for_run"):
        defaults |= {"hidden": HIDDEN_SIZE, "block": BLOCK_SIZE, "datatype": DATATYPE, "moments": 1}
    return train(program, **{**defaults, **options})


__all__ = [
    "Activation",
    "ActivationGrad",
    "BLOCK_SIZE",
    "BYTES_PER_ELEMENT",
    "Barrier",
    "DATATYPE",
    "Dist",
    "Event",
    "Gatherable",
    "HIDDEN_SIZE",
    "Model",
    "NANOSECONDS",
    "OptState",
    "PuzzleError",
    "Reduceable",
    "ReduceableGatherable",
    "RuntimePredictor",
    "Weight",
    "WeightGrad",
    "to_trace",
    "to_training",
]
