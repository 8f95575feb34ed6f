"""The card that an import builds: ids, limits and the lists of `Card`."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from typing import Any

MAX_LINE = 500
MAX_PROSE = 5_000
_LISTS = (
    "validation_status",
    "feature_meaning",
    "recommended_path",
    "known_constraints",
    "known_limitations",
    "follow_up_validation",
    "anchors",
    "constraints",
    "pitfalls",
    "claims",
)
_MAX_ID = 80
_WORDS_LENGTH = 50
_PART = 4_800
_WORD = re.compile(r"[A-Za-z0-9]+(?:[._][A-Za-z0-9]+)*")
IDENTIFIER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
PART_MARK = re.compile(r"\((\d+)/(\d+)(…?)\) ")
"""What stands before each part of a statement too long for one; ``…``: a word goes on."""


class CardDraft:
    """Lists of plain data in the form of ``card.yaml``, with unique ids.

    Ids are made from the words of a statement and not from its position, so that a statement keeps
    its id when others are added before it.
    """

    def __init__(self) -> None:
        self.head: dict[str, Any] = {}
        self.validation_status: dict[str, list[str]] = {}
        self.feature_meaning: dict[str, str] = {}
        self.recommended_path: dict[str, Any] = {}
        self.known_constraints: list[str] = []
        self.known_limitations: list[str] = []
        self.follow_up_validation: list[str] = []
        self.anchors: list[dict[str, Any]] = []
        self.constraints: list[dict[str, Any]] = []
        self.pitfalls: list[dict[str, Any]] = []
        self.claims: list[dict[str, Any]] = []
        self._ids: set[str] = set()

    def claim(self, prefix: str, words: str, says: str, reason: str) -> list[str]:
        """Add a claim, in several parts if it is too long, and return the ids."""
        return [self._add(self.claims, prefix, words, part, reason) for part in parts(says)]

    def constraint(self, words: str, says: str, reason: str) -> list[str]:
        """Add a constraint; otherwise like `claim`."""
        added = parts(says)
        return [self._add(self.constraints, "constraint", words, part, reason) for part in added]

    def pitfall(self, name: str, fields: dict[str, str], reason: str) -> str:
        """Add a pitfall with symptom, cause and remedy, within the limits."""
        own = IDENTIFIER.fullmatch(name) is not None and len(name) <= _MAX_ID
        new = self.identifier(name) if own else self.identifier(slug("pitfall", name))
        self.pitfalls.append({"id": new, **fields, "proof": unproven(reason)})
        return new

    def identifier(self, wish: str) -> str:
        """Return the wanted id, with a number if it is taken."""
        new, number = wish, 1
        while new in self._ids:
            number += 1
            new = f"{wish}-{number}"
        self._ids.add(new)
        return new

    def data(self) -> dict[str, Any]:
        """Return the card in its order of keys, without empty lists."""
        filled = {name: getattr(self, name) for name in _LISTS}
        return {**self.head, **{name: value for name, value in filled.items() if value}}

    def _add(
        self, to: list[dict[str, Any]], prefix: str, words: str, says: str, reason: str
    ) -> str:
        new = self.identifier(slug(prefix, words))
        to.append({"id": new, "says": says, "proof": unproven(reason)})
        return new


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
    while text:
        if len(text) <= _PART:
            yield text, inside
            return
        spaces = [text.rfind(space, 1, _PART) for space in " \n\t"]
        cut = max(spaces)
        whole = cut > 0
        cut = cut if whole else _PART
        yield text[:cut].rstrip(), inside
        inside = not whole and not text[cut].isspace()
        text = text[cut:].lstrip()


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
