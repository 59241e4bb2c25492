"""Rank 3 gathers the embeddings of a smaller last batch: its all_gather has another size."""

import torch
import torch.distributed as dist


def load_batch(rank, step):
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(8, 64, generator=generator)


def forward_backward(weight, batch):
    loss = (batch @ weight).pow(2).mean()
    loss.backward()
    return loss.detach()


def gather_embeddings(batch):
    embedding = batch.mean(dim=1)
    gathered = [torch.empty_like(embedding) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, embedding)
    return torch.cat(gathered)


def train(rank):
    weight = torch.zeros(64, 64, requires_grad=True)
    for step in range(8):
        batch = load_batch(rank, step)
        if rank == 3 and step == 6:
            batch = batch[:5]
        loss = forward_backward(weight, batch)
        gather_embeddings(batch)
        dist.all_reduce(weight.grad)
        dist.all_reduce(loss)


dist.init_process_group("gloo")
train(dist.get_rank())
