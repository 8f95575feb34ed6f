"""The JSON Schema for editors refuses what the loader refuses for its form."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from typer.testing import CliRunner

from checks.cards import test_card_model
from checks.cards.test_card_model import CARD, _set, _write
from ringproof.cards import load_card
from ringproof.cards.document import read_document
from ringproof.cards.schema import card_schema, schema_text
from ringproof.cli.main import app
from ringproof.errors import InputError

ROOT = Path(__file__).parents[2]
OWN_CARDS = sorted(ROOT.glob("cards/*/card.yaml"))

# What only the loader can see: references between parts of a card.
BETWEEN_PARTS = (
    "not an upstream of this card",
    "already the id of",
    "pitfalls[0].id",
    "not an anchor of this card",
    "not an id of this card",
    "both proven and unproven",
    "is not a line",
    "gives no reason",
    "has no upstream",
    "is not an upstream of",
    "is already on the line",
    "is twice in this row",
)
_WRONG = next(
    mark.args[1]
    for mark in test_card_model.test_wrong_values_are_refused_by_line_and_field.pytestmark
)
FORM_ERRORS = [
    case
    for case in _WRONG
    if not any(case[2] in words or words in case[2] for words in BETWEEN_PARTS)
]


def _errors(data: Any) -> list[str]:
    validator = jsonschema.Draft202012Validator(
        card_schema(), format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
    )
    return [error.message for error in validator.iter_errors(data)]


def test_the_schema_is_one() -> None:
    made = card_schema()
    jsonschema.Draft202012Validator.check_schema(made)
    assert made["$schema"].endswith("2020-12/schema") and made["$id"]


def test_whole_cards_validate() -> None:
    assert OWN_CARDS
    for data in (
        *(read_document(path).data for path in OWN_CARDS),
        json.loads(json.dumps({**CARD})),
    ):
        assert _errors(data) == []


@pytest.mark.parametrize(("location", "value", "words"), FORM_ERRORS)
def test_what_the_loader_refuses_for_its_form_the_schema_refuses(
    tmp_path: Path, location: tuple[str | int, ...], value: Any, words: str
) -> None:
    _refused_by_both(tmp_path, _set(location, value))


def test_missing_and_unknown_keys_are_refused_by_both(tmp_path: Path) -> None:
    for key in ("title", "summary", "validated_on", "upstreams"):
        _refused_by_both(tmp_path, {name: CARD[name] for name in CARD if name != key})
    for place in (("evidence",), ("claims", 0, "prove"), ("upstreams", "core", "url")):
        _refused_by_both(tmp_path, _set(place, "x"))


def _refused_by_both(tmp_path: Path, data: dict[str, Any]) -> None:
    path = _write(tmp_path, data)
    with pytest.raises(InputError):
        load_card(path)
    assert _errors(read_document(path).data)


SYMBOLS = (
    *("f", "A.b", "outer.inner#2"),
    *("--option", '"--option"', "'--option'", "--option#2"),
)
PROOFS = (
    "anchor:place",
    "unproven: no machine",
    "checks/a/test_b.py::test_x[1-a:b/../c]",
    "smoke/test_b.py",
    ["checks/test_a.py::TestC::test_x", "anchor:place"],
)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        *((("anchors", 0, "symbol"), symbol) for symbol in SYMBOLS),
        *((("claims", 0, "proof"), proof) for proof in PROOFS),
    ],
)
def test_every_form_is_accepted_by_both(tmp_path: Path, place: tuple[Any, ...], value: Any) -> None:
    path = _write(tmp_path, _set(place, value))
    load_card(path)
    assert _errors(read_document(path).data) == []


def test_every_key_of_a_card_is_described() -> None:
    made = card_schema()
    for name, definition in {"Card": made, **made["$defs"]}.items():
        assert definition["description"], name
        for key, entry in definition["properties"].items():
            assert entry.get("description"), f"{name}.{key}"


def test_the_patterns_are_portable() -> None:
    found = set(re.findall(r'"pattern": "(.+)"', schema_text()))
    assert len(found) > 8
    for pattern in map(json.loads, (f'"{text}"' for text in found)):
        re.compile(pattern)
        assert "(?P" not in pattern and not re.search(r"\\[AZ]", pattern), pattern


def test_the_command_writes_it(tmp_path: Path) -> None:
    assert CliRunner().invoke(app, ["card", "schema"]).stdout == schema_text()
    CliRunner().invoke(app, ["card", "schema", "-o", str(tmp_path / "s.json")])
    assert (tmp_path / "s.json").read_text() == schema_text()
