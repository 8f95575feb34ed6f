"""What dynamic CP is measured against: packing at a fixed CP size, and padding to the longest.

Both return the planner's own `Plan`, so that they can be compared, drawn and validated alike.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ringproof.errors import InputError
from ringproof.reference.planning.bounds import bounds
from ringproof.reference.planning.costs import CostModel, make_batch
from ringproof.reference.planning.domain import Domain, IntArray
from ringproof.reference.planning.plan import Group, Metrics, Microbatch, Plan
from ringproof.reference.planning.planner import check_lengths
from ringproof.reference.planning.simulate import Goal, iteration_ticks

Packs = list[list[int]]


@dataclass(frozen=True)
class _Task:
    """What both baselines are given."""

    domain: Domain
    cp_size: int
    model: CostModel
    goal: Goal


def static_plan(
    lengths: Sequence[int] | IntArray,
    domain: Domain,
    cp_size: int,
    model: CostModel,
    goal: Goal | None = None,
) -> Plan:
    """THD packing at one CP size, balanced over the data parallel ranks.

    Sequences are packed in the order given; a pack is closed as soon as the next one does not
    fit. Then single sequences leave the last packs that hold more than one, until every data
    parallel rank has as many packs as the others. Where there are fewer sequences than that
    (upstream's assertion fails there), ranks stay idle.

    Source: ``DpBalancedScheduler.get_groups_and_subsamples`` of Megatron-LM's dev branch.

    Args:
        lengths: Tokens of each sequence.
        domain: Ranks, budget, capacity and microbatch multiple; its lower bound is given.
        cp_size: Ranks that share every sequence.
        model: What a sequence costs on a group.
        goal: Of the makespan.

    Raises:
        InputError: A size that is none of the domain's, or a sequence it cannot hold.
    """
    started = time.perf_counter()
    task = _Task(domain, cp_size, model, goal or Goal())
    values = check_lengths(lengths, _fixed(domain, cp_size))
    tokens = domain.rank_tokens(values, cp_size)
    packs = _packs(tokens, domain)
    wanted = domain.ranks // cp_size * domain.microbatch_multiple
    packs = _level(packs, -len(packs) % wanted)
    return _plan(values, values, packs, task, started)


def padded_plan(
    lengths: Sequence[int] | IntArray,
    domain: Domain,
    cp_size: int,
    model: CostModel,
    goal: Goal | None = None,
) -> Plan:
    """BSHD at one CP size: every sequence padded to the longest of the batch.

    A pack is as many sequences, in the order given, as fit the budget at that length; they are
    dealt to the data parallel ranks evenly. Arguments and errors as for `static_plan`.
    """
    started = time.perf_counter()
    task = _Task(domain, cp_size, model, goal or Goal())
    values = check_lengths(lengths, _fixed(domain, cp_size))
    longest = np.full_like(values, values.max())
    rows = int(domain.rank_tokens(longest[:1], cp_size)[0])
    most = domain.max_tokens_per_rank // rows
    if domain.max_sequences is not None:
        most = min(most, domain.max_sequences)
    wanted = domain.ranks // cp_size * domain.microbatch_multiple
    count = -(-len(values) // (most * wanted)) * wanted
    packs = [part.tolist() for part in np.array_split(np.arange(len(values)), count)]
    return _plan(values, longest, packs, task, started)


def _fixed(domain: Domain, cp_size: int) -> Domain:
    if cp_size not in domain.cp_sizes:
        remedy = f"choose from {domain.cp_sizes}"
        raise InputError("static-cp", cp_size, "is no group size of the domain", remedy)
    return replace(domain, cp_sizes=(cp_size,))


def _packs(tokens: IntArray, domain: Domain) -> Packs:
    """In order; a new pack where the next sequence does not fit."""
    packs: Packs = [[]]
    held = 0
    for sequence, rows in enumerate(tokens.tolist()):
        full = domain.max_sequences is not None and len(packs[-1]) == domain.max_sequences
        if held + rows > domain.max_tokens_per_rank or full:
            packs.append([])
            held = 0
        packs[-1].append(sequence)
        held += rows
    return packs


def _level(packs: Packs, missing: int) -> Packs:
    """Single sequences, from the end, into packs of their own; then empty packs."""
    index = len(packs) - 1
    moved: Packs = []
    while len(moved) < missing and index >= 0:
        if len(packs[index]) > 1:
            moved.append([packs[index].pop()])
        else:
            index -= 1
    return [*packs, *moved, *([] for _ in range(missing - len(moved)))]


def _plan(lengths: IntArray, computed: IntArray, packs: Packs, task: _Task, started: float) -> Plan:
    """The plan of packs: consecutive packs are the data parallel ranks of one microbatch.

    Args:
        lengths: As given.
        computed: As the ranks compute them.
    """
    domain, size = task.domain, task.cp_size
    width = domain.ranks // size
    microbatches = tuple(
        Microbatch(
            tuple(
                Group(place * size, size, tuple(pack))
                for place, pack in enumerate(packs[start : start + width])
            )
        )
        for start in range(0, len(packs), width)
    )
    batch = make_batch(computed, domain, task.model)
    ticks = iteration_ticks(microbatches, batch, domain.ranks, task.goal)
    held = int(domain.rank_tokens(computed, size).sum()) * size
    metrics = Metrics(
        unit=task.model.unit,
        makespan=ticks * batch.tick,
        lower_bound=_lower_bound(lengths, task),
        padding_fraction=1 - int(lengths.sum()) / held,
        cp_histogram={size: len(lengths)},
        planning_seconds=time.perf_counter() - started,
    )
    budget = domain.max_tokens_per_rank
    return Plan(domain.ranks, budget, (size,), tuple(lengths.tolist()), microbatches, metrics)


def _lower_bound(lengths: IntArray, task: _Task) -> float:
    """No plan of the domain is shorter; with a pipeline, its stages share all work at best."""
    batch = make_batch(lengths, task.domain, task.model)
    found = bounds(batch, task.domain)
    ticks = found.ticks + found.microbatches * batch.microbatch_overhead
    return ticks * batch.tick / task.goal.pipeline.stages
