"""Only rank 0 saves, but the save gathers the optimizer state with a collective."""

import torch
import torch.distributed as dist


def load_batch(rank, step):
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(8, 64, generator=generator)


def forward_backward(weight, batch):
    loss = (batch @ weight).pow(2).mean()
    loss.backward()
    return loss.detach()


def save_checkpoint(weight, step):
    norms = [torch.zeros(1) for _ in range(dist.get_world_size())]
    dist.all_gather(norms, weight.detach().norm().reshape(1))
    return {"step": step, "norms": norms}


def train(rank):
    weight = torch.zeros(64, 64, requires_grad=True)
    for step in range(8):
        loss = forward_backward(weight, load_batch(rank, step))
        dist.all_reduce(weight.grad)
        if step == 5 and rank == 0:
            save_checkpoint(weight, step)
        dist.all_reduce(loss)


dist.init_process_group("gloo")
train(dist.get_rank())
