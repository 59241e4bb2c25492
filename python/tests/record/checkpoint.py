"""FSDP2 training with full checkpoints: all ranks gather the parameters, rank 0 saves them."""
import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.fsdp import fully_shard

WIDTH, LAYERS = 128, 4
BATCH, STEPS, SAVE_EVERY = 32, 6, 3


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + F.silu(self.linear(self.norm(x)))


def save_checkpoint(model, step, rank):
    state = {}
    for name, tensor in model.state_dict().items():
        full = tensor.full_tensor()  # every rank takes part in the gather
        if rank == 0:
            state[name] = full.cpu()
    if rank == 0:
        folder = os.environ.get("CHECKPOINT_DIR", tempfile.gettempdir())
        torch.save({"step": step, "model": state}, os.path.join(folder, f"step{step}.pt"))
    dist.barrier()


def slowest_rank(seconds, rank, world):
    """Rank 0 receives the step time of every other rank and returns the longest one."""
    mine = torch.tensor([seconds], device="cuda")
    if rank != 0:
        dist.send(mine, dst=0)
        return None
    times = [mine]
    for src in range(1, world):
        other = torch.empty_like(mine)
        dist.recv(other, src=src)
        times.append(other)
    return torch.cat(times).max().item()


def main():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(0)
    model = nn.Sequential(*[Layer() for _ in range(LAYERS)], nn.Linear(WIDTH, WIDTH)).cuda()
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    torch.manual_seed(1000 + rank)
    for step in range(1, STEPS + 1):
        start = time.perf_counter()
        x = torch.randn(BATCH, WIDTH, device="cuda")
        loss = F.mse_loss(model(x), x.roll(1, dims=-1))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % SAVE_EVERY == 0:
            save_checkpoint(model, step, rank)
            slowest = slowest_rank(time.perf_counter() - start, rank, world)
            if rank == 0:
                print(f"step {step} saved, slowest rank {slowest:.3f} s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
