"""Packed sequences: which sequence of the reference each of the run is, wherever it is computed.

The ranks that share a pack say where its sequences end. Their tokens are put together, and a
sequence is the one of the reference that has the same tokens, or as many of them as possible among
those of its length. Sequences of equal tokens have equal values, so that any of them will do.
Where upstream does not say where the padding of a sequence begins, as the data set of ``--sft``,
one of the two may be longer by tokens that are all equal.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from ringproof.rehearsal.locate.reading import Array, RankRecord, RunTrace, coordinates
from ringproof.rehearsal.locate.rows import LAYOUTS, MASK, PADDING, TOKENS, Rows, Source, tokens
from ringproof.rehearsal.protocol.trace import TracedBatch

ZIGZAG = "zigzag"  # which releases use that do not say
PackKey = tuple[tuple[int, ...], int]
"""Ranks that share a pack, and the number of the microbatch."""


@dataclass(frozen=True)
class Member:
    """The part of a pack that one rank has.

    Attributes:
        rows: Rows of the pack [n]; -1 where the rank has more than the pack.
    """

    rank: RankRecord
    batch: TracedBatch
    rows: Array


@dataclass(frozen=True, eq=False)
class PackedSequence:
    """A sequence of a pack.

    Attributes:
        start: Its first row in the pack.
        tokens: Its tokens without padding [length]; -1 where no rank has them.
        fills: Whether it can be what fills a pack up to its budget.
    """

    pack: PackKey
    number: int
    start: int
    tokens: Array
    fills: bool


@dataclass(frozen=True)
class StepPacks:
    """The packs of one step.

    Attributes:
        members: The ranks that share each pack, as far as they wrote a trace.
        sequences: The sequences of all packs.
        odd: What the ranks of a pack disagree about, by microbatch.
    """

    members: Mapping[PackKey, tuple[Member, ...]]
    sequences: tuple[PackedSequence, ...]
    odd: Mapping[int, tuple[int, ...]]


def packs_of(run: RunTrace, step: int) -> StepPacks:
    """Put the packs of a step together from what the first pipeline stage is given."""
    found: dict[PackKey, list[Member]] = defaultdict(list)
    odd: dict[int, set[int]] = defaultdict(set)
    for rank, batch in _packed_batches(run, step):
        if coordinates(rank.trace.place)[3]:
            first = _first_stage(run, rank, batch)
            if first is not None and first.borders != batch.borders:
                odd[batch.microbatch].add(rank.trace.rank)
        else:
            member = Member(rank, batch, _share(rank, batch))
            found[batch.ranks, batch.microbatch].append(member)
    for ranks, number in found:
        expected = ranks, found[ranks, number][0].batch.borders
        others = [rank for rank in run.ranks if rank.trace.rank in ranks]
        held = [(rank, rank.batches.get((step, 0, number))) for rank in others]
        odd[number] |= {
            rank.trace.rank for rank, one in held if one and (one.ranks, one.borders) != expected
        }
    sequences = tuple(one for key, held in found.items() for one in _sequences(run, key, held))
    fixed = {number: tuple(sorted(ranks)) for number, ranks in odd.items() if ranks}
    return StepPacks({key: tuple(held) for key, held in found.items()}, sequences, fixed)


def _packed_batches(run: RunTrace, step: int) -> Iterator[tuple[RankRecord, TracedBatch]]:
    """Yield the packs of the first rank of each TP group, the others of which have the same."""
    for rank in run.ranks:
        for batch in rank.trace.batches if not rank.trace.place.tensor else ():
            if (batch.step, batch.chunk) == (step, 0) and batch.borders:
                yield rank, batch


def _first_stage(run: RunTrace, rank: RankRecord, batch: TracedBatch) -> TracedBatch | None:
    tensor, context, data, _ = coordinates(rank.trace.place)
    first = run.at.get((tensor, context, data, 0))
    return first.batches.get((batch.step, 0, batch.microbatch)) if first else None


def _share(rank: RankRecord, batch: TracedBatch) -> Array:
    """Return the rows of the pack that a rank of its group has."""
    size, own = len(batch.ranks), batch.ranks.index(rank.trace.rank)
    if batch.layout not in ("", ZIGZAG):
        rows = LAYOUTS[batch.layout](own, size, batch.borders[-1])
    else:
        parts = [a + LAYOUTS[ZIGZAG](own, size, b - a) for a, b in pairwise(batch.borders)]
        rows = np.concatenate(parts) if parts else np.arange(0)
    given = tokens(rank, (batch.step, batch.chunk, batch.microbatch))
    count = len(rows) if given is None else given.shape[1]
    return np.concatenate([rows[:count], np.full(max(count - len(rows), 0), -1)])


def _sequences(run: RunTrace, key: PackKey, members: Sequence[Member]) -> Iterator[PackedSequence]:
    batch = members[0].batch
    whole, mask = _together(run, members, TOKENS, -1), _together(run, members, MASK, -1.0)
    known = len(batch.tokens) == len(batch.borders)
    lengths = np.diff(batch.tokens if known else batch.borders)
    for number, (start, length) in enumerate(zip(batch.borders, lengths, strict=False)):
        inside = slice(start, start + length)
        # A pack that upstream fills up to its budget ends with a sequence of nothing but padding.
        last = start + length == len(whole) and not mask[inside].any()
        if length > 0:
            fills = last and len(np.unique(whole[inside])) == 1
            yield PackedSequence(key, number, start, whole[inside], fills)


def _together(run: RunTrace, members: Sequence[Member], name: str, absent: float) -> Array:
    """Return an input of the model for all rows of a pack; ``absent`` where no rank has them."""
    batch = members[0].batch
    whole = np.full(batch.borders[-1], absent)
    for one in members:
        given = _given(run, one, name)
        if given is not None and len(given) and given.shape[1:] == one.rows.shape:
            held = one.rows >= 0
            whole[one.rows[held]] = given[0][held]
    return whole


def _given(run: RunTrace, one: Member, name: str) -> Array | None:
    """Return what the first stage is given, or the last one, as the mask of the loss."""
    tensor, context, data, _ = coordinates(one.rank.trace.place)
    last = run.at.get((tensor, context, data, one.rank.trace.place.sizes[3] - 1))
    for rank in (one.rank, last):
        for step, chunk, number in rank.batches if rank else ():
            same = (step, number) == (one.batch.step, one.batch.microbatch)
            if rank and same and (given := tokens(rank, (step, chunk, number), name)) is not None:
                return given
    return None


@dataclass(frozen=True)
class PackedRows:
    """The rows of a step's packs.

    Attributes:
        wrong: Sequences that the reference does not have, or has less often.
        missing: Number of sequences of the reference that the run does not have.
    """

    packs: StepPacks
    reference: StepPacks
    matches: Mapping[tuple[PackKey, int], PackedSequence]
    wrong: tuple[PackedSequence, ...]
    missing: int

    def rows(self, rank: RankRecord, step: int, number: int) -> Rows | None:
        """Return the rows of a rank of the first stage in a microbatch."""
        batch = rank.batches.get((step, 0, number))
        if batch is None:
            return None
        key = (batch.ranks, number)
        member = next(one for one in self.packs.members[key] if one.batch is batch)
        count = len(member.rows)
        found = {
            name: np.full(count, PADDING) for name in ("source", "index", "position", "sequence")
        }
        sources: dict[Source, int] = {}
        for one in self.packs.sequences:
            other = self.matches.get((key, one.number)) if one.pack == key else None
            if other is None:
                continue
            length = min(len(one.tokens), len(other.tokens))
            inside = (member.rows >= one.start) & (member.rows < one.start + length)
            found["position"][inside] = member.rows[inside] - one.start
            found["sequence"][inside] = one.number
            for place in self.reference.members[other.pack]:
                self._look_up(place, other, inside, found, sources)
        return Rows(tuple(sources), **found, batch=1)

    @staticmethod
    def _look_up(
        place: Member, other: PackedSequence, inside: Array, found: Mapping[str, Array],
        sources: dict[Source, int],
    ) -> None:  # fmt: skip
        """Note which rows of a sequence a rank of the reference has."""
        wanted = np.where(inside, other.start + found["position"], -2)
        order = np.argsort(place.rows)
        at = np.searchsorted(place.rows, wanted, sorter=order).clip(max=len(order) - 1)
        index = order[at]
        here = place.rows[index] == wanted
        if not here.any():
            return
        _, context, data, _ = coordinates(place.rank.trace.place)
        source = Source(context, data, place.batch.microbatch, len(place.rows))
        found["source"][here] = sources.setdefault(source, len(sources))
        found["index"][here] = index[here]


def packed_rows(run: RunTrace, reference: RunTrace, step: int) -> PackedRows:
    """Match the packed sequences of a step with those of the reference."""
    mine, theirs = packs_of(run, step), packs_of(reference, step)
    left = sorted(theirs.sequences, key=lambda one: one.fills)
    matches: dict[tuple[PackKey, int], PackedSequence] = {}
    # Those with equal tokens first, then those that are padded, and then the most alike.
    for least, padded in ((1.0, False), (1.0, True), (0.0, False)):
        for one in mine.sequences:
            if (one.pack, one.number) in matches:
                continue
            alike = functools.partial(_alike, one, padded=padded)
            best = max(left, key=alike, default=None)
            if best is not None and alike(best) >= least:
                left.remove(best)
                matches[one.pack, one.number] = best
    wrong = tuple(
        one for one in mine.sequences if not one.fills and (one.pack, one.number) not in matches
    )
    return PackedRows(mine, theirs, matches, wrong, sum(not one.fills for one in left))


def _alike(one: PackedSequence, other: PackedSequence, *, padded: bool) -> float:
    """Return the share of equal tokens; -1 where the lengths are those of other sequences."""
    if one.fills or other.fills:  # a sequence without targets can look like padding
        both = one.fills and other.fills
        return 1.0 if not both and np.array_equal(one.tokens, other.tokens) else -1.0
    size = min(len(one.tokens), len(other.tokens))
    rest = np.concatenate([one.tokens[size:], other.tokens[size:]])
    if len(rest) and (not padded or not size or (rest != rest[0]).any()):
        return -1.0
    if padded:
        one, other = (replace(both, tokens=both.tokens[:size]) for both in (one, other))
    known = one.tokens >= 0
    return float((one.tokens == other.tokens)[known].mean()) if known.any() else 0.5


def lengths_of(sequences: Iterable[PackedSequence]) -> str:
    """Return the lengths of sequences in words."""
    return ", ".join(str(len(one.tokens)) for one in sequences)
