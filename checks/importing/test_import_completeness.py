"""Nothing of a source card is lost; and the proof of that notices when something is."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from checks.importing.foreign import CARD, TODAY, imported, write_skill
from ringproof.cards.document import read_document
from ringproof.cards.model import Card
from ringproof.errors import InputError
from ringproof.importing import mapping
from ringproof.importing.completeness import lost
from ringproof.importing.importer import convert
from ringproof.importing.roots import Roots
from ringproof.importing.source import read_source

KNOWN = tuple(re.findall(r"^(\w+):", CARD, re.MULTILINE))
LETTERS = st.characters(
    blacklist_categories=("Cs", "Cc"), blacklist_characters="\ufeff\u2028\u2029\u0085\ufffe\uffff"
)
ODD = (
    *("true", "4", "a: b", "- x", "# y", "'", "(1/2) z", "x" * 300, "a.py:3", "~", "", "{:0"),
    *("two\nlines", "a\tb", " lead", "trail \n", "\n\n  x", "a" * 80 + " b", "w\t" * 50),
)
TEXT = st.text(LETTERS, max_size=30) | st.sampled_from(ODD)
KEYS = TEXT.filter(lambda text: "\n" not in text)
SCALARS = TEXT | st.integers(-(10**6), 10**6) | st.floats(-1e6, 1e6) | st.booleans() | st.none()
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)
FAILURES = st.lists(
    st.dictionaries(
        st.sampled_from(["name", "symptom", "likely_cause", "cause", "fix", "more"]), VALUES
    ),
    max_size=2,
)
CARDS = st.dictionaries(st.sampled_from(KNOWN) | KEYS, VALUES, max_size=5) | st.fixed_dictionaries(
    {"failure_modes": FAILURES, "title": TEXT}
)


def _write(folder: Path, data: dict[str, Any]) -> Path:
    """As JSON, which is YAML, because a dumper of YAML writes keys that none can read."""
    return write_skill(folder, json.dumps(data, ensure_ascii=False))


@settings(max_examples=120, suppress_health_check=[HealthCheck.too_slow])
@example(data={"title": None, "known_constraints": {"0.": []}})
@given(data=CARDS)
def test_cards_of_any_shape_are_imported_whole(
    tmp_path_factory: pytest.TempPathFactory, data: dict[str, Any]
) -> None:
    folder = _write(tmp_path_factory.getbasetemp() / "any", data)
    made = convert(folder, Roots(), today=TODAY)
    written = tmp_path_factory.getbasetemp() / "written.yaml"
    written.write_text(made.text, encoding="utf-8", newline="")
    result = read_document(written).data
    assert isinstance(result, dict)
    assert Card.model_validate(result) == made.card
    source = read_source(folder)
    assert lost(source.card, source.text, result) == []


@pytest.mark.parametrize("key", [*mapping._OWN, "others"])
def test_a_rule_that_drops_what_it_is_given_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    """Negative control: the import refuses, names what is lost, and the test above goes red."""
    if key == "others":
        monkeypatch.setattr(mapping.Mapper, "_others", lambda self, key, value, *below: None)
    else:
        silent = {**mapping._OWN, key: lambda self, key, value: None}
        monkeypatch.setattr(mapping, "_OWN", silent)
    with pytest.raises(InputError, match="would be lost"):
        imported(tmp_path)


def test_one_item_of_a_nested_mapping_that_is_dropped_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = mapping._mapping

    def forgetful(value: Any, location: Any, spell: Any) -> Any:
        return (said for said in honest(value, location, spell) if "deepest" not in said.label)

    monkeypatch.setattr(mapping, "_mapping", forgetful)
    with pytest.raises(InputError, match="would be lost") as caught:
        imported(tmp_path)
    assert "best_configs" in str(caught.value)


@pytest.mark.parametrize(
    ("source", "result", "missing"),
    [
        ({"a": "one two"}, {"claims": [{"says": "a: one\n two"}]}, []),
        ({"a": "one two"}, {"claims": [{"says": "a: one"}]}, ["one two"]),
        ({"a": ["x y", "x y"]}, {"claims": [{"says": "a: x y"}]}, ["x y"]),
        ({"a": 7}, {"claims": [{"says": "a: 70"}]}, ["7"]),
        ({"a": True}, {"claims": [{"says": "a: true"}]}, []),
        ({"a": {"key": 1}}, {"claims": [{"says": "a: 1"}]}, ["key"]),
        ({"a": "x"}, {"claims": [{"id": "x", "says": "y", "proof": "unproven: x"}]}, ["x"]),
        ({"a": "x"}, {"anchors": [{"role": "x"}], "known_limitations": ["x"]}, ["x"]),
        ({"recommended_path": {"k": 2.5}}, {"recommended_path": {"k": 2.5}}, []),
        ({"recommended_path": {"k": 2.5}}, {"recommended_path": {"k": 2}}, ["2.5"]),
        ({"a": "p q"}, {"claims": [{"says": "(1/2) a: p"}, {"says": "(2/2) q"}]}, []),
        ({"a": "pq"}, {"claims": [{"says": "(1/2) a: p"}, {"says": "(2/2…) q"}]}, []),
    ],
)
def test_what_counts_as_said(source: Any, result: Any, missing: list[str]) -> None:
    def spell(_: Any, value: object) -> str:
        return value if isinstance(value, str) else mapping.plain(value)

    assert [text for _, text in lost(source, spell, result)] == missing
