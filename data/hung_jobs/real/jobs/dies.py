"""Rank 3 is killed (as by the out-of-memory killer) before a gradient reduction."""

import os

import torch
import torch.distributed as dist


def load_batch(rank, step):
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(8, 64, generator=generator)


def forward_backward(weight, batch):
    loss = (batch @ weight).pow(2).mean()
    loss.backward()
    return loss.detach()


def train(rank):
    weight = torch.zeros(64, 64, requires_grad=True)
    for step in range(8):
        batch = load_batch(rank, step)
        loss = forward_backward(weight, batch)
        if rank == 3 and step == 5:
            os.kill(os.getpid(), 9)
        dist.all_reduce(weight.grad)
        dist.all_reduce(loss)


dist.init_process_group("gloo")
train(dist.get_rank())
