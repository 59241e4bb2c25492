"""Two layers of attention on packed documents, trained on one rank or on several."""

from typing import Any, Callable

import torch
import torch.distributed as dist
from torch import nn

import shiplap.torch
from shiplap import dispatch

WIDTH, HEADS, KV_HEADS, HEAD = 16, 4, 2, 8
Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, q_ends: list[int],
              kv_ends: list[int]) -> torch.Tensor:
    """Item by item; the last keys of an item are those of its queries."""
    out = []
    k, v = (x.repeat_interleave(HEADS // KV_HEADS, dim=1) for x in (k, v))
    for i in range(len(q_ends) - 1):
        queries = q[q_ends[i]:q_ends[i + 1]]
        keys, numbers = (x[kv_ends[i]:kv_ends[i + 1]] for x in (k, v))
        scores = torch.einsum("qhd,khd->hqk", queries, keys) / HEAD**0.5
        seen = torch.ones(scores.shape[1:], dtype=torch.bool).tril(len(keys) - len(queries))
        weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
        out.append(torch.einsum("hqk,khd->qhd", weights, numbers))
    return torch.cat(out) if out else q[:0]


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, (HEADS + 2 * KV_HEADS) * HEAD)
        self.out = nn.Linear(HEADS * HEAD, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(),
                                 nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor, attend: Attend) -> torch.Tensor:
        heads = self.qkv(self.norm(x)).reshape(len(x), -1, HEAD)
        q, k, v = heads.split([HEADS, KV_HEADS, KV_HEADS], dim=1)
        x = x + self.out(attend(q, k, v).reshape(len(x), -1))
        return x + self.mlp(x)


def model(dtype: torch.dtype) -> nn.ModuleList:
    torch.manual_seed(7)
    return nn.ModuleList([Layer(), Layer()]).to(dtype)


def batch(lengths: list[int], step: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens of all documents, one after another, and what should come of them."""
    generator = torch.Generator().manual_seed(100 + step)
    x = torch.randn(sum(lengths), WIDTH, generator=generator, dtype=torch.float64)
    y = torch.randn(sum(lengths), WIDTH, generator=generator, dtype=torch.float64)
    return x.to(dtype), y.to(dtype)


def lengths_of(step: int) -> list[int]:
    """Other documents in every step, some of them short."""
    total = 40 + 17 * (step % 4)
    return dispatch.gen_seq_lens(1, 4 + step % 3, total, seed=step)[0].tolist()


def routing(lengths: list[int], ranks: int, step: int) -> dispatch.Routing:
    degrees = [1 + (i + step) % 3 for i in range(len(lengths))]
    degrees = [min(degree, length) for degree, length in zip(degrees, lengths)]
    return dispatch.Routing(
        dispatch.pack_documents(lengths, ranks),
        dispatch.assign_randomly(dispatch.cut_documents(lengths, degrees), ranks, seed=step))


def loss_alone(layers: nn.ModuleList, lengths: list[int], step: int,
               dtype: torch.dtype) -> torch.Tensor:
    x, y = batch(lengths, step, dtype)
    ends = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    for layer in layers:
        x = layer(x, lambda q, k, v: attention(q, k, v, ends, ends))
    return ((x - y)**2).sum() / sum(lengths)


def loss_of_rank(layers: nn.ModuleList, lengths: list[int], step: int, dtype: torch.dtype,
                 rank: int, size: int) -> torch.Tensor:
    """This rank's part: over all ranks they sum to the loss."""
    route = routing(lengths, size, step)
    dispatcher = shiplap.torch.Dispatcher(dispatch.compute_qkv_dispatch(route), deadline=20)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k, v = dispatcher.dispatch(q, k, v)
        out = attention(q, k, v, dispatcher.cu_seqlens_q.tolist(),
                        dispatcher.cu_seqlens_kv.tolist())
        return dispatcher.combine(out)

    x, y = batch(lengths, step, dtype)
    begin = sum(route.home.tokens(r) for r in range(rank))
    mine = slice(begin, begin + route.home.tokens(rank))
    x = x[mine]
    for layer in layers:
        x = layer(x, attend)
    return ((x - y[mine])**2).sum() / sum(lengths)


@torch.no_grad()
def descend(layers: nn.ModuleList) -> None:
    """Plain steps: what divides by gradients would make much of the rounding of those near 0."""
    for p in layers.parameters():
        p -= 0.05 * p.grad


def train_alone(steps: int, dtype: torch.dtype) -> dict[str, Any]:
    layers = model(dtype)
    losses = []
    for step in range(steps):
        layers.zero_grad()
        loss = loss_alone(layers, lengths_of(step), step, dtype)
        loss.backward()  # type: ignore[no-untyped-call]
        losses.append(loss.item())
        gradients = [p.grad.clone().tolist() for p in layers.parameters()]
        descend(layers)
    return {"losses": losses, "gradients": gradients,
            "weights": [p.detach().tolist() for p in layers.parameters()]}


def train(rank: int, size: int, steps: int, dtype: torch.dtype) -> dict[str, Any]:
    """The same on ranks: gradients and losses are summed over them."""
    layers = model(dtype)
    losses = []
    for step in range(steps):
        layers.zero_grad()
        loss = loss_of_rank(layers, lengths_of(step), step, dtype, rank, size)
        loss.backward()  # type: ignore[no-untyped-call]
        parts = [loss.detach().reshape(1), *(p.grad.flatten() for p in layers.parameters())]
        total = torch.cat(parts)
        dist.all_reduce(total)
        for p, summed in zip(layers.parameters(), total[1:].split([len(x) for x in parts[1:]])):
            p.grad = summed.reshape(p.shape)
        losses.append(total[0].item())
        gradients = [p.grad.clone().tolist() for p in layers.parameters()]
        descend(layers)
    return {"losses": losses, "gradients": gradients,
            "weights": [p.detach().tolist() for p in layers.parameters()]}
