"""Step tables, played by all ranks in one process against the mask itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringproof.reference.attention.steps import Step, Tile, step_table
from ringproof.reference.packing.partition import PARTITIONS, Span
from ringproof.reference.packing.shards import Sharding

Pairs = Counter[tuple[int, int]]


def pairs_met(tables: Sequence[tuple[Step, ...]], shards: Sequence[tuple[Span, ...]]) -> Pairs:
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


def tables_of(sharding: Sharding, *, causal: bool = True) -> list[tuple[Step, ...]]:
    """The step tables of all ranks."""
    return [step_table(sharding, rank, causal=causal) for rank in range(len(sharding.shards))]


def visible(seq_len: int, *, causal: bool) -> Pairs:
    return Counter((q, k) for q in range(seq_len) for k in range(q + 1 if causal else seq_len))


@given(st.integers(1, 7), st.integers(1, 3), st.sampled_from(PARTITIONS), st.booleans())
def test_every_visible_pair_meets_once(size: int, chunk: int, partition: str, causal: bool) -> None:
    seq_len = 2 * size * chunk
    sharding = Sharding.of_sequence(seq_len, size, partition)
    tables = tables_of(sharding, causal=causal)
    assert pairs_met(tables, sharding.shards) == visible(seq_len, causal=causal)


@given(st.integers(1, 7), st.sampled_from(PARTITIONS), st.booleans())
def test_blocks_come_in_ring_order(size: int, partition: str, causal: bool) -> None:
    """In every step, each rank's block is the one its predecessor had in the step before."""
    tables = tables_of(Sharding.of_sequence(4 * size, size, partition), causal=causal)
    for rank in range(size):
        for step in range(1, size):
            assert tables[rank][step].source == tables[(rank - 1) % size][step - 1].source


def area(tile: Tile) -> float:
    full = len(tile.q) * len(tile.kv)
    return full / 2 if tile.causal else full


@pytest.mark.parametrize("size", [2, 3, 4, 8])
def test_zigzag_ranks_work_alike_in_every_step(size: int) -> None:
    """That is what zigzag is for: no rank waits for another, step by step."""
    for partition, works in (("zigzag", {1}), ("contiguous", {1, 2})):
        tables = tables_of(Sharding.of_sequence(16 * size, size, partition))
        areas = [{sum(map(area, table[step].tiles)) for table in tables} for step in range(size)]
        assert {len(work) for work in areas} == works
