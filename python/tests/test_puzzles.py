"""The library of the LLM Training Puzzles: its names, rules and numbers, and programs with it."""

import ast
import asyncio
import contextlib
import dataclasses
import inspect
import io
import json
import re
import time

import pytest

import shiplap
from puzzle_programs import run
from shiplap import _puzzles_dist, puzzles
from shiplap.puzzles import (
    BLOCK_SIZE,
    BYTES_PER_ELEMENT,
    DATATYPE,
    HIDDEN_SIZE,
    Activation,
    ActivationGrad,
    Barrier,
    Dist,
    Event,
    Model,
    OptState,
    RuntimePredictor,
    Weight,
    WeightGrad,
)
from types_checker import mypy

# The signatures as the documentation of the puzzles prints them.
SIGNATURES = """
class Reduceable:
    def __add__(self, other: T) -> T

class Gatherable:
    def shard(self, shard: int, num_shards: int) -> O
    def is_complete(self) -> bool
    def combine(self, other: O) -> O

class Barrier:
    def __init__(self, target: int)
    async def wait(self, rank: int) -> None
    async def reset(self) -> None

class Weight:
    def combine(self, other: Weight) -> Weight
    def memory(self) -> float
    def shard(self, shard: int, num_shards: int) -> Weight
    def is_complete(self) -> bool

class Activation:
    def memory(self) -> int

class WeightGrad:
    def __add__(self, other: WeightGrad) -> WeightGrad
    def combine(self, other: WeightGrad) -> WeightGrad
    def shard(self, shard: int, num_shards: int) -> WeightGrad
    def is_complete(self) -> bool
    def memory(self) -> float

class OptState:
    def combine(self, other: OptState) -> OptState
    def memory(self) -> float

class ActivationGrad:
    def memory(self) -> int

class Dist:
    def __init__(self, world_size: int) -> None
    async def all_reduce(self, rank: int, inp: T, time: int) -> Tuple[T, int]
    async def all_gather(self, rank: int, inp: O, time: int) -> Tuple[O, int]
    async def reduce_scatter(self, rank: int, inp: TO, time: int) -> Tuple[TO, int]
    async def receive(self, rank_source: int, rank_dest: int) -> Any
    async def send(self, rank_source: int, rank_dest: int, v: Any) -> None

class Model:
    def __init__(self, rank: int = 1, dist: Dist = Dist(1), num_layers: int = 2,
            global_batch_size: int = 1)
    def storage(self) -> Tuple[Dict[Any, Weight], Dict[Any, OptState], Dict[Any, Activation],
            Dict[Any, ActivationGrad], Dict[Any, WeightGrad]]
    def memory(self) -> int
    def status(self)
    def log_event(self, typ: str, layer: Optional[int] = None, samples: FrozenSet[int] =
            frozenset({}), input: Optional[Any] = None, num_shards_on_device: Optional[int] = None,
            num_shards: Optional[int] = None) -> None
    def load_weights(self, layer: int, shard: int = 0, num_shards: int = 1) -> Tuple[Weight,
            OptState]
    def set_final_weight(self, layer: int, weight: Weight) -> None
    def get_input_activation(self, samples: Sequence[int]) -> Activation
    def forward(self, layer: int, inp: Activation, weight: Weight) -> Activation
    def backward(self, layer: int, inp: Activation, grad: ActivationGrad, weight: Weight) ->
            Tuple[WeightGrad, ActivationGrad]
    def loss(self, inp: Activation) -> ActivationGrad
    def update(self, layer: int, weight_grad: WeightGrad, weight: Weight, opt_state: OptState)
            -> Tuple[Weight, OptState]
    async def all_reduce(self, v: T, layer: int) -> T
    async def reduce_scatter(self, v: TO, layer: int) -> TO
    async def all_gather(self, v: O, layer: int) -> O
    async def send(self, dest: int, v: Any) -> None
    async def receive(self, source: int) -> Any

class RuntimePredictor:
    def __init__(self, world_size: int, config_file_name: str = "h100_80g_nvl8.json") -> None
    def compute_flops_time(self, flops: int) -> float
    def compute_mem_time(self, bytes_read_write: int) -> float
    def get_processing_time(self, flops: int, bytes_read_write: int) -> float
    def get_forward_backward_time(self, batch_size: int) -> float
    def get_update_step_time(self, num_shards_on_device: int, num_shards: int) -> float
    def get_comm_bytes(self, v: T) -> int
    def get_collective_time(self, collective_name: str, v: T) -> float
    def get_send_recv_time(self, v: T) -> float
    def get_weight_load_time(self, num_shards_on_device: int, num_shards: int) -> float
"""

# The dataclasses, as they are printed there.
FIELDS = {
    Event: """
    typ: str
    layer: Optional[int]
    rank: int
    time: int
    duration: int
    memory: int
    samples: FrozenSet[int] = frozenset()
""",
    Weight: """
    layer: int
    layers: int
    step: int
    shards: FrozenSet[int] = frozenset([0])
    num_shards: int = 1
""",
    Activation: """
    layer: int
    layers: int
    samples: FrozenSet[int]
    total_samples: int
""",
    WeightGrad: """
    layer: int
    layers: int
    samples: FrozenSet[int]
    total_samples: int
    shards: FrozenSet[int] = frozenset([0])
    num_shards: int = 1
""",
    OptState: """
    layer: int
    layers: int
    step: int
    shards: FrozenSet[int] = frozenset([0])
    num_shards: int = 1
""",
    ActivationGrad: """
    layer: int
    layers: int
    samples: FrozenSet[int]
    total_samples: int
""",
}

SIZE = HIDDEN_SIZE * HIDDEN_SIZE
# Without a bound, a type variable says nothing.
OF_ANY_TYPE = {"T", "O", "TO"}


def methods():
    found = []
    for block in SIGNATURES.strip().split("\n\n"):
        head, *lines = re.sub(r"\n {8,}", " ", block).splitlines()
        name = head.split()[1].rstrip(":")
        for line in lines:
            method = line.split("(")[0].split()[-1]
            found.append(pytest.param(name, line.strip(), id=f"{name}.{method}"))
    return found


def printed(annotation):
    """Normal form: Tuple[Dict[Any, X], ..] is tuple[dict[Any, X], ..], Optional[X] is X | None."""
    text = "".join(str(annotation).split()).replace(",]", "]")
    for old, new in (("Tuple", "tuple"), ("Dict", "dict")):
        text = text.replace(old, new)
    if text.startswith("Optional["):
        text = text.removeprefix("Optional[").removesuffix("]") + "|None"
    return text


@pytest.mark.parametrize("name, line", methods())
def test_signatures_are_those_of_the_puzzles(name, line):
    node = ast.parse(line + ": ...").body[0]
    member = getattr(getattr(puzzles, name), node.name)
    assert inspect.iscoroutinefunction(member) == isinstance(node, ast.AsyncFunctionDef)
    found = inspect.signature(member)
    wanted = node.args
    assert list(found.parameters) == [a.arg for a in wanted.args]
    values = list(found.parameters.values())
    first = len(wanted.args) - len(wanted.defaults)
    for parameter, argument in zip(values, wanted.args, strict=True):
        annotation = argument.annotation and printed(ast.unparse(argument.annotation))
        if argument.arg == "self" or annotation in OF_ANY_TYPE:
            continue
        assert printed(parameter.annotation) == annotation
    for parameter, default in zip(values[first:], wanted.defaults, strict=True):
        if parameter.name != "dist":
            assert parameter.default == eval(ast.unparse(default))
    assert all(p.default is inspect.Parameter.empty for p in values[:first])
    if node.returns and name not in ("Reduceable", "Gatherable") and node.name != "shard":
        assert printed(found.return_annotation) == printed(ast.unparse(node.returns))


@pytest.mark.parametrize("kind", FIELDS, ids=lambda kind: kind.__name__)
def test_fields_are_those_of_the_puzzles(kind):
    wanted = ast.parse("\n".join(line.strip() for line in FIELDS[kind].splitlines())).body
    fields = dataclasses.fields(kind)
    assert [f.name for f in fields] == [node.target.id for node in wanted]
    for field, node in zip(fields, wanted, strict=True):
        assert printed(field.type) == printed(ast.unparse(node.annotation))
        missing = field.default is dataclasses.MISSING
        assert missing == (node.value is None)
        assert missing or field.default == eval(ast.unparse(node.value))


def test_constants_are_those_of_the_puzzles():
    assert (HIDDEN_SIZE, BLOCK_SIZE, DATATYPE, BYTES_PER_ELEMENT) == (4096, 1024, "float16", 2)
    shape = shiplap.strategy.ModelShape()
    assert (shape.hidden, shape.block, shape.datatype) == (HIDDEN_SIZE, BLOCK_SIZE, DATATYPE)
    assert shape.weight == SIZE * BYTES_PER_ELEMENT


# ---- values


def grad(*samples, layer=0, shards=(0,), num_shards=1):
    return WeightGrad(layer, 2, frozenset(samples), 4, frozenset(shards), num_shards)


def test_a_value_is_put_together_from_its_shards():
    for value in (Weight(1, 2, 3), OptState(1, 2, 3), grad(0, 2)):
        parts = [value.shard(i, 4) for i in range(4)]
        assert [p.shards for p in parts] == [{0}, {1}, {2}, {3}]
        assert not any(p.is_complete() for p in parts)
        whole = parts[2].combine(parts[0]).combine(parts[3]).combine(parts[1])
        assert whole.is_complete() and whole.num_shards == 4
        assert whole.memory() == value.memory() == sum(p.memory() for p in parts) == SIZE
        assert parts[0].combine(parts[0]) == parts[0]


def test_memory_is_in_elements():
    assert Weight(0, 2, 0, frozenset([1, 2]), 8).memory() == SIZE / 4
    assert OptState(0, 2, 0).memory() == SIZE
    for kind in (Activation, ActivationGrad):
        assert kind(0, 2, frozenset([1, 5]), 8).memory() == 2 * HIDDEN_SIZE * BLOCK_SIZE


def test_gradients_sum_their_samples():
    assert (grad(0) + grad(1, 3)).samples == {0, 1, 3}
    assert grad(0, 1) + grad(1, 2) == grad(0, 1, 2)


@pytest.mark.parametrize("wrong, code", [
    (lambda: grad(0) + grad(1, layer=1), "D610"),
    (lambda: grad(0) + grad(1, shards=[0], num_shards=2), "D610"),
    (lambda: grad(0) + Weight(0, 2, 0), "D610"),
    (lambda: grad(0).combine(grad(1)), "D610"),
    (lambda: Weight(0, 2, 0).combine(Weight(1, 2, 0)), "D610"),
    (lambda: Weight(0, 2, 0).combine(Weight(0, 2, 1)), "D610"),
    (lambda: OptState(0, 2, 0).combine(OptState(1, 2, 0)), "D610"),
    (lambda: Weight(0, 2, 0).combine(OptState(0, 2, 0)), "D610"),
    (lambda: Weight(0, 2, 0).shard(0, 2).combine(Weight(0, 2, 0).shard(1, 4)), "D610"),
    (lambda: Weight(0, 2, 0).shard(0, 2).shard(0, 2), "D612"),
    (lambda: grad(0, shards=[1], num_shards=2).shard(0, 2), "D612"),
    (lambda: Weight(0, 2, 0).shard(2, 2), "D614"),
])
def test_values_that_do_not_match_are_refused(wrong, code):
    with pytest.raises(AssertionError) as refused:
        wrong()
    assert isinstance(refused.value, shiplap.InputError)
    assert refused.value.diagnostics[0].code == code


# ---- Barrier and Dist


def test_a_barrier_holds_ranks_until_all_are_there():
    barrier, order = Barrier(3), []

    async def rank(number):
        for step in range(5):
            for _ in range(number * 3):
                await asyncio.sleep(0)
            order.append(step)
            await barrier.wait(number)

    run(*map(rank, range(3)))
    assert order == [step for step in range(5) for _ in range(3)]


def test_a_barrier_may_be_reset_by_hand():
    barrier = Barrier(2)

    async def rank(number):
        for _ in range(3):
            await barrier.wait(number)
            if number == 0:
                await barrier.reset()
        return number

    assert run(rank(0), rank(1)) == [0, 1]
    run(barrier.reset())


def test_a_barrier_is_for_any_ranks_and_many_event_loops():
    barrier = Barrier(2)
    for _ in range(2):
        run(barrier.wait(5), barrier.wait(7))


def test_wrong_uses_of_a_barrier_are_refused():
    with pytest.raises(AssertionError) as refused:
        Barrier(0)
    assert refused.value.diagnostics[0].code == "D003"
    barrier = Barrier(3)
    with pytest.raises(AssertionError, match="rank 1 waits twice") as refused:
        run(barrier.wait(1), barrier.wait(1))
    assert refused.value.diagnostics[0].rank == 1
    run(*map(barrier.wait, range(3)))  # those who left do not count


def test_a_rank_that_is_cancelled_at_a_full_barrier_has_passed():
    barrier = Barrier(2)

    async def main():
        first = asyncio.create_task(barrier.wait(1))
        await asyncio.sleep(0)
        last = asyncio.create_task(barrier.wait(0))
        asyncio.get_running_loop().call_soon(first.cancel)
        await asyncio.wait_for(last, 10)
        assert first.cancelled()
        await asyncio.wait_for(asyncio.gather(barrier.wait(0), barrier.wait(1)), 10)

    asyncio.run(main())


def test_collectives_return_their_result_and_the_time_of_the_last_rank():
    dist = Dist(4)
    parts = [grad(rank) for rank in range(4)]
    total = grad(0, 1, 2, 3)
    for _ in range(2):
        found = run(*[dist.all_reduce(r, parts[r], 10 * r) for r in range(4)])
        assert found == [(total, 30)] * 4
        found = run(*[dist.reduce_scatter(r, parts[r], 7 - r) for r in reversed(range(4))])
        assert found == [(total.shard(r, 4), 7) for r in reversed(range(4))]
        found = run(*[dist.all_gather(r, total.shard(r, 4), 0) for r in range(4)])
        assert found == [(dataclasses.replace(total, shards=frozenset(range(4)), num_shards=4), 0)
                         ] * 4
        assert dist._collective is None


def test_collectives_take_anything_that_keeps_the_protocol():
    class Tally(int):
        def __add__(self, other):
            return Tally(int(self) + other)

    assert run(*[Dist(1).all_reduce(0, Tally(3), 2)]) == [(3, 2)]
    dist = Dist(2)
    assert run(*[dist.all_reduce(r, Tally(r + 1), r) for r in range(2)]) == [(3, 1)] * 2


def test_messages_arrive_in_order():
    dist = Dist(2)

    async def source():
        for i in range(4):
            await dist.send(0, 1, ("any value", i))

    async def dest():
        return [await dist.receive(0, 1) for _ in range(4)]

    assert run(dest(), source())[0] == [("any value", i) for i in range(4)]


def test_mismatched_collectives_are_refused():
    dist = Dist(2)
    with pytest.raises(AssertionError, match="rank 1 calls all_gather") as refused:
        run(dist.all_reduce(0, grad(0), 0), dist.all_gather(1, Weight(0, 2, 0), 0))
    assert refused.value.diagnostics[0].code == "D616"
    dist = Dist(2)
    with pytest.raises(AssertionError, match="cannot add"):
        run(*[dist.all_reduce(rank, grad(rank, layer=rank), 0) for rank in range(2)])


@pytest.mark.parametrize("call", [
    lambda dist: dist.send(0, 2, 1),
    lambda dist: dist.receive(-1, 0),
    lambda dist: dist.all_reduce(2, grad(0), 0),
])
def test_ranks_outside_the_world_are_refused(call):
    with pytest.raises(AssertionError) as refused:
        run(call(Dist(2)))
    assert refused.value.diagnostics[0].code == "D621"
    with pytest.raises(AssertionError, match="there is no rank 2"):
        Model(2, Dist(2))


async def receives_first(model):
    await model.receive(1 - model.rank)


async def forgets_to_reduce(model):
    if model.rank == 0:
        model.weights[0], model.opt_states[0] = model.load_weights(0)
        await model.all_gather(model.weights[0], 0)
    else:
        model.load_weights(0)


@pytest.mark.parametrize("program, says", [
    (receives_first, ["2 of 2 ranks hang", "rank 0 waits in receive(source=1)"]),
    (forgets_to_reduce, ["1 of 2 ranks", "rank 0 waits in all_gather", "rank 1 has ended"]),
])
def test_deadlocks_are_reported(program, says):
    dist = Dist(2)
    with pytest.raises(AssertionError) as refused:
        run(*[program(Model(rank, dist)) for rank in range(2)])
    assert refused.value.diagnostics[0].code == "D617"
    assert all(text in str(refused.value) for text in says)


def refused_by(*coroutines):
    with pytest.raises(AssertionError) as refused:
        run(*coroutines)
    assert refused.value.diagnostics[0].code == "D617"
    return str(refused.value)


async def in_groups(coroutines):
    async with asyncio.TaskGroup() as group:
        for coroutine in coroutines:
            group.create_task(coroutine)


async def in_a_set(coroutines):
    for task in (await asyncio.wait([*map(asyncio.create_task, coroutines)]))[0]:
        task.result()


async def one_by_one(coroutines):
    for task in [*map(asyncio.create_task, coroutines)]:
        await asyncio.wait_for(task, 60)


@pytest.mark.parametrize("start", [in_groups, in_a_set, one_by_one], ids=lambda f: f.__name__)
def test_deadlocks_are_reported_however_ranks_are_started(start):
    if start is in_groups and not hasattr(asyncio, "TaskGroup"):
        pytest.skip("no asyncio.TaskGroup")
    dist = Dist(2)
    with pytest.raises(Exception) as refused:
        run(start([receives_first(Model(rank, dist)) for rank in range(2)]))
    first, *_ = getattr(refused.value, "exceptions", [refused.value])
    assert first.diagnostics[0].code == "D617"


def test_a_rank_that_ends_without_a_call_is_reported():
    async def only_rank_0(model):
        if model.rank == 0:
            await model.all_reduce(grad(0), 0)

    dist = Dist(2)
    said = refused_by(*[only_rank_0(Model(rank, dist)) for rank in range(2)])
    assert "1 of 2 ranks hang" in said and "rank 1 has ended" in said
    assert "rank 1 waits in receive(source=1)" in refused_by(Model().receive(1))


def test_deadlocks_are_reported_in_every_event_loop():
    dist = Dist(2)
    for _ in range(2):
        assert run(*[dist.all_reduce(rank, 1, 0) for rank in range(2)]) == [(2, 0)] * 2
        assert "2 of 2" in refused_by(*[dist.receive(1 - rank, rank) for rank in range(2)])


def test_deadlocks_are_reported_next_to_the_tasks_of_a_notebook():
    async def main():
        kernel = asyncio.create_task(asyncio.Event().wait())
        dist = Dist(2)
        try:
            await asyncio.gather(*[forgets_to_reduce(Model(rank, dist)) for rank in range(2)])
        finally:
            kernel.cancel()

    assert "rank 1 has ended" in refused_by(main())


def test_calls_of_one_rank_at_the_same_time_are_all_reported():
    dist = Dist(3)

    async def receives_both(model):
        if model.rank == 0:
            await asyncio.gather(model.receive(1), model.receive(2))
        elif model.rank == 1:
            model.weights[0], _ = model.load_weights(0)
            await model.send(0, model.weights[0])

    said = refused_by(*[receives_both(Model(rank, dist)) for rank in range(3)])
    assert "receive(source=2)" in said and "receive(source=1)" not in said
    assert "1 of 3 ranks hang" in said
    said = refused_by(dist.receive(1, 0), dist.receive(2, 0))
    assert "receive(source=1)" in said and "receive(source=2)" in said


def test_deadlocks_across_dists_are_reported():
    one, two = Dist(2), Dist(2)
    said = refused_by(one.all_reduce(0, 1, 0), two.all_gather(1, grad(0), 0))
    assert "rank 0 waits in all_reduce of a Dist(2)" in said
    assert "rank 1 waits in all_gather of a Dist(2)" in said


def test_a_call_that_is_cancelled_after_a_deadlock_is_cancelled():
    dist = Dist(2)
    refused_by(*[dist.receive(1 - rank, rank) for rank in range(2)])

    async def main():
        call = asyncio.create_task(dist.receive(1, 0))
        await asyncio.sleep(0)
        call.cancel()
        await call

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(main())


def test_ranks_that_start_again_after_a_pause_are_no_deadlock():
    dist = Dist(2)
    models = [Model(rank, dist) for rank in range(2)]

    async def init(model):
        model.weights[0], model.opt_states[0] = model.load_weights(0)

    async def reduce(model):
        if model.rank == 1:
            await asyncio.sleep(1)
        return await model.all_reduce(grad(model.rank), 0)

    async def main():
        await asyncio.gather(*map(init, models))
        return await asyncio.gather(*map(reduce, models))

    assert run(main()) == [[grad(0, 1)] * 2]


def test_a_rank_that_works_on_while_it_receives_is_no_deadlock():
    dist = Dist(2)

    async def prefetch(model):
        if model.rank == 0:
            return await model.receive(1)
        early = asyncio.create_task(model.receive(0))
        await asyncio.sleep(1)
        await model.send(0, grad(1))
        early.cancel()

    assert run(*[prefetch(Model(rank, dist)) for rank in range(2)])[0] == grad(1)


def test_ranks_that_wait_for_something_else_are_no_deadlock():
    dist = Dist(2)

    async def slow(model):
        await asyncio.sleep(1.2)
        return await model.receive(1) if model.rank == 0 else await model.send(0, grad(0))

    assert run(*[slow(Model(rank, dist)) for rank in range(2)])[0] == grad(0)


def in_a_thread(seconds):
    return asyncio.get_running_loop().run_in_executor(None, time.sleep, seconds)


async def event(seconds):
    happens = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, happens.set)
    await happens.wait()


@pytest.mark.parametrize("other", [
    lambda: asyncio.wait_for(asyncio.sleep(0.9), 5),
    lambda: asyncio.wait_for(in_a_thread(0.9), 5),
    lambda: asyncio.wait([in_a_thread(0.9)]),
    lambda: asyncio.gather(asyncio.sleep(0), in_a_thread(0.9)),
    lambda: asyncio.gather(asyncio.gather(asyncio.to_thread(time.sleep, 0.9))),
    lambda: asyncio.shield(asyncio.sleep(0.9)),
    lambda: event(0.9),
])
def test_whatever_a_rank_waits_for_is_no_deadlock(other):
    dist = Dist(2)

    async def slow():
        await other()
        await dist.send(1, 0, "at last")

    assert run(dist.receive(1, 0), slow())[0] == "at last"


def test_calls_that_ended_are_forgotten():
    async def main():
        dist = Dist(1)
        for _ in range(100):
            await asyncio.create_task(dist.all_reduce(0, 1, 0))
        return len(_puzzles_dist._detector()._calls)

    assert asyncio.run(main()) == 0


def test_a_failed_collective_leaves_nothing_behind():
    dist = Dist(2)

    async def fails(rank):
        if rank == 1:
            raise ValueError("a mistake of the program")
        return await dist.all_reduce(rank, 10, 99)

    with pytest.raises(ValueError):
        run(fails(0), fails(1))
    assert run(*[dist.all_reduce(rank, 10, 0) for rank in range(2)]) == [(20, 0)] * 2
    with pytest.raises(ValueError):
        run(fails(0), fails(1))
    shards = [Weight(0, 2, 0).shard(rank, 2) for rank in range(2)]
    assert run(*[dist.all_gather(rank, shards[rank], 0) for rank in range(2)])[1][0].is_complete()


def test_a_rank_may_call_again_after_a_timeout():
    dist = Dist(3)

    async def patient(rank):
        return await dist.all_reduce(rank, 10, rank)

    async def hasty():
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(patient(1), 0.05)
        return await patient(1)

    async def late():
        await asyncio.sleep(0.1)
        return await patient(2)

    assert run(patient(0), hasty(), late()) == [(30, 2)] * 3


def test_inputs_that_cannot_be_summed_are_an_error_on_all_ranks():
    dist = Dist(3)

    async def main():
        return await asyncio.gather(*[dist.all_reduce(rank, grad(rank, layer=rank // 2), 0)
                                      for rank in range(3)], return_exceptions=True)

    assert [failure.diagnostics[0].code for failure in run(main())[0]] == ["D610"] * 3


def test_a_rank_is_once_in_a_collective():
    dist = Dist(2)
    with pytest.raises(AssertionError, match="rank 0 calls all_reduce twice") as refused:
        run(dist.all_reduce(0, 1, 0), dist.all_reduce(0, 1, 0))
    assert refused.value.diagnostics[0].code == "D616"


def test_messages_that_were_sent_in_another_event_loop_arrive():
    dist = Dist(2)

    async def late(value):
        await asyncio.sleep(0.01)
        await dist.send(0, 1, value)

    for value in range(3):  # in each loop, a receive that waits
        assert run(dist.receive(0, 1), late(value))[0] == value
    run(dist.send(0, 1, "first"), dist.send(0, 1, "second"))
    assert run(dist.receive(0, 1), dist.receive(0, 1)) == ["first", "second"]


# ---- RuntimePredictor


def test_times_follow_the_formulas_of_the_puzzles():
    predictor = RuntimePredictor(8)
    tokens = 3 * BLOCK_SIZE
    flops = 2 * HIDDEN_SIZE * HIDDEN_SIZE * tokens
    moved = (SIZE + 2 * HIDDEN_SIZE * tokens) * BYTES_PER_ELEMENT
    assert predictor.compute_flops_time(flops) == pytest.approx(
        flops / predictor.processor.throughput(DATATYPE, flops))
    assert predictor.compute_mem_time(moved) == pytest.approx(
        moved / predictor.mem_hbm.throughput(moved))
    assert predictor.get_processing_time(flops, moved) == max(
        predictor.compute_flops_time(flops), predictor.compute_mem_time(moved))
    assert predictor.get_forward_backward_time(3) == predictor.get_processing_time(flops, moved)
    quarter = SIZE * BYTES_PER_ELEMENT // 4
    assert predictor.get_update_step_time(1, 4) == pytest.approx(
        predictor.compute_mem_time(3 * quarter))
    assert predictor.get_weight_load_time(1, 4) == pytest.approx(
        quarter / predictor.mem_pcie.throughput(quarter))


def test_amounts_may_be_floats():
    predictor = RuntimePredictor(8)
    moved = Weight(0, 2, 0).memory() * BYTES_PER_ELEMENT
    assert isinstance(moved, float)
    assert predictor.compute_mem_time(moved) == predictor.compute_mem_time(int(moved))
    assert predictor.compute_flops_time(1e9) == predictor.compute_flops_time(10**9)
    assert predictor.get_processing_time(1e9, moved) == predictor.get_processing_time(
        10**9, int(moved))


def test_bytes_are_those_of_the_puzzles():
    predictor = RuntimePredictor(8)
    whole = SIZE * BYTES_PER_ELEMENT
    assert predictor.get_comm_bytes(Weight(0, 2, 0)) == whole
    assert predictor.get_comm_bytes(Weight(0, 2, 0).shard(1, 4)) == whole
    assert predictor.get_comm_bytes(grad(0, shards=[1], num_shards=2)) == whole
    assert predictor.get_comm_bytes(OptState(0, 2, 0).shard(1, 4)) == whole // 4
    two = frozenset([0, 1])
    for kind in (Activation, ActivationGrad):
        assert predictor.get_comm_bytes(kind(0, 2, two, 4)) == 2 * 2 * HIDDEN_SIZE * BLOCK_SIZE
    with pytest.raises(TypeError, match="bytes of a str"):
        predictor.get_comm_bytes("weights")


def network_time(machine, network, operation, size, ranks):
    """From the file of the machine, as docs/hardware.md says."""
    found = machine["networks"][network]
    scalar, offset = found["ops"][operation]
    factor = scalar * (1 + (offset or 0) / ranks)
    return found["latency"] + size * factor / (found["bandwidth"] * 1e9 * found["efficiency"])


@pytest.mark.parametrize("ranks, network", [(8, 0), (32, 1)])
def test_communication_uses_the_network_that_connects_all_ranks(ranks, network, root):
    path = root / "tests/hardware/h100_80g_nvl8.json"  # in the format of Calculon
    machine = json.loads(path.read_text())
    predictor = RuntimePredictor(ranks, str(path))
    found = machine["networks"][network]
    assert predictor.network.size == found["size"]
    assert predictor.network.bandwidth == found["bandwidth"] * 1e9
    whole = SIZE * BYTES_PER_ELEMENT
    for name in ("all_reduce", "all_gather", "reduce_scatter"):
        assert predictor.get_collective_time(name, grad(0)) == pytest.approx(
            network_time(machine, network, name, whole, ranks))
    assert predictor.get_send_recv_time(grad(0)) == pytest.approx(
        network_time(machine, network, "p2p", whole, 2))


def test_machines_have_the_names_of_their_files(tmp_path, root):
    usual = RuntimePredictor(8).get_forward_backward_time(1)
    for name in ("h100_80g_nvl8", "h100_80g_nvl8.json", "b200.json", "a100_80g"):
        same = RuntimePredictor(8, config_file_name=name).get_forward_backward_time(1)
        assert (same == usual) == name.startswith("h100")
    mine = tmp_path / "mine.json"
    mine.write_text((root / "data/hardware/b200.json").read_text())
    assert RuntimePredictor(8, str(mine)).get_forward_backward_time(1) == \
        RuntimePredictor(8, "b200.json").get_forward_backward_time(1)
    with pytest.raises(shiplap.InputError, match="h100_80g_nvl8"):
        RuntimePredictor(8, "h100.json")


# ---- Model


def test_a_model_alone_trains_a_layer():
    model = Model()
    assert (model.rank, model.num_layers, model.global_batch_size) == (1, 2, 1)
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    for layer in range(2):
        weights[layer], opt_states[layer] = model.load_weights(layer)
    assert weights[0] == Weight(0, 2, 0) and opt_states[1] == OptState(1, 2, 0)
    activations[0] = model.get_input_activation([0])
    for layer in range(2):
        activations[layer + 1] = model.forward(layer, activations[layer], weights[layer])
    grad_activations[2] = model.loss(activations[2])
    assert grad_activations[2] == ActivationGrad(1, 2, frozenset([0]), 1)
    for layer in (1, 0):
        grad_weights[layer], grad_activations[layer] = model.backward(
            layer, activations[layer], grad_activations[layer + 1], weights[layer])
        weights[layer], opt_states[layer] = model.update(
            layer, grad_weights[layer], weights[layer], opt_states[layer])
        model.set_final_weight(layer, weights[layer])
    assert model.final_weights == {1: Weight(1, 2, 1), 0: Weight(0, 2, 1)}
    assert [event.typ for event in model.log] == [
        "load_weights", "load_weights", "forward", "forward", "loss",
        "backward", "update", "backward", "update"]
    assert model.memory() == 6 * SIZE + 6 * HIDDEN_SIZE * BLOCK_SIZE


def test_an_event_lasts_as_long_as_the_predictor_says():
    model = Model(0, Dist(4), 2, 4)
    predictor = model.runtime_predictor
    two = frozenset([0, 1])
    model.weights["any key"], _ = model.load_weights(0, 1, 4)
    for arguments, seconds in [
        (("forward", 0, two), predictor.get_forward_backward_time(2)),
        (("backward", 0, two), predictor.get_forward_backward_time(2)),
        (("loss",), 0),
        (("update", 1, frozenset(), None, 1, 4), predictor.get_update_step_time(1, 4)),
        (("update", 1), predictor.get_update_step_time(1, 1)),
        (("load_weights", 1, frozenset(), None, 2, 4), predictor.get_weight_load_time(2, 4)),
        (("all_reduce", 0, two, grad(0)), predictor.get_collective_time("all_reduce", grad(0))),
        (("all_gather", 0, two, grad(0)), predictor.get_collective_time("all_gather", grad(0))),
        (("send", 0, two, grad(0)), predictor.get_send_recv_time(grad(0))),
        (("recv", 0, two, grad(0)), predictor.get_send_recv_time(grad(0))),
    ]:
        before = model.time
        model.log_event(*arguments)
        event = model.log[-1]
        assert event == Event(arguments[0], (*arguments, None)[1], 0, before,
                              round(seconds * 1e9), SIZE // 4,
                              arguments[2] if len(arguments) > 2 else frozenset())
        assert model.time == before + event.duration
        assert type(event.time) is type(event.duration) is type(event.memory) is int
    with pytest.raises(AssertionError, match="unknown event type `foward`"):
        model.log_event("foward")
    with pytest.raises(TypeError):
        model.log_event("send")


def test_status_prints_what_is_stored():
    model = Model(0, Dist(1))
    model.weights["first"], model.opt_states[0, "x"] = model.load_weights(1)
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        assert model.status() is None
    assert "weights['first'] = Weight(layer=1, layers=2, step=0" in said.getvalue()
    assert "opt_states[(0, 'x')] = OptState(layer=1" in said.getvalue()
    assert f"{2 * SIZE} elements" in said.getvalue()


def trained_model():
    model = Model(0, Dist(1), 2, 2)
    for layer in range(2):
        model.weights[layer], model.opt_states[layer] = model.load_weights(layer)
    model.activations[0] = model.get_input_activation([0, 1])
    for layer in range(2):
        model.activations[layer + 1] = model.forward(
            layer, model.activations[layer], model.weights[layer])
    model.grad_activations[2] = model.loss(model.activations[2])
    model.grad_weights[1], model.grad_activations[1] = model.backward(
        1, model.activations[1], model.grad_activations[2], model.weights[1])
    return model


def put(stored, value):
    stored["mine"] = value
    return value


@pytest.mark.parametrize("code, wrong", [
    ("D612", lambda m: m.forward(0, m.activations[0], put(m.weights, m.weights[0].shard(0, 2)))),
    ("D614", lambda m: m.forward(0, m.activations[0], m.weights[1])),
    ("D614", lambda m: m.forward(0, m.activations[1], m.weights[0])),
    ("D614", lambda m: m.forward(2, m.activations[2], m.weights[0])),
    ("D613", lambda m: m.forward(0, m.activations[0], m.weights.pop(0))),
    ("D614", lambda m: m.loss(m.activations[1])),
    ("D614", lambda m: m.backward(
        0, m.activations[0], m.grad_activations[2], m.weights[0])),
    ("D613", lambda m: m.backward(
        1, m.activations[1], m.grad_activations.pop(2), m.weights[1])),
    ("D613", lambda m: m.backward(
        1, m.activations.pop(1), m.grad_activations[2], m.weights[1])),
    ("D614", lambda m: m.backward(
        1, put(m.activations, Activation(1, 2, frozenset([0]), 2)), m.grad_activations[2],
        m.weights[1])),
    ("D612", lambda m: m.backward(
        1, m.activations[1], m.grad_activations[2], put(m.weights, m.weights[1].shard(0, 2)))),
    ("D615", lambda m: m.update(
        1, WeightGrad(1, 2, frozenset([1]), 2), m.weights[1], m.opt_states[1])),
    ("D614", lambda m: m.update(0, m.grad_weights[1], m.weights[0], m.opt_states[0])),
    ("D614", lambda m: m.update(1, m.grad_weights[1], m.weights[0], m.opt_states[1])),
    ("D614", lambda m: m.update(1, m.grad_weights[1], m.weights[1], m.opt_states[0])),
    ("D614", lambda m: m.update(
        1, m.grad_weights[1].shard(0, 2), m.weights[1], m.opt_states[1])),
    ("D614", lambda m: m.update(
        1, m.grad_weights[1], m.weights[1].shard(0, 2), m.opt_states[1].shard(1, 2))),
    ("D614", lambda m: m.update(1, m.grad_weights[1], m.weights[1], OptState(1, 2, 1))),
    ("D614", lambda m: m.set_final_weight(0, m.weights[1])),
    ("D614", lambda m: m.load_weights(2)),
    ("D614", lambda m: m.load_weights(0, 2, 2)),
    ("D614", lambda m: m.get_input_activation([2])),
])
def test_wrong_calls_are_refused(code, wrong):
    model = trained_model()
    before = len(model.log), model.time
    with pytest.raises(AssertionError) as refused:
        wrong(model)
    diagnostic = refused.value.diagnostics[0]
    assert (diagnostic.code, diagnostic.rank) == (code, 0)
    assert (len(model.log), model.time) == before


@pytest.mark.parametrize("call", [
    lambda m: m.all_reduce(m.weights[0], 0),
    lambda m: m.reduce_scatter(m.opt_states[0], 0),
    lambda m: m.all_gather(m.activations[0], 0),
    lambda m: m.all_reduce(3, 0),
    lambda m: m.send(0, (m.weights[0], m.weights[1])),
])
def test_values_that_cannot_be_communicated_are_refused(call):
    model = trained_model()
    before = len(model.log), model.time
    with pytest.raises(AssertionError, match="cannot") as refused:
        run(call(model))
    diagnostic = refused.value.diagnostics[0]
    assert (diagnostic.code, diagnostic.rank) == ("D610", 0)
    assert (len(model.log), model.time) == before
    assert all(queue.empty() for queue in model.dist.queue.values())


def test_an_overlapped_collective_does_not_turn_the_clock_back():
    dist = Dist(2)

    async def rank(model):
        for layer in range(2):
            model.weights[layer], model.opt_states[layer] = model.load_weights(layer)
        model.activations[0] = model.get_input_activation([model.rank])
        began = model.time
        reduction = asyncio.create_task(model.all_reduce(grad(model.rank), 0))
        await asyncio.sleep(0)
        for layer in range(2):
            for _ in range(20):
                model.activations[layer + 1] = model.forward(
                    layer, model.activations[layer], model.weights[layer])
        computed = model.time
        await reduction
        assert (model.log[-1].typ, model.log[-1].time) == ("all_reduce", began)
        assert began + model.log[-1].duration < computed == model.time
        return model

    models = run(*[rank(Model(number, dist, 2, 2)) for number in range(2)])
    assert puzzles.to_trace(models).summary()["total_s"] == pytest.approx(models[0].time * 1e-9)


def test_a_receive_ends_after_its_send_began():
    dist = Dist(2)

    async def rank(model):
        if model.rank == 0:
            model.weights[0], _ = model.load_weights(0)
            await model.send(1, model.weights[0])
        else:
            assert await model.receive(0) == Weight(0, 2, 0)
        return model

    first, second = run(*[rank(Model(r, dist)) for r in range(2)])
    sent, received = first.log[-1], second.log[-1]
    assert (sent.typ, received.typ) == ("send", "recv")
    assert sent.time == received.time == first.log[0].duration
    assert sent.duration == received.duration
    assert first.time == second.time == sent.time + sent.duration


TYPED = """
import asyncio

from shiplap.puzzles import Dist, Model, Weight

async def program(model: Model) -> Weight:
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    weights["any key"], opt_states[0, 1] = model.load_weights(0)
    gathered: Weight = await model.all_gather(weights["any key"], 0)
    return gathered

async def main() -> None:
    dist = Dist(2)
    await asyncio.gather(*[program(Model(rank, dist)) for rank in range(2)])

asyncio.run(main())
"""


def test_programs_are_type_checked(tmp_path):
    pytest.importorskip("mypy")
    (tmp_path / "program.py").write_text(TYPED, encoding="utf-8")
    told = mypy(tmp_path / "program.py", tmp_path / "cache")
    assert told.returncode == 0, told.stdout
    wrong = TYPED.replace("weights[\"any key\"], opt", "weights[0], grad")
    (tmp_path / "wrong.py").write_text(wrong, encoding="utf-8")
    assert mypy(tmp_path / "wrong.py", tmp_path / "cache").stdout.count("error:") >= 1
