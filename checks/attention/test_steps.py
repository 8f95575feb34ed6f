"""Step tables, played by all ranks in one process against the mask itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringproof.reference.attention.steps import Step, Tile, flat_step_table
from ringproof.reference.packing.partition import PARTITIONS, Span, rank_spans

Pairs = Counter[tuple[int, int]]


def pairs_met(tables: list[tuple[Step, ...]], shards: list[tuple[Span, ...]]) -> Pairs:
    """How often each (query, key) pair of global positions meets over all ranks and steps."""
    held = [[p for span in shard for p in range(span.start, span.stop)] for shard in shards]
    return Counter(
        pair
        for rank, table in enumerate(tables)
        for step in table
        for tile in step.tiles
        for pair in pairs_of(tile, held[rank], held[step.source])
    )


def pairs_of(tile: Tile, queries: list[int], keys: list[int]) -> Iterator[tuple[int, int]]:
    """The pairs that one tile lets meet."""
    for row, query in enumerate(queries[tile.q.index]):
        seen = keys[tile.kv.index]
        yield from ((query, key) for key in (seen[: row + 1] if tile.causal else seen))


def visible(seq_len: int, *, causal: bool) -> Pairs:
    return Counter((q, k) for q in range(seq_len) for k in range(q + 1 if causal else seq_len))


@given(st.integers(1, 7), st.integers(1, 3), st.sampled_from(PARTITIONS), st.booleans())
def test_every_visible_pair_meets_once(size: int, chunk: int, partition: str, causal: bool) -> None:
    seq_len = 2 * size * chunk
    shards = [rank_spans(seq_len, size, rank, partition) for rank in range(size)]
    tables = [
        flat_step_table(seq_len, size, rank, partition=partition, causal=causal)
        for rank in range(size)
    ]
    assert pairs_met(tables, shards) == visible(seq_len, causal=causal)


def test_a_dropped_step_is_seen() -> None:
    """Negative control: the oracle above must notice one missing block."""
    shards = [rank_spans(16, 4, rank, "zigzag") for rank in range(4)]
    tables = [flat_step_table(16, 4, r, partition="zigzag", causal=True) for r in range(4)]
    tables[2] = tables[2][:-1]
    assert pairs_met(tables, shards) != visible(16, causal=True)


@given(st.integers(1, 7), st.sampled_from(PARTITIONS), st.booleans())
def test_blocks_come_in_ring_order(size: int, partition: str, causal: bool) -> None:
    """In every step, each rank's block is the one its predecessor had in the step before."""
    tables = [
        flat_step_table(4 * size, size, r, partition=partition, causal=causal) for r in range(size)
    ]
    for rank in range(size):
        for step in range(1, size):
            assert tables[rank][step].source == tables[(rank - 1) % size][step - 1].source


def area(tile: Tile) -> float:
    full = len(tile.q) * len(tile.kv)
    return full / 2 if tile.causal else full


@pytest.mark.parametrize("size", [2, 3, 4, 8])
def test_zigzag_ranks_work_alike_in_every_step(size: int) -> None:
    """That is what zigzag is for: no rank waits for another, step by step."""
    tables = [
        flat_step_table(16 * size, size, r, partition="zigzag", causal=True) for r in range(size)
    ]
    for step in range(size):
        assert len({sum(map(area, table[step].tiles)) for table in tables}) == 1


def test_one_tile_per_step_is_enough_for_zigzag() -> None:
    for rank in range(4):
        table = flat_step_table(64, 4, rank, partition="zigzag", causal=True)
        assert [len(step.tiles) for step in table] == [1, 1, 1, 1]
