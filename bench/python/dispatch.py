"""Benchmark of dispatch from Python. Prints one JSON object.

    PYTHONPATH=build/release/python python bench/python/dispatch.py [--lengths FILE]

Tables of 512 ranks: the call from Python against the same work repeated in C++, interleaved. A
Dispatcher and an exchange: on two gloo processes, against a plain all_to_all_single of as many
bytes. FILE has lengths of documents; without it they are random. Medians; needs torch and numpy.
"""

import json
import statistics
import sys
import time

import torch
import torch.distributed as dist

import shiplap.torch
from shiplap import _shiplap, dispatch

RANKS = 512
ROUNDS = 21


def median_of(times):
    return round(statistics.median(times), 3)


def timed(act, times=1):
    """Mean milliseconds of one of several consecutive calls."""
    begin = time.perf_counter()
    for _ in range(times):
        act()
    return (time.perf_counter() - begin) * 1e3 / times


def routing_of(lengths):
    items = dispatch.cut_documents(lengths, 4)
    return dispatch.Routing(dispatch.pack_documents(lengths, RANKS),
                            dispatch.assign_randomly(items, RANKS))


def tables(lengths):
    """Each round times both, so that noise affects both alike."""
    routing = routing_of(lengths)
    cpp, python = [], []
    for _ in range(ROUNDS):
        cpp.append(timed(lambda: _shiplap._compute_qkv_dispatch_often(routing, 5)) / 5)
        python.append(timed(lambda: dispatch.compute_qkv_dispatch(routing), times=5))
    made = dispatch.compute_qkv_dispatch(routing)
    indices = [timed(lambda: [dispatch.exchange_indices(table, 7) for table in list(made)[:4]])
               for _ in range(ROUNDS)]
    return {
        "ranks": RANKS,
        "documents": len(lengths),
        "rows": made.q.forward.rows,
        "copies": made.kv.forward.copies,
        "cpp_ms": median_of(cpp),
        "python_ms": median_of(python),
        "python_over_cpp": median_of([p / c for p, c in zip(python, cpp)]),
        "hashes_ms": median_of([timed(made.hashes) for _ in range(ROUNDS)]),
        "index_arrays_of_a_rank_ms": median_of(indices),
        "validate_ms": median_of([timed(lambda: dispatch.validate(made)) for _ in range(5)]),
        "torch_metadata_ms": median_of(
            [timed(lambda: shiplap.torch.Metadata.from_dispatch(made.q.forward))
             for _ in range(5)]),
    }


def together(act):
    """The time of a call after a barrier."""
    dist.barrier()
    return timed(act)


def exchanges(size, tokens, width):
    made = dispatch.create_qkv_dispatch(size, tokens, 8, 4, seed=1)
    dispatcher = shiplap.torch.Dispatcher(made)
    x = torch.zeros(tokens, width)
    moved = dispatcher.q(x)
    way = dispatcher.q._forward
    sent = torch.zeros(way.sent, width)
    out = torch.empty(way.arriving, width)
    rows = torch.from_dlpack(way.indices.send_rows)
    places = torch.from_dlpack(way.indices.recv_rows)

    def plain():
        dist.all_to_all_single(out, sent, way.recv_counts, way.send_counts)

    def by_hand():
        """The straightforward implementation with index tensors."""
        arrived = x.new_empty((way.arriving, width))
        dist.all_to_all_single(arrived, x.index_select(0, rows), way.recv_counts, way.send_counts)
        return torch.empty_like(moved).index_copy_(0, places, arrived)

    found = {"ranks": size, "tokens": tokens, "row_bytes": 4 * width}
    acts = [("all_to_all_ms", plain), ("by_hand_ms", by_hand),
            ("exchange_ms", lambda: dispatcher.q(x)),
            ("agreeing_ms", lambda: dispatcher._group.check_rows("q forward", (x,))),
            ("dispatch_and_combine_ms",
             lambda: dispatcher.combine(dispatcher.dispatch(x, x, x)[0])),
            ("make_ms", lambda: shiplap.torch.Dispatcher(made)),
            ("make_without_proof_ms",
             lambda: shiplap.torch.Dispatcher(made, validates=False))]
    times = {name: [] for name, _ in acts}
    for _ in range(5 * ROUNDS):  # in turns
        for name, act in acts:
            times[name].append(together(act))
    found.update({name: median_of(times[name]) for name in times})
    found["exchange_over_by_hand"] = median_of(
        [a / b for a, b in zip(times["exchange_ms"], times["by_hand_ms"])])
    return found


def work(rank, size, port, queue):
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    found = [exchanges(size, 256, 64), exchanges(size, 4096, 256)]
    dist.barrier()
    if rank == 0:
        queue.put(found)
    dist.destroy_process_group()


def on_processes(size):
    context = torch.multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    master = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    processes = [context.Process(target=work, args=(rank, size, master.port, queue))
                 for rank in range(size)]
    for process in processes:
        process.start()
    found = queue.get()
    for process in processes:
        process.join()
    return found


def main():
    lengths = dispatch.gen_seq_lens(1, 4000, RANKS * 4096)[0].tolist()
    if "--lengths" in sys.argv:
        with open(sys.argv[sys.argv.index("--lengths") + 1], encoding="ascii") as file:
            lengths = [int(word) for word in file.read().split()]
    moved = on_processes(2)  # before torch has threads here
    print(json.dumps({"bench": "python/dispatch", "version": shiplap.__version__,
                      "tables": tables(lengths), "exchanges": moved}, indent=1))


if __name__ == "__main__":
    main()
