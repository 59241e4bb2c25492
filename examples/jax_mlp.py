"""A tensor-parallel MLP, trained in several processes: with overlap and without, the same losses.

    python examples/jax_mlp.py                     starts 4 processes on this machine
    python examples/jax_mlp.py --trace step.pftrace     and writes one step for ui.perfetto.dev

Tokens are cut over the ranks by rows, as sequence parallelism has them. The first layer gathers
them while it multiplies those that have come; the second sums and scatters its rows while it
multiplies others. Their gradients do it the other way round.
"""

import argparse
import functools
import multiprocessing
import socket

RANKS, TOKENS, WIDTH, HIDDEN, STEPS = 4, 64, 32, 128, 5


def train(mesh, group, method, before_last=lambda: None):
    """The loss of each step; `method` None: without shiplap, on one device."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec as P

    import shiplap.jax

    keys = jax.random.split(jax.random.key(0), 4)
    x, goal = (jax.random.normal(key, (TOKENS, WIDTH)) for key in keys[:2])
    weights = (jax.random.normal(keys[2], (WIDTH, HIDDEN)) * WIDTH**-0.5, jnp.zeros(HIDDEN),
               jax.random.normal(keys[3], (HIDDEN, WIDTH)) * HIDDEN**-0.5)
    rows, columns = P("tp"), P(None, "tp")
    cut = (columns, P("tp"), rows)  # of the weights
    if method is None:
        def layers(weights, x):
            up, bias, down = weights
            return jax.nn.gelu(x @ up + bias) @ down
    else:
        dense = functools.partial(shiplap.jax.collective_dense, comm_overlap_method=method,
                                  group=group)

        def on_a_rank(weights, x):
            up, bias, down = weights
            hidden = dense(x, up, bias, comm_type="all_gather", activation="gelu")
            return dense(hidden, down, comm_type="reduce_scatter")

        layers = jax.shard_map(on_a_rank, mesh=mesh, in_specs=(cut, rows), out_specs=rows)
        put = lambda a, spec: jax.make_array_from_callback(
            a.shape, NamedSharding(mesh, spec), lambda index: a[index])
        x, goal = put(x, rows), put(goal, rows)
        weights = tuple(put(a, spec) for a, spec in zip(weights, cut))

    @jax.jit
    def step(weights, x, goal):
        loss, slopes = jax.value_and_grad(
            lambda weights: jnp.mean((x + layers(weights, x) - goal) ** 2))(weights)
        return loss, jax.tree.map(lambda w, slope: w - 2.0 * slope, weights, slopes)

    losses = []
    for k in range(STEPS):
        if k == STEPS - 1:
            before_last()
        loss, weights = step(weights, x, goal)
        losses.append(float(loss))
    return losses


def work(rank, coordinator, trace):
    import jax
    import numpy as np

    jax.distributed.initialize(coordinator, RANKS, rank)
    import shiplap.jax

    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("tp",))
    with shiplap.jax.initialize(mesh, "tp", trace=trace is not None) as group:
        plain = train(mesh, group, "none")
        hidden = train(mesh, group, "ring_exchange", before_last=group.take_trace)
        taken = group.take_trace()
    alone = train(mesh, None, None)
    if rank == 0:
        print("step  overlap on  overlap off  one device")
        for k, losses in enumerate(zip(hidden, plain, alone)):
            print("{:4}  {:10.5f}  {:11.5f}  {:10.5f}".format(k, *losses))
        assert np.allclose(hidden, plain, rtol=1e-5) and np.allclose(hidden, alone, rtol=1e-5)
        if trace is not None:
            taken.save(trace)
            print(f"{trace}: the last step with overlap, for https://ui.perfetto.dev")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--trace", help="write one step there, for ui.perfetto.dev")
    arguments = parser.parse_args()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        coordinator = f"127.0.0.1:{free.getsockname()[1]}"
    start = multiprocessing.get_context("spawn")
    ranks = [start.Process(target=work, args=(rank, coordinator, arguments.trace))
             for rank in range(RANKS)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    raise SystemExit(max(abs(rank.exitcode) for rank in ranks))


if __name__ == "__main__":
    main()
