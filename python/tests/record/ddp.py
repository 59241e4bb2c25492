"""Data-parallel classifier: DDP, gradient accumulation, loss logging on rank 0."""
import contextlib
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

BATCH = 16
ACCUM = 2
STEPS = 4
FEATURES, HIDDEN, CLASSES = 64, 256, 10


def make_loader(rank, world):
    generator = torch.Generator().manual_seed(1234)
    samples = world * BATCH * ACCUM * STEPS
    data = TensorDataset(
        torch.randn(samples, FEATURES, generator=generator),
        torch.randint(0, CLASSES, (samples,), generator=generator),
    )
    sampler = DistributedSampler(data, num_replicas=world, rank=rank, shuffle=True, seed=7)
    return DataLoader(data, batch_size=BATCH, sampler=sampler, pin_memory=True, drop_last=True)


def build_model(hidden):
    return nn.Sequential(
        nn.Linear(FEATURES, hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, CLASSES),
    )


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(0)
    hidden = HIDDEN
    model = DDP(build_model(hidden).cuda(), device_ids=[local_rank])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = make_loader(rank, world)
    loader.sampler.set_epoch(0)

    running = torch.zeros((), device="cuda")
    for i, (x, y) in enumerate(loader):
        x, y = x.cuda(non_blocking=True), y.cuda(non_blocking=True)
        sync_now = (i + 1) % ACCUM == 0
        with contextlib.nullcontext() if sync_now else model.no_sync():
            loss = F.cross_entropy(model(x), y)
            (loss / ACCUM).backward()
        running += loss.detach()
        if not sync_now:
            continue
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if rank == 0:
            print(f"step {(i + 1) // ACCUM} loss {loss.item():.4f}", flush=True)

    mean_loss = running / len(loader)
    dist.all_reduce(mean_loss, op=dist.ReduceOp.AVG)
    if rank == 0:
        print(f"mean loss over all ranks {mean_loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
