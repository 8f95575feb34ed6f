"""A CP size has one colour on all pages and pictures, and can be seen in light and dark."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from checks.planning.plan_run import BASIC
from checks.planning.test_plan_page import embedded, result
from docs.making.drawings import SIZES, dynamic_plan
from ringproof.cli.plan_page import page
from ringproof.palette import luminance, size_colour
from ringproof.rehearsal.verdict.path import MicrobatchGroups, Share
from ringproof.rehearsal.verdict.pictures import picture

GROUNDS = ("#ffffff", "#fbfbfa", "#14181c", "#1c1f25", "#1e2129")
"""Of the pages of a plan and of a rehearsal, and of the site."""
EVERY_SIZE = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1000, 4096)


def contrast(one: str, other: str) -> float:
    low, high = sorted(map(luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


def test_the_contrast_is_that_of_wcag() -> None:
    assert contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.01)
    assert contrast("#000000", "#ffffff") == pytest.approx(21)


@pytest.mark.parametrize("size", EVERY_SIZE)
def test_a_size_can_be_seen_and_read_in_light_and_dark(size: int) -> None:
    fill, ink = size_colour(size)
    assert min(contrast(fill, ground) for ground in GROUNDS) >= 3
    assert contrast(fill, ink) >= 4.5


def test_neighbouring_sizes_differ() -> None:
    channels = [bytes.fromhex(size_colour(1 << power).fill[1:]) for power in range(9)]
    for one, other in pairwise(channels):
        assert max(abs(a - b) for a, b in zip(one, other, strict=True)) > 40


def test_a_size_has_one_colour_everywhere() -> None:
    data = embedded(page(result(BASIC[1])))
    assert data["colours"] == [size_colour(size).fill for size in data["sizes"]]
    assert data["inks"] == [size_colour(size).ink for size in data["sizes"]]
    share = Share((0, 1), "p2p", (2,), (8, 8))
    path: Any = SimpleNamespace(
        microbatches=(MicrobatchGroups(1, 0, (share,)),), tokens={0: 8, 1: 8}
    )
    drawn = picture(path)
    assert drawn is not None and drawn["sizes"] == {2: size_colour(2)}
    style = str(dynamic_plan())
    for size in SIZES:
        fill, ink = size_colour(size)
        assert f"rect.cp{size} {{ fill: {fill}; }} text.cp{size} {{ fill: {ink}; }}" in style
