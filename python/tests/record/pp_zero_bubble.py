"""Zero-bubble pipeline: eight ranks per pipeline, two chunks each, split backward."""
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, ScheduleInterleavedZeroBubble

PP, CHUNKS = 8, 2
STAGES = PP * CHUNKS
WIDTH = 64
MICRO, N_MICRO, STEPS = 4, 16, 3


def build_stages(pp_rank, device, group):
    stages = []
    for chunk in range(CHUNKS):
        index = chunk * PP + pp_rank
        torch.manual_seed(index)
        module = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH)).cuda()
        inputs = torch.empty(MICRO, WIDTH, device=device, requires_grad=index > 0)
        outputs = torch.empty(MICRO, WIDTH, device=device, requires_grad=True)
        stages.append(
            PipelineStage(
                module,
                index,
                STAGES,
                device,
                input_args=inputs,
                output_args=outputs,
                group=group,
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
    n_micro = N_MICRO
    schedule = ScheduleInterleavedZeroBubble(stages, n_microbatches=n_micro, loss_fn=F.mse_loss)
    parameters = [p for stage in stages for p in stage.submod.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1)

    torch.manual_seed(1000 + dp_rank)
    for step in range(STEPS):
        x = torch.randn(MICRO * N_MICRO, WIDTH, device=device)
        losses = []
        if pp_rank == 0:
            schedule.step(x)
        elif pp_rank == PP - 1:
            schedule.step(target=x.cos(), losses=losses)
        else:
            schedule.step()

        # Clip by the gradient norm of the whole pipeline, averaged over the replicas.
        for p in parameters:
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG, group=dp_group)
        norm_sq = torch.stack([p.grad.pow(2).sum() for p in parameters]).sum()
        dist.all_reduce(norm_sq, group=pp_group)
        scale = (1.0 / (norm_sq.sqrt() + 1e-6)).clamp(max=1.0)
        for p in parameters:
            p.grad.mul_(scale)
        optimizer.step()
        optimizer.zero_grad()

        if pp_rank == PP - 1:
            mean_loss = torch.stack(losses).mean().item()
            print(f"rank {rank} step {step} loss {mean_loss:.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
