"""The expectations of the evals: each can be met from the skill's text, and is true by a proof."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from ringproof.cards import Card, find_cards, load_card
from ringproof.evals.cases import Assertion, EvalCase, load_cases
from ringproof.evals.running import judged
from ringproof.prove.evidence import recorded_verdicts
from ringproof.prove.verdicts import Verdict

ROOT = Path(__file__).parents[2]
CARDS = find_cards(ROOT / "skills")
LEAST_CASES, LEAST_NEGATIVE = 12, 5
TRUE = (Verdict.PROVEN, Verdict.PARTLY)
UNCHECKED = ("dynamic-v2",)
"""Lines of upstream of which the skill says that they were read and not run."""
NONSENSE = "The weather is fine today, and I would rather speak of turtles, boats and tea."


def cases_of(name: str) -> tuple[EvalCase, ...]:
    return load_cases(ROOT / "skills" / name, CARDS[name])


def claims(case: EvalCase) -> Iterator[Assertion]:
    """The expectations that an answer meets by a fact of the skill."""
    return (one for one in case.expectations if one.says and not case.negative)


def card_texts(card: Card) -> Mapping[str, str]:
    """All that a card says of each statement, by its id."""
    parts = (
        card.constraints, card.pitfalls, card.markers, card.commands, card.claims, card.lines,
    )  # fmt: skip
    return {item.id: json.dumps(item.model_dump(mode="json")) for part in parts for item in part}


def unanswerable(case: EvalCase, text: str) -> list[str]:
    """Expectations that no reader of a text could meet.

    A number that is calculated follows from a rule in the text. It may meet one of the patterns in
    place of the text, such as ``4 4`` by one 4.
    """
    found = []
    for one in claims(case):
        if one.rule and re.search(one.rule, text):
            continue
        found += [f"{case.id}: {p.pattern}" for p in one.says if not p.search(text)]
    return found


def unproven(case: EvalCase, card: Card) -> list[str]:
    """Expectations without a statement that was proven, or whose statements speak of other things.

    A pattern of the expectation has to occur in what the card says of one of them, unless the
    answer follows from a rule of the skill. That a line of upstream was not checked is known from
    the card alone.
    """
    verdicts = recorded_verdicts(ROOT / "evidence", case.skill)
    texts = card_texts(card)
    found = []
    for one in claims(case):
        known = [name for name in one.facts if verdicts.get(name) in TRUE or name in UNCHECKED]
        said = " ".join(texts[name] for name in known)
        if not known or not (one.rule or any(pattern.search(said) for pattern in one.says)):
            found.append(f"{case.id}: {one.text} by {one.facts}")
    return found


@pytest.mark.parametrize("name", CARDS)
def test_there_are_enough_of_both_kinds(name: str) -> None:
    cases = cases_of(name)
    assert len(cases) >= LEAST_CASES
    assert sum(case.negative for case in cases) >= LEAST_NEGATIVE
    assert len({case.id for case in cases}) == len(cases)


@pytest.mark.parametrize("name", CARDS)
def test_the_skill_has_the_answers(name: str) -> None:
    folder = ROOT / "skills" / name
    pages = (folder / "SKILL.md", *sorted((folder / "references").glob("*.md")))
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    assert [line for case in cases_of(name) for line in unanswerable(case, text)] == []


@pytest.mark.parametrize("name", CARDS)
def test_the_answers_are_true_by_a_proof(name: str) -> None:
    card = load_card(CARDS[name])
    assert [line for case in cases_of(name) for line in unproven(case, card)] == []


@pytest.mark.parametrize("name", CARDS)
def test_calculated_answers_are_right(name: str) -> None:
    for case in cases_of(name):
        for one in case.expectations:
            assert bool(one.computed) <= bool(one.rule)
            if one.computed:
                number = f"{eval(one.computed):g}"  # of our own files
                assert any(number in pattern.pattern.replace("[,.]?", "") for pattern in one.says)


@pytest.mark.parametrize("name", CARDS)
def test_silence_nonsense_and_an_echo_are_worth_nothing(name: str) -> None:
    for case in cases_of(name):
        for answer in ("", NONSENSE, case.prompt):
            assert not any(judged(case, answer)), (case.id, answer)


@pytest.mark.parametrize("name", CARDS)
def test_an_answer_as_expected_scores(name: str) -> None:
    """The expected output and an assertion in its own words meet the assertion's patterns."""
    missed = [
        f"{case.id}: {pattern.pattern}"
        for case in cases_of(name)
        for one in claims(case)
        for pattern in one.says
        if not pattern.search(f"{case.expected} {one.text}")
    ]
    assert missed == []
