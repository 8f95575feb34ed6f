"""The kinds of generated blocks: what each one lists, and as which tables or lists."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from ringproof.anchors.lock import Lock, permalink
from ringproof.cards.card import Anchor, Card
from ringproof.errors import shown
from ringproof.render import versions
from ringproof.render.blocks import GeneratedBlock, nearest
from ringproof.render.escaping import SafeMarkdown, code, inline, link
from ringproof.render.filling import fill, listed, symbol, table, text_template

_DAGGER = " †"
# `cp_comm_type` needs no class before it; `forward` and `__init__` do.
_TELLING = re.compile(r"(?!__)_?[^\W_]\w*_\w*[^\W_](?:#\d+)?")

Columns = Mapping[str, tuple[str, str]]
"""Heading and template of the cells of each column. Cells find ``item`` and ``request``."""


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
            raise self.block.refusal(
                f"{shown(kind)} is not a kind of block; {nearest(kind, tuple(KINDS))}"
            )
        return tuple(KINDS[kind](self).split("\n"))

    def needed_lock(self) -> Lock:
        """Return the lock; raise `InputError` if there is none, or it does not match the card."""
        remedy = "write it with `ringproof anchors lock`"
        if self.lock is None:
            raise self.block.refusal(f"the block needs anchors.lock, which is missing; {remedy}")
        stale = next(versions.lock_differences(self.card, self.lock), None)
        if stale is not None:
            raise self.block.refusal(f"anchors.lock is older than the card: it {stale}; {remedy}")
        return self.lock

    def upstreams(self, key: str) -> tuple[str, ...]:
        """Return the upstreams of the card that a key names."""
        return self.block.known(key, tuple(self.card.upstreams), "upstream of the card")


@dataclass(frozen=True)
class _Table:
    """A table of items.

    Attributes:
        default: Columns that are shown if the block names none.
    """

    columns: Columns
    default: Sequence[str]


_Style = _Table | str | Callable[[Card, Sequence[Any]], SafeMarkdown]


@dataclass(frozen=True)
class _Listing:
    """A kind of block that lists items of the card.

    Attributes:
        what: Name of an item, for messages.
        items: The items by id, or the part of the card that has them.
        styles: A table, the template of another form, or a function, by style; the first by
            default.
    """

    what: str
    items: Callable[[Card], Mapping[str, Any]] | str
    styles: Mapping[str, _Style]

    def __call__(self, request: BlockRequest, keys: Sequence[str] = ()) -> SafeMarkdown:
        """Return the text of a block.

        Args:
            keys: Keys of the block apart from ``only``, ``except``, ``style`` and ``columns``.
        """
        block, part = request.block, self.items
        style_key = ("style",) if len(self.styles) > 1 else ()
        block.refuse_others(("only", "except", *keys, *style_key, "columns"))
        items = (
            {item.id: item for item in getattr(request.card, part)}
            if isinstance(part, str)
            else part(request.card)
        )
        chosen = block.selected(items, self.what)
        name = block.one_of("style", tuple(self.styles))
        style = self.styles[name]
        if isinstance(style, _Table):
            names = block.known("columns", tuple(style.columns), f"column of {block.kind}")
            columns = [style.columns[key] for key in names or style.default]
            cells = [text_template(text) for _, text in columns]
            always = {"request": request, "places": _places, "versions": versions}
            rows = [[cell(item=item, **always) for cell in cells] for item in chosen]
            return table([heading for heading, _ in columns], rows)
        if block.values("columns"):
            raise block.refusal(f"style={name} has no columns; leave columns out")
        if isinstance(style, str):
            return fill(style, items=chosen)
        return style(request.card, chosen)


# -- places in upstream --------------------------------------------------------------------------


def _places(request: BlockRequest, anchor: Anchor, *, numbers: bool) -> SafeMarkdown:
    """Return the versions that have an anchor, with line numbers or with permalinks."""
    cells = []
    card, lock, at = request.card, request.needed_lock(), request.upstreams("at")
    for version, upstream, place in versions.found_places(card, lock, anchor, at):
        page = None if numbers else permalink(upstream, place)
        lines = f" L{place.start}-L{place.end}" if numbers else ""
        text = inline(f"{version.label}{lines}")
        cells.append(text if page is None else link(version.label, page))
    return listed(cells)


_ANCHOR: Columns = MappingProxyType(
    {
        "id": ("anchor", "{{ item.id | code }}"),
        "where": ("where", "{{ versions.home(request.card, item) }}"),
        "path": ("path", "{{ item.path | code }}"),
        "symbol": ("symbol", "{{ item.symbol | symbol }}"),
        "role": ("what it does", "{{ item.short or item.role }}"),
        "expects": (
            "contains",
            "{% for part in item.expects %}{{ part | code }}{% if not loop.last %}, {% endif %}"
            "{% endfor %}",
        ),
        "links": ("in", "{{ places(request, item, numbers=False) }}"),
        "lines": ("in", "{{ places(request, item, numbers=True) }}"),
    }
)


def _anchors(request: BlockRequest) -> SafeMarkdown:
    """Return anchors as a table of roles, places, or files with their symbols."""
    wanted = request.upstreams("upstream")
    listing = _Listing(
        "anchor of that upstream" if wanted else "anchor of this card",
        lambda card: {a.id: a for a in card.anchors if not wanted or a.upstream in wanted},
        {
            "compact": _Table(_ANCHOR, ("path", "symbol", "role")),
            "files": _files,
            "links": _Table(_ANCHOR, ("id", "symbol", "role", "links")),
            "lines": _Table(_ANCHOR, ("id", "path", "symbol", "lines")),
        },
    )
    return listing(request, ("upstream", "at"))


def _files(card: Card, items: Sequence[Anchor]) -> SafeMarkdown:
    """Return a row per file, without repeating the upstream of the row above."""
    grouped: dict[str, dict[str, dict[str | None, None]]] = {}
    for anchor in items:
        files = grouped.setdefault(versions.home(card, anchor), {})
        files.setdefault(anchor.path, {})[anchor.symbol] = None
    rows = [
        ("" if index else where, code(path), listed(map(symbol, symbols)))
        for where, files in grouped.items()
        for index, (path, symbols) in enumerate(files.items())
    ]
    return table(("where", "path", "symbol"), rows)


_UPSTREAM: Columns = MappingProxyType(
    {
        "id": ("upstream", "{{ item[0] | code }}"),
        "name": ("here called", "{{ versions.label(item[1]) }}"),
        "source": (
            "source",
            "{% if item[1].package is defined %}{{ item[1].package | code }} on PyPI"
            "{% else %}{{ item[1].repo }}{% endif %}",
        ),
        "ref": (
            "ref or release",
            "{{ (item[1].version if item[1].version is defined else item[1].ref) | code }}",
        ),
        "commit": (
            "commit",
            "{% if item[1].commit %}{{ item[1].commit | code }}{% else %}-{% endif %}",
        ),
    }
)

_LINE: Columns = MappingProxyType(
    {
        "id": ("line", "{{ item.id | code }}"),
        "repo": ("repository", "{{ item.repo }}"),
        "says": ("what it is", "{{ item.says }}"),
        "trains": ("can train", "{{ versions.can_train(item) }}"),
        "at": ("checked at", "{{ versions.checked(request.card, item) }}"),
    }
)
_LINES = _Listing(
    "line of the card", "lines", {"table": _Table(_LINE, ("id", "says", "trains", "at"))}
)


def _dated_lines(request: BlockRequest) -> SafeMarkdown:
    """Return the lines of upstream as a table, with the day on which they were looked at."""
    return fill("lines.md.j2", table=_LINES(request), day=request.card.validated_on)


def _version_matrix(request: BlockRequest) -> SafeMarkdown:
    """Return the names that exist in each version, as a table per repository."""
    card, block = request.card, request.block
    block.refuse_others(("only", "except", "at"))
    lock = request.needed_lock()
    in_rows = {name: name for row in card.version_matrix for name in row.anchors}
    chosen = block.selected(in_rows, "anchor of the version matrix")
    tables = []
    for found in versions.matrices(card, lock, only=chosen, at=request.upstreams("at")):
        headings = (found.repository, *(version.label for version in found.versions))
        tables.append(
            table(headings, [(about, *map(_names, cells)) for about, cells in found.rows])
        )
    return fill("matrix.md.j2", tables=tables, noted=any(f"`{_DAGGER}" in one for one in tables))


def _names(found: Mapping[str, bool]) -> SafeMarkdown:
    names = ((code(short_symbol(symbol)), whole) for symbol, whole in found.items())
    return listed(name if whole else SafeMarkdown(name + _DAGGER) for name, whole in names)


def short_symbol(symbol: str) -> str:
    """Return a symbol without its scope if its own name is specific enough."""
    last = re.split(r"\.|::", symbol)[-1]
    return last if _TELLING.fullmatch(last) else symbol


# -- statements ----------------------------------------------------------------------------------


def _evidence(request: BlockRequest) -> SafeMarkdown:
    """Return one line: how many statements about upstream were executed, read, or neither."""
    request.block.refuse_others(())
    if request.about is None:
        raise request.block.refusal(
            "the block needs an evidence record with counts; "
            "record them with `ringproof prove --record evidence`"
        )
    return fill("evidence.md.j2", about=request.about)


_ID = ("id", "{{ item.id | code }}")
_FLAGGED_ID = ("id", "{{ item.id | code }}{{ item | flag }}")
_PROOF = ("proof", "{{ item | proof }}")
_SAID: Columns = MappingProxyType(
    {
        "id": _ID,
        "says": ("says", "{{ item.says }}"),
        "short": ("says", "{{ item.short or item.says }}{{ item | flag }}"),
        "proof": _PROOF,
    }
)
_SAID_STYLES: Mapping[str, _Style] = MappingProxyType(
    {"list": "list.md.j2", "table": _Table(_SAID, ("id", "says", "proof"))}
)
_FULL_PITFALL: Columns = MappingProxyType(
    {
        "id": _ID,
        "symptom": ("symptom", "{{ item.symptom }}"),
        "cause": ("cause", "{{ item.cause }}"),
        "remedy": ("do", "{{ item.remedy }}"),
        "affects": ("versions", "{{ item.affects | join('; ') }}"),
        "proof": _PROOF,
    }
)
_SHORT_PITFALL: Columns = MappingProxyType(
    {
        "id": _FLAGGED_ID,
        "symptom": ("symptom", "{{ item | short('symptom') }}"),
        "cause": ("cause", "{{ item | short('cause') }}"),
        "remedy": ("do", "{{ item | short('remedy') }}"),
        "affects": (
            "versions",
            "{{ item | short('affects') }}",
        ),
        "proof": _PROOF,
    }
)
_MARKER: Columns = MappingProxyType(
    {
        "id": _ID,
        "pattern": ("regular expression", "{{ item.pattern | code }}"),
        "where": ("where", "{{ item.where }}"),
        "says": ("shows", "{{ item.says or '' }}"),
        "proof": _PROOF,
    }
)
_COMMAND: Columns = MappingProxyType(
    {
        "id": _ID,
        "run": ("command", "{{ item.run | code }}"),
        "expects": ("success", "{{ item.expects }}"),
        "needs": ("needs", "{{ item | needs }}"),
        "proof": _PROOF,
    }
)

KINDS: Mapping[str, Callable[[BlockRequest], SafeMarkdown]] = MappingProxyType(
    {
        "anchors": _anchors,
        "constraints": _Listing("constraint", "constraints", _SAID_STYLES),
        "pitfalls": _Listing(
            "pitfall",
            "pitfalls",
            {
                "short": _Table(_SHORT_PITFALL, tuple(_SHORT_PITFALL)[:-1]),
                "full": _Table(_FULL_PITFALL, tuple(_FULL_PITFALL)),
            },
        ),
        "commands": _Listing(
            "command",
            "commands",
            {
                "fences": "fences.md.j2",
                "table": _Table(_COMMAND, ("id", "run", "expects", "needs")),
            },
        ),
        "markers": _Listing(
            "marker", "markers", {"table": _Table(_MARKER, ("pattern", "where", "says"))}
        ),
        "claims": _Listing("claim", "claims", _SAID_STYLES),
        "kinds": _evidence,
        "lines": _dated_lines,
        "upstreams": _Listing(
            "upstream of the card",
            lambda card: {name: (name, item) for name, item in card.upstreams.items()},
            {"table": _Table(_UPSTREAM, ("name", "source", "ref", "commit"))},
        ),
        "version-matrix": _version_matrix,
    }
)
