"""What Megatron-LM's dev branch and pull request 6479 do with plans, partitions and own loops.

Called by `ringproof.rehearsal.fixtures.Stage.call`: `plans` on one rank, `own_loop` on two.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from checks.skills.core_cases import layout, said
from checks.skills.dynamic_batches import Batch
from checks.skills.dynamic_dev_world import SMALL, outcome
from checks.skills.shared import REPOSITORY, blocks

DOMAINS = (4, 6, 8, 12, 16, 24)
BATCHES = 6
LIMIT = 0.5
"""Seconds of processor time; a batch that ends takes hundredths of it."""


def plans(_: None) -> dict[str, Any]:
    """The errors of random batches under virtual stages by domain, and of partition modes."""
    drawn = random.Random(0)
    counts = [drawn.choice((3, 4, 6, 10)) for _ in range(BATCHES)]
    lengths = [tuple(drawn.randint(40, 1000) for _ in range(count)) for count in counts]
    return {
        "errors": {
            str(ranks): [outcome(Batch(some, ranks, 512, 4), LIMIT)["error"] for some in lengths]
            for ranks in DOMAINS
        },
        "partitions": partitions(),
    }


def partitions() -> dict[str, str]:
    """What `TransformerConfig` says to partition modes under static CP 2."""
    from megatron.core.transformer.transformer_config import TransformerConfig

    contiguous = {"cp_partition_mode": "contiguous"}
    tried: dict[str, dict[str, Any]] = {
        "zigzag": {},
        "contiguous": {**contiguous, "sequence_packing_scheduler": "dp_balanced"},
        "unpacked": contiguous,
        "dsv4 in zigzag": {"experimental_attention_variant": "dsv4_hybrid"},
    }
    return {
        name: said(
            lambda o=options: TransformerConfig(
                **SMALL, context_parallel_size=2, max_seqlen_per_dp_cp_rank=64, **o
            )
        )
        for name, options in tried.items()
    }


def samples(lengths: list[int]) -> Iterator[list[dict[str, torch.Tensor]]]:
    """Global batches as an unpacked data set yields them: one sequence in each microbatch."""
    for length in lengths:
        rows = torch.arange(length)
        size = torch.tensor([length], dtype=torch.int32)
        yield [
            {
                "tokens": rows,
                "labels": rows,
                "loss_mask": torch.ones(length),
                "position_ids": rows,
                "original_seq_len": size,
                "padded_seq_len": size.clone(),
            }
        ]


def own_loop(snippet: str) -> dict[str, Any]:
    """Run the own loop of the skill for one global batch; then with an iterator on TP rank 1."""
    from megatron.core.datasets.data_schedule import wrap_data_iterator
    from megatron.core.transformer.transformer_config import TransformerConfig

    sizes: list[int] = []
    place = dist.get_rank()
    config = TransformerConfig(
        **SMALL,
        dynamic_context_parallel=True,
        max_seqlen_per_dp_cp_rank=32,
        calculate_per_token_loss=True,
    )
    names: dict[str, Any] = {
        "samples": samples([64, 16] if place == 0 else [32, 16]),
        "num_microbatches": 2,
        "config": config,
        "train_on": lambda *batch: sizes.append(int(batch[-1].local_cp_size)),
    }
    with layout(dynamic_context_parallel=True):
        exec(snippet, names)
    with layout(tensor_model_parallel_size=2):
        second = said(lambda: wrap_data_iterator(samples([16, 16]), config, 2)) if place else ""
        dist.barrier()  # the first rank serves the store: it must not end before the others
    return {"sizes": sizes, "returned": len(names["wrapped"]), "second": second}


def count_sizes() -> None:
    """Run the snippet of SKILL.md that counts CP sizes, before upstream's program."""
    text = (REPOSITORY / "skills/dynamic-context-parallel/SKILL.md").read_text(encoding="utf-8")
    exec(blocks(text, "python")[0], {})
