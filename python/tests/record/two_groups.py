"""Megatron-style tensor parallelism by hand, with separate tensor and data-parallel groups."""
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

TP = 4
DIM, HIDDEN = 128, 256
BATCH, STEPS, MAX_NORM = 32, 4, 1.0


class CopyToGroup(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class ReduceFromGroup(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        total = x.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class ParallelMLP(nn.Module):
    def __init__(self, group):
        super().__init__()
        self.group = group
        self.up = nn.Linear(DIM, HIDDEN // TP)
        self.down = nn.Linear(HIDDEN // TP, DIM, bias=False)

    def forward(self, x):
        inner = F.gelu(self.up(CopyToGroup.apply(x, self.group)))
        return x + ReduceFromGroup.apply(self.down(inner), self.group)


def main():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    # Consecutive ranks share a layer, ranks with equal position share the gradients.
    tp_groups = [dist.new_group(list(range(i, i + TP))) for i in range(0, world, TP)]
    dp_groups = [dist.new_group(list(range(i, world, TP))) for i in range(TP)]
    tp_group, dp_group = tp_groups[rank // TP], dp_groups[rank % TP]

    torch.manual_seed(rank % TP)  # a different shard on every rank of a tensor-parallel group
    layers = nn.Sequential(ParallelMLP(tp_group), ParallelMLP(tp_group)).cuda()
    parameters = list(layers.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.05)
    torch.manual_seed(1000 + rank // TP)  # the same batch on all of them
    for step in range(STEPS):
        x = torch.randn(BATCH, DIM, device="cuda")
        loss = F.mse_loss(layers(x), x.tanh())
        loss.backward()
        for p in parameters:
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG, group=dp_group)

        seen = torch.full((), BATCH / TP, device="cuda")
        norm_sq = torch.stack([p.grad.pow(2).sum() for p in parameters]).sum()
        mean_loss = loss.detach().clone()
        dist.all_reduce(seen)
        norm_work = dist.all_reduce(norm_sq, group=tp_group, async_op=True)
        loss_work = dist.all_reduce(mean_loss, op=dist.ReduceOp.AVG, group=dp_group, async_op=True)
        norm_work.wait()
        loss_work.wait()
        for p in parameters:
            p.grad.mul_((MAX_NORM / (norm_sq.sqrt() + 1e-6)).clamp(max=1.0))
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            print(f"step {step} samples {seen.item():.0f} loss {mean_loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
