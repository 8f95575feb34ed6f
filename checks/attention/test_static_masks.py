"""Masks from tensors against step tables and against the oracle, all ranks in one process.

Rows of padding hold NaN in every input. Float64, so rounding stays near 1e-14.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from checks.attention.players import play, play_steps
from checks.attention.test_packed import (
    TOLERANCE,
    dense,
    random_inputs,
    visible,
    worst,
)
from checks.packing.packs import build, packs
from ringproof.errors import InputError
from ringproof.reference.attention.attention import AttentionOptions, context_parallel_attention
from ringproof.reference.attention.dense import DenseResult
from ringproof.reference.attention.kernels import (
    AttentionKernel,
    FlashKernel,
    ReferenceKernel,
)
from ringproof.reference.attention.masks import MaskedKernel, RowMask, RowTable
from ringproof.reference.attention.plan import masked_steps
from ringproof.reference.attention.steps import Step
from ringproof.reference.packing.capacity import RowArrays, row_arrays, to_capacity
from ringproof.reference.packing.partition import PARTITIONS
from ringproof.reference.packing.sequences import Capacity, pack
from ringproof.reference.packing.shards import Sharding
from smoke.model_batches import group_of_one


def table_of(arrays: RowArrays) -> RowTable:
    return RowTable(torch.from_numpy(arrays.sequences), torch.from_numpy(arrays.positions))


def static_play(
    inputs: Sequence[torch.Tensor],
    places: torch.Tensor,
    table: RowTable,
    *,
    causal: bool = True,
    kernel: str = "reference",
) -> DenseResult:
    """Every rank's loop over masked tiles.

    Args:
        inputs: q, k, v and the output's gradient, ``[1, T, heads, width]``, all rows.
        places: ``[N, R]``, which of them each rank holds, in any order.
        table: What those rows are said to be.
        causal: Which mask.
        kernel: Which kernel.
    """

    def steps(rank: int) -> tuple[Step, ...]:
        return masked_steps(table, rank, causal=causal)

    return play_steps(inputs, places, steps, kernel=kernel)


def pairs_met(arrays: RowArrays, tables: Sequence[tuple[Step, ...]]) -> Counter[tuple[int, int]]:
    """How often each query meets each key by the masks, as rows of the pack."""
    met: Counter[tuple[int, int]] = Counter()
    for rank, steps in enumerate(tables):
        for step in steps:
            for mask in (tile.mask for tile in step.tiles if tile.mask):
                seen = (~mask.hidden()).nonzero().tolist()
                queries, keys = arrays.places[rank], arrays.places[step.source]
                met.update((int(queries[query]), int(keys[key])) for query, key in seen)
    return met


@given(st.integers(1, 5), st.data(), st.sampled_from(PARTITIONS), st.booleans())
def test_every_visible_pair_meets_once_and_no_other(
    size: int, data: st.DataObject, partition: str, causal: bool
) -> None:
    packed = data.draw(packs(2 * size))
    arrays = row_arrays(packed, size, partition)
    table = table_of(arrays)
    tables = [masked_steps(table, rank, causal=causal) for rank in range(size)]
    assert all(len(step.tiles) == 1 for steps in tables for step in steps)
    assert pairs_met(arrays, tables) == visible(packed, causal=causal)


@given(st.integers(1, 5), st.data())
def test_hidden_blocks_of_later_ranks_are_not_computed(size: int, data: st.DataObject) -> None:
    """In the contiguous partition; what is left meets each visible pair once."""
    packed = data.draw(packs(2 * size))
    arrays = row_arrays(packed, size, "contiguous")
    table = table_of(arrays)
    tables = [masked_steps(table, rank, causal=True, ordered=True) for rank in range(size)]
    for rank, steps in enumerate(tables):
        assert [step.source for step in steps if step.tiles] == list(range(rank, -1, -1))
    assert pairs_met(arrays, tables) == visible(packed, causal=True)


@settings(deadline=None, max_examples=30)
@given(
    st.sampled_from([1, 2, 3, 4, 8]),
    st.data(),
    st.sampled_from(PARTITIONS),
    st.booleans(),
    st.sampled_from([(4, 4), (4, 2), (3, 1)]),
    st.sampled_from(["reference", "sdpa"]),
)
def test_it_is_what_the_step_table_and_the_oracle_say(
    size: int,
    data: st.DataObject,
    partition: str,
    causal: bool,
    heads: tuple[int, int],
    kernel: str,
) -> None:
    packed = data.draw(packs(2 * size))
    inputs = random_inputs(packed, seed=packed.rows, heads=heads)
    arrays = row_arrays(packed, size, partition)
    places, table = torch.from_numpy(arrays.places), table_of(arrays)
    found = static_play(inputs, places, table, causal=causal, kernel=kernel)
    sharding = Sharding.of_pack(packed, size, partition)
    assert worst(found, play(inputs, sharding, causal=causal)) <= TOLERANCE
    assert worst(found, dense(packed, inputs, causal=causal)) <= TOLERANCE


@pytest.mark.parametrize("inner", [1, 2, 4])
def test_rows_may_stand_in_any_order(inner: int) -> None:
    """What a head exchange relies on that does not sort what it gathers."""
    packed = pack([13, 1, 32, 7], multiple=8)
    inputs = random_inputs(packed, seed=1, heads=(4, 2))
    arrays = row_arrays(packed, 4, "zigzag")
    table, places = table_of(arrays), torch.from_numpy(arrays.places)
    gathered = table.gathered(inner)
    assert gathered.sequences.shape == (4 // inner, inner * places.shape[1])
    mixed = torch.randperm(gathered.sequences.shape[1], generator=torch.Generator().manual_seed(2))
    found = static_play(
        inputs,
        places.view(4 // inner, -1)[:, mixed],
        RowTable(gathered.sequences[:, mixed], gathered.positions[:, mixed]),
    )
    assert worst(found, dense(packed, inputs, causal=True)) <= TOLERANCE


@pytest.mark.parametrize("inner", [ReferenceKernel(), FlashKernel()], ids=lambda one: one.name)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_rows_that_see_nothing(dtype: torch.dtype, inner: AttentionKernel) -> None:
    """Zero output, an LSE of minus infinity, zero gradients; nothing is not a number."""
    numbers = torch.tensor([-1, 0, 0, 1])
    mask = RowMask((numbers, torch.arange(4)), (torch.tensor([-1, 1]), torch.tensor([0, 2])), True)
    shapes = ((1, 4, 2, 8), (1, 2, 2, 8), (1, 2, 2, 8), (1, 4, 2, 8))
    generator = torch.Generator().manual_seed(0)
    q, k, v, grad = (torch.randn(shape, generator=generator).to(dtype) for shape in shapes)
    for tensor in (q, k, v, grad):
        tensor[:, 0] = torch.nan
    kernel = MaskedKernel(mask, inner)
    out, lse = kernel.forward(q, k, v, causal=False, scale=0.5)
    assert (out.dtype, lse.dtype) == (dtype, torch.promote_types(dtype, torch.float32))
    assert (out[:, :3] == 0).all()
    assert (lse[:, :3] == -torch.inf).all()
    assert torch.equal(out[:, 3], v[:, 1])
    dq, dk, dv = kernel.backward(grad, (q, k, v), out, lse, causal=False, scale=0.5)
    assert (dq[:, :3] == 0).all()
    assert (dk[:, 0] == 0).all()
    assert (dv[:, 0] == 0).all()
    assert torch.equal(dv[:, 1], grad[:, 3])
    assert all(gradient.isfinite().all() for gradient in (dq, dk, dv))


# Negative controls, of 64 rows over 2 ranks.
CAPACITY = Capacity(rows=64, entries=5)
BEFORE = to_capacity(build([(24, 24), (40, 40)], sequences=2), CAPACITY)
NOW = to_capacity(build([(5, 8), (24, 24)], sequences=2), CAPACITY)


def played_as(told: RowTable) -> tuple[DenseResult, DenseResult]:
    inputs = random_inputs(NOW, seed=3, heads=(4, 2))
    places = torch.from_numpy(row_arrays(NOW, 2, "zigzag").places)
    return static_play(inputs, places, told), dense(NOW, inputs, causal=True)


def right() -> RowTable:
    return table_of(row_arrays(NOW, 2, "zigzag"))


def stale() -> RowTable:
    """The previous pack's: nobody copied the new one in."""
    return table_of(row_arrays(BEFORE, 2, "zigzag"))


def hidden_tail() -> RowTable:
    """Copied in as far as the sequences go: no dummy owns the rest, which says what it said."""
    table, before = right(), stale()
    rows = sum(NOW.padded_lengths[:2]) // 2
    table.sequences[:, rows:] = before.sequences[:, rows:]
    table.positions[:, rows:] = before.positions[:, rows:]
    return table


def zeroed_tail() -> RowTable:
    """Buffers made with zeros: each row of the tail is the first of the first sequence."""
    table = right()
    rows = sum(NOW.padded_lengths[:2]) // 2
    table.sequences[:, rows:] = table.positions[:, rows:] = 0
    return table


@pytest.mark.parametrize("told", [stale, hidden_tail, zeroed_tail])
def test_wrong_metadata_are_seen(told: Callable[[], RowTable]) -> None:
    assert worst(*played_as(right())) <= TOLERANCE
    assert worst(*played_as(told())) > 1e-2


def test_flash_attention_of_a_gpu_takes_no_table() -> None:
    table = RowTable(*(torch.zeros(1, 64, dtype=torch.int64, device="meta"),) * 2)
    q = torch.zeros(64, 2, 8, device="meta", dtype=torch.bfloat16)
    given = {"comm_type": "p2p", "table": table, "options": AttentionOptions(kernel="sdpa")}
    with group_of_one() as group, pytest.raises(InputError, match="kernel: 'sdpa' takes no mask"):
        context_parallel_attention(q, q, q, group=group.flat, **given)


def test_two_rows_of_padding_do_not_see_each_other() -> None:
    """Their numbers are equal; a mask of equal numbers alone would let them."""
    padding = torch.tensor([-1, -1])
    mask = RowMask((padding, padding), (padding, padding), causal=True)
    assert mask.hidden().all()
    real = replace(mask, queries=(padding + 1, padding), keys=(padding + 1, padding))
    assert not real.hidden().any()


@pytest.mark.parametrize(
    ("table", "kernel", "named"),
    [
        (right(), "auto", r"table\.sequences: .* is not \(1, 64\)"),
        (RowTable(*(torch.zeros(1, 64, dtype=torch.int32),) * 2), "auto", r"table\.sequences"),
        (RowTable(torch.zeros(1, 64).long(), torch.zeros(64).long()), "auto", r"table\.positions"),
    ],
)
def test_a_table_that_is_not_the_groups_is_refused(
    table: RowTable, kernel: str, named: str
) -> None:
    q = torch.zeros(64, 2, 8)
    with group_of_one() as group, pytest.raises(InputError, match=named):
        context_parallel_attention(
            q,
            q,
            q,
            comm_type="p2p",
            group=group.flat,
            table=table,
            options=AttentionOptions(kernel=kernel),
        )
