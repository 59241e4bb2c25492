"""Ring attention: key and value blocks travel around rings of eight ranks during compute."""
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

CP, DIM, SCALE, LOCAL_SEQ, STEPS = 8, 64, 64**-0.5, 32, 3


def shift(block, group):
    """Start to pass a block to the next rank of the ring, and to receive from the previous one."""
    index = dist.get_rank(group)
    following = dist.get_global_rank(group, (index + 1) % CP)
    previous = dist.get_global_rank(group, (index - 1) % CP)
    incoming = torch.empty_like(block)
    send_op = dist.P2POp(dist.isend, block, following, group)
    recv_op = dist.P2POp(dist.irecv, incoming, previous, group)
    return incoming, dist.batch_isend_irecv([send_op, recv_op])


def finish(works):
    for work in works:
        work.wait()


class RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, kv, group):
        ctx.group, block = group, kv
        out, lse = torch.zeros_like(q), q.new_full((q.size(0), 1), float("-inf"))
        for _ in range(CP):
            incoming, works = shift(block, group)
            scores = q @ block[0].T * SCALE
            total = torch.logaddexp(lse, scores.logsumexp(-1, keepdim=True))
            out = out * (lse - total).exp() + (scores - total).exp() @ block[1]
            lse = total
            finish(works)
            block = incoming
        ctx.save_for_backward(q, block, out, lse)  # the own block is back after CP shifts
        return out

    @staticmethod
    def backward(ctx, grad):
        q, block, out, lse = ctx.saved_tensors
        delta = (grad * out).sum(-1, keepdim=True)
        dq, dblock = torch.zeros_like(q), torch.zeros_like(block)
        for _ in range(CP):
            incoming, works = shift(block, ctx.group)
            p = (q @ block[0].T * SCALE - lse).exp()
            ds = p * (grad @ block[1].T - delta) * SCALE
            dq += ds @ block[0]
            dblock = dblock + torch.stack((ds.T @ q, p.T @ grad))
            finish(works)
            block = incoming
            incoming, works = shift(dblock, ctx.group)  # the gradient follows its block
            finish(works)
            dblock = incoming
        return dq, dblock, None


def main():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    cp_group, _ = dist.new_subgroups(CP)

    torch.manual_seed(0)
    query, key_value, head = (nn.Linear(DIM, n * DIM).cuda() for n in (1, 2, 1))
    parameters = [*query.parameters(), *key_value.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3)
    torch.manual_seed(1000 + rank)
    for step in range(STEPS):
        x = torch.randn(LOCAL_SEQ, DIM, device="cuda")  # this rank's part of the sequence
        kv = torch.stack(key_value(x).chunk(2, dim=-1))
        out = head(RingAttention.apply(query(x), kv, cp_group))
        loss = F.mse_loss(out, x)
        loss.backward()
        for p in parameters:
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
