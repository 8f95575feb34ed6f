"""What ``ringproof anchors check`` found, as findings at the card's lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ringproof.harness.anchors.check import (
    CHANGED,
    NOT_HERE,
    NOT_LOCKED,
    UNUSABLE,
    CheckedAnchor,
    counts,
)
from ringproof.harness.anchors.lock import LOCK_FILE, REMEDY, Lock, leftovers, stale_upstreams
from ringproof.harness.anchors.resolve import AnchorStatus
from ringproof.harness.cards.loading import LocatedCard
from ringproof.harness.reports.model import Finding, Report, Rule
from ringproof.harness.reports.printable import relative_path, showable

_LONGEST = 1000
_REREAD = "Read what upstream does now, correct what the card says of it, and lock again."

RULES: tuple[Rule, ...] = (
    Rule("RA101", "missing-symbol", "error", "The file has no such symbol.", _REREAD),
    Rule(
        "RA102",
        "missing-expectation",
        "error",
        "The symbol does not contain what the card expects in it.",
        _REREAD,
    ),
    Rule(
        "RA103",
        "changed-code",
        "error",
        "The symbol's code is not the code that was locked; layout and comments do not count.",
        _REREAD,
    ),
    Rule("RA104", "missing-file", "error", "The upstream has no such file.", _REREAD),
    Rule(
        "RA105",
        "unreadable-file",
        "error",
        "The file cannot be parsed or leaves its root.",
        "Anchor a file that can be read.",
    ),
    Rule(
        "RA106",
        "ambiguous-symbol",
        "error",
        "The file defines the symbol several times.",
        "Say which with `#1`, `#2` behind the name.",
    ),
    Rule(
        "RA107",
        "unusable-upstream",
        "error",
        "The upstream that the card names cannot be used.",
        "Correct it in the card, or give another with `--upstream NAME=SPEC`.",
    ),
    Rule(
        "RA108",
        "stale-lock",
        "error",
        f"{LOCK_FILE} is about another version than the card, or about what the card lacks.",
        "Write the lock again with `ringproof anchors lock`.",
    ),
    Rule(
        "RA201",
        "not-looked-up",
        "note",
        "An upstream is not at hand, so its anchors were not looked up.",
        "Run `ringproof upstream fetch`, or give its place with `--upstream NAME=SPEC`.",
    ),
    Rule(
        "RA202",
        "not-locked",
        "note",
        f"Anchors are not in {LOCK_FILE}, so a change of their code cannot be seen.",
        "Write the lock with `ringproof anchors lock`.",
    ),
)

RULE_OF = MappingProxyType(
    {
        AnchorStatus.MISSING_SYMBOL.value: "RA101",
        AnchorStatus.MISSING_EXPECTATION.value: "RA102",
        CHANGED: "RA103",
        AnchorStatus.MISSING_FILE.value: "RA104",
        AnchorStatus.UNREADABLE_FILE.value: "RA105",
        AnchorStatus.AMBIGUOUS_SYMBOL.value: "RA106",
        UNUSABLE: "RA107",
        NOT_HERE: "RA201",
    }
)
"""The rule that a status breaks; an anchor that holds breaks none."""


def check_report(
    checked: Sequence[CheckedAnchor], cards: Mapping[str, LocatedCard], locks: Mapping[str, Lock]
) -> Report:
    """A finding per anchor that does not hold, one per upstream that is not at hand."""
    listed = ", ".join(f"{count} {status}" for status, count in counts(checked).items())
    moved = sum(item.since_lock == "moved" for item in checked)
    more = f"; {moved} of them moved since the lock" if moved else ""
    findings = [
        finding
        for skill, card in cards.items()
        for finding in _of_card(skill, card, checked, locks.get(skill))
    ]
    return Report(RULES, tuple(findings), (f"{len(checked)} anchors: {listed}{more}",))


def _of_card(
    skill: str, located: LocatedCard, checked: Iterable[CheckedAnchor], lock: Lock | None
) -> Iterator[Finding]:
    document = located.document
    path = relative_path(document.path)
    lines = located.anchor_lines()
    absent: dict[tuple[str, str], list[CheckedAnchor]] = {}
    loose: list[str] = []
    for item in checked:
        if item.skill != skill:
            continue
        if item.resolution is None:
            absent.setdefault((item.anchor.upstream, item.status), []).append(item)
        elif item.failed:
            yield _of_anchor(item, path, lines[item.anchor.id])
        if item.since_lock == NOT_LOCKED:
            loose.append(item.anchor.id)
    for (upstream, status), items in absent.items():
        line = document.line(("upstreams", upstream))
        many = "1 anchor" if len(items) == 1 else f"{len(items)} anchors"
        message = f"{upstream}: {many} not looked up: {items[0].obstacle}"
        text, identity = showable(message, _LONGEST), f"{skill}/{upstream}"
        yield Finding(RULE_OF[status], path, line, text, identity=identity)
    if lock is not None:
        yield from _of_lock(skill, located, lock)
    if loose:
        missing = f"there is no {LOCK_FILE}" if lock is None else f"not in {LOCK_FILE}"
        text = showable(f"{missing}: {', '.join(loose)}", _LONGEST)
        yield Finding("RA202", path, document.line(("anchors",)), text, identity=skill)


def _of_lock(skill: str, located: LocatedCard, lock: Lock) -> Iterator[Finding]:
    """What the lock says of versions, anchors and upstreams that the card does not name."""
    path = relative_path(located.document.path)
    for upstream, problem in stale_upstreams(located.card, lock).items():
        line = located.document.line(("upstreams", upstream))
        text = showable(f"{LOCK_FILE}: {problem}", _LONGEST)
        yield Finding("RA108", path, line, text, identity=f"{skill}/{upstream}")
    gone = leftovers(located.card, lock)
    if gone:
        line = located.document.line(("anchors",))
        text = showable(f"{LOCK_FILE} still has {', '.join(gone)}: {REMEDY}", _LONGEST)
        yield Finding("RA108", path, line, text, identity=skill)


def _of_anchor(item: CheckedAnchor, path: str, lines: tuple[int, int]) -> Finding:
    found = item.resolution
    detail = "" if found is None else found.detail
    if not detail and found is not None:
        place = f"{found.path}:{found.start}-{found.end}"
        detail = f"{place}: `{found.symbol}` is not the code that was locked"
    return Finding(
        RULE_OF[item.status],
        path,
        lines[0],
        showable(f"{item.anchor.id}: {detail}", _LONGEST),
        end_line=lines[1],
        identity=f"{item.skill}/{item.anchor.id}",
    )


def check_lines(checked: Iterable[CheckedAnchor]) -> Iterator[str]:
    """Every anchor and where it is, one line each."""
    for item in checked:
        found = item.resolution
        where = f"{item.anchor.path} {item.anchor.symbol}"
        if found is not None and found.start is not None:
            where = f"{found.path}:{found.start}-{found.end} {item.anchor.symbol}"
        since = " (moved)" if item.since_lock == "moved" else ""
        yield showable(f"{item.status}{since}: {item.skill}: {item.anchor.id}: {where}", _LONGEST)


def check_data(checked: Iterable[CheckedAnchor], *, failed: bool) -> dict[str, Any]:
    """Every anchor as data."""
    return {"version": 1, "pass": not failed, "anchors": [_data(item) for item in checked]}


def _data(item: CheckedAnchor) -> dict[str, Any]:
    found = item.resolution
    return {
        "skill": item.skill,
        "anchor": item.anchor.id,
        "upstream": item.anchor.upstream,
        "origin": None if found is None else found.origin,
        "path": item.anchor.path if found is None else found.path,
        "symbol": item.anchor.symbol,
        "status": item.status,
        "since_lock": item.since_lock,
        "start": None if found is None else found.start,
        "end": None if found is None else found.end,
        "fingerprint": None if found is None else found.fingerprint,
        "detail": item.obstacle if found is None else found.detail,
    }
