"""Samples of the library program, the same for every layout of ranks."""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from megatron.core import parallel_state
from torch import Tensor

Sample = dict[str, Tensor]
EVALUATION = 1_000_000  # first sample of evaluations


def samples(options: argparse.Namespace, start: int) -> Iterator[Sample]:
    """Yield this data parallel rank's samples, ``[tokens]`` each, from global number ``start`` on.

    Packed samples also have ``cu_seqlens`` and ``max_seqlen``.
    """
    rank = parallel_state.get_data_parallel_rank()
    size = parallel_state.get_data_parallel_world_size()
    rows = Path(options.data_path).read_text().splitlines() if options.sft else []
    for number in itertools.count(start + rank, size):
        yield _conversations(rows[number % len(rows)]) if rows else _drawn(options, number)


def _drawn(options: argparse.Namespace, number: int) -> Sample:
    tokens = np.random.default_rng(number).integers(1, options.vocab_size, options.seq_length + 1)
    whole = torch.from_numpy(tokens)
    return {
        "tokens": whole[:-1],
        "labels": whole[1:],
        "loss_mask": torch.ones(options.seq_length),
        "position_ids": torch.arange(options.seq_length),
    }


def _conversations(row: str) -> Sample:
    """A packed sample; the last token of each conversation predicts nothing."""
    parts = [[int(w) for w in turn["content"].split()] for turn in json.loads(row)["messages"]]
    lengths = torch.tensor([len(part) for part in parts])
    bounds = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)])
    tokens = torch.tensor([word for part in parts for word in part])
    mask = torch.ones(len(tokens))
    mask[bounds[1:] - 1] = 0.0
    return {
        "tokens": tokens,
        "labels": tokens.roll(-1),
        "loss_mask": mask,
        "position_ids": torch.cat([torch.arange(len(part)) for part in parts]),
        "cu_seqlens": bounds.int(),
        "max_seqlen": lengths.max().int(),
    }


def on_this_rank(sample: Sample) -> tuple[Sample, Any]:
    """Cut a sample to this rank's share by megatron-core's own functions.

    Returns:
        The batch ``[1, tokens]`` and parameters of packed attention, ``None`` without packing.
    """
    from megatron.core import utils

    sample = dict(sample)
    if "local_cp_size" in sample:
        size = int(sample.pop("local_cp_size"))
        return utils.get_batch_on_this_hybrid_cp_rank(sample, size)
    bounds, longest = sample.pop("cu_seqlens", None), sample.pop("max_seqlen", None)
    batch = {name: value[None] for name, value in sample.items()}
    if bounds is None or longest is None:
        return utils.get_batch_on_this_cp_rank(batch), None
    return utils.get_thd_batch_on_this_cp_rank(batch, bounds, bounds, longest[None])


def microbatches(options: argparse.Namespace) -> int:
    """Samples of each data parallel rank in a step."""
    per_step: int = options.micro_batch_size * parallel_state.get_data_parallel_world_size()
    return int(options.global_batch_size) // per_step
