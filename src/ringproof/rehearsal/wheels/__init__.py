"""Programs of ours for wheels of megatron-core, which hold the training loop and no program."""
