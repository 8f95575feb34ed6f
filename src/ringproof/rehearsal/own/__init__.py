"""Rehearsals of programs that people write on megatron-core's library.

Such a program has no command line of Megatron-LM, so nothing of it can be shrunk by options: it
runs as it is, on the ranks of its launch, for some steps, and once more with CP 1.
"""
