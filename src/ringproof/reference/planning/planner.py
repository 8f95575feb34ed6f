"""Plan a batch: from lengths to microbatches, CP groups and the sequences in them.

Sequences are packed greedily, see `packing`. Group sizes start as small as the lengths allow,
because communication and small chunks cost time, and grow where that shortens the microbatch. Where
microbatches do not simply add up, as under a pipeline, the batch is also packed in shares that each
have sequences of all lengths, and the simulated iteration decides. For small batches the plan that
upstream's rule gives is among the candidates. Of the candidates that leave the fewest ranks idle,
the shortest is taken.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Iterator, Sequence

from ringproof.errors import InputError
from ringproof.reference.planning.bounds import fewest_microbatches, lower_bound
from ringproof.reference.planning.costs import Batch, CostModel, make_batch
from ringproof.reference.planning.domain import Domain
from ringproof.reference.planning.elementwise import IntArray
from ringproof.reference.planning.groups import (
    PackedMicrobatch,
    dummies,
    halved,
    on_ranks,
    run_ahead,
    side_by_side,
)
from ringproof.reference.planning.packing import (
    pack_as_upstream,
    pack_greedily,
    pack_in_shares,
    pack_on_all_ranks,
)
from ringproof.reference.planning.plan import Microbatch, Plan, build_plan
from ringproof.reference.planning.simulate import Goal

MAX_SEQUENCES = 20_000_000
_EFFORT = 1_024
"""Sequences that may be placed to compare ways of packing, besides one for each sequence: 2 ms. Of
75 batches (5 distributions, 64 to 8,192 sequences, 16 to 256 ranks) plans are at 1.039 of the bound
on average with 1,024 as with 16,384, and at 1.153 with 0. Up to so many sequences the plan of
upstream's rule is a candidate; above 512 it was shorter than ours by at most 0.4%."""
_NEAR_OPTIMUM = 1.003
"""A plan within this factor of the bound is taken without a look at other packings. Where
communication is free, groups of all ranks would otherwise replace groups as small as the lengths
allow for a gain that no run could measure."""

Packed = tuple[PackedMicrobatch, ...]


def make_plan(
    lengths: Sequence[int] | IntArray,
    domain: Domain,
    model: CostModel,
    goal: Goal | None = None,
) -> Plan:
    """Plan one global batch; the same on every rank for the same arguments.

    Args:
        lengths: Tokens of each sequence, shape ``(n,)``.
        domain: Ranks, groups and budgets.
        model: What a sequence costs on a group.
        goal: ``sync`` without a pipeline when not given.

    Raises:
        InputError: No sequences, one that is empty, or one that no group can hold.
    """
    started = time.perf_counter()
    values = check_lengths(lengths, domain)
    return plan_batch(values, make_batch(values, domain, model), model, goal, started)


def plan_batch(
    lengths: Sequence[int],
    batch: Batch,
    model: CostModel,
    goal: Goal | None = None,
    started: float | None = None,
) -> Plan:
    """Plan a batch whose costs are tabulated; see `make_plan`."""
    started = time.perf_counter() if started is None else started
    goal, domain = goal or Goal(), batch.domain
    bound = lower_bound(batch, goal)
    makespan, best = _best(batch, goal, bound)
    if goal.objective == "async":
        offsets, _ = run_ahead(best, batch)
    else:
        offsets = [side_by_side(packed) for packed in best]
    microbatches = [
        on_ranks(packed, first, batch) for packed, first in zip(best, offsets, strict=True)
    ]
    while len(microbatches) % domain.microbatch_multiple:  # fewer sequences than microbatches
        microbatches.append(Microbatch(tuple(dummies(0, domain.ranks, domain.cp_sizes))))
    times = (model.unit, makespan * batch.unit_cost, bound * batch.unit_cost)
    tokens = sum(packed.tokens for packed in best)
    return build_plan(lengths, domain, microbatches, times=times, started=started, tokens=tokens)


def check_lengths(lengths: Sequence[int] | IntArray, domain: Domain) -> tuple[int, ...]:
    """The lengths as integers.

    Raises:
        InputError: See `make_plan`; names the first bad sequence.
    """
    if len(lengths) > MAX_SEQUENCES:
        problem = f"{len(lengths):,} sequences are more than {MAX_SEQUENCES:,}"
        raise InputError("lengths", f"{problem}; plan one global batch at a time")
    try:
        plain = lengths if isinstance(lengths, Sequence) else lengths.tolist()
        values = tuple(map(operator.index, plain))
    except TypeError:
        problem = "the lengths are not a list of whole numbers; give the tokens of each sequence"
        raise InputError("lengths", problem) from None
    if not values:
        raise InputError("lengths", "there are no lengths; give at least one")
    if min(values) < 1:
        first = next(place for place, value in enumerate(values) if value < 1)
        problem = f"{values[first]} is less than 1; leave the sequence out"
        raise InputError(f"lengths[{first}]", problem)
    if max(values) > domain.longest:
        first = next(place for place, value in enumerate(values) if value > domain.longest)
        problem = (
            f"{values[first]:,} is longer than the {domain.longest:,} tokens that the largest "
            "group holds; raise --max-tokens-per-rank or the domain, or cut the sequence"
        )
        raise InputError(f"lengths[{first}]", problem)
    return values


def _best(batch: Batch, goal: Goal, bound: float) -> tuple[float, Packed]:
    """The shortest candidate of those that leave fewest ranks idle, and its makespan."""

    def rated(candidate: Packed) -> tuple[int, float, Packed]:
        packed = _split_to_multiple(candidate, batch.domain.microbatch_multiple)
        return sum(one.idle for one in packed), _makespan(packed, batch, goal), packed

    own = pack_greedily(batch, _EFFORT)
    found = [rated(own)]
    if len(batch) <= _EFFORT:
        found.append(rated(pack_as_upstream(batch)))
    idle, makespan, best = min(found, key=lambda one: one[:2])
    if idle or makespan > _NEAR_OPTIMUM * bound:
        found += map(rated, _other_packings(batch, goal, len(own)))
        idle, makespan, best = min(found, key=lambda one: one[:2])
    return makespan, best


def _other_packings(batch: Batch, goal: Goal, microbatches: int) -> Iterator[Packed]:
    """Packings that are better where microbatches do not add up, or communication is free."""
    if not goal.plain:
        multiple = batch.domain.microbatch_multiple
        wanted = {-(-n // multiple) for n in (fewest_microbatches(batch), microbatches)}
        for count in sorted(wanted):
            yield pack_in_shares(batch, count * multiple, _EFFORT)
    if communication_is_free(batch):
        yield pack_on_all_ranks(batch)


def _makespan(packed: Packed, batch: Batch, goal: Goal) -> float:
    if goal.objective == "async":
        return float(max(run_ahead(packed, batch)[1]))
    return goal.pipeline.seconds([float(one.time + batch.microbatch_overhead) for one in packed])


def _split_to_multiple(packed: Packed, multiple: int) -> Packed:
    """Split the longest until the count is a multiple, or every microbatch has one sequence."""
    found = list(packed)
    while len(found) % multiple:
        able = [
            place
            for place, one in enumerate(found)
            if len(one.groups) > 1 or len(one.groups[0].members) > 1
        ]
        if not able:
            break
        longest = max(able, key=lambda place: found[place].time)
        found[longest : longest + 1] = halved(found[longest])
    return tuple(found)


def communication_is_free(batch: Batch) -> bool:
    """Whether the cost measure has no price for communication, nor for groups and microbatches.

    Then no sequence takes less time times ranks than in a group of all ranks. Such groups leave no
    rank waiting, so they are as fast as any plan.
    """
    domain = batch.domain
    if any(batch.overhead) or batch.microbatch_overhead or domain.cp_sizes[-1] != domain.ranks:
        return False
    # Each entry was rounded to a whole number, which its size multiplies.
    shared = [cost * domain.ranks - 2 * domain.ranks for cost in batch.costs[-1]]
    return all(
        all(map(operator.le, shared, [cost * size for cost in row]))
        for size, row in zip(domain.cp_sizes, batch.costs, strict=True)
    )
