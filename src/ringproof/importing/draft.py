"""The card that an import builds: ids, limits and the lists of `Card`."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any

MAX_LINE = 500
MAX_PROSE = 5_000
_MAX_ID = 80
_WORDS_LENGTH = 50
_PART = 4_800
_WORD = re.compile(r"[A-Za-z0-9]+(?:[._][A-Za-z0-9]+)*")
IDENTIFIER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
PART_MARK = re.compile(r"\((\d+)/(\d+)(…?)\) ")
"""What stands before each part of a statement too long for one; ``…``: a word goes on."""


@dataclass
class CardDraft:
    """Lists of plain data in the form of ``card.yaml``, with unique ids.

    Ids are made from the words of a statement and not from its position, so that a statement keeps
    its id when others are added before it.
    """

    head: dict[str, Any] = field(default_factory=dict)
    validation_status: dict[str, list[str]] = field(default_factory=dict)
    feature_meaning: dict[str, str] = field(default_factory=dict)
    recommended_path: dict[str, Any] = field(default_factory=dict)
    known_constraints: list[str] = field(default_factory=list)
    known_limitations: list[str] = field(default_factory=list)
    follow_up_validation: list[str] = field(default_factory=list)
    anchors: list[dict[str, Any]] = field(default_factory=list)
    constraints: list[dict[str, Any]] = field(default_factory=list)
    pitfalls: list[dict[str, Any]] = field(default_factory=list)
    claims: list[dict[str, Any]] = field(default_factory=list)
    _ids: set[str] = field(default_factory=set)

    def say(
        self, to: list[dict[str, Any]], prefix: str, words: str, says: str, reason: str
    ) -> list[str]:
        """Add a statement to a list, in several parts if it is too long, and return the ids."""
        ids = []
        for part in parts(says):
            ids.append(self.identifier(slug(prefix, words)))
            to.append({"id": ids[-1], "says": part, "proof": unproven(reason)})
        return ids

    def pitfall(self, name: str, fields: dict[str, str], reason: str) -> str:
        """Add a pitfall with symptom, cause and remedy, within the limits, and return its id."""
        own = IDENTIFIER.fullmatch(name) is not None and len(name) <= _MAX_ID
        new = self.identifier(name if own else slug("pitfall", name))
        self.pitfalls.append({"id": new, **fields, "proof": unproven(reason)})
        return new

    def identifier(self, wish: str) -> str:
        """Return the wanted id, with a number if it is taken."""
        numbered = (f"{wish}-{number}" for number in itertools.count(2))
        new = next(name for name in itertools.chain((wish,), numbered) if name not in self._ids)
        self._ids.add(new)
        return new

    def data(self) -> dict[str, Any]:
        """Return the card in its order of keys, without empty lists."""
        lists = [item.name for item in fields(self) if item.name not in ("head", "_ids")]
        return {**self.head, **{name: value for name in lists if (value := getattr(self, name))}}


def unproven(reason: str) -> str:
    """Return an ``unproven`` proof entry on one line and within the limit."""
    text = f"unproven: {' '.join(reason.split())}"
    return text if len(text) <= MAX_LINE else f"{text[: MAX_LINE - 1]}…"


def slug(prefix: str, words: str) -> str:
    """Return an id from a prefix and the first words of a text, or its hash if it has none."""
    start = "-".join(_WORD.findall(prefix.lower()))
    start = start[: _MAX_ID // 2]
    room = _MAX_ID - len(start) - 1
    found = ""
    for word in _WORD.findall(words.lower()):
        longer = f"{found}-{word}" if found else word[:room]
        if len(longer) > min(room, max(_WORDS_LENGTH, len(word))):
            break
        found = longer
    if not found:
        found = hashlib.sha256(words.encode("utf-8", "replace")).hexdigest()[:8]
    return f"{start}-{found}" if start else found


def parts(text: str) -> list[str]:
    """Split a text into parts that fit a statement, with marks if there are several."""
    text = text.strip()
    if len(text) <= MAX_PROSE and PART_MARK.match(text) is None:
        return [text]
    pieces = list(_pieces(text))
    return [
        f"({number}/{len(pieces)}{'…' if inside else ''}) {piece}"
        for number, (piece, inside) in enumerate(pieces, 1)
    ]


def _pieces(text: str) -> Iterator[tuple[str, bool]]:
    """Yield pieces, and whether each begins inside a word."""
    inside = False
    while len(text) > _PART:
        cut = max(text.rfind(space, 1, _PART) for space in " \n\t")
        whole = cut > 0
        cut = cut if whole else _PART
        yield text[:cut].rstrip(), inside
        inside = not whole and not text[cut].isspace()
        text = text[cut:].lstrip()
    if text:
        yield text, inside


def joined(texts: list[str]) -> list[str]:
    """Join the parts of statements, as the inverse of `parts`."""
    found: list[str] = []
    for text in texts:
        mark = PART_MARK.match(text)
        if mark is None:
            found.append(text)
        elif mark[1] == "1":
            found.append(text[mark.end() :])
        else:
            space = "" if mark[3] else " "
            found[-1] = f"{found[-1]}{space}{text[mark.end() :]}"
    return found
