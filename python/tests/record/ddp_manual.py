"""Data parallelism by hand: own gradient all-reduce, sample exchange and replica check."""
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

FEATURES, HIDDEN = 64, 128
SHARE = 4  # samples that each pair of ranks swaps in one reshuffle
STEPS = 4
CHECK_EVERY = 2


def build_model(hidden):
    return nn.Sequential(nn.Linear(FEATURES, hidden), nn.GELU(), nn.Linear(hidden, FEATURES)).cuda()


def broadcast_parameters(model):
    for p in model.parameters():
        dist.broadcast(p.data, src=0)


def reshuffle(x, rank, world):
    """Give every rank an equal share of the local samples."""
    in_splits = [SHARE] * world
    out_splits = [SHARE] * world
    out = torch.empty_like(x)
    dist.all_to_all_single(out, x, output_split_sizes=out_splits, input_split_sizes=in_splits)
    return out


def reduce_gradients(model, rank, world):
    works = []
    for p in model.parameters():
        works.append(dist.all_reduce(p.grad, async_op=True))
    for p, work in zip(model.parameters(), works):
        work.wait()
        p.grad.div_(world)


def replica_drift(model, rank):
    """Largest difference of the parameter sums between this rank and its neighbour."""
    buddy = rank ^ 1
    mine = torch.stack([p.detach().double().sum() for p in model.parameters()])
    theirs = torch.empty_like(mine)
    if rank < buddy:
        dist.send(mine, dst=buddy)
        dist.recv(theirs, src=buddy)
    else:
        dist.recv(theirs, src=buddy)
        dist.send(mine, dst=buddy)
    return (mine - theirs).abs().max()


def main():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(rank)
    model = build_model(HIDDEN)
    broadcast_parameters(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    samples = torch.randn(SHARE * world, FEATURES, device="cuda")

    for step in range(STEPS):
        samples = reshuffle(samples, rank, world)
        loss = F.mse_loss(model(samples), samples.sin())
        optimizer.zero_grad()
        loss.backward()
        reduce_gradients(model, rank, world)
        optimizer.step()

        mean_loss = loss.detach().clone()
        dist.all_reduce(mean_loss, op=dist.ReduceOp.AVG)
        if rank == 0:
            print(f"step {step} loss {mean_loss.item():.4f}", flush=True)
        if (step + 1) % CHECK_EVERY == 0:
            drift = replica_drift(model, rank)
            print(f"rank {rank} drift {drift.item():.3e}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
