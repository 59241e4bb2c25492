"""Rank 2 returns early from its gradient reduction when its batch has no valid tokens."""

import torch
import torch.distributed as dist


def load_batch(rank, step):
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(8, 64, generator=generator)


def forward_backward(weight, batch):
    loss = (batch @ weight).pow(2).mean()
    loss.backward()
    return loss.detach()


def reduce_gradients(weight, valid_tokens):
    if valid_tokens == 0:
        return
    dist.all_reduce(weight.grad)


def log_loss(loss):
    dist.reduce(loss, dst=0)


def train(rank):
    weight = torch.zeros(64, 64, requires_grad=True)
    for step in range(8):
        batch = load_batch(rank, step)
        valid_tokens = 0 if rank == 2 and step == 5 else 8
        loss = forward_backward(weight, batch)
        reduce_gradients(weight, valid_tokens)
        log_loss(loss)


dist.init_process_group("gloo")
train(dist.get_rank())
