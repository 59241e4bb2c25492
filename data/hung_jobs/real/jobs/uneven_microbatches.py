"""pp 4: rank 1 runs 3 microbatches in step 3, the others 4."""

import torch
import torch.distributed as dist


def forward_step(rank, size):
    activation = torch.ones(8, 32)
    if rank > 0:
        dist.recv(activation, rank - 1)
    activation = activation.tanh()
    if rank < size - 1:
        dist.send(activation, rank + 1)
    return activation


def backward_step(rank, size):
    gradient = torch.ones(8, 32)
    if rank < size - 1:
        dist.recv(gradient, rank + 1)
    if rank > 0:
        dist.send(gradient, rank - 1)


def train_step(rank, size, microbatches):
    for _ in range(microbatches):
        forward_step(rank, size)
    for _ in range(microbatches):
        backward_step(rank, size)
    dist.all_reduce(torch.ones(1))


def train(rank, size):
    for step in range(6):
        train_step(rank, size, 3 if rank == 1 and step == 3 else 4)


dist.init_process_group("gloo")
train(dist.get_rank(), dist.get_world_size())
