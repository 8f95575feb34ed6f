"""The one way in which ringproof refuses bad input."""

from __future__ import annotations

from collections.abc import Iterable

_SHOWN_LETTERS = 120


class InputError(ValueError):
    """A value that cannot be used.

    Args:
        field: What was given wrongly, as the user spells it: ``--hcp``, ``card.yaml:12: anchors``.
        sentence: One plain sentence: what is wrong with which value, and what to do. Values are
            written with `shown`.

    The command line prints ``error: FIELD: SENTENCE`` and exits with 2. A sentence that begins with
    the field is printed as it is: ``InputError("--batches", "--batches needs --graphs")``.
    """

    def __init__(self, field: str, sentence: str) -> None:
        self.field, self.sentence = field, sentence
        named = sentence.startswith((f"{field} ", f"{field}: "))
        super().__init__(printable(sentence if named else f"{field}: {sentence}"))


def check_name(field: str, value: str | None, known: Iterable[str]) -> None:
    """Refuse a name that is not one of those known.

    Raises:
        InputError: It is not.
    """
    names = tuple(known)
    if value not in names:
        raise InputError(field, f"{shown(value)} is unknown; use one of {', '.join(names)}")


def shown(value: object) -> str:
    """Return a value as a sentence shows it: a number as it is, anything else in quotes.

    A long value is cut, so that it cannot flood a terminal.
    """
    plain = value is None or isinstance(value, int | float)
    return _clipped(value) if plain else f"'{_clipped(value)}'"


def _clipped(value: object) -> str:
    text = printable(" ".join(str(value)[: 8 * _SHOWN_LETTERS].split()))
    return text if len(text) <= _SHOWN_LETTERS else f"{text[:_SHOWN_LETTERS]}…"


def printable(text: str) -> str:
    """Replace line ends, and what a terminal would obey or hide, by question marks."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
