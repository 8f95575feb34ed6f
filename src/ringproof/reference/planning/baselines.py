"""Plans that dynamic CP is measured against: packing at a fixed CP size, and padding.

All of them are returned as the planner's own `Plan`, so that they can be compared, drawn and
validated alike.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from ringproof.errors import InputError
from ringproof.reference.planning.bounds import lower_bound
from ringproof.reference.planning.costs import CostModel, make_batch
from ringproof.reference.planning.domain import Domain, IntArray
from ringproof.reference.planning.groups import dummies
from ringproof.reference.planning.pack import first_fit
from ringproof.reference.planning.plan import Group, Microbatch, Plan, build_plan
from ringproof.reference.planning.planner import check_lengths
from ringproof.reference.planning.simulate import Goal, simulate

Packs = list[list[int]]
Dealing = Literal["given", "sorted"]
"""Deal sequences to packs in the order given, or longest first into the first that has room."""


def static_plan(
    lengths: Sequence[int] | IntArray,
    domain: Domain,
    cp_size: int,
    model: CostModel,
    goal: Goal | None = None,
    *,
    dealing: Dealing = "given",
) -> Plan:
    """Pack sequences at one CP size, balanced over the data parallel ranks.

    With ``given``, sequences are packed in the order given; a pack is closed as soon as the next
    one does not fit. With ``sorted`` they are packed longest first, each into the first pack that
    has room (first-fit decreasing), and packs of similar time share a microbatch. Then single
    sequences leave the last packs that hold more than one, until every data parallel rank has as
    many packs as the others. Where there are fewer sequences than that (upstream's assertion fails
    there), ranks stay idle.

    Source of ``given``: ``DpBalancedScheduler.get_groups_and_subsamples`` of Megatron-LM's dev
    branch.

    Args:
        lengths: Tokens of each sequence.
        domain: Ranks, budget, capacity and microbatch multiple; the bound is that of all its sizes.
        cp_size: Ranks that share every sequence.
        model: The cost model.
        goal: The objective of the makespan.
        dealing: How sequences are dealt to packs.

    Raises:
        InputError: A size that the domain does not have, or a sequence it cannot hold.
    """
    started, goal = time.perf_counter(), goal or Goal()
    fixed = _fixed(domain, cp_size)
    values = check_lengths(lengths, fixed)
    microbatches, makespan = _static(values, fixed, model, goal, dealing)
    times = (model.unit, makespan, _bound(values, domain, model, goal))
    return build_plan(values, fixed, _filled(microbatches, fixed), times=times, started=started)


def _static(
    values: IntArray, fixed: Domain, model: CostModel, goal: Goal, dealing: Dealing
) -> tuple[list[Microbatch], float]:
    """The microbatches of a static plan without its idle ranks, and its makespan."""
    (cp_size,) = fixed.cp_sizes
    tokens = fixed.rank_rows(values, cp_size)
    packs = first_fit(tokens, fixed) if dealing == "sorted" else _packs(tokens, fixed)
    packs = _level(packs, -len(packs) % (fixed.ranks // cp_size * fixed.microbatch_multiple))
    if dealing == "sorted":
        costs = model.cost(values, cp_size)
        packs.sort(key=lambda pack: -float(costs[pack].sum()))
    microbatches = _microbatches(packs, fixed)
    return microbatches, simulate(microbatches, values, fixed.ranks, model, goal).makespan


def padded_plan(
    lengths: Sequence[int] | IntArray,
    domain: Domain,
    cp_size: int,
    model: CostModel,
    goal: Goal | None = None,
) -> Plan:
    """Pad every sequence to the longest of the batch (BSHD) at one CP size.

    A pack is as many sequences, in the order given, as fit the budget at that length; they are
    dealt to the data parallel ranks evenly. Arguments and errors as for `static_plan`.
    """
    started = time.perf_counter()
    fixed = _fixed(domain, cp_size)
    values = check_lengths(lengths, fixed)
    longest = np.full_like(values, values.max())
    rows = int(domain.rank_rows(longest[:1], cp_size)[0])
    most = domain.max_tokens_per_rank // rows
    if domain.max_sequences is not None:
        most = min(most, domain.max_sequences)
    wanted = domain.ranks // cp_size * domain.microbatch_multiple
    count = -(-len(values) // (most * wanted)) * wanted
    # As many parts as packs, which differ by at most one sequence; without those that are empty.
    parts = np.array_split(np.arange(len(values)), min(count, len(values)))
    microbatches = _microbatches([part.tolist() for part in parts], fixed)
    goal = goal or Goal()
    makespan = simulate(microbatches, longest, domain.ranks, model, goal).makespan
    times = (model.unit, makespan, _bound(values, domain, model, goal))
    return build_plan(
        values, fixed, _filled(microbatches, fixed), times=times, started=started, computed=longest
    )


def best_static_plan(
    lengths: Sequence[int] | IntArray,
    domain: Domain,
    cp_sizes: Sequence[int],
    model: CostModel,
    goal: Goal | None = None,
) -> tuple[int, Dealing, Plan]:
    """The shortest static plan over CP sizes and both dealings, with its size and dealing."""
    dealings: tuple[Dealing, ...] = ("given", "sorted")
    goal = goal or Goal()
    values = check_lengths(lengths, _fixed(domain, min(cp_sizes)))
    size, dealing = min(
        itertools.product(cp_sizes, dealings),
        key=lambda pair: _static(values, _fixed(domain, pair[0]), model, goal, pair[1])[1],
    )
    return size, dealing, static_plan(values, domain, size, model, goal, dealing=dealing)


def _fixed(domain: Domain, cp_size: int) -> Domain:
    if cp_size not in domain.cp_sizes:
        remedy = f"choose from {domain.cp_sizes}"
        raise InputError("static-cp", cp_size, "is not a group size of the domain", remedy)
    return replace(domain, cp_sizes=(cp_size,))


def _packs(tokens: IntArray, domain: Domain) -> Packs:
    """Pack in order, and open a new pack where the next sequence does not fit."""
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
    """Move single sequences, from the end, into packs of their own, while some are missing."""
    index = len(packs) - 1
    moved: Packs = []
    while len(moved) < missing and index >= 0:
        if len(packs[index]) > 1:
            moved.append([packs[index].pop()])
        else:
            index -= 1
    return [*packs, *moved]


def _microbatches(packs: Packs, fixed: Domain) -> list[Microbatch]:
    """Consecutive packs are the data parallel ranks of one microbatch."""
    (size,) = fixed.cp_sizes
    width, multiple = fixed.ranks // size, fixed.microbatch_multiple
    count = -(-len(packs) // (width * multiple)) * multiple
    here = (packs[start : start + width] for start in range(0, count * width, width))
    return [
        Microbatch(tuple(Group(place * size, size, tuple(p)) for place, p in enumerate(found)))
        for found in here
    ]


def _filled(microbatches: Sequence[Microbatch], fixed: Domain) -> list[Microbatch]:
    """The microbatches with groups without sequences for idle ranks."""
    (size,) = fixed.cp_sizes
    return [
        Microbatch((*one.groups, *dummies(len(one.groups) * size, fixed.ranks, fixed.cp_sizes)))
        for one in microbatches
    ]


def _bound(lengths: IntArray, domain: Domain, model: CostModel, goal: Goal) -> float:
    """No plan of the domain is shorter."""
    batch = make_batch(lengths, domain, model)
    return lower_bound(batch, goal) * batch.tick
