"""``ringproof anchors check``: whether anchors hold, and whether their code is as in the lock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from ringproof.anchors.lock import LOCK_FILE, REMEDY, Lock, leftovers, stale_upstreams
from ringproof.anchors.resolve import AnchorResolver, AnchorStatus, Resolution
from ringproof.cards.card import Anchor, Card
from ringproof.cards.loading import LocatedCard
from ringproof.findings.finding import Finding, Report, Rule
from ringproof.findings.printable import LONGEST, relative_path, showable
from ringproof.garbage import no_collection
from ringproof.upstream.sources import UpstreamChoice
from ringproof.upstream.tree import UpstreamError, UpstreamTree, UpstreamUnavailable

CHANGED = "changed since the lock"
NOT_LOCKED = "not locked"
STALE = "locked at another version"

_REREAD = "Read what upstream does now, correct what the card says of it, and lock again."
_FETCH = "Run `ringproof upstream fetch`, or give its place with `--upstream NAME=SPEC`."
_LACKING = "The symbol, or the file, does not contain what the card expects in it."
_CHANGED = "The anchored code is not the code that was locked; layout and comments do not count."
_STALE = f"{LOCK_FILE} is about another version than the card, or about what the card lacks."
_LOOSE = f"Anchors are not in {LOCK_FILE}, so a change of their code cannot be seen."
RULE_OF: Mapping[str, Rule] = MappingProxyType({
    AnchorStatus.MISSING_SYMBOL.value: Rule(
        "RA101", "missing-symbol", "error", "The file has no such symbol.", _REREAD),
    AnchorStatus.MISSING_EXPECTATION.value: Rule(
        "RA102", "missing-expectation", "error", _LACKING, _REREAD),
    CHANGED: Rule("RA103", "changed-code", "error", _CHANGED, _REREAD),
    AnchorStatus.MISSING_FILE.value: Rule(
        "RA104", "missing-file", "error", "The upstream has no such file.", _REREAD),
    AnchorStatus.UNREADABLE_FILE.value: Rule(
        "RA105", "unreadable-file", "error", "The file cannot be parsed or leaves its root.",
        "Anchor a file that can be read."),
    AnchorStatus.AMBIGUOUS_SYMBOL.value: Rule(
        "RA106", "ambiguous-symbol", "error", "The file defines the symbol several times.",
        "Say which with `#1`, `#2` behind the name."),
    AnchorStatus.UNUSABLE.value: Rule(
        "RA107", "unusable-upstream", "error", "The upstream that the card names cannot be used.",
        "Correct it in the card, or give another with `--upstream NAME=SPEC`."),
    STALE: Rule("RA108", "stale-lock", "error", _STALE,
                "Write the lock again with `ringproof anchors lock`."),
    AnchorStatus.NOT_HERE.value: Rule(
        "RA201", "not-looked-up", "note",
        "An upstream is not at hand, so its anchors were not looked up.", _FETCH),
    NOT_LOCKED: Rule("RA202", "not-locked", "note", _LOOSE,
                     "Write the lock with `ringproof anchors lock`."),
})  # fmt: skip
"""The rule that each status breaks; an anchor that holds breaks none."""
RULES = tuple(RULE_OF.values())


@dataclass(frozen=True)
class CheckedAnchor:
    """Result of looking up one anchor of one skill.

    Attributes:
        since_lock: ``same``, ``moved`` or ``changed``; ``not locked`` without a lock or a matching
            entry; ``locked at another version`` if the entry is about another version than the
            card's, see `stale_upstreams`; ``None`` if the anchor was not found.
    """

    skill: str
    anchor: Anchor
    resolution: Resolution
    since_lock: str | None

    @property
    def status(self) -> str:
        """An `AnchorStatus` or `CHANGED`."""
        is_changed = self.resolution.holds and self.since_lock == "changed"
        return CHANGED if is_changed else self.resolution.status.value

    @property
    def was_looked_up(self) -> bool:
        """Whether its upstream could be opened."""
        return bool(self.resolution.origin)

    @property
    def failed(self) -> bool:
        """Whether the result needs attention. A missing upstream is not a failure."""
        return self.status not in (AnchorStatus.HOLDS.value, AnchorStatus.NOT_HERE.value)

    def line(self) -> str:
        """Return the status and the place of the anchor on one line."""
        found, where = self.resolution, self.anchor.path
        if found.start is not None:
            where = f"{found.path}:{found.start}-{found.end}"
        where += f" {found.symbol}" if found.symbol else ""
        since = " (moved)" if self.since_lock == "moved" else ""
        return showable(f"{self.status}{since}: {self.skill}: {self.anchor.id}: {where}", LONGEST)

    def data(self) -> dict[str, Any]:
        """Return what is known of the anchor for JSON."""
        found = self.resolution
        return {
            "skill": self.skill,
            "anchor": self.anchor.id,
            "upstream": self.anchor.upstream,
            "origin": found.origin or None,
            "path": found.path,
            "symbol": self.anchor.symbol,
            "status": self.status,
            "since_lock": self.since_lock,
            "start": found.start,
            "end": found.end,
            "fingerprint": found.fingerprint,
            "detail": found.detail,
        }


@no_collection()
def check_cards(
    cards: Mapping[str, Card], locks: Mapping[str, Lock], choice: UpstreamChoice
) -> tuple[CheckedAnchor, ...]:
    """Look up every anchor of the cards in order, and parse each file of each version once.

    Raises:
        InputError: An upstream that the user gave cannot be opened.
    """
    entries = [(skill, anchor) for skill, card in cards.items() for anchor in card.anchors]
    results: dict[tuple[str, str], Resolution] = {}
    groups: dict[int, tuple[UpstreamTree, list[tuple[str, Anchor]]]] = {}
    for skill, anchor in entries:
        try:
            tree = choice.open(anchor.upstream, cards[skill].upstreams[anchor.upstream])
        except (UpstreamUnavailable, UpstreamError) as error:
            results[skill, anchor.id] = _blocked(anchor, error)
            continue
        groups.setdefault(id(tree), (tree, []))[1].append((skill, anchor))
    for tree, members in groups.values():
        resolver = AnchorResolver(tree)  # keep the syntax trees of one version at a time in memory
        for skill, anchor in members:
            try:
                results[skill, anchor.id] = resolver.resolve(anchor)
            except UpstreamUnavailable as error:  # the repository of a submodule was not given
                results[skill, anchor.id] = _blocked(anchor, error)
    stale = {skill: stale_upstreams(cards[skill], lock) for skill, lock in locks.items()}
    checked = []
    for skill, anchor in entries:
        resolution = results[skill, anchor.id]
        since = _since(locks.get(skill), anchor, resolution)
        if since not in (None, NOT_LOCKED) and anchor.upstream in stale[skill]:
            since = STALE
        checked.append(CheckedAnchor(skill, anchor, resolution, since))
    return tuple(checked)


def _blocked(anchor: Anchor, error: Exception) -> Resolution:
    unusable = isinstance(error, UpstreamError)
    status = AnchorStatus.UNUSABLE if unusable else AnchorStatus.NOT_HERE
    return Resolution(anchor.id, "", anchor.path, anchor.symbol or "", status, detail=str(error))


def _since(lock: Lock | None, anchor: Anchor, now: Resolution) -> str | None:
    if now.start is None:
        return None
    entry = lock.anchors.get(anchor.id) if lock is not None else None
    if entry is None or (entry.path, entry.symbol) != (anchor.path, anchor.symbol):
        return NOT_LOCKED
    place = entry.places.get(anchor.upstream)
    if place is None or place.start is None:
        return NOT_LOCKED
    if place.fingerprint != now.fingerprint:
        return "changed"
    return "same" if (place.start, place.end) == (now.start, now.end) else "moved"


def check_report(
    checked: Sequence[CheckedAnchor], cards: Mapping[str, LocatedCard], locks: Mapping[str, Lock]
) -> Report:
    """Report every anchor that does not hold, and every upstream that is not at hand."""
    counts = Counter(item.status for item in checked)
    listed = ", ".join(f"{count} {status}" for status, count in counts.most_common())
    moved = sum(item.since_lock == "moved" for item in checked)
    more = f"; {moved} of them moved since the lock" if moved else ""
    findings = []
    for skill, card in cards.items():
        own = [item for item in checked if item.skill == skill]
        findings += [*_of_anchors(skill, card, own), *_of_lock(skill, card, own, locks.get(skill))]
    summary = f"{len(checked)} anchors: {listed}{more}"
    return Report(RULES, tuple(findings), (summary,))


def _of_anchors(
    skill: str, located: LocatedCard, own: Sequence[CheckedAnchor]
) -> Iterator[Finding]:
    lines = located.anchor_lines()
    absent: dict[tuple[str, str], list[CheckedAnchor]] = {}
    for item in own:
        found, name = item.resolution, item.anchor.id
        if not item.was_looked_up:
            absent.setdefault((item.anchor.upstream, item.status), []).append(item)
        elif item.failed:
            place = f"{found.path}:{found.start}-{found.end}"
            place += f": `{found.symbol}`" if found.symbol else ""
            detail = found.detail or f"{place} is not the code that was locked"
            finding = _finding(located, item.status, lines[name][0], f"{name}: {detail}")
            yield replace(finding, end_line=lines[name][1], identity=f"{skill}/{name}")
    for (upstream, status), items in absent.items():
        many = "1 anchor" if len(items) == 1 else f"{len(items)} anchors"
        message = f"{upstream}: {many} not looked up: {items[0].resolution.detail}"
        line = located.document.line(("upstreams", upstream))
        yield replace(_finding(located, status, line, message), identity=f"{skill}/{upstream}")


def _of_lock(
    skill: str, located: LocatedCard, own: Sequence[CheckedAnchor], lock: Lock | None
) -> Iterator[Finding]:
    """Report what the lock and the card do not both name, or in different versions."""
    line = located.document.line(("anchors",))
    if lock is not None:
        for upstream, problem in stale_upstreams(located.card, lock).items():
            where = located.document.line(("upstreams", upstream))
            finding = _finding(located, STALE, where, f"{LOCK_FILE}: {problem}")
            yield replace(finding, identity=f"{skill}/{upstream}")
        if gone := leftovers(located.card, lock):
            message = f"{LOCK_FILE} still has {', '.join(gone)}: {REMEDY}"
            yield replace(_finding(located, STALE, line, message), identity=skill)
    if loose := [item.anchor.id for item in own if item.since_lock == NOT_LOCKED]:
        missing = f"there is no {LOCK_FILE}" if lock is None else f"not in {LOCK_FILE}"
        message = f"{missing}: {', '.join(loose)}"
        yield replace(_finding(located, NOT_LOCKED, line, message), identity=skill)


def _finding(located: LocatedCard, status: str, line: int, message: str) -> Finding:
    path = relative_path(located.document.path)
    return Finding(RULE_OF[status].id, path, line, showable(message, LONGEST))
