"""The files that documents refer to: which a path means, and their lines."""

from __future__ import annotations

import bisect
import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from ringproof.anchors.symbols import Module, UnparsableError, folded
from ringproof.errors import InputError
from ringproof.markdown import LINE_END
from ringproof.upstream.git import submodule_urls
from ringproof.upstream.tree import UpstreamError, UpstreamTree

CHECKOUT = "."
"""Name of the root that replaces the checkout."""
NOT_ENTERED = frozenset((".git", "node_modules", "__pycache__", ".venv", "site-packages"))
MARKDOWN_SUFFIXES = (".md", ".mdx", ".markdown")
MAX_SOURCE_BYTES = 4_000_000
MAX_SOURCE_LINES = 60_000
_NAME = re.compile(r"[^\W\d]\w{2,}|\d{2,}")  # of three letters, or two digits
_FENCE_MARK = re.compile(r"`{3,}|~{3,}")


class SourceRefused(Exception):
    """The file exists but cannot be quoted, because it is too large or binary."""


@dataclass(frozen=True)
class SourceLines:
    """The lines of a file, and those with text with white space folded.

    Attributes:
        lines: All lines unchanged.
        texts: Lines that are not blank, with single spaces and none at the ends. Fence marks of a
            Markdown file count as blank, since a fence cannot quote them.
        numbers: Line number, from 1, of each of ``texts``.
    """

    path: str
    lines: tuple[str, ...]
    texts: tuple[str, ...]
    numbers: tuple[int, ...]

    @property
    def total(self) -> int:
        """Number of lines of the file."""
        return len(self.lines)

    def index_from(self, line: int) -> int:
        """Return the index of the first line with text at or after a line number."""
        return bisect.bisect_left(self.numbers, line)

    def index_until(self, line: int) -> int:
        """Return the index after the last line with text at or before a line number."""
        return bisect.bisect_right(self.numbers, line)

    @cached_property
    def text(self) -> str:
        """The ``texts``, each with a line end before and behind it."""
        return "\n" + "".join(f"{text}\n" for text in self.texts)

    @cached_property
    def keys(self) -> tuple[frozenset[str], ...]:
        """The `keys_of` each of ``texts``."""
        return tuple(map(keys_of, self.texts))

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Offset in ``text`` of the line end before each of ``texts``, and of the last one."""
        found = [0]
        for text in self.texts:
            found.append(found[-1] + len(text) + 1)
        return tuple(found)

    @cached_property
    def definitions(self) -> Mapping[str, tuple[tuple[int, int], ...]]:
        """First and last line, decorators included, of each Python definition by its own name."""
        found: dict[str, tuple[tuple[int, int], ...]] = {}
        try:
            catalog = Module("\n".join(self.lines).encode()).catalog()
        except UnparsableError:  # another language, or another version of Python
            return found
        for symbol, definition in catalog.items():
            name = symbol.split(".")[-1].split("#")[0]
            decorators = getattr(definition.node, "decorator_list", ())
            first = min([definition.start, *(item.lineno for item in decorators)])
            found[name] = (*found.get(name, ()), (first, definition.end))
        return found


def keys_of(text: str) -> frozenset[str]:
    """Return what makes a line like another: itself, its longer names, and its longer numbers."""
    return frozenset((text, *_NAME.findall(text)))


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
    lines = LINE_END.split(data.decode("utf-8-sig", "replace"))
    if lines[-1] == "":
        lines.pop()
    if len(lines) > MAX_SOURCE_LINES:
        raise SourceRefused(f"is too large to be quoted ({len(lines):,} lines)")
    is_markdown = path.endswith(MARKDOWN_SUFFIXES)
    kept = {
        number: text
        for number, text in enumerate(map(folded, lines), 1)
        if text and not (is_markdown and _FENCE_MARK.match(text))
    }
    return SourceLines(path, tuple(lines), tuple(kept.values()), tuple(kept))


class SourceFiles:
    """The files to which mentions can refer, each read once.

    Args:
        checkout: Repository of the skills.
        roots: Tree for each path prefix; ``.`` replaces the checkout.
    """

    def __init__(self, checkout: UpstreamTree, roots: Mapping[str, UpstreamTree]) -> None:
        self._roots = {name.strip("/") or CHECKOUT: tree for name, tree in roots.items()}
        self._roots.setdefault(CHECKOUT, checkout)
        self._read: dict[tuple[str, str], SourceLines | None] = {}

    def find(self, path: str, folder: str, *, anywhere: bool) -> tuple[SourceLines, ...]:
        """Find the files that a path in a document means; several if it is ambiguous.

        The path is tried below the longest root whose name begins the path, otherwise in the
        checkout, then as a path in a named root, and then relative to the document.

        Args:
            folder: Folder of the document from the checkout's root.
            anywhere: Whether the path may be the end of a longer path. A bare name (``config.py``)
                then means every file of that name, unless there is one beside the document.

        Raises:
            InputError: The path is in a submodule that is empty here and has no root.
            SourceRefused: The file is too large, binary, or the path leaves the root.
        """
        plain = path.removeprefix("./")
        outside = plain.startswith(("/", "../"))
        bare = anywhere and "/" not in plain
        beside = (CHECKOUT, posixpath.normpath(posixpath.join(folder, path)))
        for root, inner in [beside] if outside or bare else [*self._strict(plain), beside]:
            if source := self._lines(root, inner):
                return (source,)
        self._refuse_empty_submodule(plain)
        names = () if outside or not anywhere else self._by_name.get(posixpath.basename(plain), ())
        ending = (item for item in names if f"/{item[1]}".endswith(f"/{plain}"))
        return tuple(source for item in ending if (source := self._lines(*item)) is not None)

    def _lines(self, root: str, path: str) -> SourceLines | None:
        if (root, path) not in self._read:
            try:
                source = read_source(path, self._roots[root].read(path))
            except FileNotFoundError:
                source = None
            except UpstreamError as error:
                raise SourceRefused(str(error)) from error
            self._read[root, path] = source
        return self._read[root, path]

    def _strict(self, path: str) -> Iterator[tuple[str, str]]:
        prefixes = [name for name in self._roots if path.startswith(f"{name}/")]
        if prefixes:
            name = max(prefixes, key=len)
            yield name, path[len(name) + 1 :]
            return
        yield CHECKOUT, path
        yield from ((name, path) for name in self._roots if name != CHECKOUT)

    @cached_property
    def _by_name(self) -> Mapping[str, list[tuple[str, str]]]:
        """Root and path of every file by its name, except packages installed in a root."""
        names: dict[str, list[tuple[str, str]]] = {}
        for root, tree in self._roots.items():
            for path in sorted(tree.paths()):
                if NOT_ENTERED.isdisjoint(path.split("/")):
                    names.setdefault(posixpath.basename(path), []).append((root, path))
        return names

    @cached_property
    def _submodules(self) -> tuple[str, ...]:
        try:
            text = self._roots[CHECKOUT].read(".gitmodules").decode("utf-8", "replace")
        except (FileNotFoundError, UpstreamError):
            return ()
        return tuple(submodule_urls(text))

    def _refuse_empty_submodule(self, path: str) -> None:
        for module in self._submodules:
            if not path.startswith(f"{module}/") or module in self._roots:
                continue
            if next(iter(self._roots[CHECKOUT].paths(f"{module}/")), None) is None:
                problem = f"{module} is a submodule that is empty here"
                raise InputError("--upstream", f"{problem}; add --upstream {module}=git:PATH@REF")
