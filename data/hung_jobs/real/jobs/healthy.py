"""dp 2 x tp 4 in the middle of a step: nothing hangs."""

import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh


def compute(rank):
    time.sleep(0.02 + 0.01 * (rank % 3))


def train(rank):
    mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp", "tp"))
    tp, dp = mesh.get_group("tp"), mesh.get_group("dp")
    while True:
        compute(rank)
        dist.all_reduce(torch.ones(32), group=tp)
        compute(rank)
        dist.all_reduce(torch.ones(32), group=tp)
        dist.all_reduce(torch.ones(64), group=dp)
        dist.all_reduce(torch.ones(1))


dist.init_process_group("gloo")
train(dist.get_rank())
