"""Steps of training as the proofs of pipeline, gradients, sharding and checkpoints run them.

The batch of a step is fixed: four microbatches for each of two ranks of a domain. A domain of two
runs the even ones apart, on CP groups of one, and shares the odd ones; one rank alone runs them
all. The numbers must be the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ringproof.harness.cluster import RankContext
from ringproof.reference.model.batch import PackedBatch
from ringproof.reference.model.config import preset
from ringproof.reference.model.stage import Stage, split_layers
from ringproof.reference.model.tensor_parallel import TensorParallel
from ringproof.reference.topology.context import parallel_context
from ringproof.reference.topology.dynamic import DynamicGroups, dynamic_groups
from ringproof.reference.topology.layout import RankLayout
from ringproof.reference.training import gradients, sharded, trainer
from ringproof.reference.training.pipeline import (
    Message,
    Runner,
    StageCall,
    make_runner,
)
from smoke.faults import Site, injected
from smoke.model_batches import Tokens, random_sequences, rank_batch, totals
from smoke.model_cases import assembled

LENGTHS = (
    ((13, 1), (32, 7)),
    ((40,), (5, 5, 3)),
    ((9, 2), (17,)),
    ((24, 30), (3, 8)),
)
"""Lengths of the sequences of each microbatch, for each of two ranks."""
LOSSES = ("lm", "mtp", "moe_auxiliary")
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


@dataclass(frozen=True)
class Made:
    """What stands on one rank."""

    run: Run
    groups: gradients.ReductionGroups
    dynamic: DynamicGroups
    runner: Runner
    parameters: tuple[gradients.TrainedParameter, ...]
    optimiser: torch.optim.AdamW
    device: torch.device


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


def own_batches(made: Made, step: int) -> list[PackedBatch]:
    """This rank's share of the step."""
    whole = global_batch(made.run, step)
    depths = made.run.mtp
    total = totals([tokens for pair in whole for some in pair for tokens in some], depths)
    size, rank = made.dynamic.domain_size, made.dynamic.domain_rank

    def share(sequences: Tokens, cp: int) -> PackedBatch:
        group = made.dynamic.group(cp)
        return rank_batch(
            sequences, group, depths=depths, multiple=8, total=total, device=made.device
        )

    if size == 1 and made.run.layout.world_size > 1:
        return [share([*pair[0], *pair[1]], 1) for pair in whole]
    if size == 1:
        return [share(sequences, 1) for pair in whole for sequences in pair]
    return [
        share([*pair[0], *pair[1]], 2) if index % 2 else share(pair[rank], 1)
        for index, pair in enumerate(whole)
    ]


@contextmanager
def made_for(rank: RankContext, run: Run) -> Iterator[Made]:
    """Groups, stages and optimiser."""
    layout, dtype = run.layout, getattr(torch, run.dtype)
    domain = layout.dp * layout.cp
    sizes = tuple(range(1, domain + 1))
    with (
        parallel_context(layout) as context,
        dynamic_groups(context, sizes, comm_type="p2p", ranks_per_node=domain) as dynamic,
        gradients.reduction_groups(context) as groups,
    ):
        tensor_parallel = TensorParallel.of(
            groups.tensor, sequence_parallel=run.sequence_parallel and layout.tp > 1
        )
        config = replace(preset(run.preset), mtp_depths=run.mtp)
        chunks = layout.pp * run.vpp
        ranges = split_layers(len(config.layers), chunks)
        own = [
            Stage(
                config,
                layers=ranges[chunk],
                first=chunk == 0,
                last=chunk == chunks - 1,
                seed=0,
                dtype=dtype,
                device=rank.device,
                tensor_parallel=tensor_parallel,
            )
            for chunk in range(layout.coordinate("pp", rank.rank), chunks, layout.pp)
        ]
        calls = [StageCall(stage) for stage in own]
        if run.sharded:
            mesh = sharded.domain_mesh(groups.domain, rank.device)
            calls = [sharded.shard_stage(stage, stage.layers.values(), mesh) for stage in own]
        shards = layout.tp if tensor_parallel.rows_are_cut else 1
        message = Message(run.capacity // shards, config.hidden, dtype, rank.device, shards)
        parameters = gradients.trained_parameters(own)
        yield Made(
            run,
            groups,
            dynamic,
            make_runner(calls, message, groups.pipeline),
            parameters,
            gradients.make_optimiser(parameters, weight_decay=0.1),
            rank.device,
        )


def step(made: Made, index: int) -> dict[str, Any]:
    """One step: losses, norm and gradients; the parameters move."""
    parameters, groups = made.parameters, made.groups
    made.optimiser.zero_grad()
    losses = made.runner.train(own_batches(made, index))
    total = gradients.sum_losses(losses, LOSSES, groups, made.device)
    trainer.reduce_gradients(parameters, groups)  # where faults are injected
    norm = gradients.gradient_norm(parameters, groups)
    full = whole(parameters, gradient=True) if index == 0 else None
    gradients.clip_gradients(parameters, norm, 1.0)
    rate = gradients.learning_rate(index, steps=6, highest=1e-2, warmup_steps=2)
    gradients.set_learning_rate(made.optimiser, rate)
    made.optimiser.step()
    return {"losses": total.tolist(), "norms": norm.item(), "gradients": full}


def train(rank: RankContext, *, run: Run) -> dict[str, Any]:
    """Some steps, and an evaluation after them."""
    with injected(run.fault, Site(rank, run.layout)), made_for(rank, run) as made:
        steps = [step(made, index) for index in range(run.steps)]
        losses = made.runner.evaluate(own_batches(made, 99))
        total = gradients.sum_losses(losses, LOSSES, made.groups, made.device)
        return {
            "losses": [one["losses"] for one in steps],
            "norms": [one["norms"] for one in steps],
            "gradients": steps[0]["gradients"],
            "evaluation": total.tolist(),
            "parameters": whole(made.parameters),
        }


def whole(
    parameters: tuple[gradients.TrainedParameter, ...], *, gradient: bool = False
) -> dict[str, Any]:
    """This TP rank's cut of each parameter or of its gradient, with its kind."""
    found = {}
    for p in parameters:
        tensor = p.parameter.grad if gradient else p.parameter.detach()
        full = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        found[p.name] = (p.kind, full.cpu().numpy().copy())
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
