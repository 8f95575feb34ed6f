"""Renders blocks of statements: constraints, pitfalls, markers, commands and claims."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from ringproof.harness.cards.model import Claim, Command, Constraint, GpuNeed, Marker, Pitfall
from ringproof.harness.cards.proof import ProofKind, parse_proof
from ringproof.harness.rendering.content import BlockRequest, Column, Layout, bullets, listing
from ringproof.harness.rendering.escaping import Safe, code, fence_for, inline, opening, visible

_Said = Constraint | Claim
_UNPROVEN = " *(unproven)*"
WIDTH = 96
# A word with its quoted parts. A command with an unbalanced quote is not changed.
_WORDS = re.compile(r"(?:[^\s'\"\\]|\\.|'[^']*'|\"(?:[^\"\\]|\\.)*\")+")


def unproven(proof: tuple[str, ...]) -> str | None:
    """Return why a statement has no proof, or ``None`` if it has one."""
    first = parse_proof(proof[0])
    return first.target if first.kind is ProofKind.UNPROVEN else None


def _flagged(text: Safe, proof: tuple[str, ...]) -> Safe:
    return text if unproven(proof) is None else Safe(text + _UNPROVEN)


def _proof(proof: tuple[str, ...]) -> Safe:
    reason = unproven(proof)
    if reason is not None:
        return Safe(f"unproven: {inline(reason)}")
    kinds = {parse_proof(entry).kind for entry in proof}
    tested = ["test"] if ProofKind.PYTEST in kinds else []
    read = ["anchor"] if ProofKind.ANCHOR in kinds else []
    return Safe(", ".join(tested + read))


def kinds(request: BlockRequest) -> tuple[str, ...]:
    """Return one line: how many statements about upstream were executed, read, or neither.

    Raises:
        InputError: No record has the counts.
    """
    request.refuse_others(())
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


def _short(item: _Said) -> str:
    return item.short or item.says


_SAID: Mapping[str, Column[_Said]] = MappingProxyType(
    {
        "id": ("id", lambda _, item: code(item.id)),
        "says": ("says", lambda _, item: inline(item.says)),
        "short": ("says", lambda _, item: _flagged(inline(_short(item)), item.proof)),
        "proof": ("proof", lambda _, item: _proof(item.proof)),
    }
)


def said(request: BlockRequest) -> tuple[str, ...]:
    """Return constraints or claims as a list of short forms or as a table."""
    card, kind = request.card, request.block.kind
    items: tuple[_Said, ...] = card.constraints if kind == "constraints" else card.claims
    styles: Mapping[str, Layout[_Said]] = {
        "list": _listed,
        "table": (_SAID, ("id", "says", "proof")),
    }
    return listing(request, {item.id: item for item in items}, kind[:-1], styles)


def _listed(_: BlockRequest, items: Sequence[_Said]) -> tuple[str, ...]:
    return bullets(_flagged(opening(_short(item)), item.proof) for item in items)


def _full(item: Pitfall, field: str) -> Safe:
    return inline("; ".join(item.affects) if field == "affects" else getattr(item, field))


def _shorter(item: Pitfall, field: str) -> Safe:
    text = getattr(item.short, field) if item.short is not None else None
    return _full(item, field) if text is None else inline(text)


def _pitfall(
    name: Callable[[Pitfall], Safe], cell: Callable[[Pitfall, str], Safe]
) -> Mapping[str, Column[Pitfall]]:
    """Return the columns of pitfalls with the given first column and texts."""
    return {
        "id": ("id", lambda _, item: name(item)),
        "symptom": ("symptom", lambda _, item: cell(item, "symptom")),
        "cause": ("cause", lambda _, item: cell(item, "cause")),
        "remedy": ("do", lambda _, item: cell(item, "remedy")),
        "affects": ("versions", lambda _, item: cell(item, "affects")),
        "proof": ("proof", lambda _, item: _proof(item.proof)),
    }


def pitfalls(request: BlockRequest) -> tuple[str, ...]:
    """Return pitfalls as a table, in short form or in full."""
    short = _pitfall(lambda item: _flagged(code(item.id), item.proof), _shorter)
    full = _pitfall(lambda item: code(item.id), _full)
    styles = {"short": (short, tuple(short)[:-1]), "full": (full, tuple(full))}
    return listing(request, {item.id: item for item in request.card.pitfalls}, "pitfall", styles)


_MARKER: Mapping[str, Column[Marker]] = MappingProxyType(
    {
        "id": ("id", lambda _, item: code(item.id)),
        "pattern": ("regular expression", lambda _, item: code(item.pattern)),
        "where": ("where", lambda _, item: inline(item.where)),
        "says": ("shows", lambda _, item: inline(item.says or "")),
        "proof": ("proof", lambda _, item: _proof(item.proof)),
    }
)


def markers(request: BlockRequest) -> tuple[str, ...]:
    """Return markers as a table."""
    styles = {"table": (_MARKER, ("pattern", "where", "says"))}
    return listing(request, {item.id: item for item in request.card.markers}, "marker", styles)


def _needs(item: Command) -> str:
    if isinstance(item.needs, GpuNeed):
        return f"{item.needs.gpus} GPU{'s' if item.needs.gpus > 1 else ''}"
    return "CPU" if item.needs == "cpu" else item.needs


_COMMAND: Mapping[str, Column[Command]] = MappingProxyType(
    {
        "id": ("id", lambda _, item: code(item.id)),
        "run": ("command", lambda _, item: code(item.run)),
        "expects": ("success", lambda _, item: inline(item.expects)),
        "needs": ("needs", lambda _, item: inline(_needs(item))),
        "proof": ("proof", lambda _, item: _proof(item.proof)),
    }
)


def commands(request: BlockRequest) -> tuple[str, ...]:
    """Return commands in code blocks or as a table."""
    styles: Mapping[str, Layout[Command]] = {
        "fences": _fences,
        "table": (_COMMAND, ("id", "run", "expects", "needs")),
    }
    return listing(request, {item.id: item for item in request.card.commands}, "command", styles)


def _fences(_: BlockRequest, items: Sequence[Command]) -> tuple[str, ...]:
    return tuple(line for item in items for line in _fence(item))[:-1]


def _fence(item: Command) -> tuple[str, ...]:
    """Return a sentence about a command, its code block and an empty line."""
    needs, reason = _needs(item), unproven(item.proof)
    why = "" if reason in (None, f"needs {needs}") else f": {inline(str(reason))}"
    state = "" if reason is None else f"; unproven here{why}"
    where = "on CPU" if needs == "CPU" else f"needs {inline(needs)}"
    about = f"{code(item.id)} ({where}{state}). Success: {inline(item.expects)}"
    ticks = fence_for(item.run)
    return about, "", f"{ticks}bash", *command_lines(item.run), ticks, ""


def command_lines(run: str) -> tuple[Safe, ...]:
    """Return the lines. A long command of one line is continued with backslashes between words.

    Commands of several lines are not changed. `escaping.fence_for` makes sure that they cannot
    close the code block.
    """
    indents = [line[: len(line) - len(line.lstrip(" "))] for line in run.splitlines()]
    lines = [a + visible(line) for a, line in zip(indents, run.splitlines(), strict=True)]
    if len(lines) != 1 or len(lines[0]) <= WIDTH:
        return tuple(Safe(line) for line in lines)
    words = _WORDS.findall(lines[0])
    rest = _WORDS.sub("", lines[0])
    if rest.strip() or any(word.startswith("#") for word in words):
        return (Safe(lines[0]),)
    return tuple(Safe(line) for line in _wrapped(words))


def _wrapped(words: list[str]) -> list[str]:
    lines = [words[0]]
    for word in words[1:]:
        if len(lines[-1]) + 1 + len(word) + len(" \\") > WIDTH:
            lines[-1] += " \\"
            lines.append(f"  {word}")
        else:
            lines[-1] += f" {word}"
    return lines
