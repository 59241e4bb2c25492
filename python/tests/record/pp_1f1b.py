"""Four pipeline stages with the 1F1B schedule, replicated over the data-parallel dimension."""
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

PP = 4
VOCAB, DIM = 256, 128
MICRO, N_MICRO, SEQ, STEPS = 2, 8, 32, 4


def block():
    return nn.Sequential(nn.LayerNorm(DIM), nn.Linear(DIM, DIM), nn.GELU(), nn.Linear(DIM, DIM))


def build_stage(index, device, group):
    """The first stage embeds the tokens, the last one computes the logits."""
    layers, seq = [block(), block()], SEQ
    hidden = torch.empty(MICRO, seq, DIM, device=device, requires_grad=True)
    inputs, outputs = hidden, hidden
    if index == 0:
        layers.insert(0, nn.Embedding(VOCAB, DIM))
        inputs = torch.zeros(MICRO, seq, dtype=torch.int64, device=device)
    if index == PP - 1:
        layers.append(nn.Linear(DIM, VOCAB))
        outputs = torch.empty(MICRO, seq, VOCAB, device=device, requires_grad=True)
    module = nn.Sequential(*layers).to(device)
    return PipelineStage(
        module, index, PP, device, input_args=inputs, output_args=outputs, group=group
    )


def loss_fn(logits, labels):
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def main():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cuda", (world // PP, PP), mesh_dim_names=("dp", "pp"))
    dp_group, pp_group = mesh.get_group("dp"), mesh.get_group("pp")
    dp_rank, index = mesh.get_local_rank("dp"), mesh.get_local_rank("pp")

    torch.manual_seed(index)  # the same weights in every replica of a stage
    stage = build_stage(index, device, pp_group)
    schedule = Schedule1F1B(stage, n_microbatches=N_MICRO, loss_fn=loss_fn)
    parameters = list(stage.submod.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=3e-4)

    torch.manual_seed(1000 + dp_rank)  # the stages of one pipeline draw the same batch
    for step in range(STEPS):
        tokens = torch.randint(0, VOCAB, (MICRO * N_MICRO, SEQ + 1), device=device)
        losses = []
        if stage.is_first:
            schedule.step(tokens[:, :-1])
        elif stage.is_last:
            schedule.step(target=tokens[:, 1:], losses=losses)
        else:
            schedule.step()
        for p in parameters:
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG, group=dp_group)
        optimizer.step()
        optimizer.zero_grad()

        mean_loss = torch.stack(losses).mean().detach() if losses else torch.tensor(0.0).cuda()
        dist.broadcast(mean_loss, group=pp_group, group_src=PP - 1)
        if rank == 0:
            print(f"step {step} loss {mean_loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
