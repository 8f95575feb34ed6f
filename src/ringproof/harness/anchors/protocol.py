"""Interface of a programming language for anchors: language, module and definition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol


class SymbolError(LookupError):
    """A symbol does not exist (`ambiguous` false), or exists several times (true)."""

    def __init__(self, message: str, *, ambiguous: bool = False) -> None:
        super().__init__(message)
        self.ambiguous = ambiguous


class UnparsableError(ValueError):
    """The file cannot be parsed in its language."""


class Definition(Protocol):
    """Definition of a symbol."""

    @property
    def start(self) -> int:
        """Its first line, from 1."""

    @property
    def end(self) -> int:
        """Its last line, included."""

    def missing(self, expects: Sequence[str]) -> tuple[str, ...]:
        """Return the expectations that do not occur inside it. Comments do not count."""

    def fingerprint(self) -> str:
        """Return the SHA-256 of its code without formatting, comments and documentation."""

    def documentation(self) -> str:
        """Return the SHA-256 of its documentation, with white space folded."""

    def changes(self, later: Definition) -> tuple[str, ...]:
        """Summarize the differences to another version. The result is never empty."""

    def likeness(self, other: Definition) -> float:
        """Return the similarity from 0 (nothing in common) to 1 (equal except for the name)."""


class Module(Protocol):
    """One parsed file."""

    def find(self, symbol: str) -> Definition:
        """Return the definition that a symbol names; raises `SymbolError`."""

    def catalog(self) -> Mapping[str, Definition]:
        """Return all definitions by the name that an anchor uses."""


class Language(Protocol):
    """Programming language of a file."""

    @property
    def name(self) -> str:
        """Name of the language."""

    def parse(self, source: bytes) -> Module:
        """Parse upstream's source without executing it; raises `UnparsableError`."""

    def last_name(self, symbol: str) -> str:
        """Return a word that every file that defines the symbol contains."""
