"""Checks that every scalar of the source is in the resulting card."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ringproof.harness.cards.document import Location
from ringproof.harness.importing.draft import joined
from ringproof.harness.importing.mapping import FAILURE_KEYS, Spell, plain

_TOKEN = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True)
class Scalar:
    """A string, number or boolean of the source, as written there."""

    location: Location
    text: str


def scalars(data: object, spell: Spell, location: Location = ()) -> Iterator[Scalar]:
    """Yield every scalar of nested data, and every key that is not part of the card's format.

    ``null`` and empty text are left out.
    """
    if isinstance(data, Mapping):
        for key, value in data.items():
            structural = not location or (location[0] == "failure_modes" and key in FAILURE_KEYS)
            if not structural and key.strip():
                yield Scalar((*location, key), key)
            yield from scalars(value, spell, (*location, key))
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from scalars(value, spell, (*location, index))
    elif data is not None and (text := spell(location, data)).strip():
        yield Scalar(location, text)


def lost(source: Mapping[str, object], spell: Spell, result: Mapping[str, Any]) -> list[Scalar]:
    """Return the scalars of a source card that the result does not have.

    Each must occur in one text of the result, except for white space. Every word and sign must
    occur at least as often as in the source, so that both of two equal statements are kept. Proofs,
    roles and ids do not count.
    """
    texts = list(_texts(result))
    held = {"".join(text.split()) for text in texts}
    corpus = "\0".join(held)
    have = Counter(token for text in texts for token in _TOKEN.findall(text))
    missing: list[Scalar] = []
    for scalar in scalars(source, spell):
        bare = "".join(scalar.text.split())
        found = bare in held or bare in corpus
        need = Counter(_TOKEN.findall(scalar.text))
        if not found or any(have[token] < count for token, count in need.items()):
            missing.append(scalar)
        have.subtract(need)
    return missing


def _texts(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield all texts of a card that come from the source, except ids."""
    yield from (str(result.get(key, "")) for key in ("title", "summary", "validated_on"))
    for name in ("feature_meaning", "recommended_path"):
        for key, value in result.get(name, {}).items():
            yield from (key, *_values(value))
    yield from result.get("follow_up_validation", ())
    for pitfall in result.get("pitfalls", ()):
        yield from (pitfall[field] for field in ("id", "symptom", "cause", "remedy"))
    for name in ("constraints", "claims"):
        yield from joined([statement["says"] for statement in result.get(name, ())])


def _values(value: object) -> Iterator[str]:
    items = value if isinstance(value, list) else [value]
    yield from (item if isinstance(item, str) else plain(item) for item in items)
