"""Command lines as values: look options up, replace them and drop them, with their order kept."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from ringproof.errors import InputError, shown

OPTION = re.compile(r"--[A-Za-z]|-[A-Za-z]")


def is_option(word: str) -> bool:
    """Return whether a word names an option; ``-1`` and ``-1e-3`` are values."""
    return OPTION.match(word) is not None


@dataclass(frozen=True)
class Flags:
    """An immutable view of a command line.

    An option owns the words that follow it up to the next option. Words before the first option
    and words after a bare ``--`` are free: they belong to no option and are always kept.
    """

    words: tuple[str, ...]

    def get(self, name: str) -> tuple[str, ...] | None:
        """Return the values of an option's last occurrence.

        Returns:
            ``None`` where the option does not occur, ``()`` where it takes no value.
        """
        found = None
        for option, values in self._options():
            if option == name:
                found = values
        return found

    def one(self, name: str) -> str | None:
        """Return the first value of an option's last occurrence, or ``None`` without one."""
        values = self.get(name)
        return values[0] if values else None

    def has(self, name: str) -> bool:
        """Return whether an option occurs."""
        return self.get(name) is not None

    def names(self) -> tuple[str, ...]:
        """Return the names of all options in order, repeated ones repeatedly."""
        return tuple(option for option, _ in self._options())

    def integer(self, name: str, default: int) -> int:
        """Return an option's value as an integer.

        Raises:
            InputError: The option has no value, or one that is not an integer.
        """
        values = self.get(name)
        if values is None:
            return default
        if len(values) != 1 or re.fullmatch(r"[+-]?\d+", values[0]) is None:
            given = " ".join(values) or "no value"
            raise InputError(name, f"{shown(given)} is not an integer; give one integer")
        return int(values[0])

    def with_(self, name: str, *values: str) -> Flags:
        """Return a command line in which an option occurs once, with these values.

        The option keeps the place of its first occurrence; a new option comes last, before a
        bare ``--``.
        """
        kept: list[tuple[str, ...]] = []
        placed = False
        for part in self._parts():
            if _name(part) != name:
                kept.append(part)
            elif not placed:
                kept.append((name, *values))
                placed = True
        if not placed:
            at = next((i for i, part in enumerate(kept) if part[0] == "--"), len(kept))
            kept.insert(at, (name, *values))
        return _joined(kept)

    def without(self, *names: str) -> Flags:
        """Return a command line without these options and their values."""
        return _joined(part for part in self._parts() if _name(part) not in names)

    def _options(self) -> Iterable[tuple[str, tuple[str, ...]]]:
        return ((_name(part), _values(part)) for part in self._parts() if _name(part))

    def _parts(self) -> list[tuple[str, ...]]:
        """Split the words into options with their values, and free words."""
        parts: list[list[str]] = []
        for index, word in enumerate(self.words):
            if word == "--":
                parts.append(list(self.words[index:]))
                break
            if is_option(word) or not parts:
                parts.append([word])
            else:
                parts[-1].append(word)
        return [tuple(part) for part in parts]


def _joined(parts: Iterable[tuple[str, ...]]) -> Flags:
    return Flags(tuple(word for part in parts for word in part))


def _name(part: tuple[str, ...]) -> str:
    """Return the option of a part without ``=value``; empty for free words."""
    return part[0].partition("=")[0] if is_option(part[0]) else ""


def _values(part: tuple[str, ...]) -> tuple[str, ...]:
    _, equals, value = part[0].partition("=")
    return ((value,) if equals else ()) + part[1:]
