"""Silencing in the text: ``ringproof: ignore RP301 because it is a template`` in a comment.

In Markdown the comment covers its own block and the next one; in other files its own line and the
next. ``ignore-file`` covers the file, and in ``SKILL.md`` findings about the skill as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ringproof.harness.lint.model import Skill, SourceFile
from ringproof.harness.lint.rules import IDS
from ringproof.harness.reports.model import Finding
from ringproof.harness.reports.printable import showable

_SILENCE = re.compile(
    r"ringproof:\s*ignore(?P<file>-file)?\s+(?P<rules>RP\d+(?:[\s,]+RP\d+)*)"
    r"(?:[ \t]+because[ \t]+(?P<reason>\w[^\n]*))?"
)
_UNSILENCEABLE = ("RP001", "RP002")


@dataclass(frozen=True)
class Silence:
    """One comment.

    Attributes:
        first, last: The lines that it covers.
        line: Where it stands.
    """

    path: str
    line: int
    rules: frozenset[str]
    first: int
    last: int
    reason: str

    def covers(self, finding: Finding) -> bool:
        """Whether it silences a finding."""
        inside = finding.path == self.path and self.first <= finding.line <= self.last
        return inside and finding.rule in self.rules and bool(self.reason)


def silences_of(skill: Skill) -> Iterator[Silence]:
    """Every silencing comment of a skill."""
    for source in skill.texts:
        if "ringproof:" in source.text:
            yield from _in_file(source)


def _in_file(source: SourceFile) -> Iterator[Silence]:
    if source.markdown is not None:
        pieces = [(piece.text, piece.line) for piece in source.markdown.hidden]
    else:
        pieces = [(source.text, 1)]
    for text, start in pieces:
        for match in _SILENCE.finditer(text):
            line = start + text.count("\n", 0, match.start())
            first, last = _range(source, line, whole=bool(match["file"]))
            rules = frozenset(re.findall(r"RP\d+", match["rules"]))
            yield Silence(source.shown, line, rules, first, last, (match["reason"] or "").strip())


def _range(source: SourceFile, line: int, *, whole: bool) -> tuple[int, int]:
    if whole:
        return 1, source.text.count("\n") + 1
    if source.markdown is None:
        return line, line + 1
    blocks = sorted(source.markdown.blocks)
    own = next(((a, b) for a, b in blocks if a <= line <= b), (line, line))
    after = next(((a, b) for a, b in blocks if a > own[1]), own)
    return own[0], after[1]


def apply_silences(
    findings: Iterable[Finding], silences: Iterable[Silence]
) -> tuple[tuple[Finding, ...], tuple[Finding, ...]]:
    """What is left, with what is wrong about the comments themselves; and what was silenced."""
    all_silences = tuple(silences)
    left: list[Finding] = []
    silenced: list[Finding] = []
    used: set[Silence] = set()
    for finding in findings:
        covering = [item for item in all_silences if item.covers(finding)]
        used.update(covering)
        (silenced if covering and finding.rule not in _UNSILENCEABLE else left).append(finding)
    for silence in all_silences:
        left += _about(silence, silence in used)
    return tuple(left), tuple(silenced)


def _about(silence: Silence, used: bool) -> Iterator[Finding]:
    unknown = sorted(silence.rules - IDS)
    if not silence.reason:
        message = "write `ringproof: ignore RPnnn because REASON`; without a reason it is ignored"
        yield Finding("RP001", silence.path, silence.line, message)
    elif unknown:
        message = f"there is no rule {showable(unknown[0], 20)}"
        yield Finding("RP002", silence.path, silence.line, message)
    elif not used:
        yield Finding("RP002", silence.path, silence.line, "silences nothing here; remove it")
