"""Results of an import as JSON and as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ringproof.harness.importing.importer import Imported


def as_json(imported: Sequence[Imported]) -> dict[str, Any]:
    """``{"version": 1, "skills": [...], "total": {...}}``."""
    return {
        "version": 1,
        "skills": [_skill(item) for item in imported],
        "total": {
            "cards": len(imported),
            "statements": sum(item.statements for item in imported),
            "unproven": sum(item.unproven for item in imported),
            "anchors": sum(len(item.card.anchors) for item in imported),
        },
    }


def _skill(item: Imported) -> dict[str, Any]:
    pointers = item.pointers
    return {
        "skill": item.skill,
        "statements": item.statements,
        "unproven": item.unproven,
        "lists": _lists(item),
        "keys": {key: dict(became) for key, became in item.became.items()},
        "fences": {"found": pointers.fences, "anchored": pointers.fences_anchored},
        "inline": {"found": pointers.inline, "anchored": pointers.inline_anchored},
        "evidence": dict(item.evidence),
        "files": list(item.source.files),
        "left_out": list(item.source.left_out),
    }


def _lists(item: Imported) -> dict[str, int]:
    names = ("anchors", "constraints", "pitfalls", "claims")
    return {name: len(getattr(item.card, name)) for name in names}


def as_text(item: Imported) -> Iterator[str]:
    """Yield counts, then a line for each key, the documents and what was left out."""
    yield f"{item.skill}: {item.statements} statements, {item.unproven} unproven"
    yield f"  {_counted(_lists(item))}"
    for key, became in item.became.items():
        yield f"  {_printable(key)} -> {_counted(became) if became else 'nothing: it is empty'}"
    pointers = item.pointers
    if pointers.fences or pointers.inline:
        yield (
            f"  documents -> {pointers.fences_anchored} of {pointers.fences} fences and "
            f"{pointers.inline_anchored} of {pointers.inline} path:line mentions anchored"
        )
    if item.evidence:
        yield f"  evidence: {_counted(item.evidence)}"
    for name in item.source.left_out:
        yield f"  left out (a link, or not the skill's own): {_printable(name)}"


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {name}" for name, number in counts.items())


def _printable(text: str) -> str:
    """Remove terminal control characters from untrusted text."""
    return "".join(sign if sign.isprintable() else "?" for sign in text)
