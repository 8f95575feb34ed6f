"""Renders blocks about places in upstream: anchors, upstreams and the version matrix.

A wheel and the commit from which it was built are one version of a repository.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from ringproof.harness.anchors.lock import Lock, LockedPlace, permalink
from ringproof.harness.cards.model import (
    Anchor,
    Card,
    PackageUpstream,
    RepositoryUpstream,
    UpstreamLine,
)
from ringproof.harness.rendering.content import BlockRequest, Column, Layout, listing, table
from ringproof.harness.rendering.escaping import Safe, code, inline, joined, link

_DASH = Safe("-")
_DAGGER = Safe(" †")
_DAGGER_NOTE = (
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


def _links(request: BlockRequest, anchor: Anchor) -> Safe:
    """Return the places of an anchor as permalinks, or as text if no commit is known."""
    cells = []
    for version, upstream, place in _found_places(request, anchor):
        page = permalink(request.needed_lock().upstreams[upstream], place)
        cells.append(inline(version.label) if page is None else link(version.label, page))
    return joined(", ", cells) if cells else _DASH


def _lines(request: BlockRequest, anchor: Anchor) -> Safe:
    cells = [
        inline(f"{version.label} L{place.start}-L{place.end}")
        for version, _, place in _found_places(request, anchor)
    ]
    return joined(", ", cells) if cells else _DASH


def _found_places(
    request: BlockRequest, anchor: Anchor
) -> Iterator[tuple[Version, str, LockedPlace]]:
    for version in _versions_of(request, anchor):
        found = found_place(request.needed_lock(), anchor, version)
        if found is not None:
            yield version, *found


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
        "id": ("anchor", lambda _, item: code(item.id)),
        "where": ("where", _where),
        "path": ("path", lambda _, item: code(item.path)),
        "symbol": ("symbol", lambda _, item: code(item.symbol)),
        "role": ("what it does", lambda _, item: inline(item.short or item.role)),
        "expects": ("contains", lambda _, item: joined(", ", [code(t) for t in item.expects])),
        "links": ("in", _links),
        "lines": ("in", _lines),
    }
)


def anchors(request: BlockRequest) -> tuple[str, ...]:
    """Return anchors as a table of roles, places, or files with their symbols."""
    wanted = request.known("upstream", tuple(request.card.upstreams), "upstream of the card")
    items = {a.id: a for a in request.card.anchors if not wanted or a.upstream in wanted}
    what = "anchor of that upstream" if wanted else "anchor of this card"
    styles: Mapping[str, Layout[Anchor]] = {
        "compact": (_ANCHOR, ("path", "symbol", "role")),
        "files": _files,
        "links": (_ANCHOR, ("id", "symbol", "role", "links")),
        "lines": (_ANCHOR, ("id", "path", "symbol", "lines")),
    }
    return listing(request, items, what, styles, keys=("upstream", "at"))


def _files(request: BlockRequest, items: Sequence[Anchor]) -> tuple[str, ...]:
    """Return a row per file, without repeating the upstream of the row above."""
    grouped: dict[Safe, dict[str, list[Safe]]] = {}
    for anchor in items:
        files = grouped.setdefault(_where(request, anchor), {})
        symbols = files.setdefault(anchor.path, [])
        symbols += [name] if (name := code(anchor.symbol)) not in symbols else []
    rows = (
        (Safe("") if index else where, code(path), joined(", ", symbols))
        for where, files in grouped.items()
        for index, (path, symbols) in enumerate(files.items())
    )
    return table(("where", "path", "symbol"), rows)


def _source(item: _Upstream) -> Safe:
    if isinstance(item, PackageUpstream):
        return Safe(f"{code(item.package)} on PyPI")
    return inline(item.repo)


def _ref(item: _Upstream) -> str:
    return item.version if isinstance(item, PackageUpstream) else item.ref


_UPSTREAM: Mapping[str, Column[tuple[str, _Upstream]]] = MappingProxyType(
    {
        "id": ("upstream", lambda _, pair: code(pair[0])),
        "name": ("here called", lambda _, pair: inline(label(pair[1]))),
        "source": ("source", lambda _, pair: _source(pair[1])),
        "ref": ("ref or release", lambda _, pair: code(_ref(pair[1]))),
        "commit": ("commit", lambda _, pair: code(pair[1].commit) if pair[1].commit else _DASH),
    }
)


def upstreams(request: BlockRequest) -> tuple[str, ...]:
    """Return the upstreams of the card as a table."""
    items = {name: (name, upstream) for name, upstream in request.card.upstreams.items()}
    styles = {"table": (_UPSTREAM, ("name", "source", "ref", "commit"))}
    return listing(request, items, "upstream of the card", styles)


def _checked_at(card: Card, line: UpstreamLine) -> Safe:
    """Return the versions of a line that were checked, each once, or why there are none."""
    names = dict.fromkeys(label(card.upstreams[name]) for name in line.upstreams)
    return inline(", ".join(names) if names else f"not checked: {line.unread}")


_LINE: Mapping[str, Column[UpstreamLine]] = MappingProxyType(
    {
        "id": ("line", lambda _, line: code(line.id)),
        "repo": ("repository", lambda _, line: inline(line.repo)),
        "says": ("what it is", lambda _, line: inline(line.says)),
        "trains": (
            "can train",
            lambda _, line: inline("yes" if line.trains else f"no: {line.because}"),
        ),
        "at": ("checked at", lambda request, line: _checked_at(request.card, line)),
    }
)


def lines(request: BlockRequest) -> tuple[str, ...]:
    """Return the lines of upstream as a table, with the day on which they were looked at."""
    items = {line.id: line for line in request.card.lines}
    styles = {"table": (_LINE, ("id", "says", "trains", "at"))}
    day = request.card.validated_on.isoformat()
    note = f"Looked at on {day}. To check a checkout: `ringproof stack PATH`."
    return *listing(request, items, "line of the card", styles), "", note


def version_matrix(request: BlockRequest) -> tuple[str, ...]:
    """Return the names that exist in each version, as a table per repository."""
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
    made: list[str] = []
    for repository in dict.fromkeys(version.repository for version in versions(request.card)):
        made += _matrix(request, lock, repository, rows)
    noted = (_DAGGER_NOTE, "") if any(f"`{_DAGGER}" in line for line in made) else ()
    return (*made, *noted)[:-1]


def _matrix(
    request: BlockRequest, lock: Lock, repository: str, rows: Sequence[tuple[str, Sequence[Anchor]]]
) -> tuple[str, ...]:
    """Return a table of the rows with anchors of one repository, and an empty line.

    The table has a column for each version. There are no lines without such rows.
    """
    made: list[tuple[Safe, ...]] = []
    columns: Sequence[Version] = ()
    for about, row in rows:
        members = [a for a in row if _repository(request.card, a.upstream) == repository]
        if members:
            columns = _versions_of(request, members[0])
            cells = (_cell(lock, members, version) for version in columns)
            made.append((inline(about), *cells))
    if not made:
        return ()
    return *table((repository, *(version.label for version in columns)), made), ""


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
