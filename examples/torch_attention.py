"""Two layers of attention on packed documents, trained on several ranks: the same as on one.

    python examples/torch_attention.py            starts 4 processes on this machine (gloo)
    torchrun --nproc-per-node 8 examples/torch_attention.py    on 8, with NCCL if there are GPUs

Every rank holds an equal share of the tokens, wherever that cuts documents. For attention,
documents are cut into items, and each item goes to some rank with the keys that it needs.
"""

import os

import torch
import torch.distributed as dist
from torch import nn

import shiplap.torch
from shiplap import dispatch

WIDTH, HEADS, KV_HEADS, HEAD = 32, 4, 2, 8
STEPS = 5


def attention(q, k, v, q_ends, kv_ends):
    """Item by item. The last keys of an item are those of its own queries, so the mask is that of
    flash_attn_varlen_func(q, k, v, q_ends, kv_ends, .., causal=True), which a GPU would use."""
    k, v = (x.repeat_interleave(HEADS // KV_HEADS, dim=1) for x in (k, v))
    outs = [q[:0]]
    for i in range(len(q_ends) - 1):
        queries = q[q_ends[i]:q_ends[i + 1]]
        keys, values = (x[kv_ends[i]:kv_ends[i + 1]] for x in (k, v))
        scores = torch.einsum("qhd,khd->hqk", queries, keys) / HEAD**0.5
        seen = torch.ones_like(scores[0], dtype=torch.bool).tril(len(keys) - len(queries))
        weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
        outs.append(torch.einsum("hqk,khd->qhd", weights, values))
    return torch.cat(outs)


class Layer(nn.Module):
    """Attention and a residual; the rest of a transformer layer works token by token, at home."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, (HEADS + 2 * KV_HEADS) * HEAD)
        self.out = nn.Linear(HEADS * HEAD, WIDTH)

    def forward(self, x, dispatcher):
        q, k, v = self.qkv(x).reshape(len(x), -1, HEAD).split([HEADS, KV_HEADS, KV_HEADS], dim=1)
        q, k, v = dispatcher.dispatch(q, k, v)
        y = attention(q, k, v, dispatcher.cu_seqlens_q.tolist(), dispatcher.cu_seqlens_kv.tolist())
        return x + self.out(dispatcher.combine(y).reshape(len(x), -1))


def plan(lengths, ranks, step):
    """The home and the attention layout. The same on every rank: they depend only on the lengths
    and the number of the step."""
    items = dispatch.cut_documents(lengths, [min(3, length) for length in lengths])
    return dispatch.Routing(dispatch.pack_documents(lengths, ranks),
                            dispatch.assign_randomly(items, ranks, seed=step))


def train(rank, ranks, device):
    """The loss of each step."""
    torch.manual_seed(1)
    layers = nn.ModuleList([Layer(), Layer()]).double().to(device)
    losses = []
    for step in range(STEPS):
        lengths = dispatch.gen_seq_lens(1, num_seqs=6, total_len=96, seed=step)[0].tolist()
        tokens = torch.randn(2, 96, WIDTH, dtype=torch.float64,
                             generator=torch.Generator().manual_seed(step)).to(device)
        routing = plan(lengths, ranks, step)
        begin = sum(routing.home.tokens(r) for r in range(rank))
        x, target = tokens[:, begin:begin + routing.home.tokens(rank)]  # this rank's share

        with shiplap.torch.Dispatcher(dispatch.compute_qkv_dispatch(routing)) as dispatcher:
            for layer in layers:
                x = layer(x, dispatcher)
            loss = (x - target).square().sum() / 96
            layers.zero_grad()
            loss.backward()
        with torch.no_grad():
            for number in [loss, *(p.grad for p in layers.parameters())]:
                if ranks > 1:
                    dist.all_reduce(number)
            for p in layers.parameters():
                p -= 0.02 * p.grad
        losses.append(loss.item())
    return losses


def work(rank, ranks, port):
    torch.set_num_threads(1)  # the processes share the cores
    store = dist.TCPStore("127.0.0.1", port, is_master=False) if port else None
    on_gpu = torch.cuda.is_available() and torch.cuda.device_count() >= ranks
    device = torch.device("cuda", rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo", store=store, rank=rank, world_size=ranks)
    losses = train(rank, ranks, device)
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        alone = train(0, 1, device)
        print(f"loss on {ranks} ranks:", *(f"{loss:.6f}" for loss in losses))
        print("loss on one rank:", *(f"{loss:.6f}" for loss in alone))
        print("equal:", all(abs(a - b) < 1e-10 for a, b in zip(losses, alone)))


if __name__ == "__main__":
    if "RANK" in os.environ:  # under torchrun
        work(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), 0)
    else:
        master = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        torch.multiprocessing.start_processes(work, (4, master.port), nprocs=4,
                                              start_method="fork")
