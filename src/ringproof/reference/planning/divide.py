"""Divide a batch into microbatches, one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ringproof.reference.planning.bounds import least_tokens, least_work
from ringproof.reference.planning.costs import Batch
from ringproof.reference.planning.domain import Domain, IntArray
from ringproof.reference.planning.pack import (
    FULL_ENOUGH,
    GOOD_ENOUGH,
    MOST_CHAINS,
    WEIGHT_OF_UNUSED,
    Order,
    Packing,
    assembled,
    dearest,
    pack,
    usable_chains,
)
from ringproof.reference.planning.target import Target, Targets

_MOST_SPARE = 16_384
"""Later sequences that may fill holes; of more, every second, third, ... is considered."""

_WEIGHT_OF_MISSING = 10.0
"""How much worse it is to miss a part of an equal share than to take that part longer: what is left
over may end as one microbatch more."""


@dataclass(frozen=True)
class _Share:
    """What one microbatch is meant to do: its sequences, tokens, and what may fill its holes."""

    meant: IntArray
    spare: IntArray
    tokens: int
    last: bool


@dataclass(frozen=True)
class _Best:
    """The best packing of a microbatch so far.

    ``rating`` is time over the ideal, and what is missing to the share; 1 is perfect. ``complete``
    says that nothing is missing, and ``final`` that there is nothing to gain or to choose.
    """

    packing: Packing
    rating: float
    complete: bool
    final: bool


def divide(
    batch: Batch, domain: Domain, wanted: int, *, spread: bool = False, full: bool = False
) -> tuple[Packing, ...]:
    """Microbatches, each with its share of what remains, until nothing does.

    Args:
        batch: The sequences.
        domain: Ranks and limits.
        wanted: Number of microbatches; there are more when the sequences do not fit, and fewer
            when they run out.
        spread: Whether each microbatch gets sequences of all lengths; else neighbours in length.
        full: Whether each microbatch is filled before the next is begun; else all get the same
            share. Where one long sequence decides how long a microbatch takes, whatever is beside
            it is free.
    """
    work = least_work(batch, domain)[batch.kind]
    tokens = least_tokens(batch, domain)[batch.kind]
    divider = _Divider(batch, domain, spread, full, tokens, work)
    remaining = np.arange(len(batch))
    packings: list[Packing] = []
    while len(remaining):
        share = divider.share(remaining, max(1, wanted - len(packings)))
        best = divider.best(share)
        packings.append(best)
        gone = np.zeros(len(batch), bool)
        gone[best.members] = True
        remaining = remaining[~gone[remaining]]
    return tuple(packings)


@dataclass(frozen=True)
class _Divider:
    """Packs one microbatch after the other, with the fewest tokens and rank-ticks per sequence."""

    batch: Batch
    domain: Domain
    spread: bool
    full: bool
    tokens: IntArray
    work: IntArray

    def share(self, remaining: IntArray, left: int) -> _Share:
        """The share of the next of ``left`` microbatches."""
        domain, cumulative = self.domain, np.cumsum(self.tokens[remaining])
        budget = domain.ranks * domain.max_tokens_per_rank
        total = int(cumulative[-1])
        tokens = min(total if self.full else -(-total // left), budget)
        if left == 1:
            return _Share(remaining, remaining[:0], tokens, last=True)
        # What every microbatch to come needs so that no group is empty.
        kept = (left - 1) * (domain.ranks // domain.cp_sizes[-1])
        most = max(1, len(remaining) - kept)
        if self.spread:
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

    def best(self, share: _Share) -> Packing:
        """The best packing of a microbatch over the chains of sizes and the smallest size used."""
        best: _Best | None = None
        found = usable_chains(self.batch, self.domain, int(share.meant[0]))
        for chain in found[:MOST_CHAINS]:
            items, spare = (self.batch.items(who, chain) for who in (share.meant, share.spare))
            order = Order(items, spare, self.domain, share.tokens)
            best = self._improve(best, order, share)
            if best is not None and best.final:
                break
        if best is None:
            raise AssertionError("a sequence that fits no group was not refused")
        return best.packing

    def _improve(self, best: _Best | None, order: Order, share: _Share) -> _Best | None:
        """The best over ever larger smallest groups, each with a few lengths to aim at."""
        targets = Targets(order.items, self.domain)
        ideal = int(self.work[share.meant].sum()) / self.domain.ranks
        base = 0
        while base < len(order.items.sizes):
            shortest = targets.shortest(base)
            if (
                best is not None
                and best.complete
                and shortest is not None
                and shortest.ticks >= best.rating * ideal
            ):
                break  # larger groups do more work: nothing better comes
            smallest, before = base, best
            for aim, strict in self._ways(targets, shortest, order):
                packing = pack(order, targets, aim, strict=strict)
                smallest = max(smallest, int(packing.groups.level.min()))
                found = self._rated(packing, share)
                best = found if best is None or found.rating < best.rating else best
            if best is not None and (best.final or (self.full and best is before)):
                break
            base = smallest + 1
        return best

    def _ways(
        self, targets: Targets, shortest: Target | None, order: Order
    ) -> Iterator[tuple[Target, bool]]:
        """Lengths to aim at (the shortest; one at which the longest sequence can do with a smaller
        group; for full microbatches, that of a group full of such sequences), and whether strictly.
        """
        if shortest is None:
            return
        yield shortest, False
        if self.full:
            yield shortest, True
        longer = targets.longer(shortest)
        price = dearest(order.items, order.spare, self.domain)
        if longer is not None:
            yield longer, self.full
        if self.full and price > shortest.ticks:
            yield targets.at(price, shortest.base), longer is None

    def _rated(self, packing: Packing, share: _Share) -> _Best:
        ideal = int(self.work[packing.members].sum()) / self.domain.ranks
        part = int(self.tokens[packing.members].sum()) / share.tokens
        everything = share.last and len(packing.members) == len(share.meant)
        deficit = 0.0 if everything else max(0.0, FULL_ENOUGH - part)
        weight = WEIGHT_OF_UNUSED if self.full else _WEIGHT_OF_MISSING
        rating = packing.ticks / max(ideal, 1.0) + weight * deficit
        alone = len(packing.members) == 1 and packing.groups.level[0] == len(packing.sizes) - 1
        return _Best(packing, rating, not deficit, rating <= GOOD_ENOUGH or bool(alone))


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
