"""What the languages have in common: definitions of symbols, their comparison and likeness."""

from __future__ import annotations

import difflib
import hashlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol, TypeVar

_SHOWN = 4
_WIDTH = 60


class SymbolError(LookupError):
    """A symbol does not exist (`ambiguous` false), or exists several times (true)."""

    def __init__(self, message: str, *, ambiguous: bool = False) -> None:
        super().__init__(message)
        self.ambiguous = ambiguous


class UnparsableError(ValueError):
    """The file cannot be parsed in its language."""


@dataclass(frozen=True)
class Words:
    """What expectations can name: identifiers, chains of them as written, and texts of strings."""

    names: Collection[str]
    chains: Collection[tuple[str, ...]]
    texts: Collection[str]


@dataclass(frozen=True)
class DefinitionSummary:
    """What a reader of a card is told about when it changes.

    Attributes:
        kind: Kind of the definition.
        signature: Types of parameters, or of the members of a class, by name.
        defaults: Default values by name, or the value of a field or constant.
        counted: Further items by topic, for example ``raises``.
    """

    kind: str
    signature: Mapping[str, str]
    defaults: Mapping[str, str]
    counted: Mapping[str, Counter[str]]


class Definition(ABC):
    """Definition of a symbol.

    Attributes:
        start, end: First and last line, from 1.
        is_class: Whether it is a class, struct, enumeration or similar.
        is_small: Whether there is too little code to compare, so that name and documentation count.
        family: Definitions of different families have nothing in common.
        name: Own name.
    """

    start: int
    end: int
    is_class: bool
    is_small: bool
    family: str
    name: str

    @abstractmethod
    def code(self) -> Iterator[bytes]:
        """Yield the parts of its code, without formatting, comments and documentation."""

    @abstractmethod
    def compared_code(self) -> Iterator[bytes]:
        """Yield the parts of its code that tell it apart, with ``@`` for its own name."""

    @abstractmethod
    def docstrings(self) -> Iterator[str]:
        """Yield the texts of its documentation with white space folded."""

    @abstractmethod
    def words(self) -> Words:
        """Return the words inside it. Comments do not count."""

    @abstractmethod
    def split(self, item: str) -> tuple[str, ...]:
        """Split an expectation as `Words.chains` are split."""

    @abstractmethod
    def summary(self) -> DefinitionSummary:
        """Return what `changes` compares."""

    def fingerprint(self) -> str:
        """Return the SHA-256 of its code."""
        return hashlib.sha256(b"".join(self.code())).hexdigest()

    def missing(self, expects: Sequence[str]) -> tuple[str, ...]:
        """Return the expectations that do not occur inside it.

        An item occurs as an identifier, as a chain of them joined as in the code, or as a part of a
        string literal, with white space folded.
        """
        if not expects:
            return ()
        words = self.words()
        return tuple(item for item in expects if not self._occurs(item, words))

    def _occurs(self, item: str, words: Words) -> bool:
        folded = " ".join(item.split())
        parts = self.split(folded)
        if len(parts) == 1 and parts[0] in words.names:
            return True
        width = len(parts)
        inside = (chain[at : at + width] for chain in words.chains for at in range(len(chain)))
        if width > 1 and parts in inside:
            return True
        return any(folded in text for text in words.texts)

    def documentation(self) -> str:
        """Return the SHA-256 of its documentation."""
        text = "".join(f"{item}\n" for item in self.docstrings())
        return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()

    def changes(self, later: Definition) -> tuple[str, ...]:
        """Summarize the differences to another version; ``body`` if only other parts differ."""
        old, new = self.summary(), later.summary()
        if old.kind != new.kind:
            return (f"kind: {old.kind} -> {new.kind}",)
        said = [
            *_signature_lines(old.signature, new.signature),
            *_default_lines(old.defaults, new.defaults),
        ]
        for topic, items in old.counted.items():
            said += _counted_lines(topic, items, new.counted[topic])
        return tuple(said) or ("body",)

    def likeness(self, other: Definition) -> float:
        """Return the similarity from 0 (nothing in common) to 1 (equal except for the name).

        It is the Dice coefficient of the parts of the code and their pairs. Small definitions are
        also compared by name and documentation, each of which counts as much as the code.
        """
        if self.family != other.family:
            return 0.0
        parts = [_dice(self._counted_code(), other._counted_code())]
        if self.is_small:
            parts.append(difflib.SequenceMatcher(None, self.name, other.name).ratio())
            texts = [Counter(" ".join(item.docstrings()).split()) for item in (self, other)]
            if any(texts):
                parts.append(_dice(*texts))
        return sum(parts) / len(parts)

    def _counted_code(self) -> Counter[tuple[bytes, ...]]:
        """Count the parts of the code and the pairs of neighbours."""
        parts = list(self.compared_code())
        return Counter([*((part,) for part in parts), *pairwise(parts)])


class Module(Protocol):
    """One parsed file."""

    def find(self, symbol: str) -> Definition:
        """Return the definition that a symbol names; raises `SymbolError`."""

    def catalog(self) -> Mapping[str, Definition]:
        """Return all definitions by the name that an anchor uses."""


Found = TypeVar("Found", bound=Definition)


def chosen(several: Sequence[Found], name: str, number: str, place: str) -> Found:
    """Return the only definition of a name, or the one with a number, from 1.

    Args:
        number: Number as written; empty for none.
        place: Where the definitions are, for messages.

    Raises:
        SymbolError: There is none, none of that number, or more than one without a number.
    """
    if not several:
        raise SymbolError(f"no `{name}` in {place}")
    lines = ", ".join(str(item.start) for item in several[:8])
    if number and int(number) > len(several):
        raise SymbolError(f"`{name}` is defined on lines {lines} of {place} only")
    if not number and len(several) > 1:
        message = f"`{name}` is defined on lines {lines} of {place}: say `{name}#1` or later"
        raise SymbolError(message, ambiguous=True)
    return several[int(number or 1) - 1]


def numbered(name: str, several: Sequence[Found]) -> Iterator[tuple[str, Found]]:
    """Yield the names of definitions with the same name: ``name``, or ``name#1``, ``name#2``."""
    if len(several) == 1:
        yield name, several[0]
    else:
        yield from ((f"{name}#{index}", item) for index, item in enumerate(several, 1))


def shortened(text: str) -> str:
    """Cut code to a width that leaves room on the line."""
    return text if len(text) <= _WIDTH + 1 else f"{text[:_WIDTH]}…"


def _dice(first: Counter[Any], second: Counter[Any]) -> float:
    total = sum(first.values()) + sum(second.values())
    return 1.0 if total == 0 else 2 * sum((first & second).values()) / total


def _signature_lines(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    parts = [f"added {name}" for name in new if name not in old]
    parts += [f"removed {name}" for name in old if name not in new]
    both = [name for name in old if name in new]
    if both != [name for name in new if name in old]:
        parts.append("reordered")
    for name in both:
        if old[name] != new[name]:
            types = (shortened(text) or "untyped" for text in (old[name], new[name]))
            parts.append(f"{name}: {' -> '.join(types)}")
    if parts:
        yield f"signature: {_few(parts)}"


def _default_lines(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    values = [[shortened(side.get(name, "none")) for side in (old, new)] for name in names]
    parts = [f"{name} {' -> '.join(pair)}" for name, pair in zip(names, values, strict=True)]
    if parts:
        yield f"defaults: {_few(parts)}"


def _counted_lines(topic: str, old: Counter[str], new: Counter[str]) -> Iterator[str]:
    parts = [f"+{item}" for item in sorted(new - old)]
    parts += [f"-{item}" for item in sorted(old - new)]
    if parts:
        yield f"{topic}: {_few(parts)}"


def _few(parts: list[str]) -> str:
    more = len(parts) - _SHOWN
    return ", ".join(parts[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
