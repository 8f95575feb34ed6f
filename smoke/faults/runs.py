"""Faults of the run: its plans, its pipeline, its ranks, its checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

from ringproof.reference.model.batch import PackedBatch
from ringproof.reference.planning import Group, Microbatch
from ringproof.reference.planning.domain import IntArray
from ringproof.reference.training import checkpoint, pipeline, trainer
from ringproof.reference.training.assembly import Assembly
from ringproof.reference.training.data import Sampler
from ringproof.reference.training.schedules import Schedule, StepPlan
from smoke.faults.seams import Site, assembled, planned


def _with_microbatches(step: StepPlan, microbatches: list[Microbatch]) -> StepPlan:
    return replace(step, plan=replace(step.plan, microbatches=tuple(microbatches)))


def unaligned_group(site: Site) -> Any:
    """The second pair moves to the middle, and the first makes room: a rank on either side."""

    def change(step: StepPlan) -> StepPlan:
        return _with_microbatches(step, [*map(_moved, step.plan.microbatches)])

    return planned(change)


def _moved(microbatch: Microbatch) -> Microbatch:
    if [group.size for group in microbatch.groups] != [2, 2]:
        return microbatch
    first, second = microbatch.groups
    return Microbatch(
        (
            Group(0, 1, first.sequences[::2]),
            Group(1, 2, second.sequences),
            Group(3, 1, first.sequences[1::2]),
        )
    )


def sequence_lost(site: Site) -> Any:
    def change(step: StepPlan) -> StepPlan:
        *others, last = step.plan.microbatches
        group = next(group for group in last.groups if not group.dummy)
        shorter = replace(group, sequences=group.sequences[:-1])
        groups = tuple(shorter if one is group else one for one in last.groups)
        return _with_microbatches(step, [*others, Microbatch(groups)])

    return planned(change)


def no_whole_rounds(site: Site) -> Any:
    return mock.patch.object(Schedule, "microbatch_multiple", 1)


def other_seed_on_one_rank(site: Site) -> Any:
    def change(parts: Assembly) -> Assembly:
        sampler = replace(parts.sampler, seed=parts.sampler.seed + 1)
        return replace(parts, sampler=sampler) if site.rank.rank == 1 else parts

    return assembled(change)


def dummies_are_skipped(site: Site) -> Any:
    run_microbatches = trainer.run_microbatches

    def changed(runner: Any, batches: list[PackedBatch]) -> Any:
        return run_microbatches(runner, [batch for batch in batches if batch.real.any()])

    return mock.patch.object(trainer, "run_microbatches", changed)


def last_stage_stops_early(site: Site) -> Any:
    """The last stage has one microbatch less than the first."""
    run_microbatches = trainer.run_microbatches
    last = site.options.parallel.layout.pp - 1
    here = site.options.parallel.layout.coordinate("pp", site.rank.rank) == last

    def changed(runner: Any, batches: list[PackedBatch]) -> Any:
        return run_microbatches(runner, batches[:-1] if here else batches)

    return mock.patch.object(trainer, "run_microbatches", changed)


def stage_is_one_behind(site: Site) -> Any:
    batch = pipeline.StepState.batch
    late = site.options.parallel.layout.coordinate("pp", site.rank.rank) == 1

    def changed(self: pipeline.StepState, microbatch: int) -> PackedBatch:
        return batch(self, max(0, microbatch - 1) if late else microbatch)

    return mock.patch.object(pipeline.StepState, "batch", changed)


def optimiser_not_saved(site: Site) -> Any:
    return mock.patch.object(checkpoint, "_moments", lambda optimiser, parameter: {})


@contextmanager
def sampler_starts_again(site: Site) -> Iterator[None]:
    """The resumed run takes the documents of the first steps once more."""
    load, indices, begun = checkpoint.load, Sampler.indices, [0]

    def loaded(*arguments: Any) -> int:
        begun.append(load(*arguments))
        return begun[-1]

    def rewound(self: Sampler, step: int) -> IntArray:
        return indices(self, step - begun[-1])

    with (
        mock.patch.object(checkpoint, "load", loaded),
        mock.patch.object(Sampler, "indices", rewound),
    ):
        yield
