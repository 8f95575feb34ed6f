"""The one way in which ringproof refuses bad input."""

from __future__ import annotations

from collections.abc import Iterable


class InputError(ValueError):
    """A value that cannot be used, said in one line.

    Args:
        field: What was given wrongly, as the user spells it: ``--hcp``, ``card.yaml:12: anchors``.
        value: What was given; ``None`` where nothing was.
        problem: Why it cannot be used.
        remedy: What to do instead.

    The command line prints ``error: FIELD: PROBLEM (got VALUE); REMEDY`` and exits with 2.
    """

    def __init__(self, field: str, value: object, problem: str, remedy: str) -> None:
        self.field = field
        self.value = value
        self.problem = problem
        self.remedy = remedy
        got = "" if value is None else f" (got {_short(value)})"
        super().__init__(printable(f"{field}: {problem}{got}; {remedy}"))


def check_name(
    field: str, value: str | None, known: Iterable[str], problem: str = "unknown name"
) -> None:
    """Refuse a name that is not one of those known.

    Raises:
        InputError: It is not.
    """
    names = tuple(known)
    if value not in names:
        raise InputError(field, value, problem, f"use one of {', '.join(names)}")


def _short(value: object, limit: int = 120) -> str:
    """Return the value on one line, cut so that it cannot flood a terminal."""
    text = printable(" ".join(str(value)[: 8 * limit].split()))
    return text if len(text) <= limit else f"{text[:limit]}…"


def printable(text: str) -> str:
    """Replace line ends, and what a terminal would obey or hide, by question marks."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
