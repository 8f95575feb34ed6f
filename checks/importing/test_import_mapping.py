"""What each key of a foreign card becomes, and that no statement is shown as proven."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from checks.cards.hostile import BOMB
from checks.importing.foreign import CARD, TODAY, imported, write_skill
from ringproof.cards import Card, ProofKind, StatementKind, load_card, statements
from ringproof.errors import InputError
from ringproof.importing.importer import convert
from ringproof.importing.roots import Roots


@pytest.fixture(scope="module")
def card(tmp_path_factory: pytest.TempPathFactory) -> Card:
    return imported(tmp_path_factory.mktemp("m")).card


def _says(card: Card) -> list[str]:
    return [claim.says for claim in card.claims]


def test_nothing_is_shown_as_proven(card: Card) -> None:
    said = statements(card)
    assert len(said) == 39
    for statement in said:
        assert [proof.kind for proof in statement.proofs] == [ProofKind.UNPROVEN], statement.id
    assert not [item for item in said if item.kind is StatementKind.PROSE]


def test_head_and_glossary_stay_where_they_are(card: Card) -> None:
    assert card.title == "kite_flying"
    assert card.summary == "Kites fly when there is wind. They need a string."
    assert card.validated_on.isoformat() == "2025-05-06"
    assert card.feature_meaning == {"slack_ratio": "How loose the string is."}
    assert "feature_meaning.odd: 1" in _says(card)
    assert card.follow_up_validation == ("Fly one at night.",)


def test_settings_keep_their_type_and_those_that_cannot_stay_are_claims(card: Card) -> None:
    assert dict(card.recommended_path) == {
        "kite.height": 30,
        "kite.string": "nylon",
        "kite.sizes": (2, 2),
        "kite.tail": True,
    }
    assert card.recommended_path["kite.tail"] is True
    assert "recommended_path.kite.gain: 0.250" in _says(card), "0.25 would lose a digit"
    assert "recommended_path.nested: a.b = 1; c = text" in _says(card)


def test_labels_become_claims_that_say_what_they_rest_on(card: Card) -> None:
    (name,) = card.validation_status["string_checks"]
    claim = next(item for item in card.claims if item.id == name)
    assert claim.says == (
        "validation_status.string_checks: code_verified (comment: reel.py:4 has slack_ratio)"
    )
    assert claim.proof[0].startswith(
        "unproven: labelled 'code_verified' upstream, linked to nothing; reel.py:4 "
    )
    assert "validation_status.wind_tests: measured; unclear" in _says(card)


def test_constraints_and_limitations_have_ids_of_their_own(card: Card) -> None:
    assert [item.says for item in card.constraints] == [
        "slack_ratio must be above zero (reel.py:3).",
        "two = parts; of = it",
    ]
    assert card.known_constraints == tuple(item.id for item in card.constraints)
    assert len(card.known_limitations) == 2, "said twice, kept twice"
    assert len(set(card.known_limitations)) == 2


def test_failure_modes_become_pitfalls(card: Card) -> None:
    first, second = card.pitfalls
    assert (first.id, first.symptom, first.cause, first.remedy) == (
        "tangled_string",
        "the kite dives",
        "knots",
        "untie them",
    )
    assert second.symptom == "Broken stick!: no lift"
    assert second.cause == second.remedy == "Not said upstream."
    assert "failure_modes: only a sentence" in _says(card)
    assert "failure_modes.tangled_string.seen_by: anna" in _says(card)


@pytest.mark.parametrize(
    "says",
    [
        "enable_when: there is wind",
        "avoid_when: it rains",
        "interactions: required = string, hands; incompatible = trees",
        "config_keys: kite.height",
        "training_dimensions.speed: effect = +/-; confidence = low; "
        "rationale = Depends on the wind: measure it.",
        "expected_metric_change: metric = height; direction = up; magnitude = ~15-25%",
        "measured_results: kite = red; metres = 299.350; ok = true",
        "best_configs.red_kite: sizes = 1, 2",
        "best_configs.red_kite.deeper.deepest: why = because",
        "minimal_example:\ndef fly():\n    go()",
        "surprise: 007",
        "comment at title: Where kites come from",
        "evidence: a talk with a kite maker",
    ],
)
def test_other_keys_become_readable_claims(card: Card, says: str) -> None:
    assert says in _says(card)


def test_reasons_fit_the_kind_of_statement(card: Card) -> None:
    reasons = {claim.says: claim.proof[0] for claim in card.claims}
    measured = reasons["measured_results: kite = blue; metres = 7"]
    assert measured == "unproven: measured upstream, linked to no log and no run"
    assert "no measurement" in next(
        reason for says, reason in reasons.items() if says.startswith("expected_metric_change")
    )


def test_an_id_does_not_change_when_a_statement_is_added_before_it(tmp_path: Path) -> None:
    more = CARD.replace("enable_when:\n", "enable_when:\n  - the sun shines\n")
    before = {item.says: item.id for item in imported(tmp_path / "a").card.claims}
    after = {item.says: item.id for item in imported(tmp_path / "b", more).card.claims}
    assert len(after) == len(before) + 1
    assert before.items() <= after.items()


def test_what_became_of_each_key_is_counted(tmp_path: Path) -> None:
    became = imported(tmp_path).became
    assert became["known_constraints"] == {"constraints": 2}
    assert became["failure_modes"] == {"pitfalls": 2, "claims": 3}
    assert became["recommended_path"] == {"recommended_path": 4, "claims": 2}
    assert became["nothing"] == {}
    assert list(became)[:2] == ["title", "summary"]


def test_a_skill_without_a_card(tmp_path: Path) -> None:
    made = imported(tmp_path, None)
    assert made.card.title == "kite-flying"
    assert made.card.summary == "How to fly a kite on a cluster."
    assert made.card.validated_on == TODAY
    assert {item.says.split()[0] for item in made.card.claims} == {"SKILL.md"}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("title: 3", "title: 3"),
        ("title: [a]", "title: a"),
        ("validated_on: 2025-13-01", "validated_on: 2025-13-01"),
        ("validated_on: last week", "validated_on: last week"),
        ("summary: {short: x}", "summary: short = x"),
        ("validation_status: fine", "validation_status: fine"),
        ("feature_meaning: a thing", "feature_meaning: a thing"),
        ("recommended_path: [x, y]", "recommended_path: x"),
        ("known_limitations: {a: 1}", "a = 1"),
        ("failure_modes: {symptom: 3}", "failure_modes: symptom = 3"),
        ("failure_modes: bad", "failure_modes: bad"),
        ("upstreams: {a: b}", "upstreams: a = b"),
        ("claims: [x]", "claims: x"),
        ("8: eight", "8: eight"),
        ("big: 1e999", "big: 1e999"),
        ("recommended_path: {a: 1e999}", "recommended_path.a: 1e999"),
        ("a: [[1, [2]], {}]", "a: 2"),
    ],
)
def test_keys_of_an_unforeseen_type_are_kept_as_claims(
    tmp_path: Path, line: str, says: str
) -> None:
    assert says in _says(imported(tmp_path, f"{line}\n").card)


def test_a_text_too_long_for_one_statement_is_told_in_parts(tmp_path: Path) -> None:
    long = " ".join(f"word{number}" for number in range(2000))
    card = imported(tmp_path, f"note: {long}\nblob: {'x' * 12_000}\n").card
    parts = [claim.says for claim in card.claims if "word" in claim.says]
    assert len(parts) > 2
    assert parts[1].startswith("(2/")
    assert all(len(claim.says) <= 5_000 for claim in card.claims)


def test_a_card_that_would_become_too_large_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ringproof.importing.importer.MAX_BYTES", 5_000)
    with pytest.raises(InputError, match="larger than a card may be"):
        imported(tmp_path)


def test_the_text_is_the_card_and_can_be_loaded(tmp_path: Path) -> None:
    made = imported(tmp_path)
    path = tmp_path / "card.yaml"
    path.write_text(made.text, encoding="utf-8")
    assert load_card(path) == made.card
    head = made.text.splitlines()[:2]
    assert "kites" in head[0]
    assert f"{made.statements} statements: {made.unproven} unproven" in head[1]
    assert max(map(len, made.text.splitlines())) < 140


def test_the_same_skill_is_always_the_same_text(tmp_path: Path) -> None:
    assert imported(tmp_path / "a").text == imported(tmp_path / "b").text


def test_cards_are_read_by_the_safe_reader(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="anchors and aliases"):
        imported(tmp_path, BOMB)
    with pytest.raises(InputError, match="is not a mapping"):
        imported(tmp_path, "- a list\n")


def test_a_card_of_ours_is_refused(tmp_path: Path) -> None:
    first = imported(tmp_path)
    again = write_skill(tmp_path / "again", first.text)
    with pytest.raises(InputError, match="ringproof card already"):
        convert(again, Roots(), today=TODAY)


def test_comments_are_kept_wherever_they_stand(tmp_path: Path) -> None:
    text = (
        "# first\n# and second\na: 1  # beside\nb: 'no # comment'\nc: >\n  text # no comment\n"
        "# before d\nd:\n  - x\n# at the end\n"
    )
    said: list[Any] = _says(imported(tmp_path, text).card)
    assert [text for text in said if text.startswith("comment")] == [
        "comment at a: first and second",
        "comment at a: beside",
        "comment at d: before d",
        "comment: at the end",
    ]
