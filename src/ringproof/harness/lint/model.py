"""What the linter reads and what it says: frozen values, passed along."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from ringproof.harness.lint.markdown import Markdown, Piece, parse_markdown

# What a terminal, a log viewer or a reader would not show as itself.
_UNSHOWABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u115f\u1160\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\u3164\ud800-\udfff\ufeff\uffa0\U000e0000-\U000e01ef]"
)


def showable(text: str, limit: int = 200) -> str:
    """One line of text in which every character can be seen, cut at ``limit``."""
    cut = text if len(text) <= limit else f"{text[:limit]}…"
    return _UNSHOWABLE.sub(lambda match: f"<U+{ord(match[0]):04X}>", " ".join(cut.split()))


@dataclass(frozen=True)
class Finding:
    """One broken rule at one place.

    Attributes:
        rule: Id, such as ``RP201``.
        path: The file, as it is shown: relative to the working directory where it lies inside.
        line: 1-based.
        message: One line; what is wrong and what to do.
    """

    rule: str
    path: str
    line: int
    message: str


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
