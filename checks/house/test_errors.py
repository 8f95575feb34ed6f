"""What an `InputError` says, and that its raises are converted to two arguments."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from ringproof.errors import InputError, check_name, shown

ROOT = Path(__file__).parents[2]
FOUR_ARGUMENTS_LEFT = 183
"""Calls of the form that goes away; this number may only fall."""


def old_calls(source: str) -> int:
    """Count the calls that give a value, a problem and a remedy apart."""
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    named = (call for call in calls if ast.unparse(call.func).endswith("InputError"))
    return sum(len(call.args) + len(call.keywords) > 2 for call in named)


def test_the_old_form_becomes_rarer() -> None:
    files = [path for name in ("src", "benchmarks", "docs") for path in (ROOT / name).rglob("*.py")]
    assert sum(old_calls(file.read_text(encoding="utf-8")) for file in files) <= FOUR_ARGUMENTS_LEFT


def test_an_old_call_is_seen() -> None:
    assert old_calls("raise InputError('--a', 1, 'is odd', 'use 2')") == 1
    assert old_calls("raise InputError('--a', '1 is odd; use 2')") == 0


@pytest.mark.parametrize(
    ("field", "sentence", "message"),
    [
        ("--batches", "--batches needs --graphs", "--batches needs --graphs"),
        ("--batch", "--batches needs --graphs", "--batch: --batches needs --graphs"),
        ("--shape", "'foo' is odd", "--shape: 'foo' is odd"),
        ("--shape", "a\nb\x1b[0m", "--shape: a?b?[0m"),
    ],
)
def test_a_message_names_the_field_once(field: str, sentence: str, message: str) -> None:
    assert str(InputError(field, sentence)) == message


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3, "3"),
        ("a b", "'a b'"),
        (Path("a"), "'a'"),
        (None, "None"),
        ("x" * 500, f"'{'x' * 120}…'"),
        ("a\n\x1bb", "'a ?b'"),
    ],
)
def test_values_are_short_and_on_one_line(value: object, text: str) -> None:
    assert shown(value) == text


def test_an_unknown_name_lists_the_known() -> None:
    check_name("--shape", "a", ("a", "b"))
    with pytest.raises(InputError, match=r"^--shape: 'foo' is unknown; use one of a, b$"):
        check_name("--shape", "foo", ("a", "b"))
