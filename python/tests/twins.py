"""Every strategy of the library, written once more in Python: its twin. Line for line what
src/shiplap/strategy/library/ has, so both must give the same plan."""

from collections.abc import Awaitable, Callable
from typing import Any

from shiplap.strategy import Communication, Model, WeightGrad


def load(model: Model, shard: int = 0, num_shards: int = 1) -> None:
    weights, opt_states, _, _, _ = model.storage()
    for l in range(model.layers):
        weights[l], opt_states[l] = model.load_weights(l, shard, num_shards)


def forward(model: Model, samples: range) -> None:
    weights, _, activations, grad_activations, _ = model.storage()
    layers = model.layers
    activations[0] = model.get_input_activation(samples)
    for l in range(layers):
        activations[l + 1] = model.forward(l, activations[l], weights[l])
    grad_activations[layers] = model.loss(activations[layers])
    del activations[layers]


def backward(model: Model, l: int) -> None:
    weights, _, activations, grad_activations, grad_weights = model.storage()
    grad_weights[l], grad_activations[l] = model.backward(
        l, activations[l], grad_activations[l + 1], weights[l])
    del grad_activations[l + 1], activations[l]


def update(model: Model, l: int) -> None:
    weights, opt_states, _, _, grad_weights = model.storage()
    weights[l], opt_states[l] = model.update(l, grad_weights[l], weights[l], opt_states[l])
    del grad_weights[l]
    model.set_final_weight(l, weights[l])


async def single(model: Model) -> None:
    _, _, _, grad_activations, _ = model.storage()
    load(model)
    forward(model, model.samples(0, 1))
    for l in reversed(range(model.layers)):
        backward(model, l)
        update(model, l)
    del grad_activations[0]


async def gradient_accumulation(model: Model) -> None:
    weights, _, activations, grad_activations, grad_weights = model.storage()
    layers, pieces = model.layers, model.microbatches
    load(model)
    for m in range(pieces):
        forward(model, model.samples(model.rank * pieces + m, model.ranks * pieces))
        for l in reversed(range(layers)):
            fresh = l if m == 0 else (l, m)
            grad_weights[fresh], grad_activations[l] = model.backward(
                l, activations[l], grad_activations[l + 1], weights[l])
            del grad_activations[l + 1], activations[l]
            if m > 0:
                grad_weights[l] = grad_weights[l] + grad_weights[fresh]
                del grad_weights[fresh]
        del grad_activations[0]
    for l in range(layers):
        grad_weights[l] = await model.all_reduce(grad_weights[l], l)
        update(model, l)


async def ddp(model: Model) -> None:
    _, _, _, grad_activations, grad_weights = model.storage()
    load(model)
    forward(model, model.samples(model.rank, model.ranks))
    for l in reversed(range(model.layers)):
        backward(model, l)
        grad_weights[l] = await model.all_reduce(grad_weights[l], l)
    del grad_activations[0]
    for l in range(model.layers):
        update(model, l)


async def ddp_overlap(model: Model) -> None:
    bucket = 2
    _, _, _, grad_activations, grad_weights = model.storage()
    layers = model.layers
    load(model)
    forward(model, model.samples(model.rank, model.ranks))
    sums = {}
    for l in reversed(range(layers)):
        backward(model, l)
        if l % bucket == 0:
            for k in reversed(range(l, min(l + bucket, layers))):
                sums[k] = model.start_all_reduce(grad_weights[k], k)
    del grad_activations[0]
    for l in reversed(range(layers)):
        grad_weights[l] = await sums[l]
        update(model, l)


async def weight_sharded(model: Model) -> None:
    weights, _, activations, grad_activations, grad_weights = model.storage()
    layers = model.layers
    load(model, model.rank, model.ranks)
    activations[0] = model.get_input_activation(model.samples(model.rank, model.ranks))
    for l in range(layers):
        weights[l, 1] = await model.all_gather(weights[l], l)
        activations[l + 1] = model.forward(l, activations[l], weights[l, 1])
        del weights[l, 1]
    grad_activations[layers] = model.loss(activations[layers])
    del activations[layers]
    for l in reversed(range(layers)):
        weights[l, 1] = await model.all_gather(weights[l], l)
        grad_weights[l], grad_activations[l] = model.backward(
            l, activations[l], grad_activations[l + 1], weights[l, 1])
        del weights[l, 1], grad_activations[l + 1], activations[l]
        grad_weights[l] = await model.all_reduce(grad_weights[l], l)
    del grad_activations[0]
    for l in range(layers):
        update(model, l)


async def zero(model: Model, stage: int) -> None:
    weights, _, _, grad_activations, grad_weights = model.storage()
    rank, ranks = model.rank, model.ranks
    load(model, rank, ranks)
    for l in range(model.layers):
        weights[l] = await model.all_gather(weights[l], l)
    forward(model, model.samples(rank, ranks))
    for l in reversed(range(model.layers)):
        backward(model, l)
        if stage == 1:
            grad_weights[l] = await model.all_reduce(grad_weights[l], l)
        else:
            grad_weights[l] = await model.reduce_scatter(grad_weights[l], l)
    del grad_activations[0]
    for l in range(model.layers):
        weights[l] = weights[l].shard(rank, ranks)
        update(model, l)


async def zero1(model: Model) -> None:
    await zero(model, 1)


async def zero2(model: Model) -> None:
    await zero(model, 2)


async def fsdp(model: Model) -> None:
    weights, _, activations, grad_activations, grad_weights = model.storage()
    layers, last = model.layers, model.layers - 1
    load(model, model.rank, model.ranks)
    activations[0] = model.get_input_activation(model.samples(model.rank, model.ranks))
    coming = model.start_all_gather(weights[0], 0)
    for l in range(layers):
        weights[l, 1] = await coming
        if l < last:
            coming = model.start_all_gather(weights[l + 1], l + 1)
        activations[l + 1] = model.forward(l, activations[l], weights[l, 1])
        if l < last:
            del weights[l, 1]
    grad_activations[layers] = model.loss(activations[layers])
    del activations[layers]
    reducing: Communication[WeightGrad]
    for l in reversed(range(layers)):
        if l < last:
            weights[l, 1] = await coming
        if l > 0:
            coming = model.start_all_gather(weights[l - 1], l - 1)
        grad_weights[l], grad_activations[l] = model.backward(
            l, activations[l], grad_activations[l + 1], weights[l, 1])
        del weights[l, 1], grad_activations[l + 1], activations[l]
        if l < last:
            grad_weights[l + 1] = await reducing
        reducing = model.start_reduce_scatter(grad_weights[l], l, stream="out")
    del grad_activations[0]
    grad_weights[0] = await reducing
    for l in range(layers):
        update(model, l)


async def tensor_parallel(model: Model) -> None:
    weights, _, activations, grad_activations, grad_weights = model.storage()
    layers = model.layers
    load(model, model.position("tp"), model.size("tp"))
    activations[0] = model.get_input_activation(model.samples(0, 1))
    for l in range(layers):
        activations[l + 1] = model.forward(l, activations[l], weights[l])
        activations[l + 1] = await model.all_gather(activations[l + 1], l + 1, over="tp")
    grad_activations[layers] = model.loss(activations[layers])
    del activations[layers]
    for l in reversed(range(layers)):
        backward(model, l)
        update(model, l)
        if l > 0:
            grad_activations[l] = await model.all_reduce(grad_activations[l], l - 1, over="tp")
    del grad_activations[0]


async def tensor_parallel_fsdp(model: Model) -> None:
    weights, _, activations, grad_activations, grad_weights = model.storage()
    layers, last = model.layers, model.layers - 1
    dp = model.size("dp")
    load(model, model.position("tp") * dp + model.position("dp"), model.size("tp") * dp)
    activations[0] = model.get_input_activation(model.samples(model.position("dp"), dp))
    coming = model.start_all_gather(weights[0], 0, over="dp")
    for l in range(layers):
        weights[l, 1] = await coming
        if l < last:
            coming = model.start_all_gather(weights[l + 1], l + 1, over="dp")
        activations[l + 1] = model.forward(l, activations[l], weights[l, 1])
        if l < last:
            del weights[l, 1]
        activations[l + 1] = await model.all_gather(activations[l + 1], l + 1, over="tp")
    grad_activations[layers] = model.loss(activations[layers])
    del activations[layers]
    reducing: Communication[WeightGrad]
    for l in reversed(range(layers)):
        if l < last:
            weights[l, 1] = await coming
        if l > 0:
            coming = model.start_all_gather(weights[l - 1], l - 1, over="dp")
        grad_weights[l], grad_activations[l] = model.backward(
            l, activations[l], grad_activations[l + 1], weights[l, 1])
        del weights[l, 1], grad_activations[l + 1], activations[l]
        if l < last:
            grad_weights[l + 1] = await reducing
        reducing = model.start_reduce_scatter(grad_weights[l], l, over="dp", stream="out")
        if l > 0:
            grad_activations[l] = await model.all_reduce(grad_activations[l], l - 1, over="tp")
    del grad_activations[0]
    grad_weights[0] = await reducing
    for l in range(layers):
        update(model, l)


# ---------------------------------------------------------------- pipelines


async def forward_layer(model: Model, l: int, m: int) -> None:
    weights, _, activations, _, _ = model.storage()
    activations[l + 1, m] = model.forward(l, activations[l, m], weights[l])


def fresh_gradient(model: Model, l: int) -> int | tuple[int, int]:
    return (l, 1) if l in model.storage()[4] else l


def add_fresh_gradient(model: Model, l: int) -> None:
    gradients = model.storage()[4]
    if (l, 1) in gradients:
        gradients[l] = gradients[l] + gradients[l, 1]
        del gradients[l, 1]


async def backward_layer(model: Model, l: int, m: int) -> None:
    weights, _, activations, grad_activations, grad_weights = model.storage()
    grad_weights[fresh_gradient(model, l)], grad_activations[l, m] = model.backward(
        l, activations[l, m], grad_activations[l + 1, m], weights[l])
    del grad_activations[l + 1, m], activations[l, m]
    add_fresh_gradient(model, l)


def backward_layer_input(model: Model, l: int, m: int) -> None:
    weights, _, activations, grad_activations, _ = model.storage()
    grad_activations[l, m] = model.backward_input(
        l, activations[l, m], grad_activations[l + 1, m], weights[l])


def backward_layer_weight(model: Model, l: int, m: int) -> None:
    weights, _, activations, grad_activations, grad_weights = model.storage()
    grad_weights[fresh_gradient(model, l)] = model.backward_weight(
        l, activations[l, m], grad_activations[l + 1, m], weights[l])
    del grad_activations[l + 1, m], activations[l, m]
    add_fresh_gradient(model, l)


Turn = tuple[str, int, int]  # pass (f, b, or the halves i and w of b), chunk, microbatch
Work = Callable[[Model, int, int], Awaitable[None]]


def turns(model: Model, ahead: int) -> list[Turn]:
    """`ahead` forwards, then a forward and a backward in turn, then the other backwards."""
    chunks, pieces = model.chunks, model.microbatches
    together = pieces if chunks == 1 else model.size("pp")
    groups = [range(m, m + together) for m in range(0, pieces, together)]
    forwards = [("f", c, m) for group in groups for c in range(chunks) for m in group]
    backwards = [("b", c, m) for group in groups for c in reversed(range(chunks)) for m in group]
    ahead = min(ahead, len(forwards))
    order, rest = forwards[:ahead], forwards[ahead:]
    for i, turn in enumerate(backwards):
        order += rest[i : i + 1] + [turn]
    return order


def turns_of_zb_h1(model: Model) -> list[Turn]:
    """Those of 1F1B; the weight half of a backward comes as many backwards later as the stage's
    index."""
    index = model.position("pp")
    order: list[Turn] = []
    late: list[Turn] = []
    for kind, c, m in turns(model, model.size("pp") - 1 - index):
        order.append((kind.replace("b", "i"), c, m))
        if kind == "b":
            late.append(("w", c, m))
        if len(late) > index:
            order.append(late.pop(0))
    return order + late


def turns_of_dualpipev(model: Model) -> list[Turn]:
    index, after = model.position("pp"), model.size("pp") - 1 - model.position("pp")
    order: list[Turn] = []
    late: list[Turn] = []
    forwards, backwards = [0, 0], [0, 0]

    def forward(c: int) -> None:
        if forwards[c] < model.microbatches:
            order.append(("f", c, forwards[c]))
            forwards[c] += 1

    def backward(c: int, kind: str = "b") -> None:
        while forwards[1] <= backwards[1] and forwards[1] < model.microbatches:
            forward(1)
        if backwards[c] < model.microbatches:
            order.append((kind, c, backwards[c]))
            backwards[c] += 1
            if kind == "i":
                late.append(("w", c, backwards[c] - 1))

    def weights() -> None:
        order.extend(late[:1])
        del late[:1]

    for _ in range(2 * after):
        forward(0)
    for _ in range(index + 1):
        forward(0)
        forward(1)
    for _ in range(after):
        backward(1, "i")
        weights()
        forward(1)
    for _ in range(model.microbatches - model.size("pp") - after):
        forward(0)
        backward(1)
        forward(1)
        backward(0)
    for _ in range(after):
        backward(1)
        forward(1)
        backward(0)
    for i in range(2 * index + 2):
        backward(1 - i % 2, "b" if i <= index else "i")
    for _ in range(after):
        weights()
        backward(0, "i")
    return order + late


class Stage:
    """The chunks of layers at this rank's place in a pipeline."""

    def __init__(self, model: Model, forward: Work = forward_layer,
                 backward: Work = backward_layer, copies: bool = False, v: bool = False) -> None:
        self.model = model
        self.v = v  # every second chunk goes through the stages backwards
        self.forward_work, self.backward_work = forward, backward
        self.stages, self.index = model.size("pp"), model.position("pp")
        self.each = model.layers // (self.stages * model.chunks)
        self.copy, self.copies = (model.position("dp"), model.size("dp")) if copies else (0, 1)
        self.sent: dict[tuple[int, int], Communication[None]] = {}
        self.received: dict[Turn, Communication[Any]] = {}
        self.sent_grads: dict[int, tuple[Communication[None], tuple[int, int]]] = {}

    def number(self, chunk: int) -> int:
        return chunk * self.stages + self.stage_of(chunk * self.stages + self.index)

    def stage_of(self, number: int) -> int:
        chunk, place = divmod(number, self.stages)
        return self.stages - 1 - place if self.v and chunk % 2 == 1 else place

    def layers(self) -> list[int]:
        return [l for c in range(self.model.chunks) for l in self.of_chunk(self.number(c))]

    def of_chunk(self, number: int) -> range:
        return range(number * self.each, (number + 1) * self.each)

    def message_before(self, number: int) -> bool:
        return (0 < number < self.stages * self.model.chunks
                and self.stage_of(number) != self.stage_of(number - 1))

    def rank_of(self, number: int) -> int:
        return self.model.peer("pp", self.stage_of(number))

    def tag(self, number: int, direction: str, m: int) -> dict[str, Any]:
        chunk = number // self.stages
        forward = direction == "f"
        up = (self.rank_of(number) > self.rank_of(number - 1)) == forward
        channel = ("forward" if forward else "backward") + ("_up" if up else "_down")
        if self.model.chunks > 1:
            channel += f"_{chunk}"
        passage = chunk * self.model.microbatches + m
        return {"tag": 2 * passage + (0 if forward else 1), "channel": channel}

    def load(self, shard: int = 0, num_shards: int = 1) -> None:
        weights, opt_states, _, _, _ = self.model.storage()
        for l in self.layers():
            weights[l], opt_states[l] = self.model.load_weights(l, shard, num_shards)

    def update(self) -> None:
        for l in self.layers():
            update(self.model, l)

    def start_receive(self, turn: Turn) -> None:
        direction, chunk, m = turn
        number = self.number(chunk)
        if direction == "f" and self.message_before(number):
            self.received[turn] = self.model.start_receive(
                self.rank_of(number - 1), **self.tag(number, "f", m))
        elif direction in "bi" and self.message_before(number + 1):
            self.received[turn] = self.model.start_receive(
                self.rank_of(number + 1), **self.tag(number + 1, "b", m))

    async def take(self, turn: Turn) -> None:
        kind, chunk, m = turn
        if kind == "f":
            await self.forward(chunk, m)
        elif kind == "w":
            for l in reversed(self.of_chunk(self.number(chunk))):
                backward_layer_weight(self.model, l, m)
        else:
            await self.backward(turn)

    async def forward(self, chunk: int, m: int) -> None:
        model, number = self.model, self.number(chunk)
        activations = model.storage()[2]
        layers = self.of_chunk(number)
        if number == 0:
            pieces = model.microbatches
            activations[0, m] = model.get_input_activation(
                model.samples(self.copy * pieces + m, self.copies * pieces))
        elif self.message_before(number):
            activations[layers.start, m] = await self.received.pop(("f", chunk, m))
        for l in layers:
            await self.forward_work(model, l, m)
        if self.message_before(number + 1):
            self.sent[chunk, m] = model.start_send(
                self.rank_of(number + 1), activations[layers.stop, m],
                **self.tag(number + 1, "f", m))

    async def begin_backward(self, turn: Turn) -> None:
        _, chunk, m = turn
        model, number = self.model, self.number(chunk)
        _, _, activations, grad_activations, _ = model.storage()
        end = (self.of_chunk(number).stop, m)
        if end[0] == model.layers:
            grad_activations[end] = model.loss(activations[end])
            del activations[end]
        elif self.message_before(number + 1):
            await self.sent.pop((chunk, m))
            del activations[end]
            grad_activations[end] = await self.received.pop(turn)

    async def backward(self, turn: Turn) -> None:
        kind, chunk, m = turn
        model, number = self.model, self.number(chunk)
        grad_activations = model.storage()[3]
        layers = self.of_chunk(number)
        await self.until_gradient_arrived(chunk)
        await self.begin_backward(turn)
        for l in reversed(layers):
            if kind == "i":
                backward_layer_input(model, l, m)
            else:
                await self.backward_work(model, l, m)
        key = (layers.start, m)
        if number == 0:
            del grad_activations[key]
        elif self.message_before(number):
            message = model.start_send(
                self.rank_of(number - 1), grad_activations[key], **self.tag(number, "b", m))
            self.sent_grads[chunk] = (message, key)

    async def until_gradient_arrived(self, chunk: int) -> None:
        if chunk in self.sent_grads:
            message, key = self.sent_grads.pop(chunk)
            await message
            del self.model.storage()[3][key]

    async def run(self, order: list[Turn]) -> None:
        # Receives are posted one turn ahead; turns without a message do not count.
        posted = 0
        for k, turn in enumerate(order):
            after = next((n for n in range(k + 1, len(order)) if order[n][0] != "w"), len(order))
            for early in order[posted : after + 1]:
                self.start_receive(early)
            posted = max(posted, after + 1)
            await self.take(turn)
        for chunk in range(self.model.chunks):
            await self.until_gradient_arrived(chunk)


async def gpipe(model: Model) -> None:
    stage = Stage(model)
    stage.load()
    await stage.run(turns(model, model.microbatches))
    stage.update()


async def one_f_one_b(model: Model) -> None:
    stage = Stage(model)
    stage.load()
    await stage.run(turns(model, stage.stages - 1 - stage.index))
    stage.update()


async def interleaved(model: Model) -> None:
    stage = Stage(model)
    stage.load()
    ahead = 2 * (stage.stages - 1 - stage.index) + (model.chunks - 1) * stage.stages
    await stage.run(turns(model, ahead))
    stage.update()


async def zb_h1(model: Model) -> None:
    stage = Stage(model)
    stage.load()
    await stage.run(turns_of_zb_h1(model))
    stage.update()


async def dualpipev(model: Model) -> None:
    stage = Stage(model, v=True)
    stage.load()
    await stage.run(turns_of_dualpipev(model))
    stage.update()


async def forward_gathered(model: Model, l: int, m: int) -> None:
    weights, _, activations, _, _ = model.storage()
    weights[l, 1] = await model.all_gather(weights[l], l, over="dp")
    activations[l + 1, m] = model.forward(l, activations[l, m], weights[l, 1])
    del weights[l, 1]


async def backward_gathered(model: Model, l: int, m: int) -> None:
    weights, _, activations, grad_activations, grad_weights = model.storage()
    fresh = fresh_gradient(model, l)
    weights[l, 1] = await model.all_gather(weights[l], l, over="dp")
    grad_weights[fresh], grad_activations[l, m] = model.backward(
        l, activations[l, m], grad_activations[l + 1, m], weights[l, 1])
    del weights[l, 1], grad_activations[l + 1, m], activations[l, m]
    grad_weights[fresh] = await model.reduce_scatter(grad_weights[fresh], l, over="dp")
    add_fresh_gradient(model, l)


async def pipeline_fsdp(model: Model) -> None:
    stage = Stage(model, forward_gathered, backward_gathered, copies=True)
    stage.load(model.position("dp"), model.size("dp"))
    await stage.run(turns(model, stage.stages - 1 - stage.index))
    stage.update()


async def forward_split(model: Model, l: int, m: int) -> None:
    activations = model.storage()[2]
    await forward_layer(model, l, m)
    activations[l + 1, m] = await model.all_gather(activations[l + 1, m], l + 1, over="tp")


async def backward_split(model: Model, l: int, m: int) -> None:
    grad_activations = model.storage()[3]
    await backward_layer(model, l, m)
    if l > 0:
        grad_activations[l, m] = await model.all_reduce(grad_activations[l, m], l - 1, over="tp")


async def hybrid(model: Model) -> None:
    grad_weights = model.storage()[4]
    stage = Stage(model, forward_split, backward_split, copies=True)
    stage.load(model.position("tp"), model.size("tp"))
    await stage.run(turns(model, stage.stages - 1 - stage.index))
    for l in stage.layers():
        grad_weights[l] = await model.all_reduce(grad_weights[l], l, over="dp")
    stage.update()


TWINS = {
    "single": single,
    "gradient_accumulation": gradient_accumulation,
    "ddp": ddp,
    "ddp_overlap": ddp_overlap,
    "weight_sharded": weight_sharded,
    "zero1": zero1,
    "zero2": zero2,
    "fsdp": fsdp,
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "interleaved": interleaved,
    "zb_h1": zb_h1,
    "dualpipev": dualpipev,
    "pipeline_fsdp": pipeline_fsdp,
    "tensor_parallel": tensor_parallel,
    "tensor_parallel_fsdp": tensor_parallel_fsdp,
    "hybrid": hybrid,
}
