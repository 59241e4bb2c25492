"""Recommendation model: embedding rows sharded over all ranks, dense part with DDP."""
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

ROWS, DIM = 128, 64  # embedding rows per rank
BATCH, STEPS = 64, 4


class AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, out_splits, in_splits, group):
        ctx.args = (in_splits, out_splits, group)
        out = x.new_empty(sum(out_splits), x.size(1))
        dist.all_to_all_single(out, x.contiguous(), out_splits, in_splits, group=group)
        return out

    @staticmethod
    def backward(ctx, grad):
        return AllToAll.apply(grad, *ctx.args), None, None, None


def next_ids(world):
    return torch.randint(0, ROWS * world, (BATCH,), device="cuda")


def start_counts(ids, world, group):
    """Start to tell every rank how many of its rows this rank wants."""
    send_counts = torch.bincount(ids // ROWS, minlength=world)
    recv_counts = torch.empty_like(send_counts)
    work = dist.all_to_all_single(recv_counts, send_counts, group=group, async_op=True)
    return send_counts, recv_counts, work


def lookup(table, ids, in_splits, out_splits, rank, group):
    order = ids.argsort(stable=True)  # sorted ids are grouped by their owner
    wanted = ids.new_empty(sum(out_splits))
    dist.all_to_all_single(wanted, ids[order], out_splits, in_splits, group=group)
    rows = table(wanted - rank * ROWS)
    return AllToAll.apply(rows, in_splits, out_splits, group)[order.argsort()]


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    emb_group = dist.new_group(list(range(world)))  # own communicator for the embeddings

    torch.manual_seed(rank)
    table = nn.Embedding(ROWS, DIM).cuda()
    dense = nn.Sequential(nn.Linear(DIM, DIM), nn.ReLU(), nn.Linear(DIM, 1)).cuda()
    dense = DDP(dense, device_ids=[local_rank])
    optimizer = torch.optim.Adagrad([*table.parameters(), *dense.parameters()], lr=0.02)

    ids = next_ids(world)
    send_counts, recv_counts, counts_work = start_counts(ids, world, emb_group)
    for step in range(STEPS):
        counts_work.wait()
        in_splits, out_splits = send_counts.tolist(), recv_counts.tolist()
        vectors = lookup(table, ids, in_splits, out_splits, rank, emb_group)
        loss = F.binary_cross_entropy_with_logits(dense(vectors).squeeze(1), (ids % 2).float())
        loss.backward()
        table.weight.grad.div_(world)
        optimizer.step()
        optimizer.zero_grad()

        mean_loss = loss.detach().clone()
        ids = next_ids(world)
        send_counts, recv_counts, counts_work = start_counts(ids, world, emb_group)
        loss_work = dist.all_reduce(mean_loss, op=dist.ReduceOp.AVG, async_op=True)
        loss_work.wait()
        if rank == 0:
            print(f"step {step} loss {mean_loss.item():.4f}", flush=True)
    counts_work.wait()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
