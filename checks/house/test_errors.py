"""What an `InputError` says."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from ringproof.errors import InputError, check_name, shown


def test_an_error_is_a_field_and_a_sentence() -> None:
    assert list(inspect.signature(InputError).parameters) == ["field", "sentence"]


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
