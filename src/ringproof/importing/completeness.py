"""Checks that every scalar of the source is in the resulting card."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from ringproof.cards.document import Location
from ringproof.importing.draft import joined
from ringproof.importing.mapping import FAILURE_KEYS, Spell, plain

_TOKEN = re.compile(r"\w+|[^\w\s]")


def scalars(data: object, spell: Spell, location: Location = ()) -> Iterator[tuple[Location, str]]:
    """Yield location and text of every scalar of nested data, and of every other key.

    Keys that are part of the card's format, ``null`` and empty text are left out.
    """
    if isinstance(data, Mapping):
        for key, value in data.items():
            structural = not location or (location[0] == "failure_modes" and key in FAILURE_KEYS)
            if not structural and key.strip():
                yield (*location, key), key
            yield from scalars(value, spell, (*location, key))
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from scalars(value, spell, (*location, index))
    elif data is not None and (text := spell(location, data)).strip():
        yield location, text


def lost(
    source: Mapping[str, object], spell: Spell, result: Mapping[str, Any]
) -> list[tuple[Location, str]]:
    """Return the scalars of a source card that the result does not have.

    Each must occur in one text of the result, except for white space. Every word and sign must
    occur at least as often as in the source, so that both of two equal statements are kept. Proofs,
    roles and ids do not count.
    """
    texts = list(_texts(result))
    corpus = "\0".join("".join(text.split()) for text in texts)
    have = Counter(token for text in texts for token in _TOKEN.findall(text))
    missing: list[tuple[Location, str]] = []
    for location, text in scalars(source, spell):
        need = Counter(_TOKEN.findall(text))
        scarce = any(have[token] < count for token, count in need.items())
        if scarce or "".join(text.split()) not in corpus:
            missing.append((location, text))
        have.subtract(need)
    return missing


def _texts(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield all texts of a card that come from the source, except ids."""
    yield from (str(result.get(key, "")) for key in ("title", "summary", "validated_on"))
    for name in ("feature_meaning", "recommended_path"):
        for key, value in result.get(name, {}).items():
            items = value if isinstance(value, list) else [value]
            yield from (key, *(item if isinstance(item, str) else plain(item) for item in items))
    yield from result.get("follow_up_validation", ())
    for pitfall in result.get("pitfalls", ()):
        yield from (pitfall[field] for field in ("id", "symptom", "cause", "remedy"))
    for name in ("constraints", "claims"):
        yield from joined([statement["says"] for statement in result.get(name, ())])
