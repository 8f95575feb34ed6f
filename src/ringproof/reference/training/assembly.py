"""Builds everything that one rank holds: groups, stages, optimizer and schedule.

Everything is built once and passed on as arguments.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import torch

from ringproof.reference.graphs.backend import CaptureBackend
from ringproof.reference.graphs.bank import GraphBank
from ringproof.reference.model.stage import Stage, split_layers
from ringproof.reference.model.tensor_parallel import TensorParallel
from ringproof.reference.planning import Pipeline as PipelineShape
from ringproof.reference.topology.context import ParallelContext, parallel_context
from ringproof.reference.topology.dynamic import DynamicGroups, dynamic_groups
from ringproof.reference.training.agreement import refuse_together
from ringproof.reference.training.banks import graph_banks
from ringproof.reference.training.data import DataSplit, Documents, Sampler, read_data
from ringproof.reference.training.gradients import (
    REDUCED_OVER,
    TENSOR,
    ReductionGroups,
    TrainedParameter,
    make_optimiser,
    reduction_groups,
    trained_parameters,
)
from ringproof.reference.training.options import TrainOptions
from ringproof.reference.training.pipeline import LoopRunner, Message, PipelineRunner, StageCall
from ringproof.reference.training.records import GraphsRecord
from ringproof.reference.training.routing import TokenNeeds
from ringproof.reference.training.schedules import MultiplyAdds, Schedule, check_fit
from ringproof.reference.training.sharded import shard_stage


@dataclass(frozen=True, kw_only=True)
class Assembly:
    """Everything that one rank holds in a run.

    Args:
        banks: Graph banks of its stages; empty without CUDA graphs.
        graphs: Record of the captures on all ranks; ``None`` without CUDA graphs.
    """

    options: TrainOptions
    device: torch.device
    schedule: Schedule
    data: DataSplit
    sampler: Sampler
    groups: DynamicGroups
    reduction: ReductionGroups
    runner: LoopRunner | PipelineRunner
    parameters: tuple[TrainedParameter, ...]
    optimiser: torch.optim.AdamW
    needs: TokenNeeds
    banks: tuple[GraphBank, ...] = ()
    graphs: GraphsRecord | None = None

    @property
    def loss_names(self) -> tuple[str, ...]:
        """Names of the losses, in the order in which they are reported."""
        config = self.options.model.config
        experts = any(kind.feed_forward == "experts" for kind in config.layers)
        present = {"lm": True, "mtp": config.mtp_depths > 0, "moe_auxiliary": experts}
        return tuple(name for name, is_there in present.items() if is_there)


@contextmanager
def assembly(
    options: TrainOptions,
    device: torch.device,
    timeout: timedelta | None = None,
    *,
    backend: CaptureBackend | None = None,
) -> Iterator[Assembly]:
    """Build everything that one rank holds. A collective over the world.

    Raises:
        InputError: The layout does not fill the world, or data, model and layout do not fit.
    """
    schedule = make_schedule(options)
    data = refuse_together(lambda: _readable(options, schedule))
    parallel = options.parallel
    with (
        parallel_context(parallel.layout, descriptions=REDUCED_OVER, timeout=timeout) as context,
        dynamic_groups(
            context,
            schedule.sizes,
            comm_type=parallel.comm_type,
            ranks_per_node=parallel.node,
            timeout=timeout,
        ) as groups,
        reduction_groups(context, timeout=timeout) as reduction,
    ):
        stages = _stages(options, context, device)
        needs = TokenNeeds(
            comm_type=parallel.comm_type,
            depths=options.model.mtp,
            embeds=stages[0].first,
            predicts=stages[-1].last,
            ids=np.min_scalar_type(options.model.config.vocabulary - 1),
            device=device,
        )
        with graph_banks(options, schedule, stages, groups, needs, backend=backend) as captured:
            banks, record = captured
            runner = _runner(options, stages, banks, groups, reduction, device=device)
            parameters = trained_parameters(stages)
            weight_decay = options.optimiser.weight_decay
            yield Assembly(
                options=options,
                device=device,
                schedule=schedule,
                data=data,
                sampler=sampler_of(options, data.training),
                groups=groups,
                reduction=reduction,
                runner=runner,
                parameters=parameters,
                optimiser=make_optimiser(parameters, weight_decay=weight_decay),
                needs=needs,
                banks=banks,
                graphs=record,
            )


def _readable(options: TrainOptions, schedule: Schedule) -> DataSplit:
    """The data of a run, none of which is too long for it."""
    data = read_data(options.batch.data, longest=options.batch.max_sequence_length)
    check_longest(data.training, schedule)
    if options.keeping.evaluate_every:
        check_longest(data.evaluation, schedule)
    return data


def sampler_of(options: TrainOptions, documents: Documents) -> Sampler:
    """Return the sampler of a run for some documents."""
    seed, global_batch = options.batch.seed, options.batch.global_batch
    return Sampler(seed=seed, global_batch=global_batch, documents=len(documents.lengths))


def make_schedule(options: TrainOptions) -> Schedule:
    """Return the settings from which the steps of a run are planned.

    Raises:
        InputError: A CP size does not divide the domain.
    """
    parallel, batch = options.parallel, options.batch
    return Schedule(
        name=batch.schedule,
        ranks=parallel.domain,
        max_tokens_per_rank=batch.max_tokens_per_rank,
        cp_size=parallel.layout.cp,
        cp_sizes=options.group_sizes,
        forced_sizes=batch.forced_sizes,
        row_shards=parallel.row_shards,
        padded_length=batch.max_sequence_length if batch.schedule == "padded" else None,
        pipeline=PipelineShape(parallel.layout.pp, parallel.vpp),
        model=MultiplyAdds.of_model(options.model.config),
        capacity=options.capacity,
    )


def check_longest(documents: Documents, schedule: Schedule) -> None:
    """Check at the start that the longest document fits.

    Otherwise the run would fail in the step that draws the document, possibly after hours.

    Raises:
        InputError: The longest document does not fit.
    """
    longest = int(np.argmax(documents.lengths))
    check_fit(documents.lengths[[longest]], schedule, [documents.name(longest)])
    if schedule.capacity is not None:
        computed = schedule.padded_length or int(documents.lengths[longest])
        size, multiple = max(schedule.sizes), schedule.rank_multiple
        schedule.capacity.check_longest(computed, size, multiple)


def _stages(
    options: TrainOptions, context: ParallelContext, device: torch.device
) -> tuple[Stage, ...]:
    """Build this rank's chunks of the model. Chunk ``c`` of ``PP x VPP`` is on rank ``c % PP``."""
    layout, config = options.parallel.layout, options.model.config
    ranges = split_layers(len(config.layers), layout.pp * options.parallel.vpp)
    tensor = TensorParallel.of(
        context.groups[TENSOR] if layout.tp > 1 else None,
        sequence_parallel=options.parallel.sequence_parallel,
    )
    return tuple(
        Stage(
            config,
            layers=ranges[chunk],
            first=chunk == 0,
            last=chunk == len(ranges) - 1,
            seed=options.batch.seed,
            dtype=getattr(torch, options.model.dtype),
            device=device,
            tensor_parallel=tensor,
            recompute=options.model.recompute,
        )
        for chunk in range(layout.coordinate("pp", context.rank), len(ranges), layout.pp)
    )


def _runner(
    options: TrainOptions,
    stages: tuple[Stage, ...],
    banks: tuple[GraphBank, ...],
    groups: DynamicGroups,
    reduction: ReductionGroups,
    *,
    device: torch.device,
) -> LoopRunner | PipelineRunner:
    shards = options.parallel.row_shards
    message = Message(
        capacity=options.batch.max_tokens_per_rank // shards,
        hidden=options.model.config.hidden,
        dtype=getattr(torch, options.model.dtype),
        device=device,
        row_shards=shards,
    )
    if options.parallel.fully_sharded:
        calls = [shard_stage(stage, groups.domain, device) for stage in stages]
    else:
        pairs = zip(stages, banks or (None,) * len(stages), strict=True)
        calls = [StageCall(stage, bank) for stage, bank in pairs]
    one_rank = reduction.pipeline.size() == 1
    return LoopRunner(calls) if one_rank else PipelineRunner(calls, message, reduction.pipeline)
