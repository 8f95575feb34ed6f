"""The findings about other people's skills as JSON and as lines of text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from ringproof.harness.fences.model import Finding

_KINDS = ("fence", "inline", "symbol")
_STATUSES = ("exact", "moved", "changed", "missing")


def as_json(findings: Sequence[Finding]) -> dict[str, Any]:
    """``{"anchors": [...]}``; line numbers that do not apply are ``null``."""
    return {
        "anchors": [
            {
                "kind": finding.mention.kind,
                "file": finding.file,
                "path": finding.mention.path,
                "start": finding.mention.start,
                "end": finding.mention.end,
                "status": finding.placement.status,
                "new_start": finding.placement.new_start,
                "new_end": finding.placement.new_end,
            }
            for finding in findings
        ]
    }


def as_text(findings: Sequence[Finding]) -> Iterator[str]:
    """One line for each mention that is not exact, then one for each kind that occurs."""
    for finding in findings:
        if finding.placement.status != "exact":
            yield _line(finding)
    for kind in _KINDS:
        some = [item.placement for item in findings if item.mention.kind == kind]
        counts = Counter[str](placement.status for placement in some)
        if some:
            parts = ", ".join(f"{counts[status]} {status}" for status in _STATUSES)
            bare = sum(not item.quoted and item.status == "exact" for item in some)
            note = f" ({bare} quote nothing: only that the lines exist is known)" if bare else ""
            yield f"{kind}: {len(some)} found: {parts}{note}"
    if not findings:
        yield "no mention of code with lines or symbols found"


def _line(finding: Finding) -> str:
    mention, place = finding.mention, finding.placement
    target = mention.path
    if mention.start is not None:
        target += f":{mention.start}-{mention.end}"
    elif mention.quote:
        target += f" {mention.quote[0]}"
    return _printable(f"{finding.file}:{mention.line}: {place.status}: {target}: {place.why}")


def _printable(text: str) -> str:
    """Without what could steer a terminal: the text comes from outside."""
    return "".join(sign if sign.isprintable() else "?" for sign in text)
