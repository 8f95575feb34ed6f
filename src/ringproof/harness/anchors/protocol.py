"""What the anchors need of a programming language: three small contracts, and their errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol


class SymbolError(LookupError):
    """A symbol that is not there (`ambiguous` false) or there several times (true)."""

    def __init__(self, message: str, *, ambiguous: bool = False) -> None:
        super().__init__(message)
        self.ambiguous = ambiguous


class UnparsableError(ValueError):
    """The file is no source text of its language."""


class Definition(Protocol):
    """A symbol's definition, and what can be asked of it."""

    @property
    def start(self) -> int:
        """Its first line, from 1."""

    @property
    def end(self) -> int:
        """Its last line, included."""

    def missing(self, expects: Sequence[str]) -> tuple[str, ...]:
        """The expectations that do not occur inside it; comments never count."""

    def fingerprint(self) -> str:
        """SHA-256 of its code: formatting, comments and documentation do not count."""

    def documentation(self) -> str:
        """SHA-256 of upstream's words about it, white space folded."""

    def changes(self, later: Definition) -> tuple[str, ...]:
        """What differs in another version of it, in a few words; never empty."""

    def likeness(self, other: Definition) -> float:
        """From 0, nothing in common, to 1, the same but for the name."""


class Module(Protocol):
    """One parsed file."""

    def find(self, symbol: str) -> Definition:
        """The one definition that a symbol names; raises `SymbolError`."""

    def catalog(self) -> Mapping[str, Definition]:
        """All definitions by the name that an anchor would use."""


class Language(Protocol):
    """A language by the endings of its files."""

    @property
    def name(self) -> str:
        """For people and for telling languages apart."""

    def parse(self, source: bytes) -> Module:
        """Parse upstream's source without executing it; raises `UnparsableError`."""

    def last_name(self, symbol: str) -> str:
        """The word that a file which defines the symbol must contain."""
