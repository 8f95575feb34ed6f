"""Fills templates of Markdown: what is not finished Markdown is escaped where it is inserted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ringproof.cards.card import GpuNeed, Pitfall
from ringproof.cards.proof import ProofKind, parse_proof
from ringproof.render.escaping import SafeMarkdown, code, fence, finished, inline, opening
from ringproof.templates import environment


def _environment() -> Any:
    filters: dict[str, Callable[..., Any]] = {
        "code": code, "fence": fence, "flag": _flag,
        "needs": _needs, "opening": opening, "proof": _proof, "short": _short, "symbol": symbol,
        "unproven": unproven,
    }  # fmt: skip
    return environment("ringproof.render", filters=filters, finalize=finished)


def fill(template: str, **values: Any) -> SafeMarkdown:
    """Fill a file of ``templates``."""
    return SafeMarkdown(_environment().get_template(template).render(values).rstrip("\n"))


def text_template(template: str) -> Callable[..., SafeMarkdown]:
    """Return what fills a template that is given as text; it is compiled once."""
    compiled = _environment().from_string(template)
    return lambda **values: SafeMarkdown(compiled.render(values))


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> SafeMarkdown:
    """Return a table. What is not finished Markdown is escaped."""
    return fill("table.md.j2", headings=headings, rows=rows)


def listed(parts: Iterable[str]) -> SafeMarkdown:
    """Return finished parts with commas between them, or a dash."""
    return SafeMarkdown(", ".join(map(finished, parts)) or "-")


def symbol(name: str | None) -> SafeMarkdown:
    """Return the symbol of an anchor as code; an anchor without one names the file."""
    return SafeMarkdown("the file") if name is None else code(name)


def _short(pitfall: Pitfall, name: str) -> str:
    """Return a cell of a pitfall in few words, if it has them."""
    whole = "; ".join(pitfall.affects) if name == "affects" else str(getattr(pitfall, name))
    return getattr(pitfall.short, name, None) or whole


def unproven(item: Any) -> str:
    """Return why a statement has no proof; empty if it has one."""
    first = parse_proof(item.proof[0])
    return first.target if first.kind is ProofKind.UNPROVEN else ""


def _flag(item: Any) -> SafeMarkdown:
    return SafeMarkdown(" *(unproven)*" if unproven(item) else "")


def _proof(item: Any) -> SafeMarkdown:
    reason = unproven(item)
    if reason:
        return SafeMarkdown(f"unproven: {inline(reason)}")
    kinds = {parse_proof(entry).kind for entry in item.proof}
    words = {ProofKind.PYTEST: "test", ProofKind.ANCHOR: "anchor"}
    return listed(word for kind, word in words.items() if kind in kinds)


def _needs(item: Any) -> str:
    if isinstance(item.needs, GpuNeed):
        return f"{item.needs.gpus} GPU{'s' if item.needs.gpus > 1 else ''}"
    return "CPU" if item.needs == "cpu" else str(item.needs)
