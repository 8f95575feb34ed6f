#!/bin/bash
# Fine-tunes Qwen3-8B with verl on two GPUs with static CP: `ringproof rehearse train_sft.sh`.
torchrun --nproc_per_node=2 -m verl.trainer.sft_trainer \
  engine=megatron optim=megatron model.path=Qwen/Qwen3-8B engine.vanilla_mbridge=True \
  engine.context_parallel_size=2
