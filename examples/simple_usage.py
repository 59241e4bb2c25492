"""Four ranks exchange queries, keys and values by a dispatch, and check the results.

All ranks are in this process: the referee copies what would be sent. Needs numpy. The output is
that of examples/dispatch/simple_usage.cc, which really sends.
"""

import numpy as np

from shiplap import dispatch

RANKS = 4


def numbered(rank: int, count: int) -> np.ndarray:
    """Token t of rank r is called 100 r + t."""
    return 100.0 * rank + np.arange(count)


def show(name: str, tokens: np.ndarray) -> None:
    print(f"  {name}:", *(f"{token:.0f}" for token in tokens))


def show_rows(name: str, table: dispatch.Metadata, rank: int) -> None:
    print(f"  {name}, rows of rank {rank}:")
    for index in range(table.num_seqs(rank)):
        row = table.row(rank, index)
        places = " ".join(f"rank {copy.rank} at {copy.offset};" for copy in row.copies)
        print(f"    tokens {row.begin} to {row.begin + row.length} go to {places}")


def room_for(table: dispatch.Metadata) -> list[np.ndarray]:
    """A buffer for each rank, as long as the one that this table sends from."""
    return [np.zeros(table.num_send_tokens(rank)) for rank in range(RANKS)]


# Every rank makes the same dispatch from the same seed. Nothing is sent for that.
made = dispatch.create_qkv_dispatch(RANKS, total_seq_len=16, num_seqs=2, max_cp_degree=3, seed=7)
print(f"step 1: a dispatch for {made.world_size} ranks")
show_rows("q_forward", made.q.forward, 0)
show_rows("kv_forward", made.kv.forward, 0)
print(f"  rank 0 attends to {made.attention.num_local_seqs(0)} items, "
      f"{made.attention.cu_seqlens_q(0)[-1]} queries, {made.attention.cu_seqlens_kv(0)[-1]} keys")

print("step 2: validate")
print(f"  findings: {len(dispatch.validate(made))}")

home = [numbered(rank, made.q.forward.num_send_tokens(rank)) for rank in range(RANKS)]
there = dispatch.orchestrate_simulate(home, room_for(made.q.reverse), made.q.forward)
back = dispatch.orchestrate_simulate(there, room_for(made.q.forward), made.q.reverse)
print("step 3: queries, there and back")
show("rank 0 sent", home[0])
show("rank 0 attends to", there[0])
show("rank 0 got back", back[0])
print("  wrong on any rank:", sum((a != b).sum() for a, b in zip(home, back)))

there = dispatch.orchestrate_simulate(home, room_for(made.kv.reverse), made.kv.forward)
# Every copy has a gradient of 1, so the sum at home counts the copies.
ones = [np.ones_like(tokens) for tokens in there]
sums = dispatch.sum_simulate(ones, room_for(made.kv.forward), made.kv.reverse)
expected = [np.concatenate([np.full(length, len(copies)) for length, copies in rows])
            for rows in made.kv.forward.to_rows()]
print("step 4: keys there, gradients back")
show("rank 0 sent", home[0])
show("rank 0 holds", there[0])
show("gradients summed on rank 0", sums[0])
print("  wrong on any rank:", sum((a != b).sum() for a, b in zip(sums, expected)))
