"""Rank 1 sees a large loss and reduces its squared gradient, which no other rank does."""

import torch
import torch.distributed as dist


def load_batch(rank, step):
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(8, 64, generator=generator)


def forward_backward(weight, batch):
    loss = (batch @ weight).pow(2).mean()
    loss.backward()
    return loss.detach()


def report_outlier(weight):
    statistics = weight.grad.square()
    dist.all_reduce(statistics)
    return statistics


def train(rank):
    weight = torch.zeros(64, 64, requires_grad=True)
    for step in range(8):
        batch = load_batch(rank, step)
        loss = forward_backward(weight, batch)
        if rank == 1 and step == 4:
            report_outlier(weight)
        dist.all_reduce(weight.grad)
        dist.barrier()


dist.init_process_group("gloo")
train(dist.get_rank())
