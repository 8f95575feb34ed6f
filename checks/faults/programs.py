"""Small training programs of Megatron-LM's dev branch, and defects of upstream that they show.

The defects were found at d48bd6be0a with Transformer Engine 2.20.2. One that is mended upstream
makes its test fail, and then leaves this table. ``docs/upstream-defects.md`` has the causes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from types import MappingProxyType

from ringproof.rehearsal.protocol.program import Program, Upstream

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
    "dynamic": Training(4, (*MODEL, *PACKED, *DYNAMIC, "64"), "packed"),
    "dynamic-2": Training(2, (*MODEL, *PACKED, *DYNAMIC, "128"), "packed"),
    "dynamic-tp": Training(4, (*MODEL, *PACKED, *DYNAMIC, "128", *TP), "packed"),
    "dynamic-pp": Training(4, (*MODEL, *PACKED, *DYNAMIC, "128", *PP), "packed"),
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
    """Return a training of `TRAININGS` as a program."""
    training = TRAININGS[name]
    return Program(upstream, SCRIPT, training.arguments, training.ranks, faults=faults)


SFT = ("--sft", "--calculate-per-token-loss")
HALVES = ("--context-parallel-size", "2")


@dataclass(frozen=True)
class Defect:
    """One defect of upstream.

    Attributes:
        message: Part of the error that ends the program; empty where it runs through.
        expected: Arguments of a program on one rank that must have the same losses; empty where
            none is compared.
        path: CP type that every attention call with communication takes in place of the one asked
            for; empty where the path is right.
        patch: The change in ``docs/patches`` that cures it; its own name unless given.
        cured: Part of what ends the changed program; empty where it trains.
    """

    name: str
    ranks: int
    arguments: tuple[str, ...]
    message: str = ""
    expected: tuple[str, ...] = ()
    path: str = ""
    patch: str = ""
    cured: str = ""


def _with_value(arguments: tuple[str, ...], option: str, value: str) -> tuple[str, ...]:
    at = arguments.index(option)
    return (*arguments[:at], *arguments[at + 2 :], option, value)


SIX = _with_value(MODEL, "--global-batch-size", "12")
DEFECTS = (
    Defect("mtp-per-token-loss", 2, (*MODEL, *PACKED, *DYNAMIC, "128", *MTP),
           expected=(*MODEL, *PACKED, *STATIC, "256", *MTP)),
    Defect("mtp-packing", 1, (*MODEL, *PACKED, *STATIC, "512", *MTP),
           expected=(*MODEL, *PACKED, *STATIC, "256", *MTP), patch="mtp-per-token-loss"),
    Defect("mtp-static-cp", 2, (*MODEL, *MTP, *HALVES), expected=(*MODEL, *MTP)),
    Defect("dynamic-a2a-p2p", 4, (*MODEL, *PACKED, *DYNAMIC, "64", *HIERARCHICAL),
           message="CP implementation a2a+p2p requires cp_group", cured="use p2p"),
    Defect("domain-of-six", 6, (*SIX, *PACKED, *DYNAMIC, "96"), message="KeyError: 4",
           cured="to be a power of two"),
    Defect("domain-of-six-rounded-up", 6, (*SIX, *PACKED, *DYNAMIC, "64"),
           message="Sequence length 264 requires CP size 8, but only 6 DPxCP ranks are available",
           patch="domain-of-six", cured="to be a power of two"),
    Defect("comm-type-ignored", 4,
           (*MODEL, *PACKED, *DYNAMIC, "64", "--cp-comm-type", "a2a"), path="p2p"),
    Defect("no-evaluation", 1,
           (*_with_value(MODEL, "--eval-iters", "0"), *PACKED, *STATIC, "256"),
           message="no sample to consume"),
    Defect("pad-token", 2, (*MODEL, *SFT, *DYNAMIC, "128"), message="index out of range in self"),
    Defect("sft-without-scheduler", 2, (*MODEL, *SFT, *HALVES, "--null-tokenizer-pad-id", "0"),
           message="incompatible function arguments: cu_seqlens is None"),
    Defect("nan-without-save", 1, _with_value(MODEL, "--lr", "1e30"),
           message="expected str, bytes or os.PathLike object, not NoneType",
           cured="SystemExit: 16"),
)  # fmt: skip
