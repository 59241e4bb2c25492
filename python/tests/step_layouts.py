"""The plans of training steps that tests execute with real numbers."""

from __future__ import annotations

import dataclasses
import itertools
import json
import pathlib
import subprocess
from collections.abc import Callable

import pytest
from workers import step_ranks
from workers.ranks import values
from workers.step_model import Model

Command = Callable[..., subprocess.CompletedProcess[str]]

MAX_ERROR = 1e-10

DENSE = Model(hidden=32, heads=8, kv_heads=4)
DEEP = dataclasses.replace(DENSE, layers=4)
WIDE = dataclasses.replace(DENSE, kv_heads=8)
NORMED = dataclasses.replace(DENSE, head_norms=True)
TIED = dataclasses.replace(DENSE, tied=True)
MIXTURE = dataclasses.replace(DENSE, experts=8)
EIGHT_LAYERS = dataclasses.replace(DENSE, layers=8)
DEEP_MIXTURE = dataclasses.replace(MIXTURE, layers=4)
MIXED = dataclasses.replace(DEEP_MIXTURE, dense=(0, 2), head_norms=True)
LATENT = dataclasses.replace(DEEP_MIXTURE, kv_heads=8, dense=(0,), shared=1, q_rank=16, kv_rank=8,
                             rope=2)

FURTHER = dataclasses.replace(DENSE, modules=1)
FURTHER_TIED = dataclasses.replace(TIED, modules=2)
FURTHER_LATENT = dataclasses.replace(LATENT, modules=1)

TP = "--tensor-model-parallel-size 2"
SP = "--tensor-model-parallel-size 2 --sequence-parallel"
CP = "--context-parallel-size 2"
PP = "--pipeline-model-parallel-size 2"
RECOMPUTE = ("--recompute-granularity full --recompute-method uniform "
             "--recompute-num-layers 1")
ZERO_1 = "--use-distributed-optimizer"
ZERO_BUBBLE = "--enable-zero-bubble"
MTP = "--mtp-num-layers 1"
TITAN_TP = "--parallelism.tensor_parallel_degree 2"
FSDP = "--use-megatron-fsdp --data-parallel-sharding-strategy"


def dualpipev(ranks: int) -> str:
    return (f"--parallelism.pipeline_parallel_degree {ranks} "
            "--parallelism.pipeline_parallel_schedule DualPipeV "
            "--parallelism.pipeline_parallel_microbatch_size 1 --training.local_batch_size 8")


@dataclasses.dataclass(frozen=True)
class Layout:
    name: str
    ranks: int
    model: Model
    flags: str = ""
    samples: int = 8
    sequences: int = 1  # of a microbatch
    framework: str = "megatron"

    def words(self) -> str:
        sequences = self.samples * self.sequences
        if self.framework == "torchtitan":
            return (f"{self.flags} --training.global_batch_size {sequences} "
                    f"--training.seq_len {self.model.sequence}")
        return (f"{self.flags} --micro-batch-size {self.sequences} --global-batch-size {sequences} "
                f"--seq-length {self.model.sequence} --bf16")


LAYOUTS = [
    Layout("alone", 1, DENSE),
    Layout("dp4", 4, DENSE),
    Layout("dp8", 8, DENSE, samples=16, sequences=2),
    Layout("tp4", 4, DENSE, "--tensor-model-parallel-size 4"),
    Layout("tp4-sp", 4, DENSE, "--tensor-model-parallel-size 4 --sequence-parallel"),
    Layout("tp8-sp", 8, WIDE, "--tensor-model-parallel-size 8 --sequence-parallel"),
    Layout("tp2-sp-dp4", 8, DENSE, SP, sequences=2),
    Layout("tp2-sp-dp2-head-norms", 4, NORMED, SP),
    Layout("tp2-sp-dp2-tied", 4, TIED, SP),
    Layout("pp2-dp2", 4, DENSE, PP),
    Layout("pp2-dp2-tied", 4, TIED, PP),
    Layout("pp4", 4, DEEP, "--pipeline-model-parallel-size 4"),
    Layout("pp2x2-dp2", 4, DEEP, f"{PP} --num-virtual-stages-per-pipeline-rank 2"),
    Layout("pp4x2-dp2", 8, EIGHT_LAYERS,
           "--pipeline-model-parallel-size 4 --num-virtual-stages-per-pipeline-rank 2",
           samples=16),
    Layout("pp2-uneven", 2, DEEP, f"{PP} --decoder-first-pipeline-num-layers 1"),
    Layout("cp4-gather", 4, DENSE, "--context-parallel-size 4 --cp-comm-type all_gather"),
    Layout("cp4-ring", 4, DENSE, "--context-parallel-size 4 --cp-comm-type p2p"),
    Layout("cp4-ulysses", 4, DENSE, "--context-parallel-size 4 --cp-comm-type a2a"),
    Layout("cp2-gather-tp2-sp-dp2", 8, DENSE, f"{CP} --cp-comm-type all_gather {SP}"),
    Layout("cp2-ring-tp2-sp-dp2", 8, DENSE, f"{CP} --cp-comm-type p2p {SP}"),
    Layout("cp2-ulysses-tp2-sp-dp2", 8, DENSE, f"{CP} --cp-comm-type a2a {SP}"),
    Layout("ep4", 4, MIXTURE, "--expert-model-parallel-size 4"),
    Layout("ep4-dp8", 8, MIXTURE, "--expert-model-parallel-size 4"),
    Layout("ep2-etp1-tp2", 4, MIXTURE,
           f"{SP} --expert-model-parallel-size 2 --expert-tensor-parallel-size 1"),
    Layout("ep2-etp2-tp2-dp4", 8, MIXTURE,
           f"{SP} --expert-model-parallel-size 2 --expert-tensor-parallel-size 2"),
    Layout("ep4-etp1-tp2-cp2-dp2", 8, MIXTURE,
           f"{SP} {CP} --cp-comm-type p2p --expert-model-parallel-size 4 "
           "--expert-tensor-parallel-size 1"),
    Layout("ep4-dense-layers", 4, MIXED, "--expert-model-parallel-size 4"),
    Layout("tp2-sp-pp2-dp2-ep2-dense-layers-zero3", 8, MIXED,
           f"{SP} {PP} {FSDP} optim_grads_params --expert-model-parallel-size 2 "
           "--expert-tensor-parallel-size 1"),
    Layout("tp2-sp-dp2-ep4-latent", 4, LATENT,
           f"{SP} --expert-model-parallel-size 4 --expert-tensor-parallel-size 1"),
    Layout("cp2-ring-tp2-sp-pp2-latent", 8, LATENT,
           f"{CP} --cp-comm-type p2p {SP} {PP} --expert-model-parallel-size 2"),
    Layout("zero1-dp4", 4, DENSE, ZERO_1),
    Layout("zero1-tp2-sp-dp4", 8, DENSE, f"{SP} {ZERO_1}"),
    Layout("zero1-ulysses-cp2-tp2-sp-dp2", 8, DENSE, f"{SP} {CP} --cp-comm-type a2a {ZERO_1}"),
    Layout("zero1-ep2-etp2-tp2-dp4", 8, MIXTURE, f"{SP} {ZERO_1} --expert-model-parallel-size 2"),
    Layout("zero2-dp4", 4, DENSE, f"{FSDP} optim_grads"),
    Layout("zero3-dp4", 4, DEEP, f"{FSDP} optim_grads_params"),
    Layout("zero3-tp2-sp-dp2", 4, DEEP, f"{SP} {FSDP} optim_grads_params"),
    Layout("zero3-tp2-sp-dp4", 8, DEEP, f"{SP} {FSDP} optim_grads_params"),
    Layout("zero3-ep4-dp8", 8, DEEP_MIXTURE,
           f"{FSDP} optim_grads_params --expert-model-parallel-size 4"),
    Layout("hsdp-2x2", 4, DENSE,
           f"{FSDP} optim_grads_params --num-distributed-optimizer-instances 2"),
    Layout("zero1-2x2", 4, DENSE, f"{ZERO_1} --num-distributed-optimizer-instances 2"),
    Layout("tp2-sp-pp2-dp2", 8, DEEP, f"{SP} {PP}"),
    Layout("tp2-sp-pp2x2-dp2-zero1", 8, DEEP,
           f"{SP} {PP} {ZERO_1} --num-virtual-stages-per-pipeline-rank 2", sequences=2),
    Layout("tp2-sp-pp2-dp2-ep2-zero1", 8, DEEP_MIXTURE,
           f"{SP} {PP} {ZERO_1} --expert-model-parallel-size 2 --expert-tensor-parallel-size 1"),
    Layout("gpipe-tp2-sp-pp2", 4, DENSE,
           f"{TITAN_TP} --parallelism.pipeline_parallel_degree 2 "
           "--parallelism.pipeline_parallel_schedule GPipe "
           "--parallelism.pipeline_parallel_microbatch_size 1 --training.local_batch_size 8",
           framework="torchtitan"),
    Layout("mtp-dp4", 4, FURTHER, MTP),
    Layout("mtp-pp2-dp2", 4, FURTHER, f"{PP} {MTP}"),
    Layout("mtp2-tied-tp2-sp-pp2-dp2", 8, FURTHER_TIED, f"{SP} {PP} --mtp-num-layers 2"),
    Layout("mtp2-tied-dp4-zero2", 4, FURTHER_TIED, f"{FSDP} optim_grads --mtp-num-layers 2"),
    Layout("mtp-tp2-dp2-zero3", 4, FURTHER, f"{TP} {FSDP} optim_grads_params {MTP}"),
    Layout("mtp-latent-ep2-pp2-tp2-sp-zero1", 8, FURTHER_LATENT,
           f"{SP} {PP} {ZERO_1} --expert-model-parallel-size 2 {MTP}"),
    Layout("mtp2-cp2-ring-recompute", 4, FURTHER_TIED, f"{CP} {RECOMPUTE} --mtp-num-layers 2"),
    Layout("mtp2-tied-pp2x2-dp2", 4, dataclasses.replace(FURTHER_TIED, layers=4),
           f"{PP} --num-virtual-stages-per-pipeline-rank 2 --mtp-num-layers 2"),
    Layout("mtp2-zb-pp2-dp2-zero2", 4, FURTHER_TIED,
           f"{PP} {FSDP} optim_grads {ZERO_BUBBLE} --mtp-num-layers 2"),
    Layout("mtp-latent-zb-pp2-tp2-sp", 4, FURTHER_LATENT,
           f"{SP} {PP} --expert-tensor-parallel-size 1 {ZERO_BUBBLE} {MTP}"),
    Layout("zb-pp2", 2, DENSE, f"{PP} {ZERO_BUBBLE}"),
    Layout("zb-pp4-dp2", 8, DEEP, f"--pipeline-model-parallel-size 4 {ZERO_BUBBLE}", samples=16),
    Layout("zb-pp2-dp2-tied", 4, TIED, f"{PP} {ZERO_BUBBLE}"),
    Layout("zb-tp2-sp-pp2-dp2-zero1", 8, DEEP, f"{SP} {PP} {ZERO_1} {ZERO_BUBBLE}"),
    Layout("zb-pp2-dp2-zero3", 4, DEEP, f"{PP} {FSDP} optim_grads_params {ZERO_BUBBLE}"),
    Layout("zb-cp2-ring-tp2-sp-pp2-latent", 8, LATENT,
           f"{CP} --cp-comm-type p2p {SP} {PP} --expert-model-parallel-size 2 {ZERO_BUBBLE}"),
    Layout("zb-cp2-ulysses-tp2-sp-pp2", 8, NORMED,
           f"{CP} --cp-comm-type a2a {SP} {PP} {ZERO_BUBBLE}"),
    Layout("zb-pp2-dp2-ep2-dense-layers", 4, MIXED,
           f"{PP} --expert-model-parallel-size 2 {ZERO_BUBBLE}"),
    Layout("dualpipev-pp2", 2, DEEP, dualpipev(2), framework="torchtitan"),
    Layout("dualpipev-pp4-tied", 4, dataclasses.replace(EIGHT_LAYERS, tied=True), dualpipev(4),
           framework="torchtitan"),
    Layout("dualpipev-pp2-fsdp2-tp2-sp", 8, DEEP,
           f"{dualpipev(2)} {TITAN_TP} --parallelism.data_parallel_shard_degree 2",
           samples=16, framework="torchtitan"),
    Layout("dualpipev-pp2-ep2-dense-layers", 4, MIXED,
           f"{dualpipev(2)} --parallelism.data_parallel_shard_degree 2 "
           "--parallelism.expert_parallel_degree 2", samples=16, framework="torchtitan"),
    Layout("fsdp2-tp2-sp", 4, DENSE,
           f"{TITAN_TP} --parallelism.data_parallel_shard_degree 2 --training.local_batch_size 2",
           samples=4, sequences=2, framework="torchtitan"),
    Layout("recompute-tp2-sp-pp2-dp2", 8, DEEP, f"{SP} {PP} {RECOMPUTE}"),
    Layout("recompute-cp4-ring", 4, DENSE, f"--context-parallel-size 4 {RECOMPUTE}"),
    Layout("recompute-ep4", 4, MIXTURE, f"--expert-model-parallel-size 4 {RECOMPUTE}"),
]


def write(layout: Layout, folder: pathlib.Path, command: Command) -> pathlib.Path:
    """Writes the plan of a layout."""
    config, flags, plan = (folder / name for name in ("config.json", "train.sh", "step.plan"))
    config.write_text(json.dumps(layout.model.config()))
    flags.write_text(layout.words())
    done = command("plan", "--model", config, "--from", layout.framework, flags, "--ranks",
                   layout.ranks, "-o", plan)
    assert done.returncode == 0, done.stderr
    return plan


def job(plan: pathlib.Path, layout: Layout, command: Command, seed: int = 0) -> step_ranks.Job:
    def printed(*words: object) -> str:
        done = command(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return step_ranks.job_of(
        layout.model, layout.sequences, layout.samples, seed=seed,
        tensors=json.loads(printed("export", plan))["tensors"],
        of_ranks=[printed("show", plan, "--rank", rank, "--json") for rank in range(layout.ranks)])


def execute(jobs: list[step_ranks.Job]) -> list[list[step_ranks.Found]]:
    """What each rank found, for each job."""
    found = values(step_ranks.execute, len(jobs[0].of_ranks), jobs, timeout=300)
    return list(map(list, zip(*found, strict=True)))


def max_error(found: list[step_ranks.Found]) -> float:
    return max(error for rank in found
               for error in itertools.chain(rank.gradients.values(), rank.weights.values()))


def assert_agrees(layout: Layout, folder: pathlib.Path, command: Command, seed: int = 0) -> None:
    """Its plan is sound, and computes what one process does."""
    plan = write(layout, folder, command)
    checked = command("check", plan)
    assert checked.returncode == 0, checked.stdout
    (found,) = execute([job(plan, layout, command, seed)])
    print(f"{layout.name}: {max_error(found):.1e}")
    assert max_error(found) < MAX_ERROR

    # Every gradient of the model was compared, and every token is in the loss.
    assert set().union(*(rank.cells for rank in found)) == found[0].all_cells
    losses: dict[tuple[int, ...], float] = {}
    for rank in found:
        losses |= rank.losses
    assert sum(losses.values()) / layout.samples == pytest.approx(found[0].loss, rel=MAX_ERROR)
