"""The expectations of the evals: each can be met from the skill's text, and is true by a proof."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from checks.evals.cases import CARDS, ROOT, EvalCase, Expectation, cases_of, judged
from ringproof.cards import Card, load_card
from ringproof.prove.evidence import recorded_verdicts
from ringproof.prove.results import Verdict

LEAST_CASES, LEAST_NEGATIVE = 12, 5
TRUE = (Verdict.PROVEN, Verdict.PARTLY)
UNCHECKED = ("dynamic-v2",)
"""Lines of upstream of which the skill says that they were read and not run."""
NONSENSE = "The weather is fine today, and I would rather speak of turtles, boats and tea."


def claims(case: EvalCase) -> Iterator[tuple[str, Expectation]]:
    """The assertions that an answer meets by a fact of the skill, and what each expects."""
    pairs = zip(case.assertions, case.expectations, strict=True)
    return ((text, one) for text, one in pairs if one.says and not case.negative)


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
    for _, one in claims(case):
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
    for text, one in claims(case):
        known = [name for name in one.facts if verdicts.get(name) in TRUE or name in UNCHECKED]
        said = " ".join(texts[name] for name in known)
        if not known or not (one.rule or any(pattern.search(said) for pattern in one.says)):
            found.append(f"{case.id}: {text} by {one.facts}")
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
        for text, one in claims(case)
        for pattern in one.says
        if not pattern.search(f"{case.expected} {text}")
    ]
    assert missed == []


def scene(root: Path, expectations: str) -> Path:
    """Write one case with two assertions and the given expectations."""
    (root / "skills" / "demo" / "evals").mkdir(parents=True)
    (root / "cards" / "demo").mkdir(parents=True)
    case = {"id": "one", "prompt": "p", "expected_output": "e", "assertions": ["a", "b"]}
    document = json.dumps({"skill_name": "demo", "evals": [case]})
    (root / "skills" / "demo" / "evals" / "evals.json").write_text(document)
    (root / "cards" / "demo" / "expectations.yaml").write_text(expectations)
    return root


@pytest.mark.parametrize(
    ("expectations", "said"),
    [
        ("one: [{says: x}]", "2 assertions, 1 expected"),
        ("one: [{lacks: x}, {lacks: y}]", "silence would meet"),
        ("one: [{say: x}, {says: y}]", "Extra inputs"),
        ("{one: [{says: x}, {says: y}], two: [{says: z}]}", "for no case"),
    ],
)
def test_wrong_expectations_are_refused(tmp_path: Path, expectations: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        cases_of("demo", scene(tmp_path, expectations))


def test_what_must_not_be_said_costs_its_expectation(tmp_path: Path) -> None:
    (case,) = cases_of("demo", scene(tmp_path, "one: [{says: good}, {lacks: [bad, worse]}]"))
    assert judged(case, "GOOD") == (True, True)
    assert judged(case, "good, and not worse") == (True, False)
    assert judged(case, "neither") == (False, False), "silence is no merit"
