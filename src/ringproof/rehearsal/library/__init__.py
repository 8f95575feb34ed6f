"""Training with megatron-core's library alone, for packages without Megatron's programs."""
