"""Renders blocks of statements: constraints, pitfalls, markers, commands and claims."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from ringproof.harness.cards.model import Claim, Command, Constraint, GpuNeed, Marker, Pitfall
from ringproof.harness.cards.proof import ProofKind, parse_proof
from ringproof.harness.rendering.content import (
    BlockRequest,
    Column,
    CommandBlock,
    Content,
    refuse_columns,
    table,
)
from ringproof.harness.rendering.escaping import (
    Safe,
    code,
    fence_for,
    inline,
    opening,
    visible,
)

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


def kinds(request: BlockRequest) -> Content:
    """Render one line: how many statements about upstream were executed, read, or neither.

    Raises: InputError: No record has the counts.
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
    return Content("table", notes=(inline(text),))


def _short(item: _Said) -> str:
    return item.short or item.says


_SAID: Mapping[str, Column[_Said]] = MappingProxyType(
    {
        "id": Column("id", lambda _, item: code(item.id)),
        "says": Column("says", lambda _, item: inline(item.says)),
        "short": Column("says", lambda _, item: _flagged(inline(_short(item)), item.proof)),
        "proof": Column("proof", lambda _, item: _proof(item.proof)),
    }
)


def said(request: BlockRequest) -> Content:
    """Render constraints or claims as a list of short forms or as a table."""
    request.refuse_others(("only", "except", "style", "columns"))
    items: tuple[_Said, ...] = (
        request.card.constraints if request.block.kind == "constraints" else request.card.claims
    )
    chosen = request.selected({item.id: item for item in items}, request.block.kind[:-1])
    style = request.one_of("style", ("list", "table"))
    if style == "table":
        return table(request, chosen, _SAID, ("id", "says", "proof"))
    refuse_columns(request, style)
    lines = tuple(_flagged(opening(_short(item)), item.proof) for item in chosen)
    return Content("list", items=lines)


def _shorter(item: Pitfall, field: str) -> Safe:
    text = getattr(item.short, field) if item.short is not None else None
    if text is not None:
        return inline(text)
    return inline("; ".join(item.affects) if field == "affects" else getattr(item, field))


_PITFALL: Mapping[str, Column[Pitfall]] = MappingProxyType(
    {
        "id": Column("id", lambda _, item: code(item.id)),
        "symptom": Column("symptom", lambda _, item: inline(item.symptom)),
        "cause": Column("cause", lambda _, item: inline(item.cause)),
        "remedy": Column("do", lambda _, item: inline(item.remedy)),
        "affects": Column("versions", lambda _, item: inline("; ".join(item.affects))),
        "proof": Column("proof", lambda _, item: _proof(item.proof)),
    }
)
_SHORT_PITFALL: Mapping[str, Column[Pitfall]] = MappingProxyType(
    {
        "id": Column("id", lambda _, item: _flagged(code(item.id), item.proof)),
        "symptom": Column("symptom", lambda _, item: _shorter(item, "symptom")),
        "cause": Column("cause", lambda _, item: _shorter(item, "cause")),
        "remedy": Column("do", lambda _, item: _shorter(item, "remedy")),
        "affects": Column("versions", lambda _, item: _shorter(item, "affects")),
        "proof": _PITFALL["proof"],
    }
)


def pitfalls(request: BlockRequest) -> Content:
    """Render pitfalls as a table, in short form or in full."""
    request.refuse_others(("only", "except", "style", "columns"))
    chosen = request.selected({item.id: item for item in request.card.pitfalls}, "pitfall")
    short = request.one_of("style", ("short", "full")) == "short"
    default = ("id", "symptom", "cause", "remedy", "affects")
    if short:
        return table(request, chosen, _SHORT_PITFALL, default)
    return table(request, chosen, _PITFALL, (*default, "proof"))


_MARKER: Mapping[str, Column[Marker]] = MappingProxyType(
    {
        "id": Column("id", lambda _, item: code(item.id)),
        "pattern": Column("regular expression", lambda _, item: code(item.pattern)),
        "where": Column("where", lambda _, item: inline(item.where)),
        "says": Column("shows", lambda _, item: inline(item.says or "")),
        "proof": Column("proof", lambda _, item: _proof(item.proof)),
    }
)


def markers(request: BlockRequest) -> Content:
    """Render markers as a table."""
    request.refuse_others(("only", "except", "columns"))
    chosen = request.selected({item.id: item for item in request.card.markers}, "marker")
    return table(request, chosen, _MARKER, ("pattern", "where", "says"))


def _needs(item: Command) -> str:
    if isinstance(item.needs, GpuNeed):
        return f"{item.needs.gpus} GPU{'s' if item.needs.gpus > 1 else ''}"
    return "CPU" if item.needs == "cpu" else item.needs


_COMMAND: Mapping[str, Column[Command]] = MappingProxyType(
    {
        "id": Column("id", lambda _, item: code(item.id)),
        "run": Column("command", lambda _, item: code(item.run)),
        "expects": Column("success", lambda _, item: inline(item.expects)),
        "needs": Column("needs", lambda _, item: inline(_needs(item))),
        "proof": Column("proof", lambda _, item: _proof(item.proof)),
    }
)


def commands(request: BlockRequest) -> Content:
    """Render commands in code blocks or as a table."""
    request.refuse_others(("only", "except", "style", "columns"))
    chosen = request.selected({item.id: item for item in request.card.commands}, "command")
    style = request.one_of("style", ("fences", "table"))
    if style == "table":
        return table(request, chosen, _COMMAND, ("id", "run", "expects", "needs"))
    refuse_columns(request, style)
    return Content("commands", fences=tuple(_fence(item) for item in chosen))


def _fence(item: Command) -> CommandBlock:
    needs, reason = _needs(item), unproven(item.proof)
    why = "" if reason in (None, f"needs {needs}") else f": {inline(str(reason))}"
    state = "" if reason is None else f"; unproven here{why}"
    where = "on CPU" if needs == "CPU" else f"needs {inline(needs)}"
    about = Safe(f"{code(item.id)} ({where}{state}). Success: {inline(item.expects)}")
    return CommandBlock(about, fence_for(item.run), command_lines(item.run))


def command_lines(run: str) -> tuple[Safe, ...]:
    """Return the lines. A long command of one line is continued with backslashes between words.

    Commands of several lines are not changed. `escaping.fence_for` makes sure that they cannot
    close the code block.
    """
    lines = tuple(_seen(line) for line in run.splitlines())
    if len(lines) != 1 or len(lines[0]) <= WIDTH:
        return tuple(Safe(line) for line in lines)
    words = _WORDS.findall(lines[0])
    rest = _WORDS.sub("", lines[0])
    if rest.strip() or any(word.startswith("#") for word in words):
        return (Safe(lines[0]),)
    return tuple(Safe(line) for line in _wrapped(words))


def _seen(line: str) -> str:
    """Return a line with its indentation, in which every character is visible."""
    indent = line[: len(line) - len(line.lstrip(" "))]
    return indent + visible(line)


def _wrapped(words: list[str]) -> list[str]:
    lines = [words[0]]
    for word in words[1:]:
        if len(lines[-1]) + 1 + len(word) + len(" \\") > WIDTH:
            lines[-1] += " \\"
            lines.append(f"  {word}")
        else:
            lines[-1] += f" {word}"
    return lines
