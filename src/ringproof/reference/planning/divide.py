"""Divide a batch into microbatches, one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ringproof.reference.planning.bounds import least_tokens, least_work
from ringproof.reference.planning.costs import Batch
from ringproof.reference.planning.domain import Domain, IntArray
from ringproof.reference.planning.pack import (
    FULL_ENOUGH,
    KNOWN_AFTER,
    MOST_CHAINS,
    Order,
    Packing,
    assembled,
    dearest,
    pack,
    usable_chains,
)
from ringproof.reference.planning.target import Target, Targets

_GOOD_ENOUGH = 1.002
"""A microbatch within this factor of its work spread over all ranks is accepted at once."""
_MOST_SPARE = 16_384
"""Later sequences that may fill holes; of more, every second, third, ... is considered."""


@dataclass(frozen=True)
class Manner:
    """A way of dividing a batch.

    Attributes:
        even: Groups of a microbatch should end together; else only the work counts.
        spread: Each microbatch gets sequences of all lengths; else neighbours in length.
        full: Each microbatch is filled before the next is begun; else all get the same share. Where
            one long sequence decides how long a microbatch takes, whatever is beside it is free.
        weight: How much worse it is to miss a part of the share than to take that part longer.
            What is left over may end as one microbatch more, so missing an equal share is dear;
            full microbatches leave room in the last one.
    """

    even: bool = True
    spread: bool = False
    full: bool = False
    weight: float = 10.0


@dataclass(frozen=True)
class _Measure:
    """What is asked of a microbatch: per sequence the least tokens and rank-ticks, and how."""

    tokens: IntArray
    work: IntArray
    manner: Manner


@dataclass(frozen=True)
class _Share:
    """What one microbatch is meant to do: its sequences, tokens, and what may fill its holes."""

    meant: IntArray
    spare: IntArray
    tokens: int
    last: bool


def divide(batch: Batch, domain: Domain, wanted: int, manner: Manner) -> tuple[Packing, ...]:
    """Microbatches, each with its share of what remains, until nothing does.

    Args:
        wanted: How many there should be; there are more when the sequences do not fit, and fewer
            when they run out.
    """
    measure = _Measure(
        least_tokens(batch, domain)[batch.kind], least_work(batch, domain)[batch.kind], manner
    )
    remaining = np.arange(len(batch))
    packings: list[Packing] = []
    while len(remaining):
        left = max(1, wanted - len(packings))
        share = _share(remaining, measure, left, domain)
        tried = frozenset(packing.sizes for packing in packings[:KNOWN_AFTER])
        known = tried if len(packings) >= KNOWN_AFTER else None
        best = _best(batch, domain, share, measure, known)
        packings.append(best)
        gone = np.zeros(len(batch), bool)
        gone[best.members] = True
        remaining = remaining[~gone[remaining]]
    return tuple(packings)


def _share(remaining: IntArray, measure: _Measure, left: int, domain: Domain) -> _Share:
    cumulative = np.cumsum(measure.tokens[remaining])
    budget = domain.ranks * domain.max_tokens_per_rank
    total = int(cumulative[-1])
    tokens = min(total if measure.manner.full else -(-total // left), budget)
    if left == 1:
        return _Share(remaining, remaining[:0], tokens, last=True)
    # What every microbatch to come needs so that no group is empty.
    kept = (left - 1) * (domain.ranks // domain.cp_sizes[-1])
    most = max(1, len(remaining) - kept)
    if measure.manner.spread:
        chosen = np.zeros(len(remaining), bool)
        chosen[::left] = True
        meant, later = remaining[chosen][:most], remaining[~chosen]
    else:
        end = int(np.searchsorted(cumulative, tokens)) + 1  # with the one that crosses the line
        end = min(end, int(np.searchsorted(cumulative, budget, side="right")))
        end = min(max(1, end), most)
        meant, later = remaining[:end], remaining[end:]
    if domain.microbatch_multiple > 1 or domain.cp_sizes[-1] < domain.ranks:
        later = later[kept:]
    return _Share(meant, later[:: max(1, -(-len(later) // _MOST_SPARE))], tokens, last=False)


@dataclass(frozen=True)
class _Best:
    """The best packing of a microbatch so far.

    Attributes:
        rating: Time over the ideal, and what is missing to the share; 1 is perfect.
        complete: Nothing is missing.
    """

    packing: Packing
    rating: float
    complete: bool

    @property
    def final(self) -> bool:
        """Nothing to gain, or nothing to choose."""
        return self.rating <= _GOOD_ENOUGH or self.packing.alone


def _best(
    batch: Batch,
    domain: Domain,
    share: _Share,
    measure: _Measure,
    known: frozenset[tuple[int, ...]] | None,
) -> Packing:
    """The best packing of one microbatch over the chains of sizes and the smallest size used.

    Args:
        known: Chains that were best before; others are not tried where one of these will do.
    """
    best: _Best | None = None
    found = usable_chains(batch, domain, int(share.meant[0]))
    again = [chain for chain in found if known is not None and chain in known]
    for chain in (again or found)[:MOST_CHAINS]:
        items, spare = batch.items(share.meant, chain), batch.items(share.spare, chain)
        order = Order(items, spare, domain, share.tokens, measure.manner.even)
        best = _improve(best, order, share, measure)
        if best is not None and best.final:
            break
    if best is None:
        raise AssertionError("a sequence that fits no group was not refused")
    return best.packing


def _improve(best: _Best | None, order: Order, share: _Share, measure: _Measure) -> _Best | None:
    """The best over ever larger smallest groups, each with a few lengths to aim at."""
    targets = Targets(order.items, order.domain)
    ideal = int(measure.work[share.meant].sum()) / order.domain.ranks
    base = 0
    while base < len(order.items.sizes):
        aims = list(_aims(targets, base, order, measure.manner.full))
        if best is not None and best.complete and aims and aims[0].ticks >= best.rating * ideal:
            break  # larger groups do more work: nothing better comes
        smallest, before = base, best
        ways = _ways(aims, measure.manner.full)
        for aim, strict in ways:
            packing = pack(order, targets, aim, strict=strict)
            smallest = max(smallest, int(packing.groups.level.min()))
            found = _rated(packing, share, order.domain, measure)
            best = found if best is None or found.rating < best.rating else best
        if best is not None and (best.final or (measure.manner.full and best is before)):
            break
        base = smallest + 1
    return best


def _aims(targets: Targets, base: int, order: Order, full: bool) -> Iterator[Target]:
    """The shortest length; one at which the longest sequence can do with a smaller group; and, for
    full microbatches, what a group full of such sequences takes."""
    shortest = targets.shortest(base)
    if shortest is None:
        return
    yield shortest
    longer = targets.longer(shortest)
    if longer is not None:
        yield longer
    price = dearest(order.items, order.spare, order.domain)
    if full and price > shortest.ticks:
        yield targets.at(price, base)


def _ways(aims: Sequence[Target], full: bool) -> Iterator[tuple[Target, bool]]:
    """Lengths to aim at, and whether to be strict about them."""
    for number, aim in enumerate(aims):
        if not full or number != 1:
            yield aim, False
        if full and number < 2:
            yield aim, True


def _rated(packing: Packing, share: _Share, domain: Domain, measure: _Measure) -> _Best:
    ideal = int(measure.work[packing.members].sum()) / domain.ranks
    spent = packing.ticks if measure.manner.even else packing.rank_ticks / domain.ranks
    part = int(measure.tokens[packing.members].sum()) / share.tokens
    everything = share.last and len(packing.members) == len(share.meant)
    deficit = 0.0 if everything else max(0.0, FULL_ENOUGH - part)
    rating = spent / max(ideal, 1.0) + measure.manner.weight * deficit
    return _Best(packing, rating, complete=not deficit)


def split_to_multiple(
    packings: tuple[Packing, ...], batch: Batch, domain: Domain
) -> tuple[Packing, ...]:
    """Split the longest until the count is a multiple, or every microbatch has one sequence."""
    found = list(packings)
    while len(found) % domain.microbatch_multiple:
        able = [index for index, packing in enumerate(found) if len(packing.members) > 1]
        if not able:
            break
        longest = max(able, key=lambda index: found[index].ticks)
        found[longest : longest + 1] = _halves(found[longest], batch, domain)
    return tuple(found)


def _halves(packing: Packing, batch: Batch, domain: Domain) -> list[Packing]:
    """Every other group by time, or of a single group every other sequence."""
    if len(packing.groups) > 1:
        place = np.empty(len(packing.groups), np.int64)
        place[np.argsort(-packing.groups.time, kind="stable")] = np.arange(len(packing.groups))
        second = (place % 2 == 1)[packing.home]
    else:
        second = np.arange(len(packing.members)) % 2 == 1
    return [_part(packing, keep, batch, domain) for keep in (~second, second)]


def _part(packing: Packing, keep: npt.NDArray[np.bool_], batch: Batch, domain: Domain) -> Packing:
    """A microbatch of some of the sequences, their groups as they were, then widened."""
    members = packing.members[keep]
    old, home = np.unique(packing.home[keep], return_inverse=True)
    by_length = np.argsort(members, kind="stable")
    members, home = members[by_length], home[by_length]
    items = batch.items(members, packing.sizes)
    return assembled(items, home, packing.groups.level[old], domain, even=False)
