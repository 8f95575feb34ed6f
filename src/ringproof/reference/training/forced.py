"""Plans with given CP sizes, which run every size in one step for comparisons."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

import numpy as np

from ringproof.errors import InputError
from ringproof.reference.planning import (
    CostModel,
    Domain,
    Goal,
    Group,
    Metrics,
    Microbatch,
    Plan,
)
from ringproof.reference.planning.domain import IntArray
from ringproof.reference.planning.simulate import group_times, simulate

Deal = list[list[list[int]]]
"""Sequences by microbatch and group."""


def forced_plan(lengths: IntArray, domain: Domain, sizes: Sequence[int], model: CostModel) -> Plan:
    """Plan a step in which microbatch ``k`` has groups of ``sizes[k % len(sizes)]`` ranks.

    Sequences are assigned to the microbatches in turn, so that every size is used, and within a
    microbatch to the emptiest group. A sequence that does not fit goes to the next microbatch with
    room. There are as few microbatches as possible, but at least one for each size. Groups without
    sequences are dummies.

    Args:
        lengths: Tokens of each sequence.
        domain: Domain with ranks, token budget and microbatch multiple.
        sizes: Group sizes, used in turn.
        model: Cost model for the makespan. No bound is computed.

    Raises:
        InputError: The domain does not have a size, or a sequence fits none of the groups.
    """
    started = time.perf_counter()
    for size in sizes:
        if size not in domain.cp_sizes:
            remedy = f"choose from {domain.cp_sizes}"
            raise InputError("forced_sizes", size, "is not a group size of the domain", remedy)
    multiple = domain.microbatch_multiple
    count = -(-len(sizes) // multiple) * multiple
    most = count + len(sizes) * (len(lengths) + multiple)
    dealt = None
    while dealt is None and count <= most:
        dealt = _deal(lengths, domain, [sizes[k % len(sizes)] for k in range(count)])
        count += multiple
    if dealt is None:
        problem = "hold not every sequence"
        raise InputError("forced_sizes", tuple(sizes), problem, "force a larger size, too")
    microbatches = tuple(
        Microbatch(tuple(_groups(groups, sizes[k % len(sizes)]))) for k, groups in enumerate(dealt)
    )
    metrics = _metrics(lengths, microbatches, domain, model, started)
    ascending = tuple(sorted(set(sizes)))
    budget = domain.max_tokens_per_rank
    return Plan(domain.ranks, budget, ascending, tuple(lengths.tolist()), microbatches, metrics)


def _deal(lengths: IntArray, domain: Domain, sizes: Sequence[int]) -> Deal | None:
    """Assign sequences to microbatches and groups; ``None`` if one does not fit."""
    count = len(sizes)
    rows = [domain.rank_tokens(lengths, size).tolist() for size in sizes]
    filled = [[0] * (domain.ranks // size) for size in sizes]
    dealt: Deal = [[[] for _ in held] for held in filled]
    for sequence in range(len(lengths)):
        for turn in range(count):
            k = (sequence + turn) % count
            group = int(np.argmin(filled[k]))
            if filled[k][group] + rows[k][sequence] <= domain.max_tokens_per_rank:
                break
        else:
            return None
        filled[k][group] += rows[k][sequence]
        dealt[k][group].append(sequence)
    return dealt


def _groups(held: Sequence[Sequence[int]], size: int) -> list[Group]:
    return [Group(place * size, size, tuple(sequences)) for place, sequences in enumerate(held)]


def _metrics(
    lengths: IntArray,
    microbatches: Sequence[Microbatch],
    domain: Domain,
    model: CostModel,
    started: float,
) -> Metrics:
    held, histogram = 0, Counter[int]()
    for group in (group for microbatch in microbatches for group in microbatch.groups):
        own = lengths[list(group.sequences)]
        held += int(domain.rank_tokens(own, group.size).sum()) * group.size
        histogram[group.size] += len(own)
    times, overhead = group_times(microbatches, lengths, model), float(model.microbatch_overhead)
    makespan = simulate(microbatches, times, domain.ranks, Goal(), overhead).makespan
    return Metrics(
        unit=model.unit,
        makespan=makespan,
        lower_bound=0.0,
        padding_fraction=1 - int(lengths.sum()) / held,
        cp_histogram=dict(sorted((+histogram).items())),
        planning_seconds=time.perf_counter() - started,
    )
