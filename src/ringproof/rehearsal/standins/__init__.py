"""What takes the place of GPUs, NCCL and compiled kernels in a rehearsal's ranks.

Everything else that runs is upstream's own Python. ``guard`` raises where a stand-in is missing;
``cuda`` and ``communication`` replace torch's devices and NCCL; ``engine`` imports Transformer
Engine without its extension, which ``extension``, ``kernels``, ``packed`` and ``attention`` stand
in for; ``dataset_helpers`` compiles Megatron's own.
"""
