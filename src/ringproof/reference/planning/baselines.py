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

from ringproof.errors import InputError
from ringproof.reference.planning.bounds import lower_bound
from ringproof.reference.planning.costs import CostModel, make_batch
from ringproof.reference.planning.domain import Domain
from ringproof.reference.planning.elementwise import IntArray, columns
from ringproof.reference.planning.groups import dummies
from ringproof.reference.planning.packing import first_fit_decreasing
from ringproof.reference.planning.plan import Group, Microbatch, Plan, build_plan
from ringproof.reference.planning.planner import check_lengths
from ringproof.reference.planning.simulate import Goal, iteration

PackingOrder = Literal["given", "sorted"]
"""Pack sequences in the order given, or longest first into the first pack that has room."""


def static_plan(
    lengths: Sequence[int] | IntArray,
    domain: Domain,
    cp_size: int,
    model: CostModel,
    goal: Goal | None = None,
    *,
    order: PackingOrder = "given",
    bound: float | None = None,
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
        order: The order in which sequences are packed.
        bound: The lower bound of every plan of the batch, where it is known already.

    Raises:
        InputError: A size that the domain does not have, or a sequence it cannot hold.
    """
    started, goal = time.perf_counter(), goal or Goal()
    fixed = _fixed(domain, cp_size)
    values = check_lengths(lengths, fixed)
    microbatches, makespan = _static(values, fixed, model, goal, order)
    bound = _bound(values, domain, model, goal) if bound is None else bound
    times, filled = (model.unit, makespan, bound), _filled(microbatches, fixed)
    (rows,) = columns(lambda n: [fixed.rank_rows(n, cp_size)], values)
    tokens = cp_size * sum(rows)
    return build_plan(values, fixed, filled, times=times, started=started, tokens=tokens)


def _static(
    values: Sequence[int], fixed: Domain, model: CostModel, goal: Goal, order: PackingOrder
) -> tuple[list[Microbatch], float]:
    """The microbatches of a static plan without its idle ranks, and its makespan."""
    (size,) = fixed.cp_sizes
    rows, costs = columns(lambda n: [fixed.rank_rows(n, size), model.cost(n, size)], values)
    packs = first_fit_decreasing(rows, fixed) if order == "sorted" else _in_order(rows, fixed)
    packs = _evened(packs, -len(packs) % (fixed.ranks // size * fixed.microbatch_multiple))
    if order == "sorted":
        packs.sort(key=lambda pack: -sum(costs[sequence] for sequence in pack))
    microbatches = _microbatches(packs, fixed)
    return microbatches, iteration(microbatches, values, fixed.ranks, model, goal)


def padded_plan(
    lengths: Sequence[int] | IntArray,
    domain: Domain,
    cp_size: int,
    model: CostModel,
    goal: Goal | None = None,
    *,
    bound: float | None = None,
) -> Plan:
    """Pad every sequence to the longest of the batch (BSHD) at one CP size.

    A pack is as many sequences, in the order given, as fit the budget at that length; they are
    spread over the data parallel ranks evenly. Arguments and errors as for `static_plan`.
    """
    started, goal = time.perf_counter(), goal or Goal()
    fixed = _fixed(domain, cp_size)
    values = check_lengths(lengths, fixed)
    most = domain.max_tokens_per_rank // int(domain.rank_rows(max(values), cp_size))
    if domain.max_sequences is not None:
        most = min(most, domain.max_sequences)
    wanted = domain.ranks // cp_size * domain.microbatch_multiple
    packs = min(-(-len(values) // (most * wanted)) * wanted, len(values))
    # Packs differ by at most one sequence, and the first ones have more.
    ends = itertools.accumulate(
        len(values) // packs + (number < len(values) % packs) for number in range(packs)
    )
    edges = itertools.pairwise([0, *ends])
    microbatches = _microbatches([range(first, end) for first, end in edges], fixed)
    makespan = _makespan_of_equals(microbatches, values, fixed, model, goal)
    bound = _bound(values, domain, model, goal) if bound is None else bound
    times, filled = (model.unit, makespan, bound), _filled(microbatches, fixed)
    tokens = len(values) * cp_size * fixed.rank_rows(max(values), cp_size)
    return build_plan(values, fixed, filled, times=times, started=started, tokens=tokens)


def _makespan_of_equals(
    microbatches: Sequence[Microbatch],
    values: Sequence[int],
    fixed: Domain,
    model: CostModel,
    goal: Goal,
) -> float:
    """`iteration` of sequences that all cost as much as the longest."""
    (size,), longest = fixed.cp_sizes, max(values)
    if goal.objective == "async":
        return iteration(microbatches, [longest] * len(values), fixed.ranks, model, goal)
    # A product is rounded as an exact sum is, and the first group has the most.
    cost, overhead = float(model.cost(longest, size)), model.group_overhead(size)
    counts = [len(one.groups[0].sequences) if one.groups else 0 for one in microbatches]
    spent = [count * cost + overhead if count else 0.0 for count in counts]
    return goal.pipeline.seconds([model.microbatch_overhead + time for time in spent])


def best_static_plan(
    lengths: Sequence[int] | IntArray,
    domain: Domain,
    cp_sizes: Sequence[int],
    model: CostModel,
    goal: Goal | None = None,
    *,
    bound: float | None = None,
) -> tuple[int, PackingOrder, Plan]:
    """The shortest static plan over CP sizes and both orders, with its size and order."""
    orders: tuple[PackingOrder, ...] = ("given", "sorted")
    goal = goal or Goal()
    values = check_lengths(lengths, _fixed(domain, min(cp_sizes)))
    size, order = min(
        itertools.product(cp_sizes, orders),
        key=lambda pair: _static(values, _fixed(domain, pair[0]), model, goal, pair[1])[1],
    )
    plan = static_plan(values, domain, size, model, goal, order=order, bound=bound)
    return size, order, plan


def _fixed(domain: Domain, cp_size: int) -> Domain:
    if cp_size not in domain.cp_sizes:
        sizes = ", ".join(map(str, domain.cp_sizes))
        problem = f"{cp_size} is not a group size of the domain; choose from {sizes}"
        raise InputError("static-cp", problem)
    return replace(domain, cp_sizes=(cp_size,))


def _in_order(rows: Sequence[int], domain: Domain) -> list[list[int]]:
    """Pack in order, and open a new pack where the next sequence does not fit."""
    packs: list[list[int]] = [[]]
    held = 0
    for sequence, needed in enumerate(rows):
        full = domain.max_sequences is not None and len(packs[-1]) == domain.max_sequences
        if held + needed > domain.max_tokens_per_rank or full:
            packs.append([])
            held = 0
        packs[-1].append(sequence)
        held += needed
    return packs


def _evened(packs: list[list[int]], missing: int) -> list[list[int]]:
    """Move single sequences, from the end, into packs of their own, while some are missing."""
    index = len(packs) - 1
    moved: list[list[int]] = []
    while len(moved) < missing and index >= 0:
        if len(packs[index]) > 1:
            moved.append([packs[index].pop()])
        else:
            index -= 1
    return [*packs, *moved]


def _microbatches(packs: Sequence[Sequence[int]], fixed: Domain) -> list[Microbatch]:
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


def _bound(lengths: Sequence[int], domain: Domain, model: CostModel, goal: Goal) -> float:
    """No plan of the domain is shorter."""
    batch = make_batch(lengths, domain, model)
    return lower_bound(batch, goal) * batch.unit_cost
