"""What a launch script is parsed into: words with their expansions, and commands."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Literal:
    """Text that stands for itself."""

    text: str
    quoted: bool


@dataclass(frozen=True)
class Expansion:
    """A ``$`` expansion.

    Attributes:
        kind: ``parameter``, ``arithmetic`` or ``command``.
        source: Text as written, for messages.
    """

    kind: str
    body: str
    source: str
    quoted: bool


@dataclass(frozen=True)
class Word:
    """One word, before expansion."""

    parts: tuple[Literal | Expansion, ...]
    line: int

    @property
    def plain(self) -> str | None:
        """The text of a word without quotes and expansions, otherwise ``None``."""
        if all(isinstance(part, Literal) and not part.quoted for part in self.parts):
            return "".join(part.text for part in self.parts if isinstance(part, Literal))
        return None


@dataclass(frozen=True)
class Assignment:
    """``NAME=value``, ``NAME+=value`` or ``NAME=( words )``."""

    name: str
    append: bool
    value: Word | tuple[Word, ...]


@dataclass(frozen=True)
class Simple:
    """A command with its arguments; redirections are left out."""

    assignments: tuple[Assignment, ...]
    words: tuple[Word, ...]
    line: int
    background: bool = False


@dataclass(frozen=True)
class If:
    """Conditions with their bodies; the last condition is empty for ``else``."""

    branches: tuple[tuple[tuple[Node, ...], tuple[Node, ...]], ...]
    line: int


@dataclass(frozen=True)
class Loop:
    """A ``for`` loop (with ``name`` and ``words``), or a ``while`` or ``until`` loop."""

    name: str
    words: tuple[Word, ...] | None
    condition: tuple[Node, ...]
    until: bool
    body: tuple[Node, ...]
    line: int


@dataclass(frozen=True)
class Case:
    """``case WORD in``, with the patterns and the body of each branch."""

    word: Word
    branches: tuple[tuple[tuple[Word, ...], tuple[Node, ...]], ...]
    line: int


@dataclass(frozen=True)
class Function:
    """A function's definition."""

    name: str
    body: tuple[Node, ...]


@dataclass(frozen=True)
class Group:
    """A list in braces, or in parentheses (``own`` variables)."""

    body: tuple[Node, ...]
    own: bool


@dataclass(frozen=True)
class Arithmetic:
    """``(( expression ))``."""

    text: str
    line: int


@dataclass(frozen=True)
class Chain:
    """Pipelines joined by ``&&`` and ``||``; the first operator is empty.

    Attributes:
        parts: Operator, whether the status is negated, and the commands of each pipeline.
    """

    parts: tuple[tuple[str, bool, tuple[Node, ...]], ...]


Node = Simple | If | Loop | Case | Function | Group | Arithmetic | Chain
