"""Data-parallel training with sharded weights (FSDP2), to record: see docs/record.md."""

import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor


def full_state_dict(model):
    """All ranks take part: each has a shard of every weight."""
    return {
        name: value.full_tensor() if isinstance(value, DTensor) else value
        for name, value in model.state_dict().items()
    }


def main():
    layers = int(sys.argv[sys.argv.index("--layers") + 1]) if "--layers" in sys.argv else 4
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(layers))).cuda()
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(2):
        loss = model(torch.randn(16, 1024, device="cuda")).square().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(loss, op=dist.ReduceOp.AVG)
    if "--broken" not in sys.argv:
        state = full_state_dict(model)
    if dist.get_rank() == 0:
        if "--broken" in sys.argv:
            state = full_state_dict(model)
        torch.save(state, "model.pt")
    dist.destroy_process_group()


main()
