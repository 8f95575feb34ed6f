"""A matrix of small trainings that any Megatron-LM checkout can be held against."""
