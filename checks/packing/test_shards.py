"""Which rows of a pack are where, against other formulas and upstream's code; and fixed sizes."""

from __future__ import annotations

import bisect

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from checks.packing.packs import packs
from ringproof.errors import InputError
from ringproof.reference.packing.capacity import (
    PADDING,
    local_to_global,
    row_arrays,
    to_capacity,
)
from ringproof.reference.packing.partition import (
    PARTITIONS,
    check_divisible,
    padding_multiple,
)
from ringproof.reference.packing.sequences import Capacity, PackedSequences, pack
from ringproof.reference.packing.shards import Sharding, check_pack

sizes = st.integers(1, 9)


@given(sizes, st.data(), st.sampled_from(PARTITIONS))
def test_every_row_is_held_once(size: int, data: st.DataObject, partition: str) -> None:
    packed = data.draw(packs(2 * size))
    held = [local_to_global(packed, size, rank, partition) for rank in range(size)]
    assert {len(rows) for rows in held} == {packed.rows // size}
    assert all((np.diff(rows) > 0).all() for rows in held)
    assert sorted(np.concatenate(held)) == list(range(packed.rows))


def zigzag_by_row(packed: PackedSequences, size: int, rank: int) -> list[int]:
    """Transformer Engine's kernel, said in another way: for each local row, where it comes from.

    The local boundaries are the padded ones over ``size``; the first half of a sequence's local
    rows is chunk ``rank``, the second half chunk ``2 * size - 1 - rank``.
    """
    boundaries = [rows // size for rows in packed.cu_seqlens_padded]
    found = []
    for row in range(packed.rows // size):
        entry = bisect.bisect_right(boundaries, row) - 1
        local, inside = boundaries[entry + 1] - boundaries[entry], row - boundaries[entry]
        chunk = local // 2
        late = inside >= chunk
        position = inside % chunk + chunk * (2 * size - 1 - rank if late else rank)
        found.append(packed.cu_seqlens_padded[entry] + position)
    return found


@given(st.integers(2, 9), st.data())
def test_zigzag_is_transformer_engines(size: int, data: st.DataObject) -> None:
    packed = data.draw(packs(2 * size))
    for rank in range(size):
        assert local_to_global(packed, size, rank, "zigzag").tolist() == zigzag_by_row(
            packed, size, rank
        )


@given(st.integers(1, 8), st.data())
def test_zigzag_is_where_megatron_core_rotates(size: int, data: st.DataObject) -> None:
    """Its rotary embedding picks the angles of each local row; we hand it positions as angles."""
    from megatron.core.models.common.embeddings.rope_utils import _get_thd_freqs_on_this_cp_rank

    packed = data.draw(packs(2 * size))
    angles = torch.arange(packed.rows)
    for rank in range(size):
        picked = [
            _get_thd_freqs_on_this_cp_rank(
                rank, size, torch.empty(rows // size), angles, offset=first
            )
            for first, rows in zip(packed.cu_seqlens_padded, packed.padded_lengths, strict=False)
        ]
        assert local_to_global(packed, size, rank, "zigzag").tolist() == torch.cat(picked).tolist()


def test_the_example_in_transformer_engines_documentation() -> None:
    """Lengths 8, 8, 8, 16 over four ranks, positions within the sequences."""
    packed = pack([8, 8, 8, 16], multiple=8)
    assert row_arrays(packed, 4, "zigzag").positions.tolist() == [
        [0, 7, 0, 7, 0, 7, 0, 1, 14, 15],
        [1, 6, 1, 6, 1, 6, 2, 3, 12, 13],
        [2, 5, 2, 5, 2, 5, 4, 5, 10, 11],
        [3, 4, 3, 4, 3, 4, 6, 7, 8, 9],
    ]


@given(sizes, st.data())
def test_contiguous_is_equal_runs_of_the_pack(size: int, data: st.DataObject) -> None:
    packed = data.draw(packs(size))
    rows = packed.rows // size
    for rank in range(size):
        held = local_to_global(packed, size, rank, "contiguous")
        assert held.tolist() == list(range(rank * rows, (rank + 1) * rows))


def test_one_rank_takes_any_length() -> None:
    packed = pack([5, 1, 17])
    for partition in PARTITIONS:
        assert local_to_global(packed, 1, 0, partition).tolist() == list(range(23))


@given(st.lists(st.integers(1, 40), min_size=1), sizes, st.sampled_from(PARTITIONS))
def test_what_is_padded_to_its_multiple_can_be_cut(
    lengths: list[int], size: int, partition: str
) -> None:
    check_pack(pack(lengths, multiple=padding_multiple(size, partition)), size, partition)


@pytest.mark.parametrize(
    ("lengths", "size", "partition", "named"),
    [
        ([8, 9], 2, "zigzag", "cu_seqlens_padded: 9 rows of entry 1 .*; pack with multiple=4"),
        ([8, 9], 2, "contiguous", "cu_seqlens_padded: 17 rows .*; pack with multiple=2"),
        ([8, 8], 2, "stripes", "partition: 'stripes' is unknown"),
    ],
)
def test_a_pack_that_cannot_be_cut_is_refused(
    lengths: list[int], size: int, partition: str, named: str
) -> None:
    with pytest.raises(InputError, match=named):
        check_pack(pack(lengths), size, partition)
    with pytest.raises(InputError, match=named):
        Sharding.of_pack(pack(lengths), size, partition)
    with pytest.raises(InputError, match=named):
        local_to_global(pack(lengths), size, 0, partition)


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


@given(st.integers(1, 4), st.data(), st.sampled_from(PARTITIONS))
def test_arrays_say_what_the_maps_say(size: int, data: st.DataObject, partition: str) -> None:
    packed = data.draw(packs(2 * size))
    arrays = row_arrays(packed, size, partition)
    entries, positions = np.full((2, packed.rows), PADDING)
    for entry, (start, length) in enumerate(
        zip(packed.cu_seqlens_padded, packed.lengths, strict=False)
    ):
        entries[start : start + length], positions[start : start + length] = entry, range(length)
    for rank in range(size):
        places = local_to_global(packed, size, rank, partition)
        assert (arrays.places[rank] == places).all()
        assert (arrays.sequences[rank] == entries[places]).all()
        assert (arrays.positions[rank] == positions[places]).all()
    assert (np.sort(arrays.places, axis=None) == np.arange(packed.rows)).all()


@given(st.data(), st.integers(0, 3), st.integers(0, 3))
def test_a_pack_at_capacity_has_the_same_sequences(
    data: st.DataObject, more_rows: int, more_entries: int
) -> None:
    packed: PackedSequences = data.draw(packs(4))
    count = packed.sequences
    capacity = Capacity(rows=packed.rows + 4 * more_rows, entries=count + 1 + more_entries)
    grown = to_capacity(packed, capacity)
    assert (grown.rows, len(grown.lengths)) == (capacity.rows, capacity.entries)
    assert grown.max_seqlen == capacity.rows
    assert (grown.sequences, grown.real_spans) == (count, packed.real_spans)
    assert grown.padded_lengths[:count] == packed.padded_lengths[:count]
    assert to_capacity(grown, capacity) == grown


def test_a_dummy_shrinks_and_goes() -> None:
    packed = to_capacity(pack([5, 3], multiple=4), Capacity(rows=32, entries=6))
    assert to_capacity(packed, Capacity(rows=16, entries=3)).padded_lengths == (8, 4, 4)
    assert to_capacity(packed, Capacity(rows=12, entries=2)).padded_lengths == (8, 4)


@pytest.mark.parametrize(
    ("rows", "entries", "named"),
    [
        (8, 4, "capacity.rows: 8 rows do not hold the 12"),
        (12, 1, "capacity.entries: 1 entries do not hold 2 sequences"),
        (16, 2, "capacity.entries: 2 entries do not hold 2 sequences and a dummy"),
    ],
)
def test_a_pack_over_capacity_is_refused(rows: int, entries: int, named: str) -> None:
    with pytest.raises(InputError, match=named):
        to_capacity(pack([5, 3], multiple=4), Capacity(rows=rows, entries=entries))
