"""Trains a GPT with megatron-core's library: its groups, model, schedules, wrapper and optimizer.

Runs in ranks like a training program and takes the options of one (see `options`). What it adds
itself is what megatron-core leaves to programs: samples, which are the same for every layout of
ranks, the loss function and the loop.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from megatron.core import parallel_state, utils
from megatron.core.datasets.data_schedule import HybridCPDataLoaderWrapper
from megatron.core.distributed import finalize_model_grads
from megatron.core.pipeline_parallel import get_forward_backward_func
from torch import Tensor

from ringproof.rehearsal.library import building
from ringproof.rehearsal.library.options import parse
from ringproof.rehearsal.rank.probe import log_evaluation, log_step, world

Sample = dict[str, Tensor]
EVALUATION = 1_000_000  # first sample of evaluations


def main() -> None:
    """Train as the command line says."""
    options = parse(sys.argv[1:])
    with world():
        building.start_groups(options)
        train(options)


def train(options: argparse.Namespace) -> None:
    """Train and evaluate, and log each step's loss and gradient norm."""
    config = building.configuration(options)
    model = building.model_chunks(options, config)
    optimizer = building.optimizer(options, model)
    config.finalize_model_grads_func = finalize_model_grads
    config.grad_scale_func = optimizer.scale_loss
    if options.overlap_grad_reduce:
        contexts = [chunk.no_sync for chunk in model]
        config.no_sync_func = contexts if len(model) > 1 else contexts[0]
    per_step = options.micro_batch_size * parallel_state.get_data_parallel_world_size()
    count = options.global_batch_size // per_step  # samples of each data parallel rank
    for step in range(options.train_iters):
        for chunk in model:
            chunk.zero_grad_buffer()
        optimizer.zero_grad()
        losses = _passes(options, config, model, step * options.global_batch_size, count)
        _, norm, _ = optimizer.step()
        log_step({"lm loss": losses} if losses is not None else {}, float(norm))
        if (step + 1) % options.eval_interval == 0:
            with torch.no_grad():
                start = EVALUATION + step * options.global_batch_size
                found = _passes(options, config, model, start, count, forward_only=True)
            log_evaluation({} if found is None else {"lm loss": found})


def _passes(
    options: argparse.Namespace, config: Any, model: list[Any], start: int, count: int,
    *, forward_only: bool = False,
) -> float | None:  # fmt: skip
    """Run one global batch and return its loss per token; ``None`` on ranks without a loss."""
    chunks: list[Iterator[Any]] = [_iterator(options, config, start, count) for _ in model]
    held = get_forward_backward_func()(
        forward_step_func=_forward,
        data_iterator=chunks if len(chunks) > 1 else chunks[0],
        model=model if len(model) > 1 else model[0],
        num_microbatches=count,
        seq_length=options.seq_length,
        micro_batch_size=options.micro_batch_size,
        forward_only=forward_only,
    )
    return _average(held, by_tokens=options.calculate_per_token_loss)


def _iterator(options: argparse.Namespace, config: Any, start: int, count: int) -> Iterator[Any]:
    single = samples(options, start)
    if not options.hybrid_context_parallel:
        return single
    batch = [next(single) for _ in range(count)]
    first = parallel_state.get_tensor_model_parallel_rank() == 0
    return iter(HybridCPDataLoaderWrapper(iter([batch]) if first else None, config))


def _forward(iterator: Iterator[Any], model: Any) -> tuple[Tensor, Any]:
    """Megatron-core's ``forward_step_func``: the output of one microbatch and its loss function."""
    batch, packed = on_this_rank(_shared(iterator))
    mask = batch["loss_mask"]
    extra = {} if packed is None else {"packed_seq_params": packed}
    output = model(
        batch["tokens"], batch["position_ids"], None, labels=batch["labels"], loss_mask=mask,
        **extra,
    )  # fmt: skip

    def loss(losses: Tensor) -> tuple[Tensor, Tensor, Mapping[str, Tensor]]:
        total = (losses.reshape(-1) * mask.reshape(-1)).sum()
        tokens = mask.sum().int()
        return total, tokens, {"lm loss": torch.stack([total.detach(), tokens.to(total.dtype)])}

    return output, loss


def _shared(iterator: Iterator[Any]) -> dict[str, Tensor]:
    """The next sample; in hybrid CP only the first rank of a TP group has it."""
    if iterator is not None:
        sample: dict[str, Tensor] = next(iterator)
    group = parallel_state.get_tensor_model_parallel_group()
    if group.size() == 1:
        return sample
    held = [sample if iterator is not None else None]
    dist.broadcast_object_list(
        held, parallel_state.get_tensor_model_parallel_src_rank(), group=group
    )
    assert held[0] is not None
    return held[0]


def _average(held: Sequence[Mapping[str, Tensor]], *, by_tokens: bool) -> float | None:
    """Mean loss over data and context parallel ranks, by tokens or by microbatches."""
    if not parallel_state.is_pipeline_last_stage(ignore_virtual=True):
        return None
    pairs = torch.stack([one["lm loss"] for one in held]).double()
    group = parallel_state.get_data_parallel_group(with_context_parallel=True)
    context = parallel_state.get_context_parallel_group()
    if by_tokens:
        total = pairs.sum(0)
        dist.all_reduce(total, group=group)
        return float(total[0] / total[1])
    dist.all_reduce(pairs, group=context)
    means = (pairs[:, 0] / pairs[:, 1]).mean()
    dist.all_reduce(means, group=group)
    return float(means) / group.size()


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
    sample = dict(sample)
    if "local_cp_size" in sample:
        size = int(sample.pop("local_cp_size"))
        return utils.get_batch_on_this_hybrid_cp_rank(sample, size)
    bounds, longest = sample.pop("cu_seqlens", None), sample.pop("max_seqlen", None)
    batch = {name: value[None] for name, value in sample.items()}
    if bounds is None or longest is None:
        return utils.get_batch_on_this_cp_rank(batch), None
    return utils.get_thd_batch_on_this_cp_rank(batch, bounds, bounds, longest[None])


if __name__ == "__main__":
    main()
