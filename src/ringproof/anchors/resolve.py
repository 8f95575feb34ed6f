"""Resolves anchors in one upstream tree."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ringproof.cards.model import Anchor
from ringproof.code.definitions import Definition, Module, SymbolError, UnparsableError
from ringproof.code.languages import parse_module
from ringproof.upstream.tree import UpstreamError, UpstreamTree


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


@dataclass(frozen=True)
class Resolution:
    """Result of looking up an anchor in one upstream version, with its place.

    Attributes:
        origin: Tree in which it was searched; empty if that could not be opened.
        start, end: First and last line of the symbol, from 1, without decorators and ``template
            <...>``; ``None`` if it was not found.
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
    def holds(self) -> bool:
        """Whether the symbol exists once and contains everything expected."""
        return self.status is AnchorStatus.HOLDS


class AnchorResolver:
    """Resolves anchors in one tree, parsing each file once."""

    def __init__(self, tree: UpstreamTree) -> None:
        self.tree = tree
        self._modules: dict[str, Module | Exception] = {}

    def resolve(self, anchor: Anchor) -> Resolution:
        """Look up an anchor. Problems of the anchor are statuses and not exceptions.

        A missing file is also sought with or without a leading ``src``: a wheel lacks that folder
        where its repository has one.

        Raises:
            InputError: The parser of the file's language is not installed.
        """
        first = self._resolve_as_written(anchor)
        if first.status is not AnchorStatus.MISSING_FILE:
            return first
        inside = anchor.path.removeprefix("src/")
        path = inside if inside not in ("", anchor.path) else f"src/{anchor.path}"
        second = self._resolve_as_written(anchor.model_copy(update={"path": path}))
        return first if second.status is AnchorStatus.MISSING_FILE else second

    def _resolve_as_written(self, anchor: Anchor) -> Resolution:
        path, symbol = anchor.path, anchor.symbol
        found = None
        try:
            found = self.find(path, symbol)
        except FileNotFoundError:
            status, detail = AnchorStatus.MISSING_FILE, f"no file {path} in {self.tree.origin}"
        except (UpstreamError, UnparsableError) as error:
            status, detail = AnchorStatus.UNREADABLE_FILE, f"{path}: {error}"
        except SymbolError as error:
            status, detail = AnchorStatus.MISSING_SYMBOL, f"{path}: {error}"
            if error.ambiguous:
                status = AnchorStatus.AMBIGUOUS_SYMBOL
        if found is None:
            return Resolution(anchor.id, self.tree.origin, path, symbol, status, detail=detail)
        status, detail, missing = AnchorStatus.HOLDS, "", found.missing(anchor.expects)
        if missing:
            status = AnchorStatus.MISSING_EXPECTATION
            listed = ", ".join(map(repr, missing))
            detail = f"{path}:{found.start}-{found.end}: `{symbol}` does not contain {listed}"
        return Resolution(
            anchor.id,
            self.tree.origin,
            path,
            symbol,
            status,
            start=found.start,
            end=found.end,
            fingerprint=found.fingerprint(),
            missing=missing,
            detail=detail,
        )

    def find(self, path: str, symbol: str) -> Definition:
        """Return the definition of a symbol.

        Raises:
            FileNotFoundError, UpstreamError, UnparsableError, SymbolError: See `resolve`.
        """
        return self.module(path).find(symbol)

    def module(self, path: str) -> Module:
        """Return a file, which is parsed at its first use. Failures are also remembered.

        Raises:
            FileNotFoundError, UpstreamError, UnparsableError: See `resolve`.
            InputError: The parser of its language is not installed.
        """
        if path not in self._modules:
            try:
                self._modules[path] = parse_module(path, self.tree.read(path))
            except (FileNotFoundError, UpstreamError, UnparsableError) as error:
                self._modules[path] = error
        module = self._modules[path]
        if isinstance(module, Exception):
            raise module
        return module
