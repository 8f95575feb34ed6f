"""Steps of training as the proofs of pipeline, gradients, sharding and checkpoints run them.

The batch of a step is fixed: four microbatches for each of two ranks of a domain. A domain of two
runs the even ones apart, on CP groups of one, and shares the odd ones; one rank alone runs them
all. The numbers must be the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from ringproof.cluster import RankContext
from ringproof.reference.model.batch import PackedBatch
from ringproof.reference.topology.layout import RankLayout
from ringproof.reference.training import gradients, trainer
from ringproof.reference.training.assembly import Assembly, assembly
from ringproof.reference.training.options import OptimiserOptions, TrainOptions
from smoke.faults import Site, injected
from smoke.model_batches import Tokens, random_sequences, rank_batch, totals
from smoke.model_cases import assembled
from smoke.training_matrix import Spread, options_of

LENGTHS = (((13, 1), (32, 7)), ((40,), (5, 5, 3)), ((9, 2), (17,)), ((24, 30), (3, 8)))
"""Lengths of the sequences of each microbatch, for each of two ranks."""
CAPACITY = 96


@dataclass(frozen=True, kw_only=True)
class Run:
    """What one proof runs; the fault is one of ``smoke.faults``."""

    layout: RankLayout = field(default_factory=RankLayout)
    vpp: int = 1
    sharded: bool = False
    sequence_parallel: bool = True
    preset: str = "qwen3-tiny"
    mtp: int = 0
    dtype: str = "float64"
    steps: int = 2
    microbatches: tuple[int, ...] = ()
    equal_lengths: bool = False
    capacity: int = CAPACITY
    fault: str = ""

    def alone(self) -> Run:
        """The same run on one rank, without a fault."""
        return replace(self, layout=RankLayout(), vpp=1, sharded=False, fault="", capacity=CAPACITY)

    @property
    def options(self) -> TrainOptions:
        """What a trainer assembles for it. The documents are not used."""
        layout = {axis: getattr(self.layout, axis) for axis in ("tp", "cp", "dp", "pp")}
        parallel = {
            "vpp": self.vpp,
            "fully_sharded": self.sharded,
            "sequence_parallel": self.sequence_parallel,
        }
        spread = Spread(layout, parallel, model={"dtype": self.dtype})
        short = {"data": "synthetic:mean=4", "max_sequence_length": 8}
        rows = {"max_tokens_per_rank": self.capacity}
        options = options_of(self.preset, spread, mtp=self.mtp, **short, **rows)
        return replace(
            options, optimiser=OptimiserOptions(steps=6, learning_rate=1e-2, warmup_steps=2)
        )


def global_batch(run: Run, step: int) -> list[list[Tokens]]:
    """Sequences of each microbatch, for each of two ranks."""
    count = run.microbatches[step % len(run.microbatches)] if run.microbatches else len(LENGTHS)
    source = ((LENGTHS[0][0],) * 2,) if run.equal_lengths else LENGTHS
    return [
        [
            random_sequences(lengths, seed=100 * step + 10 * index + rank)
            for rank, lengths in enumerate(source[index % len(source)])
        ]
        for index in range(count)
    ]


def own_batches(run: Run, parts: Assembly, step: int) -> list[PackedBatch]:
    """This rank's share of the step."""
    whole = global_batch(run, step)
    total = totals([tokens for pair in whole for some in pair for tokens in some], run.mtp)
    size, rank = parts.groups.domain_size, parts.groups.domain_rank

    def share(sequences: Tokens, cp: int) -> PackedBatch:
        group = parts.groups.group(cp)
        return rank_batch(
            sequences, group, depths=run.mtp, multiple=8, total=total, device=parts.device
        )

    if size == 1 and run.layout.world_size > 1:
        return [share([*pair[0], *pair[1]], 1) for pair in whole]
    if size == 1:
        return [share(sequences, 1) for pair in whole for sequences in pair]
    return [
        share([*pair[0], *pair[1]], 2) if index % 2 else share(pair[rank], 1)
        for index, pair in enumerate(whole)
    ]


def step(run: Run, parts: Assembly, index: int) -> dict[str, Any]:
    """One step: losses, norm and gradients; the parameters move."""
    found: dict[str, Any] = {}
    clip = trainer.clip_gradients

    def seen(parameters: Any, norm: torch.Tensor, limit: float) -> None:
        if index == 0:
            found["gradients"] = whole(parts, gradient=True)
        clip(parameters, norm, limit)

    with mock.patch.object(trainer, "clip_gradients", seen):
        losses, norm, _ = trainer.update(parts, own_batches(run, parts, index), index)
    return {"losses": losses, "norms": norm, **found}


def train(rank: RankContext, *, run: Run) -> dict[str, Any]:
    """Some steps, and an evaluation after them."""
    with injected(run.fault, Site(rank, run.layout)), assembly(run.options, rank.device) as parts:
        steps = [step(run, parts, index) for index in range(run.steps)]
        losses = parts.runner.evaluate(own_batches(run, parts, 99))
        total = gradients.sum_losses(losses, parts.loss_names, parts.reduction, parts.device)
        return {
            "losses": [one["losses"] for one in steps],
            "norms": [one["norms"] for one in steps],
            "gradients": steps[0]["gradients"],
            "evaluation": total.tolist(),
            "parameters": whole(parts),
        }


def whole(parts: Assembly, *, gradient: bool = False) -> dict[str, Any]:
    """This TP rank's cut of each parameter or of its gradient, with its kind."""
    found = {}
    for p in parts.parameters:
        tensor = p.gradient if gradient else gradients.local_part(p.parameter.detach())
        if p.sharded:
            # Not by DTensor, whose mesh may be an equal one of an earlier run on these ranks.
            shards = [tensor] * parts.groups.domain_size
            dist.all_gather_object(shards, tensor.cpu(), group=parts.groups.domain)
            tensor = torch.cat(shards)
        found[p.name] = (p.kind, tensor.cpu().numpy().copy())
    return found


def assemble(run: Run, values: tuple[dict[str, Any], ...], what: str) -> dict[str, torch.Tensor]:
    """Full tensors from what the ranks returned, from those of the domain's first rank."""
    parts: dict[str, tuple[Any, dict[int, torch.Tensor]]] = {}
    for rank, value in enumerate(values):
        if run.layout.coordinate("cp", rank) or run.layout.coordinate("dp", rank):
            continue
        for name, (kind, array) in value[what].items():
            held = parts.setdefault(name, (kind, {}))[1]
            held[run.layout.coordinate("tp", rank)] = torch.from_numpy(array)
    return {
        name: assembled(kind, [held[index] for index in sorted(held)])
        for name, (kind, held) in parts.items()
    }
