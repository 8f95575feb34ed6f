#!/bin/bash
# Fine-tunes a small model on conversations of 64 to 8,192 tokens on the 8 GPUs of one node, with
# Dynamic CP. It has a mistake, which `ringproof doctor train.sh --line dev` names. With NNODES=8, on
# eight nodes, it has none.
export CUDA_DEVICE_MAX_CONNECTIONS=1
torchrun --nnodes "${NNODES:-1}" --nproc-per-node 8 pretrain_gpt.py \
  --num-layers 16 --hidden-size 2048 --num-attention-heads 16 --normalization RMSNorm --swiglu \
  --disable-bias-linear --position-embedding-type rope --attention-dropout 0 --hidden-dropout 0 \
  --seq-length 8192 --max-position-embeddings 8192 --bf16 --micro-batch-size 1 \
  --global-batch-size 64 --train-iters 200 --lr 1e-4 --min-lr 1e-5 --eval-interval 1000 \
  --eval-iters 1 --split 99,1,0 --log-interval 1 --tokenizer-type NullTokenizer \
  --vocab-size 32000 --null-tokenizer-pad-id 0 --mock-data --sft \
  --no-create-attention-mask-in-dataloader --transformer-impl transformer_engine \
  --attention-backend fused --no-gradient-accumulation-fusion --context-parallel-size 2 \
  --cp-comm-type p2p --dynamic-context-parallel --max-seqlen-per-dp-cp-rank 512 \
  --min-dynamic-context-parallel-size 1 --calculate-per-token-loss --dataloader-type single
