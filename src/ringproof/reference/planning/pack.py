"""One microbatch: sequences into groups that together take up all ranks.

1. A target length, and with it the smallest group size that each sequence can do with (`target`).
2. As many groups of each size as those sequences need; the rest of the ranks in the smallest.
3. Deal the sequences, longest first, at first within the target, then ever more above it.
4. Join groups that came out too long with short ones, and widen groups into idle ranks (`groups`).
5. Where tokens are still missing to the microbatch's share, fill holes with shorter sequences that
   were meant for later ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from ringproof.reference.planning.costs import Batch, Items
from ringproof.reference.planning.domain import Domain, IntArray, chains
from ringproof.reference.planning.groups import Groups, Open, deal, merge, widen
from ringproof.reference.planning.target import Target, Targets

FULL_ENOUGH = 0.998
"""Part of the wanted tokens above which a microbatch counts as full: padding takes the rest."""
GOOD_ENOUGH = 1.002
"""A microbatch within this factor of its work spread over all ranks is accepted at once."""
WEIGHT_OF_UNUSED = 0.5
"""How much worse it is to leave a part of a microbatch's token budget unused than to take that part
longer, where microbatches are filled one after the other. Only the last one's rest is lost."""
MOST_CHAINS = 6
"""Chains of group sizes that are tried for one microbatch. A domain that is a power of two has one
chain; domains with more than six have dozens of divisors, and the chains differ little."""
_LIMITS = (1.0, 1.03, 1.1, 1.4)
"""How far above the target a group may end, tried in this order; then without limit."""
_LONGER = 1.03
"""Factor from one target to the next, while the groups that are needed exceed the ranks."""
_ATTEMPTS = 80
"""Targets that are tried; the last one is ten times as long as the first."""


@dataclass(frozen=True)
class Packing:
    """A microbatch.

    Attributes:
        groups: The groups, in no particular order.
        sizes: The chain of group sizes that ``groups.level`` counts in.
        members: Places in the batch's order of the sequences placed.
        home: For each of them, its group.
        idle: Ranks that no group could grow into.
    """

    groups: Groups
    sizes: tuple[int, ...]
    members: IntArray
    home: IntArray
    idle: int

    @property
    def ticks(self) -> int:
        """Time until the last group is done."""
        return int(self.groups.time.max())


@dataclass(frozen=True)
class Order:
    """What is wanted of one microbatch: the sequences meant for it, and shorter ones for holes.

    Holes are worth filling below ``share`` tokens of all ranks.
    """

    batch: Batch
    items: Items
    spare: Items
    domain: Domain
    share: int


def usable_chains(batch: Batch, domain: Domain, longest: int) -> list[tuple[int, ...]]:
    """Chains of group sizes whose largest group can hold the sequence at a place of the order."""
    tokens = batch.tokens[:, batch.kind[longest]].tolist()
    sizes = zip(batch.sizes, tokens, strict=True)
    fitting = {size for size, rows in sizes if rows <= domain.max_tokens_per_rank}
    return [chain for chain in chains(domain.cp_sizes) if chain[-1] in fitting]


def first_fit(tokens: IntArray, domain: Domain) -> list[list[int]]:
    """Pack sequences longest first, each into the first pack that has room.

    Args:
        tokens: Padded tokens per rank of each sequence, each within the budget.
        domain: Token budget and capacity of a pack.
    """
    most = domain.max_sequences or len(tokens)
    packs: list[list[int]] = []
    room: list[int] = []
    full: list[tuple[int, int]] = []  # packs without room for the sequences so far, most room first
    ready: list[int] = []  # the others; sequences only get shorter, so room for one is room for all
    order = np.argsort(-tokens, kind="stable")
    for sequence, rows in zip(order.tolist(), tokens[order].tolist(), strict=True):
        while full and -full[0][0] >= rows:
            heappush(ready, heappop(full)[1])
        if ready:
            place = heappop(ready)
        else:
            place = len(packs)
            packs.append([])
            room.append(domain.max_tokens_per_rank)
        packs[place].append(sequence)
        room[place] -= rows
        if len(packs[place]) < most and room[place]:
            heappush(full, (-room[place], place))
    return packs


def pack(order: Order, targets: Targets, aim: Target, *, strict: bool = False) -> Packing:
    """Pack as many of the sequences as fit, aiming at a length.

    With ``strict``, sequences that do not fit within about that length are left for later.
    """
    items, domain = order.items, order.domain
    target, level = _open(targets, items, aim, domain, len(items) + len(order.spare))
    nothing = np.zeros(len(level), np.int64)
    groups = Open(level, items.overhead[level], nothing, nothing)
    queue = np.arange(len(items))
    placed: list[tuple[IntArray, IntArray]] = []
    for factor in (*_LIMITS, None):
        if strict and placed and factor != _LIMITS[0]:
            break
        limit = None if factor is None else int(target.ticks * factor)
        groups, pairs, queue = deal(groups, items, queue, domain, limit=limit)
        placed += pairs
        if not len(queue):
            break
    chosen = [items.members[places] for places, _ in placed]
    if len(order.spare):
        price = 0 if strict else dearest(items, order.spare, domain)
        groups, pairs = _fill(groups, order, max(target.ticks, price))
        chosen += [order.spare.members[places] for places, _ in pairs]
        placed += pairs
    used = groups.count > 0
    number = np.cumsum(used) - 1
    members, home = np.concatenate(chosen), number[np.concatenate([group for _, group in placed])]
    return assembled(order.batch, domain, items.sizes, level[used], members, home)


def _open(
    targets: Targets, items: Items, target: Target, domain: Domain, most: int
) -> tuple[Target, IntArray]:
    """The groups to open: their levels, largest first, and the target that made them fit.

    Of the smallest size there are no more than ``most``, so that none stay empty for sure.
    """
    base, sizes = target.base, items.sizes
    for _ in range(_ATTEMPTS):
        work, needed = _wanted(items, target, domain)
        by_time = -(-work // max(1, target.ticks)) * sizes[base]
        larger = sum(needed[level] * sizes[level] for level in range(base + 1, len(sizes)))
        if larger + by_time <= domain.ranks:
            break
        target = targets.at(int(target.ticks * _LONGER) + 1, base)
    counts = [0] * len(sizes)
    free = domain.ranks
    for level in range(len(sizes) - 1, base, -1):
        counts[level] = min(needed[level], free // sizes[level])
        free -= counts[level] * sizes[level]
    counts[base] = min(free // sizes[base], most)
    return target, np.repeat(np.arange(len(sizes))[::-1], counts[::-1])


def _wanted(items: Items, target: Target, domain: Domain) -> tuple[int, list[int]]:
    """Ticks of the sequences that take the smallest size, and groups that are needed of each."""
    needed, work = [], 0
    for level, (start, end) in enumerate(target.spans(len(items))):
        ticks = int(items.ticks[level, start:end].sum())
        tokens = int(items.tokens[level, start:end].sum())
        groups = max(-(-ticks // max(1, target.ticks)), -(-tokens // domain.max_tokens_per_rank))
        if domain.max_sequences is not None:
            groups = max(groups, -(-(end - start) // domain.max_sequences))
        needed.append(groups)
        work = ticks if level == target.base else work
    return work, needed


def _fill(
    groups: Open, order: Order, limit_at_most: int
) -> tuple[Open, list[tuple[IntArray, IntArray]]]:
    """Fill empty groups, and holes while the microbatch has less than its share."""
    sizes = np.array(order.spare.sizes)
    queue = np.arange(len(order.spare))
    placed: list[tuple[IntArray, IntArray]] = []
    for limit in (int(groups.time.max()), limit_at_most):
        missing = order.share - int((groups.filled * sizes[groups.level]).sum())
        if missing <= 0 and groups.count.all():
            break
        groups, pairs, queue = deal(groups, order.spare, queue, order.domain, limit=limit)
        placed += pairs
    return groups, placed


def dearest(items: Items, spare: Items, domain: Domain) -> int:
    """Ticks of a group with its whole token budget filled, at the size the longest sequence needs.

    With sequences of that kind, or with the shortest: across nodes those cost more per token.
    """
    level = int(np.argmax(items.tokens[:, 0] <= domain.max_tokens_per_rank))
    budget = domain.max_tokens_per_rank
    last = spare if len(spare) else items
    kinds = ((items, 0), (last, -1))
    full = (int(of.ticks[level, i]) * budget // int(of.tokens[level, i]) for of, i in kinds)
    return max(full) + int(items.overhead[level])


def repeated(batch: Batch, members: IntArray, old: Packing) -> Packing:
    """The packing of other sequences in the same groups, each in the place of another."""
    level = old.groups.level
    groups = _summed(batch, old.sizes[: int(level.max()) + 1], level, members, old.home)
    return Packing(groups, old.sizes, members, old.home, old.idle)


def assembled(
    batch: Batch,
    domain: Domain,
    sizes: tuple[int, ...],
    level: IntArray,
    members: IntArray,
    home: IntArray,
    *,
    even: bool = True,
) -> Packing:
    """The microbatch of sequences whose groups are known, none of them empty.

    The groups grow into idle ranks and, with ``even``, are joined so that all end together.

    Args:
        batch: The sequences of the global batch.
        domain: Ranks and limits.
        sizes: The chain of group sizes that ``level`` counts in.
        level: Per group, the index of its size.
        members: Places of the microbatch's sequences in the batch's order.
        home: For each of them, its group.
        even: Whether groups are joined.
    """
    ranks = np.array(sizes)
    groups = _summed(batch, sizes, level, members, home)
    groups = widen(groups, sizes, domain.ranks - int(ranks[level].sum()))
    if even:
        groups, moved = merge(groups, sizes, domain)
        home = moved[home]
    return Packing(groups, sizes, members, home, domain.ranks - int(ranks[groups.level].sum()))


def _summed(
    batch: Batch, sizes: tuple[int, ...], level: IntArray, members: IntArray, home: IntArray
) -> Groups:
    """The groups of sequences; for sizes below the smallest one in use the sums stay zero."""
    start = int(level.min())
    by_group, count = np.argsort(home, kind="stable"), np.bincount(home)
    items = batch.items(members[by_group], sizes[start:])
    starts = np.cumsum(count) - count
    ticks, tokens = (np.zeros((len(sizes), len(count)), np.int64) for _ in range(2))
    np.add.reduceat(items.ticks, starts, axis=1, out=ticks[start:])
    np.add.reduceat(items.tokens, starts, axis=1, out=tokens[start:])
    overhead = batch.overhead[[batch.sizes.index(size) for size in sizes]]
    return Groups(level, ticks + overhead[:, None], tokens, count, overhead)
