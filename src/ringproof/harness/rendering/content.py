"""What a generated block asks for, and its lines as a table or a list."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ringproof.harness.anchors.lock import Lock, concerns
from ringproof.harness.cards.model import Card, PackageUpstream
from ringproof.harness.rendering.blocks import GeneratedBlock
from ringproof.harness.rendering.escaping import Safe, inline

_SHOWN = 12

Item = TypeVar("Item")


def nearest(value: str, choices: Sequence[str]) -> str:
    """Return a remedy for a word that is not one of the choices."""
    near = difflib.get_close_matches(value, choices, n=1)
    if near:
        return f"did you mean `{near[0]}`?"
    listed = ", ".join(choices[:_SHOWN])
    more = f" and {len(choices) - _SHOWN} more" if len(choices) > _SHOWN else ""
    return f"choose from: {listed}{more}" if choices else "the card has none"


def lock_differences(card: Card, lock: Lock) -> Iterator[str]:
    """Yield why a lock does not match a card."""
    for anchor in card.anchors:
        locked = lock.anchors.get(anchor.id)
        if locked is None:
            yield f"lacks the anchor {anchor.id}"
            continue
        if (locked.path, locked.symbol) != (anchor.path, anchor.symbol):
            yield f"has the anchor {anchor.id} as it was before"
        for name in card.upstreams:
            if concerns(card, anchor, name) and name not in locked.places:
                yield f"lacks the upstream {name}"
    for name, resolved in lock.upstreams.items():
        now = card.upstreams.get(name)
        if now is not None and resolved.commit is not None and resolved.commit != now.commit:
            yield f"has the upstream {name} at another commit"
        if isinstance(now, PackageUpstream) and resolved.version not in (None, now.version):
            yield f"has the upstream {name} at another release"


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

    def option(self, key: str) -> tuple[str, ...]:
        """Return the values of a key; empty if it is not given."""
        return self.block.options.get(key, ())

    def needed_lock(self) -> Lock:
        """Return the lock; raise `InputError` if there is none, or it does not match the card."""
        remedy = "write it with `ringproof anchors lock`"
        if self.lock is None:
            raise self.block.refusal(None, "needs anchors.lock, which is not there", remedy)
        stale = next(lock_differences(self.card, self.lock), None)
        if stale is not None:
            problem = f"anchors.lock is older than the card: it {stale}"
            raise self.block.refusal(None, problem, remedy)
        return self.lock

    def refuse_others(self, keys: Sequence[str]) -> None:
        """Raise `InputError` for a key that this kind of block does not have."""
        for key in self.block.options:
            if key not in keys:
                remedy = nearest(key, keys)
                raise self.block.refusal(key, f"is not a key of {self.block.kind}", remedy)

    def one_of(self, key: str, choices: Sequence[str]) -> str:
        """Return the value of a key that takes one of some words; the first by default."""
        given = self.option(key)
        if not given:
            return choices[0]
        if len(given) > 1 or given[0] not in choices:
            value = ",".join(given)
            raise self.block.refusal(
                value, f"is not a {key} of {self.block.kind}", nearest(value, choices)
            )
        return given[0]

    def known(self, key: str, choices: Sequence[str], what: str) -> tuple[str, ...]:
        """Return the values of a key, each of which must be known and unique."""
        given = self.option(key)
        for index, value in enumerate(given):
            if value not in choices:
                raise self.block.refusal(value, f"is not a known {what}", nearest(value, choices))
            if value in given[:index]:
                raise self.block.refusal(value, f"stands twice in {key}", "name it once")
        return given

    def selected(self, items: Mapping[str, Item], what: str) -> tuple[Item, ...]:
        """Return the items of ``only`` in its order, or all except those of ``except``.

        Raises:
            InputError: An id is unknown, both keys are given, or nothing is left.
        """
        only = self.known("only", tuple(items), what)
        left_out = self.known("except", tuple(items), what)
        if only and left_out:
            raise self.block.refusal(None, "has both only and except", "give one of them")
        names = only or tuple(name for name in items if name not in left_out)
        if not names:
            problem = f"has no {what} to show"
            raise self.block.refusal(None, problem, "remove the block, or add one to the card")
        return tuple(items[name] for name in names)


Column = tuple[str, Callable[[BlockRequest, Item], Safe]]
"""Heading and cells of a column."""

Layout = (
    tuple[Mapping[str, Column[Item]], Sequence[str]]
    | Callable[[BlockRequest, Sequence[Item]], tuple[str, ...]]
)
"""A table, as its columns by key and the default ones, or a function that returns the lines."""


def listing(
    request: BlockRequest,
    items: Mapping[str, Item],
    what: str,
    styles: Mapping[str, Layout[Item]],
    *,
    keys: Sequence[str] = (),
) -> tuple[str, ...]:
    """Return the lines of a block that lists items of the card.

    Args:
        items: Items by id, from which the block selects.
        what: Name of an item, for messages.
        styles: Layout by style; the first by default.
        keys: Keys of the block apart from ``only``, ``except``, ``style`` and ``columns``.

    Raises:
        InputError: The block has another key, or a value of a key is not known.
    """
    style_key = ("style",) if len(styles) > 1 else ()
    request.refuse_others(("only", "except", *keys, *style_key, "columns"))
    chosen = request.selected(items, what)
    style = request.one_of("style", tuple(styles))
    layout = styles[style]
    if isinstance(layout, tuple):
        columns, default = layout
        known = request.known("columns", tuple(columns), f"column of {request.block.kind}")
        taken = [columns[name] for name in known or default]
        rows = [[cell(request, item) for _, cell in taken] for item in chosen]
        return table([heading for heading, _ in taken], rows)
    if request.option("columns"):
        problem, remedy = f"style={style} has no columns", "leave columns out"
        raise request.block.refusal(None, problem, remedy)
    return layout(request, chosen)


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """Return the lines of a table. What is not finished Markdown is escaped."""
    return (_row(headings), f"|{'---|' * len(headings)}", *map(_row, rows))


def bullets(items: Iterable[str]) -> tuple[str, ...]:
    """Return the lines of a list. What is not finished Markdown is escaped."""
    return tuple(f"- {_finished(item)}" for item in items)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(_finished, cells))} |"


def _finished(text: str) -> Safe:
    return text if isinstance(text, Safe) else inline(text)
