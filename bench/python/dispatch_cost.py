"""What a Dispatcher adds to the communication that it needs. Prints one JSON object.

    PYTHONPATH=build/release/python python bench/python/dispatch_cost.py [--ranks 4] [--rounds 25]

`dispatch(q, k, v)` on gloo processes of one machine, over the two all_to_all_single of as many
bytes, with buffers that are there already, plus one copy that packs them. They alternate; the time
of a round is that of the slowest rank. Medians of the times, and quartiles of the ratios of the
rounds. Processor time (`cpu_`, of all ranks) is less disturbed by other programs.
"""

import argparse
import json
import os
import statistics
import time

import torch
import torch.distributed as dist

import shiplap.torch
from shiplap import dispatch

SIZES = [256, 2048, 8192]  # tokens of each rank
SEGMENTS = 32
Q, KV = 256, 128  # floats of a query, of a key, of a value


def timed(act):
    """Milliseconds of the slowest rank after a barrier, and processor time of all ranks."""
    dist.barrier()
    begin, cpu = time.perf_counter(), time.process_time()
    kept = act()
    took = torch.tensor([time.perf_counter() - begin])
    used = torch.tensor([time.process_time() - cpu])
    del kept
    dist.all_reduce(took, dist.ReduceOp.MAX)
    dist.all_reduce(used)
    return 1e3 * took.item(), 1e3 * used.item()


def plain_of(exchange, width):
    """The all_to_all of a direction, and the copy that packs it."""
    way = exchange._forward
    rows = torch.zeros(way.sent, width)
    sent, out = torch.zeros_like(rows), torch.zeros(way.arriving, width)

    def move():
        sent.copy_(rows)
        dist.all_to_all_single(out, sent, way.recv_counts, way.send_counts)

    return move, sent.nbytes


def measure(size, tokens, rounds):
    made = dispatch.create_qkv_dispatch(size, tokens, SEGMENTS, 4, seed=1)
    dispatcher = shiplap.torch.Dispatcher(made)
    q, k, v = (torch.randn(dispatcher.q.tokens, width) for width in (Q, KV, KV))
    (plain_q, bytes_q), (plain_kv, bytes_kv) = (
        plain_of(dispatcher.q, Q), plain_of(dispatcher.kv, 2 * KV))

    def plain():
        plain_q()
        plain_kv()

    acts = {"plain": plain, "dispatch": lambda: dispatcher.dispatch(q, k, v)}
    for act in acts.values():
        timed(act)
    times = {name: [] for name in acts}
    for _ in range(rounds):
        for name, act in acts.items():
            times[name].append(timed(act))
    found = {"tokens": tokens, "sent_mib": round((bytes_q + bytes_kv) / 2**20, 2)}
    for index, what in enumerate(("", "cpu_")):
        plain_times, ours = ([pair[index] for pair in times[name]] for name in acts)
        quartiles = statistics.quantiles([a / b for a, b in zip(ours, plain_times)], n=4)
        found |= {
            f"{what}plain_ms": round(statistics.median(plain_times), 2),
            f"{what}dispatch_ms": round(statistics.median(ours), 2),
            f"{what}dispatch_over_plain": round(quartiles[1], 3),
            f"{what}quartiles": [round(quartiles[0], 3), round(quartiles[2], 3)]}
    return found


def work(rank, size, port, rounds, queue):
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    found = [measure(size, tokens, rounds) for tokens in SIZES]
    dist.barrier()
    if rank == 0:
        queue.put(found)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=25)
    given = parser.parse_args()
    context = torch.multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    master = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    processes = [context.Process(target=work,
                                 args=(rank, given.ranks, master.port, given.rounds, queue))
                 for rank in range(given.ranks)]
    for process in processes:
        process.start()
    found = queue.get()
    for process in processes:
        process.join()
    print(json.dumps({"bench": "python/dispatch_cost", "version": shiplap.__version__,
                      "ranks": given.ranks, "rounds": given.rounds,
                      "load": os.getloadavg()[0], "exchanges": found}, indent=1))


if __name__ == "__main__":
    main()
