"""Source files as lines with which quotes are compared, and the files of a tree by their ends."""

from __future__ import annotations

import ast
import bisect
import posixpath
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

from ringproof.markdown import LINE_END
from ringproof.upstream.tree import UpstreamTree

MARKDOWN_SUFFIXES = (".md", ".mdx", ".markdown")
MAX_SOURCE_BYTES = 4_000_000
MAX_SOURCE_LINES = 60_000
_WORD = re.compile(r"\w+")
_TOKEN = re.compile(r"[^\W\d]\w{2,}|\d{2,}")
_FENCE_MARK = re.compile(r"(`{3,}|~{3,})")


class SourceRefused(Exception):
    """The file exists but cannot be quoted, because it is too large or binary."""


@dataclass(frozen=True)
class SourceLines:
    """The lines of a file that are not blank, with white space folded.

    Attributes:
        total: Number of lines of the file.
        texts: Lines that are not blank, with single spaces and none at the ends. Fence marks of a
            Markdown file count as blank, since a fence cannot quote them.
        numbers: Line number, from 1, of each of ``texts``.
        where: Indices of each text in ``texts``, ascending.
    """

    path: str
    total: int
    texts: tuple[str, ...]
    numbers: tuple[int, ...]
    where: Mapping[str, tuple[int, ...]]
    raw: str

    def index_from(self, line: int) -> int:
        """Return the index of the first line with text at or after a line number."""
        return bisect.bisect_left(self.numbers, line)

    def index_until(self, line: int) -> int:
        """Return the index after the last line with text at or before a line number."""
        return bisect.bisect_right(self.numbers, line)

    def starting_with(self, prefix: str) -> list[int]:
        """Return the indices of the texts that start with a prefix."""
        return [index for index, text in enumerate(self.texts) if text.startswith(prefix)]

    @cached_property
    def lines(self) -> tuple[str, ...]:
        """All lines unchanged, blank ones included."""
        return tuple(LINE_END.split(self.raw))

    @cached_property
    def words(self) -> frozenset[str]:
        """All words in the file."""
        return frozenset(_WORD.findall(self.raw))

    @cached_property
    def tokens(self) -> tuple[frozenset[str], ...]:
        """The `tokens` of each of ``texts``."""
        return tuple(tokens(text) for text in self.texts)

    @cached_property
    def definitions(self) -> Mapping[str, tuple[tuple[int, int], ...]]:
        """First and last line of each Python function and class by name, with decorators.

        Empty for other languages and for files that this Python cannot parse.
        """
        found: dict[str, tuple[tuple[int, int], ...]] = {}
        parsed = ast.Module(body=[], type_ignores=[])
        if self.path.endswith((".py", ".pyi")):
            with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
                parsed = ast.parse(self.raw)
        for node in ast.walk(parsed):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                first = min([node.lineno, *(item.lineno for item in node.decorator_list)])
                place = (first, node.end_lineno or node.lineno)
                found[node.name] = (*found.get(node.name, ()), place)
        return MappingProxyType(found)


def fold(line: str) -> str:
    """Return a line without indentation, trailing white space and alignment."""
    return " ".join(line.split())


def tokens(line: str) -> frozenset[str]:
    """Return the names of three letters or more and the numbers of two digits or more."""
    return frozenset(_TOKEN.findall(line))


def read_source(path: str, data: bytes) -> SourceLines:
    """Split a file into lines at CR LF, LF or CR.

    Raises:
        SourceRefused: The file has more than ``MAX_SOURCE_BYTES`` or ``MAX_SOURCE_LINES``, or a NUL
            byte.
    """
    if len(data) > MAX_SOURCE_BYTES:
        raise SourceRefused(f"is too large to be quoted ({len(data):,} bytes)")
    if b"\0" in data:
        raise SourceRefused("is a binary file")
    raw = data.decode("utf-8-sig", "replace")
    lines = LINE_END.split(raw)
    if lines[-1] == "":
        lines.pop()
    if len(lines) > MAX_SOURCE_LINES:
        raise SourceRefused(f"is too large to be quoted ({len(lines):,} lines)")
    markdown = path.endswith(MARKDOWN_SUFFIXES)
    texts, numbers = [], []
    for number, line in enumerate(lines, 1):
        text = fold(line)
        if text and not (markdown and _FENCE_MARK.match(text)):
            texts.append(text)
            numbers.append(number)
    where: dict[str, list[int]] = {}
    for index, text in enumerate(texts):
        where.setdefault(text, []).append(index)
    frozen = MappingProxyType({text: tuple(indices) for text, indices in where.items()})
    return SourceLines(path, len(lines), tuple(texts), tuple(numbers), frozen, raw)


class TreeFiles:
    """The files of a tree, each read once.

    Args:
        is_own: Whether a file counts when only the end of its path is known.
    """

    def __init__(self, tree: UpstreamTree, is_own: Callable[[str], bool] = bool) -> None:
        self.tree = tree
        self._is_own = is_own
        self._read: dict[str, SourceLines | None] = {}

    def lines(self, path: str) -> SourceLines | None:
        """Return a file, or ``None`` if it does not exist.

        Raises:
            SourceRefused: See `read_source`.
            UpstreamError, UpstreamUnavailable: See `UpstreamTree.read`.
        """
        if path not in self._read:
            try:
                self._read[path] = read_source(path, self.tree.read(path))
            except FileNotFoundError:
                self._read[path] = None
        return self._read[path]

    def ending_with(self, path: str) -> tuple[str, ...]:
        """Return the files whose path is the given one or ends with it, sorted."""
        known = self._by_name.get(posixpath.basename(path), ())
        return tuple(name for name in known if f"/{name}".endswith(f"/{path}"))

    @cached_property
    def _by_name(self) -> Mapping[str, list[str]]:
        names: dict[str, list[str]] = {}
        for path in sorted(filter(self._is_own, self.tree.paths())):
            names.setdefault(posixpath.basename(path), []).append(path)
        return names
