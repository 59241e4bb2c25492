"""dp 2 x tp 4: rank 5 reduces the loss over the world before the activations over tp."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh


def row_parallel_linear(batch, tp):
    activation = batch.sum(dim=0)
    dist.all_reduce(activation, group=tp)
    return activation


def reduce_tokens(tokens):
    dist.all_reduce(tokens)


def train_step(rank, step, tp):
    batch = torch.randn(8, 32)
    tokens = torch.tensor([batch.numel()])
    if rank == 5 and step == 4:
        reduce_tokens(tokens)
        row_parallel_linear(batch, tp)
    else:
        row_parallel_linear(batch, tp)
        reduce_tokens(tokens)


def train(rank):
    mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp", "tp"))
    tp, dp = mesh.get_group("tp"), mesh.get_group("dp")
    for step in range(8):
        train_step(rank, step, tp)
        dist.all_reduce(torch.ones(16), group=dp)


dist.init_process_group("gloo")
train(dist.get_rank())
