"""The kinds of generated blocks: what each one lists, and as which tables or lists."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from ringproof.anchors.lock import Lock, permalink
from ringproof.cards.card import Anchor, Card
from ringproof.render import versions
from ringproof.render.blocks import GeneratedBlock
from ringproof.render.escaping import SafeMarkdown, code, inline, link
from ringproof.render.filling import fill, listed, symbol, table, text_template
from ringproof.tables import read_table

_DAGGER = " †"
# `cp_comm_type` needs no class before it; `forward` and `__init__` do.
_TELLING = re.compile(r"(?!__)_?[^\W_]\w*_\w*[^\W_](?:#\d+)?")

_TABLES = MappingProxyType(read_table("ringproof.render", "kinds.toml"))


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
        self.block.check(kind, tuple(KINDS), "kind of block")
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


def _listing(request: BlockRequest) -> SafeMarkdown:
    """Return items of the card in one of the styles that ``kinds.toml`` has for this kind."""
    kind, block, card = request.block.kind, request.block, request.card
    what, styles = _TABLES["kinds"][kind]["what"], dict(_TABLES["kinds"][kind])
    del styles["what"]
    of_anchors = ("upstream", "at") if kind == "anchors" else ()
    style_key = ("style",) if len(styles) > 1 else ()
    block.refuse_others(("only", "except", *of_anchors, *style_key, "columns"))
    part = getattr(card, kind)
    named = part.items() if kind == "upstreams" else ((item.id, item) for item in part)
    items: dict[str, Any] = {
        name: (name, item) if kind == "upstreams" else item for name, item in named
    }
    if wanted := request.upstreams("upstream") if kind == "anchors" else ():
        items = {name: item for name, item in items.items() if item.upstream in wanted}
        what = "anchor of that upstream"
    chosen = block.selected(items, what)
    name = block.one_of("style", tuple(styles))
    if isinstance(styles[name], dict):
        return _table(request, chosen, **styles[name])
    if block.values("columns"):
        raise block.refusal(f"style={name} has no columns; leave columns out")
    return _files(card, chosen) if name == "files" else fill(styles[name], items=chosen)


def _table(
    request: BlockRequest, items: Sequence[Any], columns: str, default: Sequence[str]
) -> SafeMarkdown:
    """Return a table of items.

    Args:
        columns: Name of the columns in ``kinds.toml``.
        default: The columns that are shown if the block names none.
    """
    known = _TABLES["columns"][columns]
    names = request.block.known("columns", tuple(known), f"column of {request.block.kind}")
    shown_columns = [known[name] for name in names or default]
    cells = [text_template(text) for _, text in shown_columns]
    always = {"request": request, "places": _places, "versions": versions}
    rows = [[cell(item=item, **always) for cell in cells] for item in items]
    return table([heading for heading, _ in shown_columns], rows)


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


def _dated_lines(request: BlockRequest) -> SafeMarkdown:
    """Return the lines of upstream as a table, with the day of the code, or of the last look."""
    card = request.card
    newest, day = card.newest_commit, card.validated_on
    return fill("lines.md.j2", table=_listing(request), newest=newest, day=day)


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


KINDS: Mapping[str, Callable[[BlockRequest], SafeMarkdown]] = MappingProxyType(
    {
        **dict.fromkeys(_TABLES["kinds"], _listing),
        "kinds": _evidence,
        "lines": _dated_lines,
        "version-matrix": _version_matrix,
    }
)
