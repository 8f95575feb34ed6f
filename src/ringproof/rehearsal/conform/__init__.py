"""A matrix of small trainings that can be run on any Megatron-LM checkout."""
