"""Interleaved 1F1B: four ranks per pipeline, two model chunks on each of them."""
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B

PP, CHUNKS = 4, 2
STAGES = PP * CHUNKS
DIM, CLASSES = 128, 10
MICRO, N_MICRO, STEPS = 4, 8, 3


class Chunk(nn.Module):
    def __init__(self, last):
        super().__init__()
        self.norm = nn.LayerNorm(DIM)
        self.up = nn.Linear(DIM, 2 * DIM)
        self.down = nn.Linear(2 * DIM, DIM)
        self.head = nn.Linear(DIM, CLASSES) if last else nn.Identity()

    def forward(self, x):
        return self.head(x + self.down(F.relu(self.up(self.norm(x)))))


def build_stages(pp_rank, device, group):
    """Rank r owns the stages r, r + PP, r + 2 * PP, ..."""
    stages = []
    for index in range(pp_rank, STAGES, PP):
        last = index == STAGES - 1
        torch.manual_seed(index)
        module = Chunk(last).to(device)
        inputs = torch.empty(MICRO, DIM, device=device, requires_grad=index > 0)
        outputs = torch.empty(MICRO, CLASSES if last else DIM, device=device, requires_grad=True)
        stages.append(
            PipelineStage(
                module, index, STAGES, device, input_args=inputs, output_args=outputs, group=group
            )
        )
    return stages


def main():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cuda", (world // PP, PP), mesh_dim_names=("dp", "pp"))
    dp_group, pp_group = mesh.get_group("dp"), mesh.get_group("pp")
    dp_rank, pp_rank = mesh.get_local_rank("dp"), mesh.get_local_rank("pp")

    stages = build_stages(pp_rank, device, pp_group)
    schedule = ScheduleInterleaved1F1B(stages, n_microbatches=N_MICRO, loss_fn=F.cross_entropy)
    parameters = [p for stage in stages for p in stage.submod.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.05)

    torch.manual_seed(1000 + dp_rank)
    for step in range(STEPS):
        x = torch.randn(MICRO * N_MICRO, DIM, device=device)
        y = torch.randint(0, CLASSES, (MICRO * N_MICRO,), device=device)
        losses = []
        if pp_rank == 0:
            schedule.step(x)
        elif pp_rank == PP - 1:
            schedule.step(target=y, losses=losses)
        else:
            schedule.step()

        flat = torch.cat([p.grad.flatten() for p in parameters])
        dist.all_reduce(flat, op=dist.ReduceOp.AVG, group=dp_group)
        for p, grad in zip(parameters, flat.split([p.numel() for p in parameters])):
            p.grad.copy_(grad.view_as(p))
        optimizer.step()
        optimizer.zero_grad()

        mean_loss = torch.stack(losses).mean().detach() if losses else torch.tensor(0.0).cuda()
        dist.all_reduce(mean_loss, group=pp_group)  # only the last rank contributes
        if rank == 0:
            print(f"step {step} loss {mean_loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
