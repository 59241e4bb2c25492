"""A training batch: documents that span ranks, empty placeholders, a CP degree per document, a
planner of our own, lengths that change from step to step, and bugs that are found before they cost
anything.

All ranks are in this process. Needs numpy. examples/dispatch/advanced_scenarios.cc is the same with
ranks that really send.
"""

import numpy as np

from shiplap import dispatch
from shiplap.dispatch import Layout, Metadata, MetadataPair, QkvDispatch, Routing, Segment

RANKS = 4
BATCH = [37, 0, 5, 120, 3, 0, 64, 11]


# ---- a planner


def degrees(lengths: list[int], most: int) -> list[int]:
    """One item for every 16 tokens of a document, at most `most`."""
    return [min(max((length + 15) // 16, 1), most) for length in lengths]


def pairs_of(item: Segment) -> int:
    """Pairs of a query and a key that it sees."""
    return item.length * item.begin + item.length * (item.length + 1) // 2


def assign_by_work(items: list[Segment]) -> Layout:
    """Greedy (LPT): the largest item first, each to the least loaded rank."""
    by_rank: list[list[Segment]] = [[] for _ in range(RANKS)]
    work = [0] * RANKS
    for item in sorted(items, key=pairs_of, reverse=True):
        least = work.index(min(work))
        by_rank[least].append(item)
        work[least] += pairs_of(item)
    return Layout(by_rank)


def route(lengths: list[int], most: int) -> Routing:
    return Routing(dispatch.pack_documents(lengths, RANKS),
                   assign_by_work(dispatch.cut_documents(lengths, degrees(lengths, most))))


def work_of(routing: Routing) -> list[int]:
    return [sum(map(pairs_of, routing.attention.of(rank))) for rank in range(RANKS)]


# ---- scenario 1: a batch


def show_layout(name: str, layout: Layout) -> None:
    print(f"  {name}")
    for rank in range(RANKS):
        print(f"    rank {rank}:", *(f"{s.document}[{s.begin},{s.end})" for s in layout.of(rank)))


def show_batch() -> None:
    print(f"scenario 1: eight documents on {RANKS} ranks, two of them empty")
    routing = route(BATCH, 4)
    show_layout("at home, document[begin,end)", routing.home)
    show_layout("at attention", routing.attention)
    made = dispatch.compute_qkv_dispatch(routing)
    print(f"  findings: {len(dispatch.validate(made))}")
    for rank, work in enumerate(work_of(routing)):
        print(f"  rank {rank}: {made.attention.cu_seqlens_q(rank)[-1]} queries, "
              f"{made.attention.cu_seqlens_kv(rank)[-1]} keys, {work} pairs")


# ---- scenario 2: traffic


def show_bytes(name: str, table: Metadata, row_bytes: int) -> None:
    matrix = np.zeros((RANKS, RANKS), dtype=int)
    for flow in dispatch.flows(table):
        matrix[flow.from_, flow.to] = flow.tokens * row_bytes
    print(f"  {name}, bytes from a rank (row) to a rank (column)")
    for row in matrix:
        print("   ", *(f"{value:7d}" for value in row))


def show_traffic() -> None:
    print("scenario 2: bytes of the same batch, rows of 512 bytes of Q and 256 of K and V")
    made = dispatch.compute_qkv_dispatch(route(BATCH, 4))
    show_bytes("q_forward", made.q.forward, 512)
    show_bytes("kv_forward", made.kv.forward, 256)
    print("  the CP degree, and what it costs")
    print("    at most  items  keys held  keys sent  pairs on the busiest rank")
    for most in (1, 2, 4, 8):
        routing = route(BATCH, most)
        flows = dispatch.flows(dispatch.compute_metadata_kv(routing).forward)
        kv = dispatch.summarize(flows, RANKS)
        print(f"    {most:7d}  {len(routing.attention.all):5d}  {kv.tokens:9d}  "
              f"{kv.between_ranks:9d}  {max(work_of(routing)):25d}")


# ---- scenario 3: other lengths in every step


def show_steps() -> None:
    print("scenario 3: other lengths in every step")
    for step in range(4):
        lengths = dispatch.gen_seq_lens(1, 6, 200 + 60 * (step % 3), seed=100 + step)[0].tolist()
        made = dispatch.compute_qkv_dispatch(route(lengths, 4))
        there, home = made.kv.reverse, made.kv.forward
        # Small integers, so that every sum is exact in any order.
        gradients = [(7 * rank + 3 * np.arange(there.num_send_tokens(rank))) % 17 - 8.0
                     for rank in range(RANKS)]
        sums = [np.zeros(home.num_send_tokens(rank)) for rank in range(RANKS)]
        dispatch.sum_simulate(gradients, sums, there)
        # The keys of a token are its copies: read them there, and add.
        wrong = 0
        for rank, rows in enumerate(home.to_rows()):
            expected = [sum(gradients[to][offset + token] for to, offset in copies)
                        for length, copies in rows for token in range(length)]
            wrong += int((sums[rank] != expected).sum())
        print(f"  step {step}: {home.num_send_tokens(0)} tokens at home, "
              f"{there.num_send_tokens(0)} keys, {wrong} wrong sums")


# ---- scenario 4: planted bugs


def show_findings(made: QkvDispatch, max_per_code: int = 4) -> None:
    print("\n\n".join(map(str, dispatch.validate(made, max_per_code=max_per_code))))


def delivered(table: Metadata, back: Metadata) -> list[np.ndarray]:
    """Tokens that encode their origin: the rank, from 1 (0 is none), and the token."""
    home = [np.stack([np.full(n, rank + 1), np.arange(n)], axis=1)
            for rank in range(RANKS) for n in [table.num_send_tokens(rank)]]
    there = [np.zeros((back.num_send_tokens(rank), 2), dtype=home[0].dtype)
             for rank in range(RANKS)]
    dispatch.orchestrate_simulate(home, there, table)
    return there


def show_first_difference(right: QkvDispatch, wrong: QkvDispatch) -> None:
    expected = delivered(right.q.forward, right.q.reverse)
    found = delivered(wrong.q.forward, right.q.reverse)
    for rank in range(RANKS):
        different = np.flatnonzero((expected[rank] != found[rank]).any(axis=1))
        if len(different) == 0:
            continue
        token = different[0]
        has, should = found[rank][token], expected[rank][token]
        print(f"  the referee: the first wrong token is {token} of rank {rank}, which holds token "
              f"{has[1]} of rank {has[0] - 1}, not token {should[1]} of rank {should[0] - 1}")
        return


def show_bugs() -> None:
    print("scenario 4: an offset that is one too low")
    right = dispatch.compute_qkv_dispatch(route(BATCH, 4))
    rows = right.q.forward.to_rows()
    length, [(to, offset)] = rows[1][0]
    rows[1][0] = (length, [(to, offset - 1)])
    wrong = QkvDispatch(MetadataPair(Metadata.from_rows(rows), right.q.reverse), right.kv,
                        right.attention)
    show_findings(wrong)
    show_first_difference(right, wrong)
    print("gradients that are placed, not summed")
    placed = Metadata.from_rows(right.kv.reverse.to_rows(), arrival="placed")
    show_findings(QkvDispatch(right.q, MetadataPair(right.kv.forward, placed), right.attention),
                  max_per_code=1)


# ---- scenario 5: a rank with mismatched metadata


def show_disagreement() -> None:
    """What a Dispatcher compares before it sends anything."""
    print("scenario 5: rank 2 uses another CP degree")
    usual = dispatch.compute_qkv_dispatch(route(BATCH, 4)).hashes()
    odd = dispatch.compute_qkv_dispatch(route(BATCH, 3)).hashes()
    print("  it differs in", ", ".join(field for field in usual if usual[field] != odd[field]))


show_batch()
show_traffic()
show_steps()
show_bugs()
show_disagreement()
