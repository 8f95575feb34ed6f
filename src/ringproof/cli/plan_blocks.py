"""What the page draws: groups as rectangles, small ones of large domains drawn together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from ringproof.reference.planning.domain import IntArray
from ringproof.reference.planning.simulate import Block, Timeline

MAX_BLOCKS = 24_000
_MOST_ROWS = 512
_LISTED = 10
"""Sequences that a rectangle names; it counts the others."""


@dataclass(frozen=True)
class Drawing:
    """A timeline as the page draws it.

    Attributes:
        blocks: Per rectangle: microbatch, first rank, ranks, start, end, index of its size,
            sequences, tokens, the first sequences as (id, length), groups in it.
        ends: When each drawn microbatch has ended.
        end: When the last one has, drawn or not.
        until: What comes later is not all drawn; `end` where everything is.
        ranks_per_row: Groups of fewer ranks are drawn together.
        cut: Whether microbatches are left out.
    """

    blocks: tuple[tuple[Any, ...], ...]
    ends: tuple[float, ...]
    end: float
    until: float
    ranks_per_row: int
    cut: bool


def drawing(line: Timeline, lengths: IntArray, sizes: Sequence[int]) -> Drawing:
    """The rectangles of a timeline, at most `MAX_BLOCKS`.

    Args:
        line: The timeline.
        lengths: Tokens of each sequence.
        sizes: All group sizes of the page; rectangles name theirs by its place.
    """
    per_row = 1
    while line.ranks > per_row * _MOST_ROWS:
        per_row *= 2
    blocks, last = list(_rows(line.blocks, per_row)), len(line.ends)
    while len(blocks) > MAX_BLOCKS and per_row < line.ranks:
        per_row *= 2
        blocks = list(_rows(line.blocks, per_row))
    if len(blocks) > MAX_BLOCKS:
        last = blocks[MAX_BLOCKS][0].microbatch
        blocks = [block for block in blocks[:MAX_BLOCKS] if block[0].microbatch < last]
    values, places = lengths.tolist(), {size: place for place, size in enumerate(sizes)}
    return Drawing(
        tuple(_drawn(together, values, places) for together in blocks),
        tuple(_short(end) for end in line.ends[:last]),
        _short(line.ends[-1]),
        _short(min((b.start for b in line.blocks if b.microbatch >= last), default=line.ends[-1])),
        per_row,
        last < len(line.ends),
    )


def _rows(blocks: Sequence[Block], per_row: int) -> Iterator[tuple[Block, ...]]:
    """Groups that share a rectangle: neighbours in a row of ranks, if they are smaller than it."""
    by_microbatch = groupby(blocks, key=lambda block: block.microbatch)
    for _, found in by_microbatch:
        ordered = sorted(found, key=lambda block: block.group.first_rank)
        if per_row == 1:
            yield from ((block,) for block in ordered)
            continue
        yield from ((block,) for block in ordered if block.group.size >= per_row)
        small = (block for block in ordered if block.group.size < per_row)
        for _, near in groupby(small, key=lambda block: block.group.first_rank // per_row):
            yield tuple(near)


def _drawn(
    together: Sequence[Block], lengths: Sequence[int], places: dict[int, int]
) -> tuple[Any, ...]:
    members = [sequence for block in together for sequence in block.group.sequences]
    ranks = sum(block.group.size for block in together)
    first = min(block.group.first_rank for block in together)
    after = max(block.group.first_rank + block.group.size for block in together)
    by_size: dict[int, int] = {}
    for block in together:
        by_size[block.group.size] = by_size.get(block.group.size, 0) + block.group.size
    return (
        together[0].microbatch,
        first,
        after - first,
        _short(sum(block.start * block.group.size for block in together) / ranks),
        _short(sum(block.end * block.group.size for block in together) / ranks),
        places[max(by_size, key=lambda size: by_size[size])],
        len(members),
        sum(lengths[member] for member in members),
        tuple((member, lengths[member]) for member in members[:_LISTED]),
        len(together),
    )


def _short(value: float) -> float:
    """Enough digits for a picture."""
    return float(f"{value:.7g}")
