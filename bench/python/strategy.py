"""Benchmark of a strategy in Python. Prints one JSON object.

    PYTHONPATH=build/release/python python bench/python/strategy.py

Data parallel training of 1,024 ranks x 6 layers: written in Python and in C++, alternating, with
and without making the plan. The puzzles' own library takes 3.0 s for the first.
"""

import json
import statistics
import sys
import time

import shiplap

RANKS, LAYERS, TIMES = 1024, 6, 7


async def ddp(model):
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    layers = model.layers
    for l in range(layers):
        weights[l], opt_states[l] = model.load_weights(l)
    activations[0] = model.get_input_activation(model.samples(model.rank, model.ranks))
    for l in range(layers):
        activations[l + 1] = model.forward(l, activations[l], weights[l])
    grad_activations[layers] = model.loss(activations[layers])
    del activations[layers]
    for l in reversed(range(layers)):
        grad_weights[l], grad_activations[l] = model.backward(
            l, activations[l], grad_activations[l + 1], weights[l])
        del grad_activations[l + 1], activations[l]
        grad_weights[l] = await model.all_reduce(grad_weights[l], l)
    del grad_activations[0]
    for l in range(layers):
        weights[l], opt_states[l] = model.update(l, grad_weights[l], weights[l], opt_states[l])
        del grad_weights[l]
        model.set_final_weight(l, weights[l])


def seconds(strategy):
    """Of training, and of that and the plan."""
    begin = time.perf_counter()
    training = shiplap.train(strategy, ranks=RANKS, layers=LAYERS)
    trained = time.perf_counter()
    training.plan  # computed on first use
    return trained - begin, time.perf_counter() - begin


def figures(samples):
    trained, planned = zip(*samples)
    return {"train_s": statistics.median(trained), "train_s_min": min(trained),
            "train_s_max": max(trained), "train_and_plan_s": statistics.median(planned)}


def main():
    found = {"python": [], "c++": []}
    seconds(ddp)  # warm-up
    for _ in range(TIMES):
        found["python"].append(seconds(ddp))
        found["c++"].append(seconds("ddp"))
    same = shiplap.train(ddp, ranks=RANKS, layers=LAYERS).plan == \
        shiplap.train("ddp", ranks=RANKS, layers=LAYERS).plan
    result = {name: figures(samples) for name, samples in found.items()}
    ratio = result["python"]["train_s"] / result["c++"]["train_s"]
    print(json.dumps({"bench": "python/strategy", "version": shiplap.__version__,
                      "python_version": sys.version.split()[0], "ranks": RANKS, "layers": LAYERS,
                      "times": TIMES, **result, "python_over_c++": ratio, "same_plan": same},
                     indent=1))


if __name__ == "__main__":
    main()
