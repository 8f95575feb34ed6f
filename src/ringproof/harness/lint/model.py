"""What the linter reads and what it says: frozen values, passed along."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from ringproof.harness.lint.markdown import Markdown, Piece, parse_markdown
from ringproof.harness.reports.model import Finding


@dataclass(frozen=True)
class SourceFile:
    """A text file of a skill.

    Attributes:
        name: Path relative to the skill folder, with slashes.
        shown: The path in findings.
        text: Its content, UTF-8 decoded.
        markdown: The parsed form of a Markdown file; ``None`` of any other.
    """

    name: str
    shown: str
    text: str
    markdown: Markdown | None = None

    def line_of(self, offset: int) -> int:
        """The 1-based line of a character offset."""
        return self.text.count("\n", 0, offset) + 1


@dataclass(frozen=True)
class Frontmatter:
    """The YAML head of a ``SKILL.md``.

    Attributes:
        data: Key to value; plain data.
        lines: Key to its 1-based line.
        problem: Why it cannot be used; empty when it can.
        problem_line: Where.
    """

    data: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))
    lines: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    problem: str = ""
    problem_line: int = 1

    def line(self, key: str) -> int:
        """Where a key stands; the first line when it is missing."""
        return self.lines.get(key, 1)


@dataclass(frozen=True)
class Skill:
    """One skill folder, read.

    Attributes:
        folder: Real path.
        repository: The folder that repository-relative references start from.
        main: Its ``SKILL.md``.
        frontmatter: The head of it.
        texts: Every readable text file, ``SKILL.md`` included.
        names: Every file, relative, sorted; also the ones that were not read.
        unread: Findings about files that could not be read or lead outside.
    """

    folder: Path
    repository: Path
    main: SourceFile
    frontmatter: Frontmatter
    texts: tuple[SourceFile, ...]
    names: tuple[str, ...]
    unread: tuple[Finding, ...] = ()

    def fences(self, languages: frozenset[str]) -> Iterator[tuple[SourceFile, Piece]]:
        """The fenced blocks in some languages, each with the file that it stands in."""
        for source in self.texts:
            for fence in source.markdown.fences if source.markdown else ():
                if fence.language in languages:
                    yield source, fence


def source_file(name: str, shown: str, text: str) -> SourceFile:
    """A source file, with Markdown parsed by its ending."""
    is_markdown = name.lower().endswith((".md", ".mdx", ".markdown"))
    return SourceFile(name, shown, text, parse_markdown(text) if is_markdown else None)
