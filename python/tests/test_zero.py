"""ZeRO stages 1 and 2 in the ways in which a reader of the paper writes them."""

import pytest

import shiplap

RANKS, LAYERS, BATCH = 4, 3, 8


async def gradients(model, weights, activations, grad_activations, grad_weights, finish):
    """Forward and backward on this rank's samples; `finish` a layer's gradient right away."""
    layers = range(model.layers)
    activations[0] = model.get_input_activation(model.samples(model.rank, model.ranks))
    for l in layers:
        activations[l + 1] = model.forward(l, activations[l], weights[l])
    grad_activations[model.layers] = model.loss(activations[model.layers])
    del activations[model.layers]
    for l in reversed(layers):
        grad_weights[l], grad_activations[l] = model.backward(
            l, activations[l], grad_activations[l + 1], weights[l])
        del activations[l], grad_activations[l + 1]
        grad_weights[l] = await finish(grad_weights[l], l)
    del grad_activations[0]


async def whole_and_shard(model, finish):
    """A whole weight, and beside it the shard that this rank updates."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    for l in range(model.layers):
        weights[l], _ = model.load_weights(l)
        weights[l, 1], opt_states[l] = model.load_weights(l, model.rank, model.ranks)
    await gradients(model, weights, activations, grad_activations, grad_weights, finish)
    for l in range(model.layers):
        weights[l, 1], opt_states[l] = model.update(l, grad_weights[l], weights[l, 1],
                                                    opt_states[l])
        del grad_weights[l]
        weights[l] = await model.all_gather(weights[l, 1], l)
        model.set_final_weight(l, weights[l])


async def sharded_here(model, finish):
    """A whole weight, of which this rank shards what it updates."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    for l in range(model.layers):
        weights[l], _ = model.load_weights(l)
        _, opt_states[l] = model.load_weights(l, model.rank, model.ranks)
    await gradients(model, weights, activations, grad_activations, grad_weights, finish)
    for l in range(model.layers):
        weights[l, 1] = weights[l].shard(model.rank, model.ranks)
        weights[l, 1], opt_states[l] = model.update(l, grad_weights[l], weights[l, 1],
                                                    opt_states[l])
        del grad_weights[l]
        weights[l] = await model.all_gather(weights[l, 1], l)
        del weights[l, 1]
        model.set_final_weight(l, weights[l])


async def gathered(model, finish):
    """A shard, which is gathered for the step."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    for l in range(model.layers):
        weights[l], opt_states[l] = model.load_weights(l, model.rank, model.ranks)
    for l in range(model.layers):
        weights[l] = await model.all_gather(weights[l], l)
    await gradients(model, weights, activations, grad_activations, grad_weights, finish)
    for l in range(model.layers):
        weights[l] = weights[l].shard(model.rank, model.ranks)
        weights[l], opt_states[l] = model.update(l, grad_weights[l], weights[l], opt_states[l])
        del grad_weights[l]
        model.set_final_weight(l, weights[l])


def stage(way, reduction):
    async def strategy(model):
        await way(model, getattr(model, reduction))

    strategy.__name__ = f"{way.__name__} by {reduction}"
    return strategy


WAYS = [stage(way, reduction) for way in (whole_and_shard, sharded_here, gathered)
        for reduction in ("all_reduce", "reduce_scatter")]


@pytest.mark.parametrize("strategy", WAYS, ids=lambda s: s.__name__)
def test_it_trains_is_sound_and_takes_what_its_plan_takes(strategy):
    training = shiplap.train(strategy, ranks=RANKS, layers=LAYERS, batch=BATCH)
    report = shiplap.check(training)
    assert report.sound and not report.findings, str(report)
    simulation = shiplap.simulate(training)
    assert simulation.total_s == pytest.approx(training.total_s, rel=1e-12)
    assert simulation.peak_bytes == training.peak_bytes


@pytest.mark.parametrize("strategy", WAYS, ids=lambda s: s.__name__)
def test_it_learns_what_one_rank_learns(strategy):
    sizes = {"layers": LAYERS, "batch": BATCH, "for_run": True}
    alone = shiplap.run(shiplap.train("single", **sizes), steps=4)
    found = shiplap.run(shiplap.train(strategy, ranks=RANKS, **sizes), steps=4)
    assert found.good and found.loss == pytest.approx(alone.loss, rel=1e-5)


def test_a_strategy_of_ones_own_reads_its_stage():
    async def strategy(model):
        assert model.zero_stage == 2
        await whole_and_shard(model, model.reduce_scatter)

    training = shiplap.train(strategy, ranks=2, layers=1, batch=2, zero_stage=2)
    assert shiplap.check(training).sound and training.to_dict()["zero_stage"] == 2
    with pytest.raises(shiplap.InputError, match="expected 0 to 3"):
        shiplap.train(strategy, ranks=2, layers=1, batch=2, zero_stage=4)


def test_a_whole_weight_beside_its_shard_costs_the_shard():
    """The gathered weight needs no memory beside the old one: it is gathered into its place."""
    sizes = {"ranks": RANKS, "layers": LAYERS, "batch": BATCH}
    library = shiplap.train("zero1", **sizes)
    own = shiplap.train(WAYS[0], **sizes)
    weight = shiplap.strategy.ModelShape().weight
    assert 0 <= own.peak_bytes - library.peak_bytes <= LAYERS * weight // RANKS


def refused(strategy):
    with pytest.raises(shiplap.InputError) as caught:
        shiplap.check(shiplap.train(strategy, ranks=RANKS, layers=LAYERS, batch=BATCH))
    return caught.value.diagnostics[0]


def test_a_shard_that_is_not_stored_is_refused_with_what_to_do():
    async def strategy(model):
        weights, opt_states, activations, grad_activations, grad_weights = model.storage()
        weights[0], _ = model.load_weights(0)
        _, opt_states[0] = model.load_weights(0, model.rank, model.ranks)
        await gradients(model, weights, activations, grad_activations, grad_weights,
                        model.all_reduce)
        model.update(0, grad_weights[0], weights[0].shard(model.rank, model.ranks), opt_states[0])

    with pytest.raises(shiplap.InputError) as caught:
        shiplap.train(strategy, ranks=RANKS, layers=1, batch=BATCH)
    (found,) = caught.value.diagnostics
    assert found.code == "D613" and "a shard is a copy" in found.why
    assert "[layer, 1]" in found.help


def test_a_weight_that_is_used_while_it_is_gathered_is_refused():
    """The new weight cannot be written to the memory of the old one, which is then dropped."""
    async def strategy(model):
        weights, opt_states, activations, grad_activations, grad_weights = model.storage()
        for l in range(model.layers):
            weights[l], _ = model.load_weights(l)
            weights[l, 1], opt_states[l] = model.load_weights(l, model.rank, model.ranks)
        await gradients(model, weights, activations, grad_activations, grad_weights,
                        model.all_reduce)
        for l in range(model.layers):
            weights[l, 1], opt_states[l] = model.update(l, grad_weights[l], weights[l, 1],
                                                        opt_states[l])
            coming = model.start_all_gather(weights[l, 1], l)
            weights[9] = weights[l]
            del weights[9]
            weights[l] = await coming
            model.set_final_weight(l, weights[l])

    found = refused(strategy)
    assert found.code == "D625" and "it is dropped" in found.what
    assert "all_gather" in found.help and "in its place" in found.help


def test_a_started_gather_is_accepted_if_the_old_weight_is_not_used():
    async def strategy(model):
        weights, opt_states, activations, grad_activations, grad_weights = model.storage()
        for l in range(model.layers):
            weights[l], _ = model.load_weights(l)
            weights[l, 1], opt_states[l] = model.load_weights(l, model.rank, model.ranks)
        await gradients(model, weights, activations, grad_activations, grad_weights,
                        model.all_reduce)
        coming = {}
        for l in range(model.layers):
            weights[l, 1], opt_states[l] = model.update(l, grad_weights[l], weights[l, 1],
                                                        opt_states[l])
            coming[l] = model.start_all_gather(weights[l, 1], l)
        for l in range(model.layers):
            weights[l] = await coming[l]
            model.set_final_weight(l, weights[l])

    training = shiplap.train(strategy, ranks=RANKS, layers=LAYERS, batch=BATCH)
    report = shiplap.check(training)
    assert report.sound, str(report)


def test_a_state_that_is_loaded_whole_and_sharded_is_refused_with_what_to_load():
    async def strategy(model):
        weights, opt_states, activations, grad_activations, grad_weights = model.storage()
        for l in range(model.layers):
            weights[l], opt_states[l] = model.load_weights(l)
            opt_states[l] = opt_states[l].shard(model.rank, model.ranks)
        await gradients(model, weights, activations, grad_activations, grad_weights,
                        model.all_reduce)
        for l in range(model.layers):
            weights[l, 1] = weights[l].shard(model.rank, model.ranks)
            weights[l, 1], opt_states[l] = model.update(l, grad_weights[l], weights[l, 1],
                                                        opt_states[l])
            weights[l] = await model.all_gather(weights[l, 1], l)
            del weights[l, 1]
            model.set_final_weight(l, weights[l])

    found = refused(strategy)
    assert found.code == "D625" and "it ends with other shards" in found.what
    assert "load_weights(layer, shard, ranks)" in found.help
