"""Rehearsal: Megatron's and Transformer Engine's own code, run without a GPU.

Read in this order: ``protocol`` (what is run, and what comes back), ``standins`` (what takes the
place of devices, NCCL and compiled kernels), ``rank`` (one rank, and the server that forks ranks),
``runs`` (many ranks, watched), ``verdict`` (the path that a run took, and whether its losses are
right), ``rehearsing`` (a launch from end to end). ``conform`` runs a matrix of small trainings, for
which ``library`` has a program, ``smoke`` runs a pair of programs under torchrun, and ``fixtures``
has fixtures for pytest.
"""
