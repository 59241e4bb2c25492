"""Hand-written 1F1B pipeline: four stages on consecutive ranks, replicated over the rest."""
import os
from collections import deque

import torch
import torch.distributed as dist
import torch.nn as nn

PP, DIM, MICRO, N_MICRO, STEPS = 4, 128, 4, 8, 3


def recv(peer, group):
    if peer is not None:
        buffer = torch.empty(MICRO, DIM, device="cuda")
        dist.irecv(buffer, src=peer, group=group).wait()
        return buffer


def send(tensor, peer, group):
    if peer is not None:
        dist.isend(tensor, dst=peer, group=group).wait()


def send_recv(tensor, peer, group):
    if peer is not None:
        buffer = torch.empty(MICRO, DIM, device="cuda")
        send_op = dist.P2POp(dist.isend, tensor, peer, group)
        recv_op = dist.P2POp(dist.irecv, buffer, peer, group)
        for work in dist.batch_isend_irecv([send_op, recv_op]):
            work.wait()
        return buffer


def train_step(module, stage, prev, next, group, batch):
    warmup, chunks, pending, losses = PP - stage - 1, deque(batch.chunk(N_MICRO)), deque(), []

    def forward(x):
        x = chunks.popleft() if x is None else x.requires_grad_()
        y = module(x)
        if next is None:
            y = nn.functional.mse_loss(y, chunks.popleft().sin()) / N_MICRO
            losses.append(y.detach())
        pending.append((x, y))
        return y.detach()

    def backward(grad):
        x, y = pending.popleft()
        y.backward(grad)
        return x.grad

    for _ in range(warmup):
        send(forward(recv(prev, group)), next, group)
    x = recv(prev, group)
    for i in range(N_MICRO - warmup):
        grad = backward(send_recv(forward(x), next, group))
        if i + 1 < N_MICRO - warmup:
            x = send_recv(grad, prev, group)
    send(grad, prev, group)
    for _ in range(warmup):
        send(backward(recv(next, group)), prev, group)
    return losses


def main():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    pp_groups = [dist.new_group(list(range(i, i + PP))) for i in range(0, world, PP)]
    dp_groups = [dist.new_group(list(range(i, world, PP))) for i in range(PP)]
    stage, pp_group, dp_group = rank % PP, pp_groups[rank // PP], dp_groups[rank % PP]
    prev, next = (rank - 1 if stage else None), (rank + 1 if stage < PP - 1 else None)
    dist.barrier(group=pp_group)
    torch.manual_seed(stage)
    module = nn.Sequential(nn.Linear(DIM, DIM), nn.Tanh()).cuda()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    torch.manual_seed(1000 + rank // PP)  # the stages of one pipeline draw the same batch
    for step in range(STEPS):
        optimizer.zero_grad()
        batch = torch.randn(MICRO * N_MICRO, DIM, device="cuda")
        losses = train_step(module, stage, prev, next, pp_group, batch)
        for p in module.parameters():
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG, group=dp_group)
        optimizer.step()
        if next is None:
            print(f"rank {rank} step {step} loss {sum(losses).item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
