"""The Mamba-2 mixer on one rank, against its equations applied to each sequence by itself."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from checks.model.mamba_oracle import NAN, mix
from checks.model.whole_model import worst
from ringproof.errors import InputError
from ringproof.reference.model.batch import PackedBatch
from ringproof.reference.model.config import MambaShape, preset
from ringproof.reference.model.mamba import HeadShares, Mamba
from ringproof.reference.model.parameters import Builder
from ringproof.reference.model.tensor_parallel import TensorParallel
from ringproof.reference.packing.sequences import PackedSequences
from ringproof.reference.topology.dynamic import ContextParallelGroup
from smoke.model_batches import random_sequences, rank_batch

CONFIG = preset("nemotron-h-tiny")
LENGTHS = (13, 1, 70, 7)


@pytest.fixture
def mamba() -> Mamba:
    return Mamba(CONFIG, Builder(3, torch.float64, torch.device("cpu"), TensorParallel(), {}))


def batch_of(group: ContextParallelGroup, lengths: tuple[int, ...], **how: int) -> PackedBatch:
    return rank_batch(random_sequences(lengths), group, **how)


def pieces(lengths: tuple[int, ...], numbers: list[int]) -> list[torch.Tensor]:
    """The same rows for a sequence of that number wherever it is packed."""
    return [
        torch.randn(
            length, CONFIG.hidden, dtype=torch.float64, generator=torch.Generator().manual_seed(n)
        )
        for n, length in zip(numbers, lengths, strict=True)
    ]


def placed(parts: list[torch.Tensor], packed: PackedSequences, filling: float) -> torch.Tensor:
    """The pack's rows; those of padding hold the filling."""
    x = torch.full((packed.rows, CONFIG.hidden), filling, dtype=torch.float64)
    for span, part in zip(packed.real_spans, parts, strict=True):
        x[span.index] = part
    return x


def filled(
    group: ContextParallelGroup, filling: float = 0.0, **how: int
) -> tuple[torch.Tensor, PackedBatch]:
    """The rows of all sequences in their order, and their microbatch."""
    batch = batch_of(group, LENGTHS, **how)
    return placed(pieces(LENGTHS, [0, 1, 2, 3]), batch.packed, filling), batch


def run(
    mamba: Mamba, x: torch.Tensor, batch: PackedBatch
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Output, and gradients of every parameter and of ``x``."""
    x = x.clone().requires_grad_()
    y = mamba(x, batch)
    return y.detach(), gradients(y, mamba, x)


def gradients(y: torch.Tensor, mamba: Mamba, x: torch.Tensor) -> dict[str, torch.Tensor]:
    """Of a sum whose weights are a function of the output, so of no place in the pack."""
    named = {**dict(mamba.named_parameters()), "x": x}
    found = torch.autograd.grad((y.sin() + y).sum(), tuple(named.values()))
    return dict(zip(named, found, strict=True))


def test_it_is_what_the_equations_say(mamba: Mamba, alone: ContextParallelGroup) -> None:
    x, batch = filled(alone, 0.5, tail_rows=16)
    y, found = run(mamba, x, batch)
    x.requires_grad_()
    weights = dict(mamba.named_parameters())
    assert CONFIG.mamba is not None
    expected = mix(x, batch.packed.real_spans, weights, CONFIG.mamba, CONFIG.norm_epsilon)
    assert torch.allclose(y, expected, rtol=1e-11, atol=1e-12)
    assert worst(found, gradients(expected, mamba, x)) <= 1e-11


@pytest.mark.parametrize("how", [{"multiple": 1}, {"multiple": 48}, {"tail_rows": 64}])
def test_order_and_padding_change_nothing(
    mamba: Mamba, alone: ContextParallelGroup, how: dict[str, int]
) -> None:
    x, batch = filled(alone)
    y, found = run(mamba, x, batch)
    order = [2, 0, 3, 1]
    lengths = tuple(LENGTHS[i] for i in order)
    other = batch_of(alone, lengths, **how)
    moved, moved_found = run(mamba, placed(pieces(lengths, order), other.packed, 0.0), other)
    ours, theirs = batch.packed.real_spans, other.packed.real_spans
    for place, number in enumerate(order):
        for now, before in ((moved, y), (moved_found["x"], found["x"])):
            same = (now[theirs[place].index], before[ours[number].index])
            assert torch.allclose(*same, rtol=1e-11, atol=1e-12)
    del found["x"], moved_found["x"]
    assert worst(moved_found, found) <= 1e-11


def test_padding_may_hold_anything_and_gets_nothing(
    mamba: Mamba, alone: ContextParallelGroup
) -> None:
    clean, batch = filled(alone, tail_rows=16)
    y, found = run(mamba, clean, batch)
    dirty_y, dirty_found = run(mamba, clean.masked_fill(~batch.real[:, None], NAN), batch)
    assert torch.equal(y, dirty_y)
    assert y[~batch.real].eq(0).all()
    assert dirty_found["x"][~batch.real].eq(0).all()
    for name, gradient in found.items():
        assert torch.equal(gradient, dirty_found[name]), name


def test_padding_that_counts_as_real_for_attention_gets_nothing_either(
    mamba: Mamba, alone: ContextParallelGroup
) -> None:
    """Unpacked batches: cu_seqlens counts the padding, the microbatch knows better."""
    clean, batch = filled(alone)
    y, found = run(mamba, clean, batch)
    counted = replace(
        batch, packed=replace(batch.packed, cu_seqlens=batch.packed.cu_seqlens_padded)
    )
    dirty = clean.masked_fill(~batch.real[:, None], NAN)
    counted_y, counted_found = run(mamba, dirty, counted)
    assert torch.allclose(y, counted_y, rtol=1e-12, atol=1e-12)
    assert counted_y[~batch.real].eq(0).all()
    assert worst(counted_found, found) <= 1e-12


def test_tensor_parallel_ranks_without_whole_groups_are_refused() -> None:
    tp = TensorParallel(group=torch.distributed.ProcessGroup(0, 4), size=4)
    with pytest.raises(InputError, match=r"mamba groups: .* groups cannot be divided .*TP 4"):
        Mamba(CONFIG, Builder(3, torch.float64, torch.device("cpu"), tp, {}))


LARGEST = 24


def shape(heads: int, groups: int) -> MambaShape:
    return MambaShape(heads=heads, head_width=3, state_width=2, groups=groups)


def cuts() -> list[tuple[int, int, int]]:
    """Every (heads, groups, ranks) up to a size in which groups and ranks get whole heads."""
    sizes = range(1, LARGEST + 1)
    return [
        (heads, groups, ranks)
        for heads in sizes
        for groups in sizes
        for ranks in sizes
        if heads % groups == 0 and heads % ranks == 0
    ]


def test_each_head_meets_its_own_channels_and_its_groups() -> None:
    """Channels that are numbered stay recognisable: no cut gives a head another one's B or C."""
    assert (6, 2, 3) in cuts()
    for heads, groups, ranks in cuts():
        shares = HeadShares.of(shape(heads, groups), 1, ranks)
        x = torch.arange(heads).repeat_interleave(3)
        b = torch.arange(groups).repeat_interleave(2)
        numbered = torch.cat([x, 100 + b, 200 + b]).expand(5, -1)
        divided = shares.divide(numbered)
        own, own_b, own_c = zip(*(shares.held(divided[:, r]) for r in range(ranks)), strict=True)
        assert torch.equal(torch.cat(own, 1), torch.arange(heads)[:, None].expand(5, -1, 3))
        wanted = (torch.arange(heads) // (heads // groups))[:, None].expand(5, -1, 2)
        for offset, states in ((100, own_b), (200, own_c)):
            # A rank's heads are as many equal runs as it holds copies.
            each = [
                state.repeat_interleave(heads // ranks // state.shape[1], 1) for state in states
            ]
            assert torch.equal(torch.cat(each, 1), wanted + offset)


@pytest.mark.parametrize(
    ("heads", "groups", "tp", "cp", "named"),
    [
        (8, 2, 2, 8, r"mamba heads: a TP rank has 4, .*\(TP 2, CP 8\).*divide 4"),
        (8, 2, 1, 3, r"mamba heads: a TP rank has 8, .*\(TP 1, CP 3\).*divide 8"),
        (8, 2, 4, 1, r"mamba groups: 2 groups .*\(TP 4, CP 1\)"),
        (8, 3, 1, 1, "mamba heads: 8 are not 3 equal groups"),
    ],
)
def test_what_cannot_be_shared_is_refused(
    heads: int, groups: int, tp: int, cp: int, named: str
) -> None:
    with pytest.raises(InputError, match=named):
        HeadShares.of(shape(heads, groups), tp, cp)
