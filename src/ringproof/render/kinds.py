"""The kinds of generated blocks: what each one lists, and as which tables or lists."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from ringproof.anchors.lock import Lock, permalink
from ringproof.cards.card import (
    Anchor,
    Card,
    Claim,
    Command,
    Constraint,
    GpuNeed,
    PackageUpstream,
    Pitfall,
    RepositoryUpstream,
)
from ringproof.cards.proof import ProofKind, parse_proof
from ringproof.render import escaping, versions
from ringproof.render.blocks import GeneratedBlock, nearest
from ringproof.render.escaping import SafeMarkdown, code, inline

_DAGGER = " †"
_DAGGER_NOTE = (
    "† The name is there, but not all that its anchor expects in it: that version does it "
    "differently."
)
# `cp_comm_type` needs no class before it; `forward` and `__init__` do.
_TELLING = re.compile(r"(?!__)_?[^\W_]\w*_\w*[^\W_](?:#\d+)?")


@dataclass(frozen=True)
class BlockRequest:
    """A block to render, with card and lock.

    Attributes:
        about: Number of statements about upstream by kind of evidence, from a committed record;
            ``None`` without a record.
    """

    card: Card
    lock: Lock | None
    block: GeneratedBlock
    about: Mapping[str, int] | None = None

    def lines(self) -> tuple[str, ...]:
        """Return the lines of the block.

        Raises:
            InputError: The block has an unknown kind, key or value, or nothing to show.
        """
        kind = self.block.kind
        if kind not in KINDS:
            raise self.block.refusal(kind, "is not a kind of block", nearest(kind, tuple(KINDS)))
        return KINDS[kind](self)

    def needed_lock(self) -> Lock:
        """Return the lock; raise `InputError` if there is none, or it does not match the card."""
        remedy = "write it with `ringproof anchors lock`"
        if self.lock is None:
            raise self.block.refusal(None, "needs anchors.lock, which is not there", remedy)
        stale = next(versions.lock_differences(self.card, self.lock), None)
        if stale is not None:
            problem = f"anchors.lock is older than the card: it {stale}"
            raise self.block.refusal(None, problem, remedy)
        return self.lock

    def upstreams(self, key: str) -> tuple[str, ...]:
        """Return the upstreams of the card that a key names."""
        return self.block.known(key, tuple(self.card.upstreams), "upstream of the card")


Columns = Mapping[str, tuple[str, Callable[[BlockRequest, Any], SafeMarkdown]]]
"""Heading and cells of each column."""

Style = tuple[Columns, Sequence[str]] | Callable[[Sequence[Any]], tuple[str, ...]]
"""A table, as its columns and the default ones, or a function that returns the lines."""


@dataclass(frozen=True)
class _Listing:
    """A kind of block that lists items of the card.

    Attributes:
        what: Name of an item, for messages.
        styles: How to show the items, by style; the first by default.
    """

    what: str
    items: Callable[[Card], Mapping[str, Any]]
    styles: Mapping[str, Style]

    def __call__(self, request: BlockRequest) -> tuple[str, ...]:
        return self.lines(request, self.items(request.card))

    def lines(
        self, request: BlockRequest, items: Mapping[str, Any], keys: Sequence[str] = ()
    ) -> tuple[str, ...]:
        """Return the lines for some of the items.

        Args:
            keys: Keys of the block apart from ``only``, ``except``, ``style`` and ``columns``.
        """
        block = request.block
        style_key = ("style",) if len(self.styles) > 1 else ()
        block.refuse_others(("only", "except", *keys, *style_key, "columns"))
        chosen = block.selected(items, self.what)
        name = block.one_of("style", tuple(self.styles))
        style = self.styles[name]
        if isinstance(style, tuple):
            columns, default = style
            known = block.known("columns", tuple(columns), f"column of {block.kind}")
            taken = [columns[key] for key in known or default]
            rows = [[cell(request, item) for _, cell in taken] for item in chosen]
            return escaping.table([heading for heading, _ in taken], rows)
        if block.values("columns"):
            raise block.refusal(None, f"style={name} has no columns", "leave columns out")
        return style(chosen)


def _by_id(part: str) -> Callable[[Card], Mapping[str, Any]]:
    return lambda card: {item.id: item for item in getattr(card, part)}


# -- places in upstream --------------------------------------------------------------------------


def _places(request: BlockRequest, anchor: Anchor, *, numbers: bool) -> SafeMarkdown:
    """Return the versions that have an anchor, with line numbers or with permalinks."""
    cells = []
    card, lock, at = request.card, request.needed_lock(), request.upstreams("at")
    for version, upstream, place in versions.found_places(card, lock, anchor, at):
        page = None if numbers else permalink(upstream, place)
        lines = f" L{place.start}-L{place.end}" if numbers else ""
        text = inline(f"{version.label}{lines}")
        cells.append(text if page is None else escaping.link(version.label, page))
    return _listed(cells)


def _listed(parts: Sequence[SafeMarkdown]) -> SafeMarkdown:
    return SafeMarkdown(", ".join(parts) or "-")


def _symbol(name: str | None) -> SafeMarkdown:
    return SafeMarkdown("the file") if name is None else code(name)


_ANCHOR: Columns = MappingProxyType(
    {
        "id": ("anchor", lambda _, item: code(item.id)),
        "where": ("where", lambda request, item: inline(versions.home(request.card, item))),
        "path": ("path", lambda _, item: code(item.path)),
        "symbol": ("symbol", lambda _, item: _symbol(item.symbol)),
        "role": ("what it does", lambda _, item: inline(item.short or item.role)),
        "expects": ("contains", lambda _, item: SafeMarkdown(", ".join(map(code, item.expects)))),
        "links": ("in", lambda request, item: _places(request, item, numbers=False)),
        "lines": ("in", lambda request, item: _places(request, item, numbers=True)),
    }
)


def _anchors(request: BlockRequest) -> tuple[str, ...]:
    """Return anchors as a table of roles, places, or files with their symbols."""
    card, wanted = request.card, request.upstreams("upstream")
    items = {item.id: item for item in card.anchors if not wanted or item.upstream in wanted}
    what = "anchor of that upstream" if wanted else "anchor of this card"
    styles: Mapping[str, Style] = {
        "compact": (_ANCHOR, ("path", "symbol", "role")),
        "files": lambda chosen: _files(card, chosen),
        "links": (_ANCHOR, ("id", "symbol", "role", "links")),
        "lines": (_ANCHOR, ("id", "path", "symbol", "lines")),
    }
    return _Listing(what, _by_id("anchors"), styles).lines(request, items, ("upstream", "at"))


def _files(card: Card, items: Sequence[Anchor]) -> tuple[str, ...]:
    """Return a row per file, without repeating the upstream of the row above."""
    grouped: dict[str, dict[str, dict[str | None, None]]] = {}
    for anchor in items:
        files = grouped.setdefault(versions.home(card, anchor), {})
        files.setdefault(anchor.path, {})[anchor.symbol] = None
    rows = (
        ("" if index else where, code(path), _listed([*map(_symbol, symbols)]))
        for where, files in grouped.items()
        for index, (path, symbols) in enumerate(files.items())
    )
    return escaping.table(("where", "path", "symbol"), rows)


def _source(item: PackageUpstream | RepositoryUpstream) -> tuple[SafeMarkdown, SafeMarkdown]:
    """Return where an upstream comes from, and the release or ref."""
    if isinstance(item, PackageUpstream):
        return SafeMarkdown(f"{code(item.package)} on PyPI"), code(item.version)
    return inline(item.repo), code(item.ref)


_UPSTREAM: Columns = MappingProxyType(
    {
        "id": ("upstream", lambda _, pair: code(pair[0])),
        "name": ("here called", lambda _, pair: inline(versions.label(pair[1]))),
        "source": ("source", lambda _, pair: _source(pair[1])[0]),
        "ref": ("ref or release", lambda _, pair: _source(pair[1])[1]),
        "commit": (
            "commit",
            lambda _, pair: code(pair[1].commit) if pair[1].commit else SafeMarkdown("-"),
        ),
    }
)


_LINE: Columns = MappingProxyType(
    {
        "id": ("line", lambda _, line: code(line.id)),
        "repo": ("repository", lambda _, line: inline(line.repo)),
        "says": ("what it is", lambda _, line: inline(line.says)),
        "trains": ("can train", lambda _, line: inline(versions.can_train(line))),
        "at": ("checked at", lambda request, line: inline(versions.checked(request.card, line))),
    }
)
_LINES = _Listing(
    "line of the card", _by_id("lines"), {"table": (_LINE, ("id", "says", "trains", "at"))}
)


def _dated_lines(request: BlockRequest) -> tuple[str, ...]:
    """Return the lines of upstream as a table, with the day on which they were looked at."""
    day = request.card.validated_on.isoformat()
    note = f"Looked at on {day}. To check a checkout: `ringproof stack --upstream SPEC`."
    return *_LINES(request), "", note


def _version_matrix(request: BlockRequest) -> tuple[str, ...]:
    """Return the names that exist in each version, as a table per repository."""
    card, block = request.card, request.block
    block.refuse_others(("only", "except", "at"))
    lock = request.needed_lock()
    in_rows = {name: name for row in card.version_matrix for name in row.anchors}
    chosen = block.selected(in_rows, "anchor of the version matrix")
    made: list[str] = []
    for found in versions.matrices(card, lock, only=chosen, at=request.upstreams("at")):
        headings = (found.repository, *(version.label for version in found.versions))
        rows = [(about, *map(_names, cells)) for about, cells in found.rows]
        made += (*escaping.table(headings, rows), "")
    noted = (_DAGGER_NOTE, "") if any(f"`{_DAGGER}" in line for line in made) else ()
    return (*made, *noted)[:-1]


def _names(found: Mapping[str, bool]) -> SafeMarkdown:
    names = ((code(short_symbol(symbol)), whole) for symbol, whole in found.items())
    return _listed([name if whole else SafeMarkdown(name + _DAGGER) for name, whole in names])


def short_symbol(symbol: str) -> str:
    """Return a symbol without its scope if its own name is specific enough."""
    last = re.split(r"\.|::", symbol)[-1]
    return last if _TELLING.fullmatch(last) else symbol


# -- statements ----------------------------------------------------------------------------------


def _unproven(proof: tuple[str, ...]) -> str | None:
    """Return why a statement has no proof, or ``None`` if it has one."""
    first = parse_proof(proof[0])
    return first.target if first.kind is ProofKind.UNPROVEN else None


def _flagged(text: SafeMarkdown, proof: tuple[str, ...]) -> SafeMarkdown:
    return text if _unproven(proof) is None else SafeMarkdown(f"{text} *(unproven)*")


def _proof(_: BlockRequest, item: Any) -> SafeMarkdown:
    reason = _unproven(item.proof)
    if reason is not None:
        return SafeMarkdown(f"unproven: {inline(reason)}")
    kinds = {parse_proof(entry).kind for entry in item.proof}
    words = {ProofKind.PYTEST: "test", ProofKind.ANCHOR: "anchor"}
    return SafeMarkdown(", ".join(word for kind, word in words.items() if kind in kinds))


def _evidence(request: BlockRequest) -> tuple[str, ...]:
    """Return one line: how many statements about upstream were executed, read, or neither."""
    request.block.refuse_others(())
    about = request.about
    if about is None:
        remedy = "record them with `ringproof prove --record evidence`"
        raise request.block.refusal(None, "needs an evidence record with counts", remedy)
    own = about["reference executed"] + about["derived"]
    text = (
        f"Of {sum(about.values())} statements about upstream, {about['upstream executed']} were "
        f"checked by executing upstream's code, {about['read']} by reading it, {own} only in "
        f"ringproof's own code, and {about['none']} are not proven."
    )
    return "", inline(text)


_ID = ("id", lambda _, item: code(item.id))
_PROOF = ("proof", _proof)


def _brief(item: Constraint | Claim) -> str:
    return item.short or item.says


_SAID: Columns = MappingProxyType(
    {
        "id": _ID,
        "says": ("says", lambda _, item: inline(item.says)),
        "short": ("says", lambda _, item: _flagged(inline(_brief(item)), item.proof)),
        "proof": _PROOF,
    }
)


def _bulleted(items: Sequence[Constraint | Claim]) -> tuple[str, ...]:
    return escaping.bullets(_flagged(escaping.opening(_brief(item)), item.proof) for item in items)


_SAID_STYLES: Mapping[str, Style] = MappingProxyType(
    {"list": _bulleted, "table": (_SAID, ("id", "says", "proof"))}
)


def _pitfall(*, short: bool) -> Columns:
    """Return the columns of pitfalls, with their short texts where they have them."""

    def cell(name: str) -> Callable[[BlockRequest, Pitfall], SafeMarkdown]:
        def text(_: BlockRequest, item: Pitfall) -> SafeMarkdown:
            brief = getattr(item.short, name, None) if short else None
            full = "; ".join(item.affects) if name == "affects" else getattr(item, name)
            return inline(full if brief is None else brief)

        return text

    flagged = ("id", lambda _, item: _flagged(code(item.id), item.proof))
    headings = {"symptom": "symptom", "cause": "cause", "remedy": "do", "affects": "versions"}
    cells = {name: (heading, cell(name)) for name, heading in headings.items()}
    return {"id": flagged if short else _ID, **cells, "proof": _PROOF}


_SHORT, _FULL = _pitfall(short=True), _pitfall(short=False)

_MARKER: Columns = MappingProxyType(
    {
        "id": _ID,
        "pattern": ("regular expression", lambda _, item: code(item.pattern)),
        "where": ("where", lambda _, item: inline(item.where)),
        "says": ("shows", lambda _, item: inline(item.says or "")),
        "proof": _PROOF,
    }
)


def _needs(item: Command) -> str:
    if isinstance(item.needs, GpuNeed):
        return f"{item.needs.gpus} GPU{'s' if item.needs.gpus > 1 else ''}"
    return "CPU" if item.needs == "cpu" else item.needs


_COMMAND: Columns = MappingProxyType(
    {
        "id": _ID,
        "run": ("command", lambda _, item: code(item.run)),
        "expects": ("success", lambda _, item: inline(item.expects)),
        "needs": ("needs", lambda _, item: inline(_needs(item))),
        "proof": _PROOF,
    }
)


def _fences(items: Sequence[Command]) -> tuple[str, ...]:
    """Return a sentence about each command, its code block and an empty line."""
    lines: list[str] = []
    for item in items:
        needs, reason = _needs(item), _unproven(item.proof)
        why = "" if reason in (None, f"needs {needs}") else f": {inline(str(reason))}"
        state = "" if reason is None else f"; unproven here{why}"
        where = "on CPU" if needs == "CPU" else f"needs {inline(needs)}"
        about = f"{code(item.id)} ({where}{state}). Success: {inline(item.expects)}"
        lines += (about, "", *escaping.fence(item.run), "")
    return tuple(lines[:-1])


KINDS: Mapping[str, Callable[[BlockRequest], tuple[str, ...]]] = MappingProxyType(
    {
        "anchors": _anchors,
        "constraints": _Listing("constraint", _by_id("constraints"), _SAID_STYLES),
        "pitfalls": _Listing(
            "pitfall",
            _by_id("pitfalls"),
            {"short": (_SHORT, tuple(_SHORT)[:-1]), "full": (_FULL, tuple(_FULL))},
        ),
        "commands": _Listing(
            "command",
            _by_id("commands"),
            {"fences": _fences, "table": (_COMMAND, ("id", "run", "expects", "needs"))},
        ),
        "markers": _Listing(
            "marker", _by_id("markers"), {"table": (_MARKER, ("pattern", "where", "says"))}
        ),
        "claims": _Listing("claim", _by_id("claims"), _SAID_STYLES),
        "kinds": _evidence,
        "lines": _dated_lines,
        "upstreams": _Listing(
            "upstream of the card",
            lambda card: {name: (name, item) for name, item in card.upstreams.items()},
            {"table": (_UPSTREAM, ("name", "source", "ref", "commit"))},
        ),
        "version-matrix": _version_matrix,
    }
)
