"""The skills of this repository against their cards."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringproof.harness.cards import find_cards
from ringproof.harness.rendering.render import difference, render_skill

SKILLS = Path(__file__).parents[2] / "skills"
CARDS = dict(find_cards(SKILLS))


def stale_blocks(skill: str) -> list[str]:
    """What ``ringproof render --check`` finds."""
    return [
        f"{item.path}:{made.block.begin + 1}: {made.block.kind}: {difference(made)[:4]}"
        for item in render_skill(CARDS[skill], SKILLS / skill)
        for made in item.blocks
        if made.stale
    ]


@pytest.mark.parametrize("skill", CARDS)
def test_generated_blocks_are_current(skill: str) -> None:
    assert stale_blocks(skill) == [], "run `ringproof render`"


@pytest.mark.parametrize("skill", CARDS)
def test_every_skill_has_generated_blocks(skill: str) -> None:
    rendered = render_skill(CARDS[skill], SKILLS / skill)
    kinds = {made.block.kind for item in rendered for made in item.blocks}
    assert {"pitfalls"} <= kinds
