"""Padding multiples: what they must divide, and what upstream pads to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringproof.errors import InputError
from ringproof.reference.packing.padding import ROW_ALIGNMENTS, padding_multiple, round_up
from ringproof.reference.packing.partition import PARTITIONS

sizes = st.sampled_from([1, 2, 3, 4, 6, 8])


@given(sizes, sizes, st.booleans(), st.sampled_from(PARTITIONS), st.sampled_from([*ROW_ALIGNMENTS]))
def test_every_shard_is_whole(
    cp: int, tp: int, sequence_parallel: bool, partition: str, alignment: str
) -> None:
    multiple = padding_multiple(
        cp_size=cp,
        tp_size=tp,
        sequence_parallel=sequence_parallel,
        partition=partition,
        alignment=alignment,
    )
    shard, rest = divmod(multiple, cp * (tp if sequence_parallel else 1))
    assert rest == 0
    two_chunks = partition == "zigzag" and cp > 1  # every other alignment is even
    assert shard == (2 if two_chunks and alignment == "none" else ROW_ALIGNMENTS[alignment])


@given(st.integers(1, 500), sizes, sizes, st.booleans(), st.sampled_from(["none", "fp8", "mxfp8"]))
def test_upstream_pads_alike_where_it_keeps_the_number_format(
    seq_len: int, cp: int, tp: int, sequence_parallel: bool, alignment: str
) -> None:
    """megatron-core's own function. It drops the number format as soon as CP or SP is on."""
    from megatron.core.models.multimodal.context_parallel import get_padding

    padded = seq_len + get_padding(
        seq_len, cp, tp, sequence_parallel, fp8_enabled=alignment != "none", fp8_recipe=alignment
    )
    upstream_drops_it = cp > 1 or sequence_parallel
    multiple = padding_multiple(
        cp_size=cp,
        tp_size=tp,
        sequence_parallel=sequence_parallel,
        alignment="none" if upstream_drops_it else alignment,
    )
    assert round_up(seq_len, multiple) == padded


def test_alignments_are_upstreams() -> None:
    from megatron.core.enums import Fp8Recipe
    from megatron.core.fp4_utils import get_fp4_align_size
    from megatron.core.fp8_utils import get_fp8_align_size

    assert ROW_ALIGNMENTS["fp8"] == get_fp8_align_size(Fp8Recipe.delayed)
    assert ROW_ALIGNMENTS["mxfp8"] == get_fp8_align_size(Fp8Recipe.mxfp8)
    assert ROW_ALIGNMENTS["nvfp4"] == get_fp4_align_size("nvfp4")


@given(st.integers(0, 10**6), st.integers(1, 1000))
def test_rounding_up_goes_to_the_next_multiple(rows: int, multiple: int) -> None:
    rounded = round_up(rows, multiple)
    assert rounded % multiple == 0
    assert rows <= rounded < rows + multiple


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"cp_size": 0}, "^cp_size: "),
        ({"tp_size": -1}, "^tp_size: "),
        ({"partition": "stripes"}, "^partition: .*stripes"),
        ({"alignment": "fp7"}, "^alignment: .*fp7.* fp8, mxfp8"),
    ],
)
def test_bad_arguments_are_refused_by_name(arguments: dict[str, object], named: str) -> None:
    with pytest.raises(InputError, match=named):
        padding_multiple(**arguments)
