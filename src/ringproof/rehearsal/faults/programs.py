"""Small training programs of Megatron-LM's dev branch that planted defects run in."""

from __future__ import annotations

import json
from dataclasses import dataclass
from types import MappingProxyType

from ringproof.rehearsal.program import Program, Upstream

SCRIPT = "pretrain_gpt.py"
STEPS = 5
LENGTHS = json.dumps(
    {"mode": "distribution", "type": "lognormal", "format": "thd", "min_seq_len": 16,
     "max_seq_len": 256, "mean_seq_len": 96, "lognormal_sigma": 1.0},
    separators=(",", ":"),
)  # fmt: skip
MODEL = (
    "--num-layers", "2", "--hidden-size", "64", "--num-attention-heads", "4", "--seq-length", "256",
    "--max-position-embeddings", "256", "--micro-batch-size", "1", "--global-batch-size", "8",
    "--train-iters", str(STEPS), "--lr", "1e-3", "--min-lr", "1e-3", "--normalization", "RMSNorm",
    "--swiglu", "--position-embedding-type", "rope", "--disable-bias-linear",
    "--transformer-impl", "transformer_engine", "--tokenizer-type", "NullTokenizer",
    "--vocab-size", "255", "--make-vocab-size-divisible-by", "128", "--mock-data",
    "--num-workers", "0", "--attention-dropout", "0", "--hidden-dropout", "0",
    "--log-interval", "1", "--eval-iters", "1", "--eval-interval", "1000", "--split", "99,1,0",
    "--untie-embeddings-and-output-weights",
)  # fmt: skip
PACKED = (
    "--use-varlen-dataset", "--varlen-mock-dataset-config-json", LENGTHS,
    "--calculate-per-token-loss", "--null-tokenizer-pad-id", "0",
)  # fmt: skip
STATIC = ("--sequence-packing-scheduler", "dp_balanced", "--max-seqlen-per-dp-cp-rank")
DYNAMIC = (
    "--dynamic-context-parallel", "--sequence-packing-scheduler", "default_dynamic_cp",
    "--max-seqlen-per-dp-cp-rank",
)  # fmt: skip
MOE = (
    "--num-experts", "4", "--moe-router-topk", "2", "--moe-router-load-balancing-type", "aux_loss",
    "--moe-aux-loss-coeff", "0.1", "--moe-grouped-gemm", "--moe-token-dispatcher-type", "alltoall",
)  # fmt: skip
MTP = ("--mtp-num-layers", "1", "--mtp-loss-scaling-factor", "0.1")
LEARNED = ("--position-embedding-type", "learned_absolute")
TP = ("--tensor-model-parallel-size", "2", "--sequence-parallel")
PP = ("--pipeline-model-parallel-size", "2")
HIERARCHICAL = (
    "--context-parallel-size", "4", "--cp-comm-type", "a2a+p2p",
    "--hierarchical-context-parallel-sizes", "2", "2",
)  # fmt: skip


@dataclass(frozen=True)
class Training:
    """A training program, and the one that it must agree with.

    Attributes:
        ranks: World size.
        arguments: Command line of ``pretrain_gpt.py``.
        reference: Name of the training that has the same losses; empty for a reference.
    """

    ranks: int
    arguments: tuple[str, ...]
    reference: str = ""


TRAININGS = MappingProxyType({
    "one": Training(1, MODEL),
    "cp2": Training(2, (*MODEL, "--context-parallel-size", "2"), "one"),
    "cp2-dp2": Training(4, (*MODEL, "--context-parallel-size", "2"), "one"),
    "hierarchical": Training(4, (*MODEL, *HIERARCHICAL), "one"),
    "packed": Training(1, (*MODEL, *PACKED, *STATIC, "256")),
    "packed-cp2": Training(2, (*MODEL, *PACKED, *STATIC, "128", "--context-parallel-size", "2"),
                           "packed"),
    "dynamic": Training(4, (*MODEL, *PACKED, *DYNAMIC, "64"), "packed"),
    "dynamic-2": Training(2, (*MODEL, *PACKED, *DYNAMIC, "128"), "packed"),
    "dynamic-static-2": Training(
        4, (*MODEL, *PACKED, *DYNAMIC, "64", "--context-parallel-size", "2"), "packed"
    ),
    "dynamic-tp": Training(4, (*MODEL, *PACKED, *DYNAMIC, "128", *TP), "packed"),
    "dynamic-pp": Training(4, (*MODEL, *PACKED, *DYNAMIC, "128", *PP), "packed"),
    "packed-moe": Training(1, (*MODEL, *PACKED, *STATIC, "256", *MOE)),
    "dynamic-moe": Training(2, (*MODEL, *PACKED, *DYNAMIC, "128", *MOE), "packed-moe"),
    "packed-mtp": Training(1, (*MODEL, *PACKED, *STATIC, "256", *MTP)),
    "tied": Training(1, MODEL[:-1]),
    "tied-pp": Training(2, (*MODEL[:-1], *PP), "tied"),
    "learned": Training(1, (*MODEL, *LEARNED)),
    "learned-cp2": Training(2, (*MODEL, *LEARNED, "--context-parallel-size", "2"), "learned"),
    "layernorm": Training(1, (*MODEL, "--normalization", "LayerNorm")),
    "moe": Training(1, (*MODEL, *MOE)),
    "moe-cp2": Training(2, (*MODEL, *MOE, "--context-parallel-size", "2"), "moe"),
    "mtp": Training(1, (*MODEL, *MTP)),
    "mtp-cp2": Training(2, (*MODEL, *MTP, "--context-parallel-size", "2"), "mtp"),
    "dynamic-mtp": Training(2, (*MODEL, *PACKED, *DYNAMIC, "128", *MTP), "packed-mtp"),
})  # fmt: skip


def program(upstream: Upstream, name: str, faults: tuple[str, ...] = ()) -> Program:
    """Return a training of `TRAININGS` as a program.

    Args:
        upstream: A checkout that has ``--dynamic-context-parallel``.
        name: Key of `TRAININGS`.
        faults: Planted defects, ``module:function`` each.
    """
    training = TRAININGS[name]
    return Program(upstream, SCRIPT, training.arguments, training.ranks, faults=faults)
