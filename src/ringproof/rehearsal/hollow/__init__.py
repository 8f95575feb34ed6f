"""Tensors of full size in which nothing is computed, and a ledger of the memory that they take.

`ledger` counts, and knows no torch. `storages` tells it which storages of torch are born and
dropped, `mode` skips the arithmetic, `shapes` has kernels that only make their results, `devices`
tells what is on a GPU from what is on the host, `groups` stands for all other ranks, and `classify`
says what the memory holds.
"""
