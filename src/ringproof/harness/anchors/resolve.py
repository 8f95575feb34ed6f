"""Resolves anchors in one upstream tree."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from ringproof.harness.cards.model import Anchor
from ringproof.harness.code.definitions import Definition, Module, SymbolError, UnparsableError
from ringproof.harness.code.languages import parse_module
from ringproof.harness.upstreams.tree import UpstreamError, UpstreamTree


class AnchorStatus(str, Enum):
    """Result of looking up an anchor."""

    HOLDS = "holds"
    MISSING_FILE = "missing file"
    UNREADABLE_FILE = "unreadable file"
    MISSING_SYMBOL = "missing symbol"
    AMBIGUOUS_SYMBOL = "ambiguous symbol"
    MISSING_EXPECTATION = "expectation missing"


@dataclass(frozen=True)
class Resolution:
    """Result of looking up an anchor in one upstream version, with its place.

    Attributes:
        origin: Tree in which it was searched.
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
        self._tree = tree
        self._modules: dict[str, Module] = {}
        self._failures: dict[str, Exception] = {}

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
        source = "src/"
        other = anchor.path[len(source) :] if anchor.path.startswith(source) else ""
        path = other or f"{source}{anchor.path}"
        second = self._resolve_as_written(anchor.model_copy(update={"path": path}))
        return first if second.status is AnchorStatus.MISSING_FILE else second

    def _resolve_as_written(self, anchor: Anchor) -> Resolution:
        try:
            found = self.find(anchor.path, anchor.symbol)
        except FileNotFoundError:
            detail = f"no file {anchor.path} in {self._tree.origin}"
            return self._result(anchor, AnchorStatus.MISSING_FILE, detail)
        except (UpstreamError, UnparsableError) as error:
            detail = f"{anchor.path}: {error}"
            return self._result(anchor, AnchorStatus.UNREADABLE_FILE, detail)
        except SymbolError as error:
            ambiguous = error.ambiguous
            status = AnchorStatus.AMBIGUOUS_SYMBOL if ambiguous else AnchorStatus.MISSING_SYMBOL
            return self._result(anchor, status, f"{anchor.path}: {error}")
        return self._checked(anchor, found)

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
        if path in self._failures:
            raise self._failures[path]
        if path not in self._modules:
            try:
                self._modules[path] = parse_module(path, self._tree.read(path))
            except (FileNotFoundError, UpstreamError, UnparsableError) as error:
                self._failures[path] = error
                raise
        return self._modules[path]

    def _checked(self, anchor: Anchor, found: Definition) -> Resolution:
        missing = found.missing(anchor.expects)
        detail = ""
        if missing:
            listed = ", ".join(repr(item) for item in missing)
            span = f"{anchor.path}:{found.start}-{found.end}"
            detail = f"{span}: `{anchor.symbol}` does not contain {listed}"
        status = AnchorStatus.MISSING_EXPECTATION if missing else AnchorStatus.HOLDS
        return replace(
            self._result(anchor, status, detail),
            start=found.start,
            end=found.end,
            fingerprint=found.fingerprint(),
            missing=missing,
        )

    def _result(self, anchor: Anchor, status: AnchorStatus, detail: str) -> Resolution:
        origin = self._tree.origin
        return Resolution(anchor.id, origin, anchor.path, anchor.symbol, status, detail=detail)
