"""Looks up anchors in one version of an upstream: a symbol, or lines with an expected text."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from ringproof.anchors.symbols import Definition, Module, SymbolError, UnparsableError, folded
from ringproof.cards.card import Anchor, Probe
from ringproof.upstream.tree import UpstreamError, UpstreamTree

PYTHON = (".py", ".pyi")


class AnchorStatus(str, Enum):
    """Result of looking up an anchor."""

    HOLDS = "holds"
    MISSING_FILE = "missing file"
    UNREADABLE_FILE = "unreadable file"
    MISSING_SYMBOL = "missing symbol"
    AMBIGUOUS_SYMBOL = "ambiguous symbol"
    MISSING_EXPECTATION = "expectation missing"
    NOT_HERE = "not here"
    UNUSABLE = "unusable upstream"


class ExpectedLines:
    """What an anchor without a symbol names: the lines in which its expected texts first occur.

    Any file has such lines, whatever its language. Lines between them do not count, so that the
    fingerprint stays the same when other parts of the file change.

    Attributes:
        start, end: First and last of these lines, from 1; those of the file if there are none.
    """

    def __init__(self, source: bytes, expects: Sequence[str]) -> None:
        self._lines = [folded(line) for line in source.decode("utf-8", "replace").splitlines()]
        first = (next(iter(self._numbers(item)), None) for item in expects)
        self._found = sorted({number for number in first if number is not None})
        self.start, self.end = 1, max(1, len(self._lines))
        if self._found:
            self.start, self.end = self._found[0], self._found[-1]

    def _numbers(self, item: str) -> list[int]:
        text = folded(item)
        return [number for number, line in enumerate(self._lines, 1) if text in line]

    def missing(self, expects: Sequence[str]) -> tuple[str, ...]:
        """Return the expected texts that occur in no line, with white space folded."""
        return tuple(item for item in expects if not self._numbers(item))

    def fingerprint(self) -> str:
        """Return the SHA-256 of the lines, with white space folded."""
        text = "\n".join(self._lines[number - 1] for number in self._found)
        return hashlib.sha256(text.encode()).hexdigest()


Place = Definition | ExpectedLines
"""What an anchor names in a file."""


@dataclass(frozen=True)
class Resolution:
    """Result of looking up an anchor in one upstream version, with its place.

    Attributes:
        anchor: Its id; empty for a probe.
        origin: Tree in which it was searched; empty if that could not be opened.
        symbol: Empty if it names a file as a whole.
        start, end: First and last line, from 1, without decorators; ``None`` if it was not found.
        fingerprint: Fingerprint of the code without documentation; see `Definition`.
        missing: Expectations that do not occur.
        detail: Explanation on one line; empty if the anchor holds.
    """

    anchor: str
    origin: str
    path: str
    symbol: str
    status: AnchorStatus
    start: int | None = None
    end: int | None = None
    fingerprint: str | None = None
    missing: tuple[str, ...] = ()
    detail: str = ""

    @property
    def place(self) -> str:
        """The symbol and its file, for sentences."""
        return f"{self.symbol} in {self.path}" if self.symbol else self.path

    @property
    def holds(self) -> bool:
        """Whether the symbol exists once and contains everything expected."""
        return self.status is AnchorStatus.HOLDS


class AnchorResolver:
    """Resolves anchors in one tree, parsing each file once."""

    def __init__(self, tree: UpstreamTree) -> None:
        self.tree = tree
        self._modules: dict[str, Module | Exception] = {}

    def resolve(self, wanted: Anchor | Probe) -> Resolution:
        """Look up an anchor or a probe. Problems are statuses and not exceptions.

        A missing file is also sought with or without a leading ``src``: a wheel lacks that folder
        where its repository has one.
        """
        first = self._resolve_as_written(wanted)
        if first.status is not AnchorStatus.MISSING_FILE:
            return first
        inside = wanted.path.removeprefix("src/")
        path = inside if inside not in ("", wanted.path) else f"src/{wanted.path}"
        second = self._resolve_as_written(wanted.model_copy(update={"path": path}))
        return first if second.status is AnchorStatus.MISSING_FILE else second

    def _resolve_as_written(self, wanted: Anchor | Probe) -> Resolution:
        path, symbol = wanted.path, wanted.symbol or ""
        name = wanted.id if isinstance(wanted, Anchor) else ""

        def failed(status: AnchorStatus, detail: str) -> Resolution:
            return Resolution(name, self.tree.origin, path, symbol, status, detail=detail)

        try:
            found = self.find(wanted)
        except FileNotFoundError:
            return failed(AnchorStatus.MISSING_FILE, f"no file {path} in {self.tree.origin}")
        except (UpstreamError, UnparsableError) as error:
            return failed(AnchorStatus.UNREADABLE_FILE, f"{path}: {error}")
        except SymbolError as error:
            several = AnchorStatus.AMBIGUOUS_SYMBOL
            status = several if error.ambiguous else AnchorStatus.MISSING_SYMBOL
            return failed(status, f"{path}: {error}")
        missing = found.missing(wanted.expects)
        place = f"{path}:{found.start}-{found.end}: `{symbol}`" if symbol else path
        lacking = f"{place} does not contain {', '.join(map(repr, missing))}"
        return Resolution(
            name,
            self.tree.origin,
            path,
            symbol,
            AnchorStatus.MISSING_EXPECTATION if missing else AnchorStatus.HOLDS,
            start=found.start,
            end=found.end,
            fingerprint=found.fingerprint(),
            missing=missing,
            detail=lacking if missing else "",
        )

    def find(self, wanted: Anchor | Probe) -> Place:
        """Return what an anchor names in its file.

        Raises:
            FileNotFoundError, UpstreamError, UnparsableError, SymbolError: See `resolve`.
        """
        if wanted.symbol is None:
            return ExpectedLines(self.tree.read(wanted.path), wanted.expects)
        return self.module(wanted.path).find(wanted.symbol)

    def module(self, path: str) -> Module:
        """Return a Python file, which is parsed at its first use. Failures are also remembered.

        Raises:
            FileNotFoundError, UpstreamError, UnparsableError: See `resolve`.
        """
        if path not in self._modules:
            try:
                self._modules[path] = _parsed(path, self.tree.read(path))
            except (FileNotFoundError, UpstreamError, UnparsableError) as error:
                self._modules[path] = error
        module = self._modules[path]
        if isinstance(module, Exception):
            raise module
        return module


def _parsed(path: str, source: bytes) -> Module:
    try:
        return Module(source)
    except UnparsableError as error:
        if path.endswith(PYTHON):
            raise
        advice = "leave the symbol out, and write into `expects` what must occur in the file"
        raise UnparsableError(f"is not Python: {advice}") from error
