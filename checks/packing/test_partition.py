"""Zigzag and contiguous shards: what they hold, and that segments undo them."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringproof.errors import InputError
from ringproof.reference.packing.partition import (
    PARTITIONS,
    Span,
    check_divisible,
    rank_spans,
    segments_in_order,
)


def positions(spans: tuple[Span, ...]) -> list[int]:
    return [p for span in spans for p in range(span.start, span.stop)]


@given(st.integers(1, 9), st.integers(1, 5), st.sampled_from(PARTITIONS))
def test_shards_hold_every_position_once(size: int, chunk: int, partition: str) -> None:
    seq_len = 2 * size * chunk
    held = [positions(rank_spans(seq_len, size, rank, partition)) for rank in range(size)]
    assert sorted(itertools.chain(*held)) == list(range(seq_len))
    assert {len(h) for h in held} == {seq_len // size}
    assert all(h == sorted(h) for h in held)


@given(st.integers(1, 6), st.integers(1, 4), st.sampled_from(PARTITIONS))
def test_segments_restore_ascending_order(size: int, chunk: int, partition: str) -> None:
    shards = [rank_spans(2 * size * chunk, size, rank, partition) for rank in range(size)]
    held = [positions(shard) for shard in shards]
    restored = [p for s in segments_in_order(shards) for p in held[s.shard][s.rows.index]]
    assert restored == list(range(2 * size * chunk))


@pytest.mark.parametrize(
    ("seq_len", "size", "partition", "padded"),
    [(255, 4, "zigzag", 256), (12, 4, "zigzag", 16), (0, 2, "zigzag", 4), (7, 3, "contiguous", 9)],
)
def test_a_length_that_cannot_be_cut_is_refused_with_the_padded_one(
    seq_len: int, size: int, partition: str, padded: int
) -> None:
    with pytest.raises(InputError, match=f"pad the sequence to {padded}"):
        check_divisible(seq_len, size, partition)
    check_divisible(padded, size, partition)


def test_an_unknown_partition_is_refused() -> None:
    with pytest.raises(InputError, match="stripes"):
        check_divisible(16, 2, "stripes")
