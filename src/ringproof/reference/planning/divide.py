"""Divide a batch into microbatches, one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ringproof.reference.planning.costs import Batch
from ringproof.reference.planning.domain import IntArray
from ringproof.reference.planning.groups import Packing, assembled, repeated
from ringproof.reference.planning.pack import (
    FULL_ENOUGH,
    GOOD_ENOUGH,
    WEIGHT_OF_UNUSED,
    MicrobatchRequest,
    Target,
    Targets,
    pack_microbatch,
    usable_chains,
)

_MOST_SPARE = 16_384
"""Later sequences that may fill holes; of more, every second, third, ... is considered."""
_WEIGHT_OF_MISSING = 10.0
"""How much worse it is to miss a part of an equal share than to take that part longer: what is left
over may end as one microbatch more."""
_FIRST_LOOK = 256
"""Sequences that are looked at first in what remains; twice as many each time that was too few."""
_AS_GOOD, _AS_FULL = 1.0005, 0.001
"""A microbatch packed like an earlier one may take longer than that one by this factor, in
proportion to its work, and miss this part of its share more."""


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

    ``slowness`` is time over the ideal, ``part`` is the part of the share that is placed, and
    ``rating`` is both together; 1 is perfect. ``final`` says that nothing can be gained or chosen.
    """

    packing: Packing
    slowness: float
    part: float
    rating: float
    final: bool


def divide(
    batch: Batch, wanted: int, *, spread: bool = False, full: bool = False
) -> tuple[Packing, ...]:
    """Microbatches, each with its share of what remains, until nothing does.

    Neighbours in a large batch differ little in length, so what was found for one microbatch is
    tried for the next before anything else.

    Args:
        batch: The sequences.
        wanted: Number of microbatches; there are more when the sequences do not fit, and fewer
            when they run out.
        spread: Whether each microbatch gets sequences of all lengths; else neighbours in length.
        full: Whether each microbatch is filled before the next is begun; else all get the same
            share. Where one long sequence decides how long a microbatch takes, whatever is beside
            it is free.
    """
    work, tokens = batch.work[batch.kind], batch.space[batch.kind]
    divider, remaining = _Divider(batch, spread, full, tokens, work), Remaining(tokens)
    packings: list[Packing] = []
    model: tuple[_Share, _Best] | None = None
    while len(remaining):
        share = divider.share(remaining, max(1, wanted - len(packings)))
        alike = None if model is None else divider.alike(*model, share, remaining)
        best = alike or divider.best(share)
        if alike and model:  # one that was searched for stays the measure
            best = replace(best, slowness=model[1].slowness, part=model[1].part)
        model = share, best
        packings.append(best.packing)
        remaining.remove(best.packing.members)
    return tuple(packings)


class Remaining:
    """The sequences that no microbatch has yet, as places in the batch's order.

    Nothing here but `all` takes time in proportion to what remains, so that a batch of many
    microbatches does not take time in proportion to the square of its sequences. ``tokens`` are
    those of each sequence, in the order of the batch.
    """

    def __init__(self, tokens: IntArray) -> None:
        self._tokens = tokens
        self._there = np.ones(len(tokens), bool)
        self._head = 0
        self._count = len(tokens)
        self._look = _FIRST_LOOK
        self.tokens = int(tokens.sum())

    def __len__(self) -> int:
        return self._count

    def all(self) -> IntArray:
        """All that remain."""
        return self._head + np.flatnonzero(self._there[self._head :])

    def remove(self, members: IntArray) -> None:
        """Take sequences out."""
        self._there[members] = False
        self._count -= len(members)
        self.tokens -= int(self._tokens[members].sum())
        if self._count:
            while not self._there[self._head]:
                here = self._there[self._head : self._head + self._look]
                self._head += int(here.argmax()) if here.any() else len(here)

    def worth(self, tokens: int, budget: int) -> IntArray:
        """The first sequences, up to the one that reaches ``tokens``, within ``budget``."""
        while True:
            end = self._head + self._look
            found = self._head + np.flatnonzero(self._there[self._head : end])
            cumulative = np.cumsum(self._tokens[found])
            if int(cumulative[-1]) >= tokens or end >= len(self._there):
                break
            self._look *= 2
        stop = int(np.searchsorted(cumulative, tokens)) + 1  # with the one that crosses the line
        stop = min(stop, int(np.searchsorted(cumulative, budget, side="right")))
        return found[: max(1, stop)]

    def after(self, place: int, skipped: int, most: int) -> IntArray:
        """Later sequences than one place, without the first few: all, or every n-th."""
        start, look = place + 1, self._look
        while skipped and start < len(self._there):
            here = np.flatnonzero(self._there[start : start + look])
            if len(here) > skipped:
                start, skipped = start + int(here[skipped]), 0
            else:
                start, skipped = start + look, skipped - len(here)
        step = max(1, -(-(len(self._there) - start) // most))
        start += len(self) % step  # others each time, so that none is passed over for good
        return start + step * np.flatnonzero(self._there[start::step])

    def following(self, places: IntArray) -> IntArray | None:
        """For each place, one that remains at or after it, all different; ``None`` without one."""
        found: list[int] = []
        for place in np.sort(places).tolist():
            start = max(place, found[-1] + 1 if found else 0)
            here = self._there[start : start + _FIRST_LOOK]
            step = int(here.argmax()) if len(here) else 0
            if not len(here) or not here[step]:
                return None
            found.append(start + step)
        return np.array(found, np.int64)


@dataclass(frozen=True)
class _Divider:
    """Packs one microbatch after the other, with the fewest tokens and rank-ticks per sequence."""

    batch: Batch
    spread: bool
    full: bool
    tokens: IntArray
    work: IntArray

    def share(self, remaining: Remaining, left: int) -> _Share:
        """The share of the next of ``left`` microbatches."""
        domain = self.batch.domain
        budget = domain.ranks * domain.max_tokens_per_rank
        total = remaining.tokens
        tokens = min(total if self.full else -(-total // left), budget)
        if left == 1:
            return _Share(remaining.all(), np.empty(0, np.int64), tokens, last=True)
        # What every microbatch to come needs so that no group is empty.
        kept = (left - 1) * (domain.ranks // domain.cp_sizes[-1])
        most = max(1, len(remaining) - kept)
        if self.spread:
            everything = remaining.all()
            chosen = np.zeros(len(everything), bool)
            chosen[::left] = True
            meant, later = everything[chosen][:most], everything[~chosen]
            later = later[:: max(1, -(-len(later) // _MOST_SPARE))]
        else:
            meant = remaining.worth(tokens, budget)[:most]
            spared = domain.microbatch_multiple > 1 or domain.cp_sizes[-1] < domain.ranks
            later = remaining.after(int(meant[-1]), kept if spared else 0, _MOST_SPARE)
        return _Share(meant, later, tokens, last=False)

    def alike(
        self, before: _Share, model: _Best, share: _Share, remaining: Remaining
    ) -> _Best | None:
        """The microbatch packed like the one before it; ``None`` where that is not as good.

        Each place goes to a sequence that comes later in the order, so it is not longer, and every
        group stays within its limits.
        """
        old = model.packing
        if self.spread or share.last or len(old.members) > len(share.meant) + len(share.spare):
            return None
        near = old.members <= before.meant[-1]
        places = before.meant.searchsorted(old.members[near])
        if int(places.max()) >= len(share.meant):
            return None
        far = np.flatnonzero(~near)
        far = far[np.argsort(old.members[far], kind="stable")]
        later = remaining.following(np.maximum(old.members[far], share.meant[-1] + 1))
        if later is None:
            return None
        members = np.empty_like(old.members)
        members[near], members[far] = share.meant[places], later
        found = self._rated(repeated(self.batch, members, old), share)
        fast = found.slowness <= max(GOOD_ENOUGH, model.slowness * _AS_GOOD)
        filled = found.part >= min(FULL_ENOUGH, model.part) - _AS_FULL
        return found if fast and filled else None

    def best(self, share: _Share) -> _Best:
        """The best packing of a microbatch over the chains of sizes and the smallest size used."""
        best: _Best | None = None
        for chain in usable_chains(self.batch, int(share.meant[0])):
            items, spare = (self.batch.items(who, chain) for who in (share.meant, share.spare))
            best = self._improve(
                best, MicrobatchRequest(self.batch, items, spare, share.tokens), share
            )
            if best is not None and best.final:
                break
        if best is None:
            raise AssertionError("a sequence that fits no group was not refused")
        return best

    def _improve(self, best: _Best | None, order: MicrobatchRequest, share: _Share) -> _Best | None:
        """The best over ever larger smallest groups, each with a few lengths to aim at."""
        targets = Targets(order.items, self.batch.domain)
        ideal = int(self.work[share.meant].sum()) / self.batch.domain.ranks
        base = 0
        while base < len(order.items.sizes):
            shortest = targets.shortest(base)
            if best is not None and shortest is not None and shortest.ticks >= best.rating * ideal:
                break  # larger groups do more work: nothing better comes
            smallest, before = base, best
            for aim, strict in self._aims(targets, shortest, order):
                packing = pack_microbatch(order, targets, aim, strict=strict)
                smallest = max(smallest, int(packing.groups.level.min()))
                found = self._rated(packing, share)
                best = found if best is None or found.rating < best.rating else best
            if best is not None and (best.final or (self.full and best is before)):
                break
            base = smallest + 1
        return best

    def _aims(
        self, targets: Targets, shortest: Target | None, order: MicrobatchRequest
    ) -> Iterator[tuple[Target, bool]]:
        """Lengths to aim at (the shortest; one at which the longest sequence can do with a smaller
        group; for full microbatches, that of a group full of such sequences), and whether strictly.
        """
        if shortest is None:
            return
        yield shortest, False
        if self.full:
            yield shortest, True
        longer, price = targets.longer(shortest), order.dearest
        if longer is not None:
            yield longer, self.full
        if self.full and price > shortest.ticks:
            yield targets.at(price, shortest.base), longer is None

    def _rated(self, packing: Packing, share: _Share) -> _Best:
        ideal = int(self.work[packing.members].sum()) / self.batch.domain.ranks
        part = int(self.tokens[packing.members].sum()) / share.tokens
        if share.last and len(packing.members) == len(share.meant):
            part = 1.0
        weight = WEIGHT_OF_UNUSED if self.full else _WEIGHT_OF_MISSING
        slowness = packing.ticks / max(ideal, 1.0)
        rating = slowness + weight * max(0.0, FULL_ENOUGH - part)
        alone = len(packing.members) == 1 and packing.groups.level[0] == len(packing.sizes) - 1
        return _Best(packing, slowness, part, rating, rating <= GOOD_ENOUGH or bool(alone))


def split_to_multiple(packings: tuple[Packing, ...], batch: Batch) -> tuple[Packing, ...]:
    """Split the longest until the count is a multiple, or every microbatch has one sequence."""
    found = list(packings)
    while len(found) % batch.domain.microbatch_multiple:
        able = [index for index, packing in enumerate(found) if len(packing.members) > 1]
        if not able:
            break
        longest = max(able, key=lambda index: found[index].ticks)
        found[longest : longest + 1] = _halves(found[longest], batch)
    return tuple(found)


def _halves(packing: Packing, batch: Batch) -> list[Packing]:
    """Every other group by time, or of a single group every other sequence, then widened."""
    if len(packing.groups) > 1:
        place = np.empty(len(packing.groups), np.int64)
        place[np.argsort(-packing.groups.time, kind="stable")] = np.arange(len(packing.groups))
        second = (place % 2 == 1)[packing.home]
    else:
        second = np.arange(len(packing.members)) % 2 == 1
    halves = []
    for keep in (~second, second):
        members = packing.members[keep]
        old, home = np.unique(packing.home[keep], return_inverse=True)
        by_length, level = np.argsort(members, kind="stable"), packing.groups.level[old]
        members, home = members[by_length], home[by_length]
        halves.append(assembled(batch, packing.sizes, level, members, home, even=False))
    return halves
