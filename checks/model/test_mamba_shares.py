"""How heads, and B and C of their groups, are dealt out to CP ranks: all ranks played here."""

from __future__ import annotations

import pytest
import torch

from ringproof.errors import InputError
from ringproof.reference.model.config import MambaShape
from ringproof.reference.model.mamba import HeadShares

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
        dealt = shares.deal(numbered)
        own, own_b, own_c = zip(*(shares.held(dealt[:, r]) for r in range(ranks)), strict=True)
        assert torch.equal(torch.cat(own, 1), torch.arange(heads)[:, None].expand(5, -1, 3))
        wanted = (torch.arange(heads) // (heads // groups))[:, None].expand(5, -1, 2)
        for offset, states in ((100, own_b), (200, own_c)):
            # A rank's heads are as many equal runs as it holds copies.
            each = [
                state.repeat_interleave(heads // ranks // state.shape[1], 1) for state in states
            ]
            assert torch.equal(torch.cat(each, 1), wanted + offset)


def test_there_are_no_more_copies_than_megatron_makes() -> None:
    """Where Megatron-LM accepts the cut: whole groups on a rank, or a copy on each of a few."""
    compared = 0
    for heads, groups, ranks in cuts():
        if groups % ranks and ranks % groups:
            continue
        shares = HeadShares.of(shape(heads, groups), 1, ranks)
        _, b, _ = shares.held(shares.deal(torch.zeros(1, sum(shares.channels)))[:, 0])
        assert b.shape[1] == max(1, groups // ranks)
        compared += 1
    assert compared > 100


@pytest.mark.parametrize(
    ("heads", "groups", "tp", "cp", "named"),
    [
        (8, 2, 2, 8, r"mamba heads: a TP rank has 4, .*\(TP 2, CP 8\) \(got 8\).*divide 4"),
        (8, 2, 1, 3, r"mamba heads: a TP rank has 8, .*\(TP 1, CP 3\) \(got 8\).*divide 8"),
        (8, 2, 4, 1, r"mamba groups: the 8 heads' groups .*\(TP 4, CP 1\) \(got 2\)"),
        (8, 3, 1, 1, r"mamba heads: not 3 equal groups \(got 8\)"),
    ],
)
def test_what_cannot_be_shared_is_refused(
    heads: int, groups: int, tp: int, cp: int, named: str
) -> None:
    with pytest.raises(InputError, match=named):
        HeadShares.of(shape(heads, groups), tp, cp)
