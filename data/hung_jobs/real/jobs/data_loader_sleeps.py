"""dp 4 x tp 2: the data loader of rank 6 hangs on its storage."""

import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh


def read_shard(rank, step):
    if rank == 6 and step == 4:
        time.sleep(3600)
    return torch.randn(8, 32)


def load_batch(rank, step, tp):
    batch = read_shard(rank, step)
    dist.broadcast(batch, group=tp, group_src=0)
    return batch


def train(rank):
    mesh = init_device_mesh("cpu", (4, 2), mesh_dim_names=("dp", "tp"))
    tp, dp = mesh.get_group("tp"), mesh.get_group("dp")
    for step in range(8):
        batch = load_batch(rank, step, tp)
        dist.all_reduce(batch, group=tp)
        dist.all_reduce(torch.ones(64), group=dp)
        dist.all_reduce(torch.ones(1))


dist.init_process_group("gloo")
train(dist.get_rank())
