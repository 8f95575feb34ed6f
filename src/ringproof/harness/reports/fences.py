"""What ``ringproof fences`` found, as findings at the documents' lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from types import MappingProxyType

from ringproof.harness.fences.check import CheckedDocument, JudgedMention
from ringproof.harness.reports.model import Finding, Report, Rule
from ringproof.harness.reports.printable import relative_path, showable

_LONGEST = 1000
_KINDS = ("fence", "inline", "symbol")
_STATUSES = ("exact", "moved", "changed", "missing")

RULES: tuple[Rule, ...] = (
    Rule(
        "RF201",
        "fence-moved",
        "warning",
        "The code that a document points to stands at other lines.",
        "Run again with `--fix`, which corrects the numbers and nothing else.",
    ),
    Rule(
        "RF202",
        "fence-changed",
        "error",
        "The code that a document points to is there in part.",
        "Read the code again and correct the document.",
    ),
    Rule(
        "RF203",
        "fence-missing",
        "error",
        "The file, the lines or the text that a document points to are not there.",
        "Read the code again and correct the document, or name its tree with `--upstream`.",
    ),
)
RULE_OF = MappingProxyType({"moved": "RF201", "changed": "RF202", "missing": "RF203"})


def fences_report(documents: Sequence[CheckedDocument]) -> Report:
    """A finding per mention that is not exact, and a closing line per kind that occurs."""
    findings = [
        _finding(item, relative_path(document.path))
        for document in documents
        for item in document.findings
        if item.placement.status != "exact"
    ]
    judged = [item for document in documents for item in document.findings]
    return Report(RULES, tuple(findings), tuple(_summary(judged)))


def _finding(item: JudgedMention, path: str) -> Finding:
    mention, place = item.mention, item.placement
    target = mention.path
    if mention.start is not None:
        target += f":{mention.start}-{mention.end}"
    elif mention.quote:
        target += f" {mention.quote[0]}"
    rule = RULE_OF[place.status]
    return Finding(rule, path, mention.line, showable(f"{target}: {place.why}", _LONGEST))


def _summary(judged: Sequence[JudgedMention]) -> Iterator[str]:
    for kind in _KINDS:
        some = [item.placement for item in judged if item.mention.kind == kind]
        counts = Counter[str](placement.status for placement in some)
        if some:
            parts = ", ".join(f"{counts[status]} {status}" for status in _STATUSES)
            bare = sum(not item.quoted and item.status == "exact" for item in some)
            note = f" ({bare} quote nothing: only that the lines exist is known)" if bare else ""
            yield f"{kind}: {len(some)} found: {parts}{note}"
    if not judged:
        yield "no mention of code with lines or symbols found"
