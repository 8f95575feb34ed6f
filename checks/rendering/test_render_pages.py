"""A skill as a page of the docs, and the skills of this repository against their cards."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType

import pytest

from checks.rendering.miniature_skill import CARD, changed, lock_of
from ringproof.errors import InputError
from ringproof.harness.cards import find_cards
from ringproof.harness.cards.model import Card
from ringproof.harness.rendering.pages import skill_page
from ringproof.harness.rendering.render import difference, render_skill

RECORD = MappingProxyType(
    {
        "started": "2026-11-20T12:00:00Z",
        "environment": {"torch": "2.13.0+cpu", "commit": "c" * 40},
        "validation_status": {"groups | all": "proven"},
        "claims": [
            {"id": "product", "verdict": "proven"},
            {"id": "fast", "verdict": "unproven"},
        ],
        "totals": {"proofs": 3, "proofs_executed": 2},
    }
)


def test_a_page_holds_the_whole_card_and_its_verdicts() -> None:
    page = skill_page("demo", Card.model_validate(dict(CARD)), lock_of(CARD), {"cpu": RECORD})
    lines = page.split("\n")
    assert lines[0] == "# demo"
    headings = [line[3:] for line in lines if line.startswith("## ")]
    assert headings[0] == "Verdicts"
    assert len(headings) == 10
    for line in (
        "| `groups \\| all` | proven |".replace("\\", ""),
        "| `fast` | unproven |",
        "cpu: 2026-11-20, torch 2.13.0+cpu, commit `cccccccccccc`; 2 of 3 proofs executed.",
        "| `heads` | Heads divide. | unproven: needs 2 GPUs |",
        "| `line` | `group=L[0-9]+ (a|b)` | census | They exist. | anchor |",
        "| the switch | `hybrid_switch` | `hybrid_switch` †, `dynamic_switch` |",
    ):
        assert line in lines, line


def test_verdicts_are_explained_before_their_table() -> None:
    """Those that occur, and no others."""
    page = skill_page("demo", Card.model_validate(dict(CARD)), lock_of(CARD), {"cpu": RECORD})
    lines = page.split("\n")
    legend = [line for line in lines if line.startswith("- **")]
    assert [line.split("**")[1] for line in legend] == ["proven", "unproven"]
    assert legend[0] == "- **proven**: all of its proofs ran and passed"
    assert lines.index(legend[-1]) < lines.index("| `fast` | unproven |")


def test_kinds_of_proof_stand_beside_verdicts_about_upstream() -> None:
    about = {"upstream executed": 3, "read": 1, "none": 2}
    claims = [
        {"id": "ran", "verdict": "proven", "evidence": "upstream executed", "lines": ["released"]},
        {"id": "ours", "verdict": "proven", "evidence": "derived", "lines": []},
    ]
    record = {**RECORD, "claims": claims, "about_upstream": about}
    page = skill_page("demo", Card.model_validate(dict(CARD)), lock_of(CARD), {"cpu": record})
    lines = page.split("\n")
    assert "| `ran` | proven (upstream executed) |" in lines
    assert "| `ours` | proven |" in lines
    assert "Of 6 statements about upstream: 3 upstream executed, 1 read, 2 not proven." in page


def test_without_lock_and_records_the_rest_is_there() -> None:
    page = skill_page("demo", Card.model_validate(dict(CARD)), None, {})
    assert "## Pitfalls" in page
    assert "## Verdicts" not in page
    assert "## Code anchors" not in page


def test_a_stale_lock_is_refused_and_not_shown() -> None:
    card = Card.model_validate(changed((("anchors", 0, "symbol"), "Config.other_switch")))
    with pytest.raises(InputError, match=r"anchors\.lock is older than the card"):
        skill_page("demo", card, lock_of(CARD), {})


def test_a_summary_is_text() -> None:
    card = Card.model_validate(changed((("summary",), "# {{ 7*7 }} <b>|x|</b>")))
    page = skill_page("demo", card, lock_of(CARD), {})
    assert page.split("\n")[2] == "\\# {{ 7\\*7 }} &lt;b>\\|x\\|&lt;/b>"


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
