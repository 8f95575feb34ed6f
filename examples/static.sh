#!/bin/bash
# Trains a tiny model for a few steps with static CP over 2 ranks, a launch without a mistake:
# `ringproof rehearse static.sh`. CP=4 takes four ranks, and GPUS=8 eight, whatever CP is.
export CUDA_DEVICE_MAX_CONNECTIONS=1
CP=${CP:-2}
torchrun --nproc-per-node "${GPUS:-$CP}" pretrain_gpt.py --num-layers 2 --hidden-size 64 \
  --num-attention-heads 4 --seq-length 64 --max-position-embeddings 64 --micro-batch-size 1 \
  --global-batch-size "${GPUS:-2}" --train-iters 2 --eval-interval 2 --lr 1e-4 --mock-data \
  --tokenizer-type NullTokenizer --vocab-size 128 --context-parallel-size "$CP" \
  --cp-comm-type p2p --attention-dropout 0 --no-create-attention-mask-in-dataloader \
  --transformer-impl transformer_engine --bf16
