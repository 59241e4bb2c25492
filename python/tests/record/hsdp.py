"""Hybrid sharding: parameters sharded inside groups of four ranks, replicated across them."""
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

SHARD = 4
FEATURES, HIDDEN, CLASSES, LAYERS = 64, 256, 16, 4
BATCH, STEPS = 32, 4


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


def build_model(mesh):
    layers = [Residual(HIDDEN) for _ in range(LAYERS)]
    model = nn.Sequential(nn.Linear(FEATURES, HIDDEN), *layers, nn.Linear(HIDDEN, CLASSES)).cuda()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model


def main():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()

    mesh = init_device_mesh("cuda", (world // SHARD, SHARD), mesh_dim_names=("replicate", "shard"))
    shard_group = mesh.get_group("shard")
    replicate_group = mesh.get_group("replicate")

    torch.manual_seed(0)
    model = build_model(mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    torch.manual_seed(500 + rank)
    for step in range(STEPS):
        x = torch.randn(BATCH, FEATURES, device="cuda")
        y = torch.randint(0, CLASSES, (BATCH,), device="cuda")
        loss = F.cross_entropy(model(x).float(), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

        seen = torch.full((), BATCH, dtype=torch.int64, device="cuda")
        mean_loss = loss.detach().clone()
        dist.all_reduce(seen)
        dist.all_reduce(mean_loss, op=dist.ReduceOp.AVG, group=shard_group)
        dist.all_reduce(mean_loss, op=dist.ReduceOp.AVG, group=replicate_group)
        if rank == 0:
            print(f"step {step} samples {seen.item()} loss {mean_loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
