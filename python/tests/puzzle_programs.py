"""Programs of the LLM Training Puzzles, for the tests."""

import asyncio

from shiplap.puzzles import Dist, Model


def run(*coroutines):
    async def main():
        return await asyncio.wait_for(asyncio.gather(*coroutines), 60)

    return asyncio.run(main())


async def single(model):
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    layers = range(model.num_layers)
    for l in layers:
        weights[l], opt_states[l] = model.load_weights(l)
    activations[0] = model.get_input_activation(range(model.global_batch_size))
    for l in layers:
        activations[l + 1] = model.forward(l, activations[l], weights[l])
    grad_activations[model.num_layers] = model.loss(activations[model.num_layers])
    for l in reversed(layers):
        grad_weights[l], grad_activations[l] = model.backward(
            l, activations[l], grad_activations[l + 1], weights[l])
        del grad_activations[l + 1], activations[l + 1]
    for l in layers:
        weights[l], opt_states[l] = model.update(l, grad_weights[l], weights[l], opt_states[l])
        model.set_final_weight(l, weights[l])
    return model


async def accumulation(model):
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    layers = range(model.num_layers)
    for l in layers:
        weights[l], opt_states[l] = model.load_weights(l)
    for sample in range(model.global_batch_size):
        activations[0] = model.get_input_activation([sample])
        for l in layers:
            activations[l + 1] = model.forward(l, activations[l], weights[l])
        grad_activations["out"] = model.loss(activations.pop(model.num_layers))
        for l in reversed(layers):
            new, grad_activations["out"] = model.backward(
                l, activations[l], grad_activations["out"], weights[l])
            del activations[l]
            grad_weights[l] = grad_weights[l] + new if sample else new
        del grad_activations["out"]
    for l in layers:
        weights[l], opt_states[l] = model.update(l, grad_weights.pop(l), weights[l], opt_states[l])
        model.set_final_weight(l, weights[l])
    return model


def samples_of(model):
    each = model.global_batch_size // model.dist.world_size
    return range(model.rank * each, (model.rank + 1) * each)


async def data_parallel(model):
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    layers = range(model.num_layers)
    for l in layers:
        weights[l], opt_states[l] = model.load_weights(l)
    activations[0] = model.get_input_activation(samples_of(model))
    for l in layers:
        activations[l + 1] = model.forward(l, activations[l], weights[l])
    grad_activations[model.num_layers] = model.loss(activations[model.num_layers])
    del activations[model.num_layers]
    for l in reversed(layers):
        grad_weights[l], grad_activations[l] = model.backward(
            l, activations[l], grad_activations[l + 1], weights[l])
        del grad_activations[l + 1], activations[l]
        grad_weights[l] = await model.all_reduce(grad_weights[l], l)
    del grad_activations[0]
    for l in layers:
        weights[l], opt_states[l] = model.update(l, grad_weights[l], weights[l], opt_states[l])
        del grad_weights[l]
        model.set_final_weight(l, weights[l])
    return model


async def zero(model):
    """Shards weights, gradients and optimizer states."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    layers = range(model.num_layers)
    for l in layers:
        weights[l], opt_states[l] = model.load_weights(l, model.rank, model.dist.world_size)
    activations[0] = model.get_input_activation(samples_of(model))
    for l in layers:
        weights["whole"] = await model.all_gather(weights[l], l)
        activations[l + 1] = model.forward(l, activations[l], weights["whole"])
        del weights["whole"]
    grad_activations["out"] = model.loss(activations[model.num_layers])
    del activations[model.num_layers]
    for l in reversed(layers):
        weights["whole"] = await model.all_gather(weights[l], l)
        grad_weights["mine"], grad_activations["out"] = model.backward(
            l, activations[l], grad_activations["out"], weights["whole"])
        del weights["whole"], activations[l]
        grad_weights[l] = await model.reduce_scatter(grad_weights["mine"], l)
        del grad_weights["mine"]
    del grad_activations["out"]
    for l in layers:
        weights[l], opt_states[l] = model.update(l, grad_weights[l], weights[l], opt_states[l])
        del grad_weights[l]
    for l in layers:
        weights["whole"] = await model.all_gather(weights[l], l)
        model.set_final_weight(l, weights["whole"])
        del weights["whole"]
    return model


async def zero_1(model):
    """Shards the optimizer states: each rank updates its shard, and gathers the weight."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    layers, world = range(model.num_layers), model.dist.world_size
    for l in layers:
        weights[l, "mine"], opt_states[l] = model.load_weights(l, model.rank, world)
        weights[l] = await model.all_gather(weights[l, "mine"], l)
    activations[0] = model.get_input_activation(samples_of(model))
    for l in layers:
        activations[l + 1] = model.forward(l, activations[l], weights[l])
    grad_activations[model.num_layers] = model.loss(activations[model.num_layers])
    for l in reversed(layers):
        grad_weights[l], grad_activations[l] = model.backward(
            l, activations[l], grad_activations[l + 1], weights[l])
        grad_weights[l] = await model.reduce_scatter(grad_weights[l], l)
    for l in layers:
        weights[l, "mine"], opt_states[l] = model.update(
            l, grad_weights[l], weights[l, "mine"], opt_states[l])
        weights[l] = await model.all_gather(weights[l, "mine"], l)
        model.set_final_weight(l, weights[l])
    return model


def stage_of(model, stages, stage):
    each = model.num_layers // stages
    return range(stage * each, (stage + 1) * each)


async def pipeline(model):
    """GPipe: all samples forward, one by one, then all backward."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    world, rank = model.dist.world_size, model.rank
    mine = stage_of(model, world, rank)
    for l in mine:
        weights[l], opt_states[l] = model.load_weights(l)
    for sample in range(model.global_batch_size):
        if rank == 0:
            activations[0, sample] = model.get_input_activation([sample])
        else:
            activations[mine.start, sample] = await model.receive(rank - 1)
        for l in mine:
            activations[l + 1, sample] = model.forward(l, activations[l, sample], weights[l])
        if rank + 1 < world:
            await model.send(rank + 1, activations.pop((mine.stop, sample)))
    for sample in range(model.global_batch_size):
        if rank + 1 == world:
            grad_activations["out"] = model.loss(activations.pop((mine.stop, sample)))
        else:
            grad_activations["out"] = await model.receive(rank + 1)
        for l in reversed(mine):
            grad_weights["new"], grad_activations["out"] = model.backward(
                l, activations[l, sample], grad_activations["out"], weights[l])
            del activations[l, sample]
            grad_weights[l] = (
                grad_weights[l] + grad_weights["new"] if sample else grad_weights["new"])
            del grad_weights["new"]
        if rank > 0:
            await model.send(rank - 1, grad_activations["out"])
        del grad_activations["out"]
    for l in mine:
        weights[l], opt_states[l] = model.update(l, grad_weights[l], weights[l], opt_states[l])
        del grad_weights[l]
        model.set_final_weight(l, weights[l])
    return model


async def exchange(model, peer, value):
    await model.send(peer, value)
    return await model.receive(peer)


async def hybrid(model):
    """Two copies of a pipeline: rank and rank + stages have the same layers."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    stages = model.dist.world_size // 2
    copy_, stage = divmod(model.rank, stages)
    mine, half = stage_of(model, stages, stage), model.global_batch_size // 2
    for l in mine:
        weights[l], opt_states[l] = model.load_weights(l)
    if stage == 0:
        activations[0] = model.get_input_activation(range(copy_ * half, (copy_ + 1) * half))
    else:
        activations[mine.start] = await model.receive(model.rank - 1)
    for l in mine:
        activations[l + 1] = model.forward(l, activations[l], weights[l])
    if stage + 1 < stages:
        await model.send(model.rank + 1, activations[mine.stop])
        grad_activations[mine.stop] = await model.receive(model.rank + 1)
    else:
        grad_activations[mine.stop] = model.loss(activations[mine.stop])
    del activations[mine.stop]
    for l in reversed(mine):
        grad_weights[l], grad_activations[l] = model.backward(
            l, activations[l], grad_activations[l + 1], weights[l])
        del activations[l], grad_activations[l + 1]
    if stage > 0:
        await model.send(model.rank - 1, grad_activations[mine.start])
    del grad_activations[mine.start]
    peer = (model.rank + stages) % model.dist.world_size
    for l in mine:
        grad_weights["theirs"] = await exchange(model, peer, grad_weights[l])
        grad_weights[l] = grad_weights[l] + grad_weights["theirs"]
        del grad_weights["theirs"]
        weights[l], opt_states[l] = model.update(l, grad_weights[l], weights[l], opt_states[l])
        del grad_weights[l]
        model.set_final_weight(l, weights[l])
    return model


async def unstored(model):
    """Stores only what the puzzles ask for, and moves values from key to key."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    layers, world = range(model.num_layers), model.dist.world_size
    loaded = [model.load_weights(l) for l in layers]
    sums = []
    for sample in range(model.rank, model.global_batch_size, world):
        out = model.get_input_activation([sample])
        for l in layers:
            weights["now"] = loaded[l][0]
            activations[l] = out
            out = model.forward(l, out, weights["now"])
        grad_activations["a"] = model.loss(out)
        news = []
        for l in reversed(layers):
            weights["now"] = loaded[l][0]
            new, grad_activations["b"] = model.backward(
                l, activations[l], grad_activations["a"], weights["now"])
            grad_activations["a"] = grad_activations.pop("b")
            activations.pop(l)
            news.insert(0, new)
        sums.append(news)
    weights.clear()
    grad_activations.clear()
    for l in layers:
        first, second, *more = [news[l] for news in sums]
        total = first + second
        for other in more:
            total = total + other
        total = await model.all_reduce(total, l)
        weight, _ = model.update(l, total, *loaded[l])
        model.set_final_weight(l, weight)
    return model


PROGRAMS = [(single, 1), (accumulation, 1), (data_parallel, 2), (data_parallel, 8), (zero, 4),
            (zero_1, 4), (unstored, 2), (pipeline, 2), (pipeline, 4), (hybrid, 4), (hybrid, 8)]
LAYERS, BATCH = 8, 8


def train(program, ranks, layers=LAYERS, batch=BATCH):
    dist = Dist(ranks)
    return run(*[program(Model(rank, dist, layers, batch)) for rank in range(ranks)])


# A program whose groups have a Dist of their own.
async def groups(model, group, member):
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    weights[0], opt_states[0] = model.load_weights(0)
    activations[0] = model.get_input_activation([2 * member, 2 * member + 1])
    activations[1] = model.forward(0, activations[0], weights[0])
    grad_activations[1] = model.loss(activations[1])
    grad_weights[0], grad_activations[0] = model.backward(
        0, activations[0], grad_activations[1], weights[0])
    before = model.time
    grad_weights[0], model.time = await group.all_reduce(member, grad_weights[0], model.time)
    assert model.time >= before
    model.log_event("all_reduce", 0, grad_weights[0].samples, input=grad_weights[0])
    weights[0], opt_states[0] = model.update(0, grad_weights[0], weights[0], opt_states[0])
    model.set_final_weight(0, weights[0])
    return model
