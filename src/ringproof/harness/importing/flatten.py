"""Converts nested data to statements in words, labelled with their keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from ringproof.harness.cards.document import Location

SHORT_ITEM = 24
"""Characters of a list's longest item up to which the list stays on one line of its record."""

Spell = Callable[[Location, object], str]
"""The text of a scalar at a location."""


@dataclass(frozen=True)
class Said:
    """One statement of the source.

    Attributes:
        location: Location in the source.
        label: Keys of the location, without list positions.
        text: Value in words: a scalar, or ``key = value`` pairs.
    """

    location: Location
    label: str
    text: str

    @property
    def says(self) -> str:
        """Return label and text. A text of several lines begins on its own line."""
        if not self.label:
            return self.text
        return f"{self.label}:\n{self.text}" if "\n" in self.text else f"{self.label}: {self.text}"


def flatten(value: object, location: Location, spell: Spell) -> Iterator[Said]:
    """Yield the statements in a value.

    Each scalar and each item of a list is a statement. The scalars of a mapping, together with its
    short lists, are one statement. Deeper values follow in order.
    """
    if isinstance(value, Mapping):
        yield from _mapping(value, location, spell)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from flatten(item, (*location, index), spell)
        if not value:
            yield Said(location, label(location), "(none)")
    else:
        yield Said(location, label(location), spell(location, value) or "(empty)")


def label(location: Location) -> str:
    """Return ``best_configs.h100`` for ``("best_configs", 3, "h100")``."""
    return ".".join(part for part in location if isinstance(part, str))


def _mapping(value: Mapping[str, object], location: Location, spell: Spell) -> Iterator[Said]:
    if not value:
        yield Said(location, label(location), "(none)")
        return
    flat = {key: item for key, item in value.items() if _is_flat(item)}
    if flat:
        pairs = (f"{key} = {_inline(item, (*location, key), spell)}" for key, item in flat.items())
        yield Said(location, label(location), "; ".join(pairs))
    for key, item in value.items():
        if key not in flat:
            yield from flatten(item, (*location, key), spell)


def _is_flat(value: object) -> bool:
    if isinstance(value, list):
        plain = not any(isinstance(item, (list, dict)) for item in value)
        return bool(value) and plain and all(len(str(item)) <= SHORT_ITEM for item in value)
    return not isinstance(value, Mapping)


def _inline(value: object, location: Location, spell: Spell) -> str:
    if isinstance(value, list):
        items = (spell((*location, index), item) for index, item in enumerate(value))
        return ", ".join(items)
    return spell(location, value) or "(empty)"
