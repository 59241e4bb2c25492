#!/bin/bash
#SBATCH --nodes=8
#SBATCH --gpus-per-node=8
# Llama 3 70B with Megatron-LM on 64 GPUs.
GPUS_PER_NODE=8
TP=${TP:-8}
PP=${PP:-"4"}

PARALLEL_ARGS=(
    --tensor-model-parallel-size $TP
    --sequence-parallel
    --pipeline-model-parallel-size $PP
    --num-virtual-stages-per-pipeline-rank $((20 / 4))
    --use-distributed-optimizer
)
TRAINING_ARGS="
    --micro-batch-size 1 --global-batch-size 128
    --seq-length 8192 --bf16
"
if [ "$FP8" = 1 ]; then
    TRAINING_ARGS+=" --fp8-format hybrid"
fi

srun torchrun --nnodes $SLURM_NNODES --nproc-per-node $GPUS_PER_NODE pretrain_gpt.py \
    "${PARALLEL_ARGS[@]}" $TRAINING_ARGS --save "$CHECKPOINTS" 2>&1 | tee train.log
