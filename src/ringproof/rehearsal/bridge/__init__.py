"""Launches of Megatron-Bridge: recipes and scripts that call its ``pretrain`` or ``finetune``."""
