"""Every statement that is executed in upstream's code has a refutation, or says why not."""

from __future__ import annotations

from pathlib import Path

import pytest

from checks.running import one_line
from ringproof.cards import find_cards, load_card, statements
from ringproof.prove.evidence import executed_statements
from ringproof.refuting.refutations import Refutations, load_refutations

ROOT = Path(__file__).parents[2]
CARDS = find_cards(ROOT / "skills")


def refutations(skill: str) -> tuple[Refutations, frozenset[str]]:
    said = statements(load_card(CARDS[skill]))
    executed = executed_statements(ROOT / "evidence", skill) & {one.id for one in said}
    return load_refutations(CARDS[skill], said), frozenset(executed)


@pytest.mark.parametrize("skill", CARDS)
def test_executed_statements_have_a_refutation(skill: str) -> None:
    found, executed = refutations(skill)
    assert executed
    assert sorted(name for name in executed if found.of(name) is None) == []


@pytest.mark.parametrize("skill", CARDS)
def test_the_first_proof_is_one_of_the_statement(skill: str) -> None:
    said = {one.id: one for one in statements(load_card(CARDS[skill]))}
    for one in refutations(skill)[0].refutation:
        proofs = [proof.target for proof in said[one.statement].proofs]
        assert not one.proof or one.proof.startswith(tuple(proofs)), one.statement


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[[refutation]]\nstatement = 'aligned-groups'\nedit = []", "refutation.0.edit: .*item"),
        ("[[excused]]\nstatement = 'no-such'\nwhy = 'x'", "no statement 'no-such'"),
        (2 * "[[excused]]\nstatement = 'aligned-groups'\nwhy = 'x'\n", "2 times"),
        ("[[excused]\n", "not TOML"),
    ],
)
def test_refutations_that_are_not_valid_are_refused(
    tmp_path: Path, text: str, problem: str
) -> None:
    said = statements(load_card(CARDS["dynamic-context-parallel"]))
    (tmp_path / "refutations.toml").write_text(text)
    with one_line(problem):
        load_refutations(tmp_path / "card.yaml", said)
