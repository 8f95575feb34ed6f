"""Packs of a fixed size, and their rows as arrays."""

from __future__ import annotations

import numpy as np
import pytest
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
from ringproof.reference.packing.partition import PARTITIONS
from ringproof.reference.packing.sequences import Capacity, PackedSequences, pack


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
    assert (arrays.places.ravel()[arrays.order] == np.arange(packed.rows)).all()


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
    packed = pack([5, 3], multiple=4, tail="dummy", capacity=Capacity(rows=32, entries=6))
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
