"""Mixture of experts: one expert per rank in groups of four, tokens routed by top-k."""
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

EP, TOP_K = 4, 2
DIM, CLASSES = 128, 16
TOKENS, STEPS = 64, 4


class AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, out_splits, in_splits, group):
        ctx.args = (in_splits, out_splits, group)
        out = x.new_empty(sum(out_splits), x.size(1))
        dist.all_to_all_single(out, x.contiguous(), out_splits, in_splits, group=group)
        return out

    @staticmethod
    def backward(ctx, grad):
        return AllToAll.apply(grad, *ctx.args), None, None, None


class MoE(nn.Module):
    def __init__(self, group):
        super().__init__()
        self.group = group
        self.router = nn.Linear(DIM, EP, bias=False)
        self.expert = nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.GELU(), nn.Linear(2 * DIM, DIM))

    def forward(self, x):
        weight, expert = self.router(x).softmax(-1).topk(TOP_K, dim=-1)
        order = expert.flatten().argsort(stable=True)
        send_counts = torch.bincount(expert.flatten(), minlength=EP)
        recv_counts = torch.empty_like(send_counts)
        dist.all_to_all_single(recv_counts, send_counts, group=self.group)
        in_splits, out_splits = send_counts.tolist(), recv_counts.tolist()

        tokens = x.repeat_interleave(TOP_K, dim=0)[order]
        mine = AllToAll.apply(tokens, out_splits, in_splits, self.group)
        done = AllToAll.apply(self.expert(mine), in_splits, out_splits, self.group)
        done = done[order.argsort()].view(x.size(0), TOP_K, DIM)
        return x + (done * weight.unsqueeze(-1)).sum(1), recv_counts.sum()


def main():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    ep_groups = [dist.new_group(list(range(i, i + EP))) for i in range(0, world, EP)]
    dp_groups = [dist.new_group(list(range(i, world, EP))) for i in range(EP)]
    ep_group, dp_group = ep_groups[rank // EP], dp_groups[rank % EP]

    torch.manual_seed(0)
    embed, head = nn.Linear(DIM, DIM).cuda(), nn.Linear(DIM, CLASSES).cuda()
    moe = MoE(ep_group).cuda()
    experts = list(moe.expert.parameters())
    shared = [*embed.parameters(), *moe.router.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(experts + shared, lr=1e-3)
    torch.manual_seed(1000 + rank)
    for step in range(STEPS):
        x = torch.randn(TOKENS, DIM, device="cuda")
        y = torch.randint(0, CLASSES, (TOKENS,), device="cuda")
        hidden, load = moe(embed(x))
        loss = F.cross_entropy(head(hidden), y)
        loss.backward()
        for p in experts:  # an expert sees the tokens of its whole expert group
            dist.all_reduce(p.grad, group=dp_group)
            p.grad.div_(world)
        for p in shared:
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
        optimizer.step()
        optimizer.zero_grad()

        mean_loss = loss.detach().clone()
        dist.all_reduce(load, op=dist.ReduceOp.MAX, group=ep_group)
        dist.all_reduce(mean_loss, op=dist.ReduceOp.AVG)
        if rank == 0:
            print(f"step {step} loss {mean_loss.item():.4f} max load {load.item()}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
