"""Random packs: any lengths, any padding, dummy or not, unused entries or not."""

from __future__ import annotations

import random

from hypothesis import strategies as st

from ringproof.reference.packing.sequences import PackedSequences


def build(entries: list[tuple[int, int]], *, sequences: int) -> PackedSequences:
    """A pack from (real, rows) of each entry."""
    real, rows = [0], [0]
    for length, padded in entries:
        real.append(real[-1] + length)
        rows.append(rows[-1] + padded)
    return PackedSequences(
        cu_seqlens=tuple(real),
        cu_seqlens_padded=tuple(rows),
        max_seqlen=max(padded for _, padded in entries),
        sequences=sequences,
    )


def random_pack(seed: int, multiple: int) -> PackedSequences:
    """Entries of 0 to 4 multiples, of which anything from nothing to all is real."""
    draw = random.Random(seed)
    entries = []
    for _ in range(draw.randint(1, 6)):
        rows = multiple * draw.randint(0, 4)
        real = draw.choice([0, min(1, rows), draw.randint(0, rows), rows])
        entries.append((real, rows))
    sequences = len(entries)
    if not draw.randrange(3) or not any(rows for _, rows in entries):
        entries.append((0, multiple * draw.randint(1, 3)))
    entries += [(0, 0)] * draw.randint(0, 2)
    return build(entries, sequences=sequences)


def packs(multiple: int) -> st.SearchStrategy[PackedSequences]:
    """Packs whose entries have multiples of that many rows; hypothesis shrinks the seed only."""
    return st.integers(0, 2**32).map(lambda seed: random_pack(seed, multiple))
