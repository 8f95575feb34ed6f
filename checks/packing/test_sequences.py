"""What a pack says of itself, and what it refuses."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks.packing.packs import packs
from ringproof.errors import InputError
from ringproof.reference.packing.capacity import padding_pack, to_capacity
from ringproof.reference.packing.partition import round_up
from ringproof.reference.packing.sequences import Capacity, PackedSequences, pack

lengths_lists = st.lists(st.integers(0, 40), min_size=1, max_size=8).filter(any)
multiples = st.sampled_from([1, 2, 6, 8, 16])


@given(lengths_lists, multiples)
def test_a_pack_keeps_its_sequences(lengths: list[int], multiple: int) -> None:
    packed = pack(lengths, multiple=multiple)
    assert (packed.sequences, packed.lengths) == (len(lengths), tuple(lengths))
    assert packed.tokens == sum(lengths)
    assert packed.padded_lengths == tuple(round_up(n, multiple) for n in lengths)
    assert packed.max_seqlen == max(packed.padded_lengths)


@given(lengths_lists, multiples, st.integers(0, 3))
def test_a_capacity_fixes_every_size(lengths: list[int], multiple: int, spare: int) -> None:
    """Whatever is packed, a graph sees the same number of entries, rows and the same maximum."""
    capacity = Capacity(rows=multiple * 400, entries=len(lengths) + 1 + spare)
    for packed in (to_capacity(pack(lengths, multiple=multiple), capacity), padding_pack(capacity)):
        assert len(packed.cu_seqlens) == len(packed.cu_seqlens_padded) == capacity.entries + 1
        assert packed.rows == packed.max_seqlen == capacity.rows
        assert packed.tokens == sum(packed.lengths[: packed.sequences])


@given(packs(4))
def test_real_spans_are_the_real_tokens(packed: PackedSequences) -> None:
    spans = packed.real_spans
    assert sum(map(len, spans)) == packed.tokens
    assert all(a.stop <= b.start for a, b in itertools.pairwise(spans))
    starts = [
        start for start, n in zip(packed.cu_seqlens_padded, packed.lengths, strict=False) if n
    ]
    assert [span.start for span in spans] == starts


GOOD: dict[str, Any] = {
    "cu_seqlens": (0, 5, 6, 6),
    "cu_seqlens_padded": (0, 8, 16, 24),
    "max_seqlen": 8,
    "sequences": 2,
}


def test_the_good_one_is_good() -> None:
    assert PackedSequences(**GOOD).lengths == (5, 1, 0)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"cu_seqlens": [0, 5, 6, 6]}, "^cu_seqlens: .* is not a tuple"),
        ({"cu_seqlens": (0, 5.0, 6, 6)}, "^cu_seqlens: .* is not a tuple of two or more integers"),
        ({"cu_seqlens": (0,)}, "^cu_seqlens: .* is not a tuple of two"),
        ({"cu_seqlens": (1, 5, 6, 6)}, "^cu_seqlens: the first number is 1; start with 0"),
        ({"cu_seqlens": (0, 5, 4, 6)}, "^cu_seqlens: entry 1 has a length of -1"),
        ({"cu_seqlens": (0, 9, 9, 9)}, "^cu_seqlens: entry 0 has 9 tokens and only 8 rows"),
        ({"cu_seqlens": (0, 5, 6)}, "^cu_seqlens_padded: there are 4 numbers, and cu_seqlens 3"),
        ({"cu_seqlens_padded": (0, 8, 16, 15)}, "^cu_seqlens_padded: entry 2 has a length of -1"),
        ({"cu_seqlens_padded": (0, 8, 16, 2**31), "max_seqlen": 2**31}, "^cu_seqlens_padded: .*2"),
        ({"max_seqlen": 7}, "^max_seqlen: 7 is not an integer from 8"),
        ({"max_seqlen": None}, "^max_seqlen"),
        ({"sequences": 4}, "^sequences: 4 is not a number of entries from 0 to 3"),
        ({"sequences": -1}, "^sequences: "),
        ({"sequences": 1}, "^sequences: an entry after the first 1 has real tokens"),
        ({"cu_seqlens": (0, 0, 0, 0), "sequences": 0}, "^sequences: 3 entries after the 0 sequ"),
    ],
)
def test_a_wrong_pack_is_refused_by_field(change: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        PackedSequences(**{**GOOD, **change})


@pytest.mark.parametrize(
    ("lengths", "options", "named"),
    [
        ([5, -1], {}, "^lengths: -1 is not a length"),
        ([5.0], {}, "^lengths: 5.0 is not a length"),
        ([True], {}, "^lengths: True is not"),
        ([2**31], {}, "^lengths: 2147483648 is not"),
        ([2**30, 2**30], {}, "^cu_seqlens_padded: a pack has 1 to"),
        ([], {}, "^lengths: .* has no rows to pack"),
        ([0, 0], {}, "^lengths: .* has no rows to pack"),
        ([5], {"multiple": 0}, "^multiple: "),
    ],
)
def test_what_cannot_be_packed_is_refused(
    lengths: list[Any], options: dict[str, Any], named: str
) -> None:
    with pytest.raises(InputError, match=named):
        pack(lengths, **options)


def test_lengths_may_be_numpys() -> None:
    packed = pack(np.array([5, 3]), multiple=4)
    assert packed == pack([5, 3], multiple=4)
    assert {type(value) for value in packed.cu_seqlens} == {int}


@pytest.mark.parametrize(("rows", "entries"), [(0, 1), (8, 0), (8.0, 1), (8, True)])
def test_a_capacity_is_positive(rows: Any, entries: Any) -> None:
    with pytest.raises(
        InputError, match=r"^capacity\.(rows|entries): .* is not a positive integer"
    ):
        Capacity(rows=rows, entries=entries)
