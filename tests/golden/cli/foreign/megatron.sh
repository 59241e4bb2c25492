#!/bin/bash
torchrun --nproc_per_node 8 --nnodes 64 pretrain_gpt.py \
    --tensor-model-parallel-size 8 --pipeline-model-parallel-size 4 \
    --num-layers 80 --hidden-size 8192 --num-attention-heads 64 \
    --seq-length 8192 --micro-batch-size 1 --global-batch-size 512
