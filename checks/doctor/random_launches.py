"""Random launches with context parallelism: most of them wrong in one way or in several."""

from __future__ import annotations

import random
import shlex
from collections.abc import Iterator, Mapping, Sequence

from ringproof.launch.reading import Launch

CHANCE = 0.07
"""Of a setting being drawn at random in a launch. About half of the launches are then refused."""


OPTIONS: Mapping[str, Sequence[str]] = {
    "--tensor-model-parallel-size": ("1", "2", "4", "3"),
    "--pipeline-model-parallel-size": ("2", "4"),
    "--num-layers": ("8", "6"),
    "--num-attention-heads": ("8", "16", "6"),
    "--seq-length": ("512", "250", "1000", "16"),
    "--cp-comm-type": ("p2p", "a2a", "all_gather", "a2a+p2p", "a2a+p2p", "ulysses", "p2p a2a"),
    "--hierarchical-context-parallel-sizes": ("2 2", "2 4", "4 2", "1 4", "2 2 2"),
    "--max-seqlen-per-dp-cp-rank": ("64", "128", "512", "16"),
    "--micro-batch-size": ("1", "2"),
    "--global-batch-size": ("64", "48", "8"),
    "--dataloader-type": ("single", "cyclic", "external"),
    "--transformer-impl": ("local", "transformer_engine"),
    "--cuda-graph-impl": ("none", "local", "transformer_engine"),
    "--normalization": ("RMSNorm", "LayerNorm"),
    "--window-size": ("128,0", "128 0"),
    "--softmax-type": ("vanilla", "off-by-one", "learnable"),
    "--num-experts": ("4",),
    "--moe-token-dispatcher-type": ("allgather", "alltoall"),
    "--num-query-groups": ("2", "4", "1"),
    "--sequence-packing-scheduler": ("dp_balanced", "default_dynamic_cp"),
    "--min-dynamic-context-parallel-size": ("1", "2", "3", "16", "0"),
    "--pad-packed-seq-alignment": ("max", "64", "128", "0"),
    "--thd-max-packed-sequences": ("32",),
    "--cp-partition-mode": ("zigzag", "contiguous"),
    "--thd-tail-padding-policy": ("append_dummy_seq", "extend_last"),
    "--num-virtual-stages-per-pipeline-rank": ("2",),
    "--ckpt-format": ("fsdp_dtensor", "fsdp_dtensor", "torch_dist"),
    "--step-batch-size-schedule": ("0:48", "'0:48 100:96'", "0:48 100:96"),
}
SWITCHES = (
    "--sequence-parallel",
    "--group-query-attention",
    "--sft",
    "--use-varlen-dataset",
    "--use-megatron-fsdp",
    "--multi-latent-attention",
    "--use-distributed-optimizer",
    "--enable-cuda-graph",
    "--calculate-per-token-loss",
    "--cuda-graph-dynamic-microbatches",
    "--disable-bias-linear",
)
PREFERRED = {
    "--num-layers": "4", "--hidden-size": "96", "--num-attention-heads": "8",
    "--seq-length": "256", "--max-position-embeddings": "8192", "--micro-batch-size": "1",
    "--global-batch-size": "192", "--train-iters": "2", "--lr": "1e-3", "--bf16": "",
    "--tokenizer-type": "NullTokenizer", "--vocab-size": "128", "--mock-data": "",
}  # fmt: skip
DYNAMIC = {
    "--calculate-per-token-loss": "",
    "--dataloader-type": "single",
    "--max-seqlen-per-dp-cp-rank": "128",
}


def random_launches(count: int, seed: int, known: Sequence[str] | None = None) -> Iterator[Launch]:
    """Yield launches.

    Args:
        known: Options of the upstream; others are given once in fifty launches only.
    """
    draw = random.Random(seed)
    for _ in range(count):
        yield _launch(draw, known)


def _launch(draw: random.Random, known: Sequence[str] | None) -> Launch:
    values = dict(PREFERRED)
    cp = draw.choice((1, 2, 2, 4, 4, 8))
    if cp > 1:
        values["--context-parallel-size"] = str(cp)
    _feature(draw, values, cp)
    for name, choices in OPTIONS.items():
        if draw.random() < CHANCE:
            values[name] = draw.choice(choices)
    for name in SWITCHES:
        if draw.random() < CHANCE:
            if name in values:
                del values[name]
            else:
                values[name] = ""
    if "--step-batch-size-schedule" in values and draw.random() < 0.6:
        del values["--global-batch-size"]
    unknown = draw.random() < 0.02
    words = []
    for name, value in values.items():
        if known is None or unknown or name in known:
            words += [name, *shlex.split(value)]
    connections = draw.random() >= 0.05 and "--use-megatron-fsdp" not in values
    environment = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"} if connections else {}
    size = cp * int(values.get("--tensor-model-parallel-size", 1))
    size *= int(values.get("--pipeline-model-parallel-size", 1))
    world = size * draw.choice((1, 2, 2, 3, 4, 8)) if draw.random() < 0.95 else 10
    return Launch("pretrain_gpt.py", tuple(words), environment, 1, world, "random")


def _feature(draw: random.Random, values: dict[str, str], cp: int) -> None:
    """Turn Dynamic CP or hierarchical CP on, mostly as it has to be."""
    kind = draw.random()
    if kind < 0.4:
        values |= DYNAMIC
        values[draw.choice(("--dynamic-context-parallel", "--hybrid-context-parallel"))] = ""
        if draw.random() < 0.7:
            values[draw.choice(("--sft", "--use-varlen-dataset"))] = ""
    elif kind < 0.45:
        values["--dynamic-context-parallel"] = values["--hybrid-context-parallel"] = ""
    elif kind < 0.7:
        values["--cp-comm-type"] = "a2a+p2p"
        values["--hierarchical-context-parallel-sizes"] = f"{max(cp // 2, 1)} {min(cp, 2)}"
