"""The YAML that an import writes is read back as it was, and pleasant to edit."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringproof.cards.document import read_document
from ringproof.importing.draft import MAX_PROSE, joined, parts, slug, unproven
from ringproof.importing.writing import card_text


def _read(folder: Path, text: str) -> object:
    path = folder / "written.yaml"
    path.write_text(text, encoding="utf-8", newline="")
    return read_document(path).data


AWKWARD = (
    "4", "4.5", "1e5", "+.5", "1_000", "0x1F", "0o17", "2026-11-20", "true", "No", "~", "null", "",
    "a: b", "- a", "a #b", "#a", "'a'", '"a"', "a\nb", "a\n  b", "two  spaces " * 9, "[a", "{a",
    "*a", "&a", "!a", "%a", "@a", "`a", "|", ">", "?", ": ", "12:30:45", "=", "<<", "\u00e9\u4e2d",
    "x" * 300, "word " * 60 + "end", "é\u00a0è", "a\tb", "067f987df03b8355b03192d88d70f1709fedf51a",
)  # fmt: skip


WILD = st.sampled_from("ab \n:#-'\"\\>|é中😀,[]{}&*!%@`~0.") | st.characters(
    codec="utf-8", categories=("L", "N", "P", "S", "Z")
)


@pytest.mark.parametrize("plainly", [False, True])
def test_awkward_texts_are_read_back(tmp_path: Path, plainly: bool) -> None:
    data = {
        "title": "x",
        "claims": [{"says": text} for text in AWKWARD],
        "recommended_path": {
            text: [text, 1, True, None, 2.5] for text in AWKWARD if "\n" not in text
        },
    }
    assert _read(tmp_path, card_text(data, ["head"], plainly=plainly)) == data


@settings(max_examples=150)
@given(text=st.text(WILD, max_size=120))
def test_quoted_style_can_say_any_text(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    data = {"summary": text}
    assert _read(tmp_path_factory.getbasetemp(), card_text(data, [], plainly=True)) == data


def test_the_layout(tmp_path: Path) -> None:
    data = {
        "title": "demo",
        "validated_on": "2026-01-02",
        "validation_status": {"a": ["b", "c"]},
        "claims": [{"id": "x", "says": "word " * 40 + "end"}],
    }
    text = card_text(data, ["one", "two"])
    assert text.startswith("# one\n# two\n\ntitle: demo\nvalidated_on: 2026-01-02\n\n")
    assert "  a: [b, c]\n" in text
    assert "    says: >-\n      word word" in text
    assert max(map(len, text.splitlines())) < 100
    assert _read(tmp_path, text) == data


@given(text=st.text(max_size=300))
def test_an_id_is_an_id(text: str) -> None:
    for made in (slug("prefix", text), slug(text, text), slug("", text)):
        assert made
        assert len(made) <= 100
        assert made[0].isascii()
        assert made[0].isalnum()
        assert all(sign.isascii() and (sign.isalnum() or sign in "._-") for sign in made)


def test_parts_of_a_long_text_are_joined_again() -> None:
    for text in ("short", "(1/2) looks like a part", "w " * 6_000 + "end", "x" * 11_000, "a\nb"):
        cut = parts(text)
        assert all(0 < len(part) <= MAX_PROSE for part in cut)
        (again,) = joined(cut)
        assert again.split() == text.split()


def test_a_reason_is_one_line_and_short_enough() -> None:
    assert unproven("a\n b") == "unproven: a b"
    assert len(unproven("x" * 1_000)) == 500
