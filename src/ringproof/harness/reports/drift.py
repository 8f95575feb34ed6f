"""What ``ringproof anchors drift`` found, as findings at the card's lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from ringproof.harness.anchors.drift import HARMLESS, Drift, DriftKind
from ringproof.harness.cards.loading import LocatedCard
from ringproof.harness.reports.model import Finding, Report, Rule
from ringproof.harness.reports.printable import relative_path, showable

_LONGEST = 1000
_REREAD = "Read the later version and correct what hangs on the anchor."
_REPOINT = "Point the anchor to its new place, and read what hangs on it again."

RULES: tuple[Rule, ...] = (
    Rule("RD301", "drift-changed", "error", "The symbol's code changed.", _REREAD),
    Rule("RD302", "drift-renamed", "error", "The symbol has another name.", _REPOINT),
    Rule("RD303", "drift-other-file", "error", "The symbol is in another file.", _REPOINT),
    Rule("RD304", "drift-gone", "error", "Nothing like the symbol is there.", _REREAD),
    Rule(
        "RD305",
        "drift-unreadable",
        "error",
        "The file of the later version cannot be parsed.",
        "Look at it by hand.",
    ),
    Rule(
        "RD306",
        "drift-expectation",
        "error",
        "The symbol's code is the same in both versions and lacks what the card expects.",
        "Compare only versions the anchor is meant for (`--upstream NAME`), or correct the card.",
    ),
)

RULE_OF = MappingProxyType(
    {
        DriftKind.CHANGED: "RD301",
        DriftKind.RENAMED: "RD302",
        DriftKind.OTHER_FILE: "RD303",
        DriftKind.GONE: "RD304",
        DriftKind.UNREADABLE: "RD305",
        **dict.fromkeys(HARMLESS, "RD306"),
    }
)
"""The rule that a fate breaks, once it is known not to be harmless."""


@dataclass(frozen=True)
class Drifted:
    """The fate of one anchor of one skill.

    Attributes:
        hanging: Kind and id of the statements that name the anchor as their proof.
    """

    skill: str
    fate: Drift
    hanging: tuple[tuple[str, str], ...]


def drift_report(
    drifted: Sequence[Drifted], cards: Mapping[str, LocatedCard], *, left_out: int
) -> Report:
    """A finding per anchor whose author has something to look at.

    Args:
        left_out: Anchors that are not in the earlier version.
    """
    kinds = Counter(item.fate.kind.value for item in drifted)
    listed = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    summary = f"{len(drifted)} anchors compared: {listed}; {left_out} not in the earlier version"
    paths = {skill: relative_path(card.document.path) for skill, card in cards.items()}
    lines = {skill: card.anchor_lines() for skill, card in cards.items()}
    findings = [
        _finding(item, paths[item.skill], lines[item.skill][item.fate.anchor.id])
        for item in drifted
        if not item.fate.harmless
    ]
    return Report(RULES, tuple(findings), (summary,))


def _finding(item: Drifted, path: str, lines: tuple[int, int]) -> Finding:
    anchor = item.fate.anchor
    return Finding(
        RULE_OF[item.fate.kind],
        path,
        lines[0],
        showable(f"{anchor.id}: {_fate(item.fate)}", _LONGEST),
        end_line=lines[1],
        details=tuple(_details(item)),
        identity=f"{item.skill}/{anchor.id}",
    )


def _fate(fate: Drift) -> str:
    now = f" -> {fate.path}:{fate.after[0]}-{fate.after[1]} {fate.symbol}" if fate.after else ""
    sure = f" ({fate.confidence:.0%} alike)" if fate.confidence is not None else ""
    return f"{fate.kind.value}{now}{sure}"


def _details(item: Drifted) -> Iterator[str]:
    lines = [*item.fate.summary, *(f"no longer contains {text!r}" for text in item.fate.missing)]
    lines += [f"{kind} {name} hangs on it" for kind, name in item.hanging]
    return (showable(line, _LONGEST) for line in lines)


def drift_lines(drifted: Iterable[Drifted]) -> Iterator[str]:
    """Every anchor and what became of it, one line each."""
    for item in drifted:
        line = f"{item.skill}: {item.fate.anchor.id}: {_fate(item.fate)}"
        yield showable(line, _LONGEST)


def drift_data(drifted: Iterable[Drifted], *, old: str, new: str) -> dict[str, Any]:
    """Every anchor as data; ``old`` and ``new`` are the origins of the two versions."""
    return {"version": 1, "from": old, "to": new, "anchors": [_data(item) for item in drifted]}


def _data(item: Drifted) -> dict[str, Any]:
    fate = item.fate
    return {
        "skill": item.skill,
        "anchor": fate.anchor.id,
        "upstream": fate.anchor.upstream,
        "kind": fate.kind.value,
        "before": {"path": fate.anchor.path, "symbol": fate.anchor.symbol, "lines": fate.before},
        "after": fate.after and {"path": fate.path, "symbol": fate.symbol, "lines": fate.after},
        "confidence": fate.confidence,
        "summary": list(fate.summary),
        "missing": list(fate.missing),
        "statements": [{"kind": kind, "id": name} for kind, name in item.hanging],
    }
