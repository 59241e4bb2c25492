"""Rank 2 falls back to double precision after an overflow and reduces its gradient so."""

import torch
import torch.distributed as dist


def load_batch(rank, step):
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(8, 64, generator=generator)


def forward_backward(weight, batch):
    loss = (batch @ weight).pow(2).mean()
    loss.backward()
    return loss.detach()


def reduce_gradients(weight, overflow):
    gradient = weight.grad.double() if overflow else weight.grad
    dist.all_reduce(gradient)
    weight.grad.copy_(gradient)


def train(rank):
    weight = torch.zeros(64, 64, requires_grad=True)
    for step in range(8):
        batch = load_batch(rank, step)
        loss = forward_backward(weight, batch)
        reduce_gradients(weight, overflow=rank == 2 and step == 5)
        dist.all_reduce(loss)


dist.init_process_group("gloo")
train(dist.get_rank())
