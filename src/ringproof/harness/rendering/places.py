"""Renders blocks about places in upstream: anchors, upstreams and the version matrix.

A wheel and the commit from which it was built are one version of a repository.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from ringproof.harness.anchors.lock import Lock, LockedPlace, permalink
from ringproof.harness.cards.model import (
    Anchor,
    Card,
    PackageUpstream,
    RepositoryUpstream,
    UpstreamLine,
)
from ringproof.harness.rendering.content import (
    BlockRequest,
    Column,
    Content,
    Table,
    refuse_columns,
    table,
)
from ringproof.harness.rendering.escaping import Safe, code, inline, joined, link

_DASH = Safe("-")
_DAGGER = Safe(" †")
_DAGGER_NOTE = Safe(
    "† The name is there, but not all that its anchor expects in it: that version does it "
    "differently."
)
# `cp_comm_type` needs no class before it; `forward` and `__init__` do.
_TELLING = re.compile(r"(?!__)_?[^\W_]\w*_\w*[^\W_](?:#\d+)?")

_Upstream = PackageUpstream | RepositoryUpstream
_PULL_REQUEST = re.compile(r"(?:pull-request|pull|pr)/(\d+)(?:/(?:head|merge))?")
_RELEASE = re.compile(r"(?:.*[_/-])?([rv]?\d+(?:\.\d+)+\w*)")
_SHORT_COMMIT = 8


@dataclass(frozen=True)
class Version:
    """A version of a repository, which one or more upstreams of the card name.

    Attributes:
        repository: ``OWNER/NAME``, or the upstream's key in the card if it is not known.
    """

    label: str
    repository: str
    names: tuple[str, ...]


def label(upstream: _Upstream) -> str:
    """Return the name of an upstream in tables: its label, the release, or ref and commit."""
    if upstream.label is not None:
        return upstream.label
    if isinstance(upstream, PackageUpstream):
        return upstream.version
    request = _PULL_REQUEST.fullmatch(upstream.ref)
    if request is not None:
        return f"PR {request[1]}"
    release = _RELEASE.fullmatch(upstream.ref)
    if release is not None:
        return release[1].removeprefix("v")
    return f"{upstream.ref} {upstream.commit[:_SHORT_COMMIT]}"


def product(upstream: _Upstream) -> str:
    """Return the name before the label: the package, or the repository without its owner."""
    if isinstance(upstream, PackageUpstream):
        return upstream.package
    return upstream.repo.partition("/")[2]


def versions(card: Card) -> tuple[Version, ...]:
    """Return the versions of a card in its order, each once."""
    grouped: dict[tuple[str, str], list[str]] = {}
    for name, upstream in card.upstreams.items():
        state = upstream.commit or f"{name} {label(upstream)}"
        grouped.setdefault((_repository(card, name), state), []).append(name)
    return tuple(
        Version(label(card.upstreams[names[0]]), repository, tuple(names))
        for (repository, _), names in grouped.items()
    )


def _repository(card: Card, name: str) -> str:
    return card.upstreams[name].repo or name


def found_place(lock: Lock, anchor: Anchor, version: Version) -> tuple[str, LockedPlace] | None:
    """Return upstream and place of an anchor in a version, preferably with a commit."""
    places = lock.anchors[anchor.id].places
    found = [
        (name, places[name])
        for name in version.names
        if name in places and places[name].status == "found"
    ]
    linked = [pair for pair in found if permalink(lock.upstreams[pair[0]], pair[1]) is not None]
    return next(iter((*linked, *found)), None)


def _where(request: BlockRequest, anchor: Anchor) -> Safe:
    upstream = request.card.upstreams[anchor.upstream]
    return inline(f"{product(upstream)} {label(upstream)}")


def _role(item: Anchor) -> Safe:
    return inline(item.short or item.role)


def _expects(item: Anchor) -> Safe:
    return joined(", ", [code(text) for text in item.expects])


def _links(request: BlockRequest, anchor: Anchor) -> Safe:
    """Return the places of an anchor as permalinks, or as text if no commit is known."""
    lock = request.needed_lock()
    cells = []
    for version in _versions_of(request, anchor):
        found = found_place(lock, anchor, version)
        if found is not None:
            page = permalink(lock.upstreams[found[0]], found[1])
            cells.append(inline(version.label) if page is None else link(version.label, page))
    return joined(", ", cells) if cells else _DASH


def _lines(request: BlockRequest, anchor: Anchor) -> Safe:
    lock = request.needed_lock()
    cells = []
    for version in _versions_of(request, anchor):
        found = found_place(lock, anchor, version)
        if found is not None:
            place = found[1]
            cells.append(inline(f"{version.label} L{place.start}-L{place.end}"))
    return joined(", ", cells) if cells else _DASH


def _versions_of(request: BlockRequest, anchor: Anchor) -> list[Version]:
    repository = _repository(request.card, anchor.upstream)
    asked = request.known("at", tuple(request.card.upstreams), "upstream of the card")
    return [
        version
        for version in versions(request.card)
        if version.repository == repository and (not asked or set(asked) & set(version.names))
    ]


_ANCHOR: Mapping[str, Column[Anchor]] = MappingProxyType(
    {
        "id": Column("anchor", lambda _, item: code(item.id)),
        "where": Column("where", _where),
        "path": Column("path", lambda _, item: code(item.path)),
        "symbol": Column("symbol", lambda _, item: code(item.symbol)),
        "role": Column("what it does", lambda _, item: _role(item)),
        "expects": Column("contains", lambda _, item: _expects(item)),
        "links": Column("in", _links),
        "lines": Column("in", _lines),
    }
)
_ANCHOR_STYLES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "compact": ("path", "symbol", "role"),
        "files": (),
        "links": ("id", "symbol", "role", "links"),
        "lines": ("id", "path", "symbol", "lines"),
    }
)


def anchors(request: BlockRequest) -> Content:
    """Render anchors as a table of roles, places, or files with their symbols."""
    request.refuse_others(("only", "except", "upstream", "at", "style", "columns"))
    wanted = request.known("upstream", tuple(request.card.upstreams), "upstream of the card")
    items = {a.id: a for a in request.card.anchors if not wanted or a.upstream in wanted}
    chosen = request.selected(
        items, "anchor of this card" if not wanted else "anchor of that upstream"
    )
    style = request.one_of("style", tuple(_ANCHOR_STYLES))
    if style != "files":
        return table(request, chosen, _ANCHOR, _ANCHOR_STYLES[style])
    refuse_columns(request, style)
    return _files(request, chosen)


def _files(request: BlockRequest, items: Sequence[Anchor]) -> Content:
    """Render a row per file, without repeating the upstream of the row above."""
    grouped: dict[Safe, dict[str, list[Safe]]] = {}
    for anchor in items:
        files = grouped.setdefault(_where(request, anchor), {})
        symbols = files.setdefault(anchor.path, [])
        symbols += [name] if (name := code(anchor.symbol)) not in symbols else []
    rows = tuple(
        (Safe("") if index else where, code(path), joined(", ", symbols))
        for where, files in grouped.items()
        for index, (path, symbols) in enumerate(files.items())
    )
    headings = (Safe("where"), Safe("path"), Safe("symbol"))
    return Content("table", tables=(Table(headings, rows),))


def _source(item: _Upstream) -> Safe:
    if isinstance(item, PackageUpstream):
        return Safe(f"{code(item.package)} on PyPI")
    return inline(item.repo)


def _ref(item: _Upstream) -> Safe:
    return code(item.version if isinstance(item, PackageUpstream) else item.ref)


_NAMED = tuple[str, _Upstream]
_UPSTREAM: Mapping[str, Column[_NAMED]] = MappingProxyType(
    {
        "id": Column("upstream", lambda _, pair: code(pair[0])),
        "name": Column("here called", lambda _, pair: inline(label(pair[1]))),
        "source": Column("source", lambda _, pair: _source(pair[1])),
        "ref": Column("ref or release", lambda _, pair: _ref(pair[1])),
        "commit": Column(
            "commit", lambda _, pair: code(pair[1].commit) if pair[1].commit else _DASH
        ),
    }
)


def upstreams(request: BlockRequest) -> Content:
    """Render the upstreams of the card as a table."""
    request.refuse_others(("only", "except", "columns"))
    items = {name: (name, upstream) for name, upstream in request.card.upstreams.items()}
    chosen = request.selected(items, "upstream of the card")
    return table(request, chosen, _UPSTREAM, ("name", "source", "ref", "commit"))


def _checked_at(card: Card, line: UpstreamLine) -> Safe:
    """Return the versions of a line that were checked, each once, or why there are none."""
    names = dict.fromkeys(label(card.upstreams[name]) for name in line.upstreams)
    return inline(", ".join(names) if names else f"not checked: {line.unread}")


def _answer(line: UpstreamLine) -> Safe:
    return inline("yes" if line.trains else f"no: {line.because}")


_LINE: Mapping[str, Column[UpstreamLine]] = MappingProxyType(
    {
        "id": Column("line", lambda _, line: code(line.id)),
        "repo": Column("repository", lambda _, line: inline(line.repo)),
        "says": Column("what it is", lambda _, line: inline(line.says)),
        "trains": Column("can train", lambda _, line: _answer(line)),
        "at": Column("checked at", lambda request, line: _checked_at(request.card, line)),
    }
)


def lines(request: BlockRequest) -> Content:
    """Render the lines of upstream as a table, with the day on which they were looked at."""
    request.refuse_others(("only", "except", "columns"))
    items = {line.id: line for line in request.card.lines}
    chosen = request.selected(items, "line of the card")
    made = table(request, chosen, _LINE, ("id", "says", "trains", "at"))
    day = request.card.validated_on.isoformat()
    note = Safe(f"Looked at on {day}. To check a checkout: `ringproof stack PATH`.")
    return replace(made, notes=(*made.notes, note))


def version_matrix(request: BlockRequest) -> Content:
    """Render the names that exist in each version, as a table per repository."""
    request.refuse_others(("only", "except", "at"))
    lock = request.needed_lock()
    known = {anchor.id: anchor for anchor in request.card.anchors}
    in_rows = {name: known[name] for row in request.card.version_matrix for name in row.anchors}
    chosen = {anchor.id for anchor in request.selected(in_rows, "anchor of the version matrix")}
    rows = [
        (row.about, [known[name] for name in row.anchors if name in chosen])
        for row in request.card.version_matrix
        if chosen & set(row.anchors)
    ]
    repositories = dict.fromkeys(version.repository for version in versions(request.card))
    tables = tuple(
        made
        for repository in repositories
        if (made := _matrix(request, lock, repository, rows)) is not None
    )
    doubtful = any(_DAGGER in cell for made in tables for row in made.rows for cell in row[1:])
    return Content("table", tables=tables, notes=(_DAGGER_NOTE,) if doubtful else ())


def _matrix(
    request: BlockRequest, lock: Lock, repository: str, rows: Sequence[tuple[str, Sequence[Anchor]]]
) -> Table | None:
    """Render the rows with anchors of one repository, with a column for each version."""
    made: list[tuple[Safe, ...]] = []
    columns: Sequence[Version] = ()
    for about, row in rows:
        members = [a for a in row if _repository(request.card, a.upstream) == repository]
        if members:
            columns = _versions_of(request, members[0])
            cells = (_cell(lock, members, version) for version in columns)
            made.append((inline(about), *cells))
    if not made:
        return None
    headings = (inline(repository), *(inline(version.label) for version in columns))
    return Table(headings, tuple(made))


def _cell(lock: Lock, members: Sequence[Anchor], version: Version) -> Safe:
    """Return the names that exist in a version, each once."""
    names: dict[str, bool] = {}
    for anchor in members:
        found = found_place(lock, anchor, version)
        if found is not None:
            whole = found[1].missing == 0
            names[anchor.symbol] = names.get(anchor.symbol, False) or whole
    shown = [
        Safe(code(short_symbol(symbol)) + ("" if whole else _DAGGER))
        for symbol, whole in names.items()
    ]
    return joined(", ", shown) if shown else _DASH


def short_symbol(symbol: str) -> str:
    """Return a symbol without its scope if its own name is specific enough."""
    last = re.split(r"\.|::", symbol)[-1]
    return last if _TELLING.fullmatch(last) else symbol
