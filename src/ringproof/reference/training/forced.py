"""Plans whose CP sizes are given and not chosen: to run every size in one step and compare."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

import numpy as np

from ringproof.errors import InputError
from ringproof.reference.planning import (
    CostModel,
    Domain,
    Group,
    Metrics,
    Microbatch,
    Plan,
)
from ringproof.reference.planning.domain import IntArray

Deal = list[list[list[int]]]
"""Sequences by microbatch and group."""


def forced_plan(lengths: IntArray, domain: Domain, sizes: Sequence[int], model: CostModel) -> Plan:
    """Microbatch ``k`` runs on groups of ``sizes[k % len(sizes)]``.

    Sequences are dealt to the microbatches in turn, so that every size has some, and go to the
    emptiest group there; one that has no room goes to the next microbatch that has. There are as
    few microbatches as hold them all, at least one for each size. Groups that get nothing are
    dummies.

    Args:
        lengths: Tokens of each sequence.
        domain: Ranks, budget and microbatch multiple.
        sizes: Of the groups, in turn.
        model: For the makespan; no bound is computed.

    Raises:
        InputError: A size that is none of the domain's, or a sequence that none of them holds.
    """
    started = time.perf_counter()
    for size in sizes:
        if size not in domain.cp_sizes:
            remedy = f"choose from {domain.cp_sizes}"
            raise InputError("forced_sizes", size, "is no group size of the domain", remedy)
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
    """Sequences by microbatch and group; ``None`` where one finds no room."""
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
    makespan, held, histogram = 0.0, 0, Counter[int]()
    for microbatch in microbatches:
        slowest = 0.0
        for group in microbatch.groups:
            own = lengths[list(group.sequences)]
            held += int(domain.rank_tokens(own, group.size).sum()) * group.size
            histogram[group.size] += len(own)
            if len(own):
                cost = float(model.cost(own, group.size).sum())
                slowest = max(slowest, cost + model.group_overhead(group.size))
        makespan += slowest + model.microbatch_overhead
    return Metrics(
        unit=model.unit,
        makespan=makespan,
        lower_bound=0.0,
        padding_fraction=1 - int(lengths.sum()) / held,
        cp_histogram=dict(sorted((+histogram).items())),
        planning_seconds=time.perf_counter() - started,
    )
