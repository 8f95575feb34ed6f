"""The command line of our training program: Megatron's names, as far as the library has them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

WHOLE = (
    "num-layers", "hidden-size", "num-attention-heads", "seq-length", "max-position-embeddings",
    "micro-batch-size", "global-batch-size", "num-query-groups", "kv-lora-rank", "q-lora-rank",
    "qk-head-dim", "qk-pos-emb-head-dim", "v-head-dim", "num-experts", "moe-router-topk",
    "moe-ffn-hidden-size", "mtp-num-layers", "train-iters", "vocab-size",
    "make-vocab-size-divisible-by", "num-workers", "log-interval", "eval-interval", "eval-iters",
    "context-parallel-size", "tensor-model-parallel-size", "pipeline-model-parallel-size",
    "num-layers-per-virtual-pipeline-stage", "expert-model-parallel-size",
    "recompute-num-layers", "max-seqlen-per-dp-cp-rank", "mamba-state-dim", "mamba-head-dim",
    "mamba-num-groups", "mamba-num-heads",
)  # fmt: skip
REAL = ("lr", "min-lr", "attention-dropout", "hidden-dropout", "moe-aux-loss-coeff")
TEXT = (
    "normalization", "position-embedding-type", "transformer-impl", "split", "tokenizer-type",
    "moe-router-load-balancing-type", "moe-token-dispatcher-type", "cp-comm-type", "window-size",
    "recompute-granularity", "recompute-method", "data-path", "tokenizer-model",
    "sft-tokenizer-prompt-format", "dtype", "rerun-mode",
)  # fmt: skip
FLAGS = (
    "swiglu", "disable-bias-linear", "untie-embeddings-and-output-weights",
    "group-query-attention", "multi-latent-attention", "no-rope-fusion", "moe-grouped-gemm",
    "mock-data", "sft", "calculate-per-token-loss", "sequence-parallel", "hybrid-context-parallel",
    "overlap-grad-reduce", "overlap-param-gather", "use-distributed-optimizer", "bf16",
    "no-create-attention-mask-in-dataloader",
)  # fmt: skip


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read a command line; `SystemExit` where it has an option that is not here."""
    parser = argparse.ArgumentParser("train.py", allow_abbrev=False)
    for names, kind in ((WHOLE, int), (REAL, float), (TEXT, str)):
        for name in names:
            parser.add_argument(f"--{name}", type=kind)
    for name in FLAGS:
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--hierarchical-context-parallel-sizes", type=int, nargs="+")
    given = parser.parse_args(list(arguments))
    for name in ("context", "tensor_model", "pipeline_model", "expert_model"):
        field = f"{name}_parallel_size"
        setattr(given, field, getattr(given, field) or 1)
    given.dtype = "bfloat16" if given.bf16 else given.dtype or "float32"
    if given.cp_comm_type is None:
        given.cp_comm_type = "p2p"
    return given
