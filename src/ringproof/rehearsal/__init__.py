"""Rehearsal: Megatron's and Transformer Engine's own code, run without a GPU.

Read in this order: ``standins`` (what takes the place of devices, NCCL and compiled kernels),
``program`` (what is run, and what comes back), ``rank`` (one rank, and the server that forks
ranks), ``running`` (many ranks, watched).
"""
