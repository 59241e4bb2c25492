"""DDP training with periodic evaluation, per-rank statistics and early stopping."""
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

FEATURES, HIDDEN, CLASSES = 64, 128, 8
BATCH, STEPS, EVAL_EVERY, PATIENCE = 32, 8, 2, 3
EVAL_SAMPLES = 1000


def make_eval_set(rank, world):
    """Every rank evaluates its own slice; the slices need not have equal size."""
    generator = torch.Generator().manual_seed(99)
    x = torch.randn(EVAL_SAMPLES, FEATURES, generator=generator)
    y = torch.randint(0, CLASSES, (EVAL_SAMPLES,), generator=generator)
    return x[rank::world].cuda(), y[rank::world].cuda()


@torch.no_grad()
def evaluate(model, x, y, rank):
    model.eval()
    logits = model.module(x)
    loss_sum = F.cross_entropy(logits, y, reduction="sum")
    correct = (logits.argmax(-1) == y).sum()
    stats = torch.stack([loss_sum, correct.float(), torch.full_like(loss_sum, len(y))])
    dist.all_reduce(stats)
    model.train()
    total_loss, total_correct, count = stats.tolist()
    return total_loss / count, total_correct / count


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", local_rank))
    rank, world = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, CLASSES)).cuda()
    model = DDP(net, device_ids=[local_rank])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    eval_x, eval_y = make_eval_set(rank, world)

    torch.manual_seed(1000 + rank)
    best, bad_evals, start = float("inf"), 0, time.perf_counter()
    for step in range(1, STEPS + 1):
        x = torch.randn(BATCH, FEATURES, device="cuda")
        y = torch.randint(0, CLASSES, (BATCH,), device="cuda")
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        if step % EVAL_EVERY:
            continue

        eval_loss, accuracy = evaluate(model, eval_x, eval_y, rank)
        metrics = {"rank": rank, "loss": loss.item(), "seconds": time.perf_counter() - start}
        gathered = [None] * world
        dist.all_gather_object(gathered, metrics)
        if rank == 0:
            slowest = max(gathered, key=lambda m: m["seconds"])
            print(f"step {step} eval {eval_loss:.4f} accuracy {accuracy:.3f} slowest {slowest}")
        bad_evals = 0 if eval_loss < best else bad_evals + 1
        best = min(best, eval_loss)
        stop = torch.tensor([int(bad_evals >= PATIENCE)], device="cuda")
        dist.broadcast(stop, src=0)  # rank 0 decides for all
        if stop.item():
            break
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
