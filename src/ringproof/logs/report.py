"""Read a run's log files, judge them together, and show the result as JSON and as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from ringproof.logs.facts import (
    LogFacts,
    LoggedGroup,
    dynamic_size,
    is_context_parallel,
)
from ringproof.logs.finding import RunFinding
from ringproof.logs.lines import Scan, opened
from ringproof.logs.parsing import NEEDLES, engine_text
from ringproof.logs.verdict import (
    Decision,
    Expectation,
    cautions,
    decide,
    findings,
)
from ringproof.reference.topology.census_line import format_ranks

VERSION = 1
MAX_GROUPS = 500
MAX_RANKS = 200_000
MAX_EVIDENCE = 60
_TEXT_EVIDENCE = 12
_RANKS_TEXT_LIMIT = 40


@dataclass(frozen=True)
class GroupsReport:
    """What the logs of one run say about its context parallelism.

    Attributes:
        files: Path, lines and bytes of each file; bytes are those of the text, once unpacked.
    """

    facts: LogFacts
    decision: Decision
    expectation: Expectation
    findings: tuple[RunFinding, ...]
    warnings: tuple[str, ...]
    files: tuple[dict[str, Any], ...]

    @property
    def as_expected(self) -> bool | None:
        """Whether nothing differs from what was expected; ``None`` where nothing was."""
        return not self.findings if self.expectation.given else None


def read_groups(
    paths: Sequence[str], expectation: Expectation, *, stdin: BinaryIO | None = None
) -> GroupsReport:
    """Read the files in one pass each and judge them as one run; ``-`` names ``stdin``.

    Raises:
        InputError: A file is missing, unreadable, not a file, or not gzip data.
    """
    facts = LogFacts()
    counts: list[dict[str, Any]] = []
    notes: list[str] = []
    for path in dict.fromkeys(paths):
        with opened("FILE", path, what="log file of a run", stdin=stdin) as log:
            scan = Scan(log, NEEDLES)
            for line in scan:
                facts.read(path, line.number, line.text)
        counts.append({"path": path, "bytes": log.bytes_read, "lines": scan.lines})
        notes += log.notes()
    decision = decide(facts)
    found = findings(facts, decision, expectation)
    warnings = (*cautions(facts, decision), *notes)
    return GroupsReport(facts, decision, expectation, found, warnings, tuple(counts))


def as_json(report: GroupsReport) -> dict[str, Any]:
    """Return the report as plain data; ``groups_omitted`` counts those that it leaves out."""
    facts, decision, expectation = report.facts, report.decision, report.expectation
    shown = _bounded(facts.groups)
    return {
        "version": VERSION,
        "verdict": decision.verdict.value,
        "proof": decision.proof.value,
        "expected": expectation.verdict and expectation.verdict.value,
        "as_expected": report.as_expected,
        "level_sizes": decision.level_sizes or None,
        "expected_dynamic_sizes": expectation.dynamic_sizes,
        "groups": [_group(group) for group in shown],
        "groups_omitted": len(facts.groups) - len(shown),
        "configuration": vars(facts.configuration),
        "engine": [{**vars(line), "lines": count} for line, count in facts.engine],
        "findings": [finding.text for finding in report.findings],
        "finding_codes": [finding.code for finding in report.findings],
        "warnings": report.warnings,
        "evidence": [vars(line) for line in facts.evidence[:MAX_EVIDENCE]],
        "files": report.files,
    }


def _bounded(groups: Sequence[LoggedGroup]) -> list[LoggedGroup]:
    """Return the first groups, up to `MAX_GROUPS` and `MAX_RANKS` members in all."""
    kept: list[LoggedGroup] = []
    members = 0
    for group in groups[:MAX_GROUPS]:
        members += len(group.ranks or ())
        if members > MAX_RANKS:
            break
        kept.append(group)
    return kept


def _group(group: LoggedGroup) -> dict[str, Any]:
    return {
        "name": group.name,
        "ranks": group.ranks,
        "size": group.size,
        "backend": group.backend,
        "evidence": group.strength.name.lower(),
        "bytes": group.bytes_sent,
        "operations": dict(sorted(group.operations.items())),
    }


def as_text(report: GroupsReport) -> Iterator[str]:
    """Yield the report for a reader, line by line."""
    facts, decision = report.facts, report.decision
    sizes = "x".join("?" if size is None else str(size) for size in decision.level_sizes)
    levels = f"  level sizes {sizes} (inner first)" if sizes else ""
    yield f"verdict: {decision.verdict.value}  proof: {decision.proof.value}{levels}"
    named: dict[str, list[LoggedGroup]] = {}
    others: list[LoggedGroup] = []
    for group in facts.groups:
        shown = is_context_parallel(group.name) or dynamic_size(group.name) is not None
        (named.setdefault(group.name, []) if shown else others).append(group)
    yield from (_line(name, alike) for name, alike in named.items())
    if others:
        names = len({group.name for group in others})
        yield f"  other groups: {len(others)} under {names} names"
    if facts.engine:
        yield f"  Transformer Engine's attention: {engine_text(facts.engine)}"
    if facts.evidence:
        yield "evidence:"
    for line in facts.evidence[:_TEXT_EVIDENCE]:
        yield f"  {line.file}:{line.line}: {line.text}"
    if len(facts.evidence) > _TEXT_EVIDENCE:
        yield f"  ... {len(facts.evidence) - _TEXT_EVIDENCE} more with --json"
    yield from (f"warning: {warning}" for warning in report.warnings)
    yield from (f"finding: {finding.text}" for finding in report.findings)
    if report.as_expected:
        yield "as expected"


def _line(name: str, alike: Sequence[LoggedGroup]) -> str:
    """Return how many groups have one name, how large, the first ranks, and their use."""
    sizes = sorted({group.size for group in alike if group.size is not None})
    operations: Counter[str] = Counter()
    for group in alike:
        operations.update(group.operations)
    ranks = next((format_ranks(group.ranks) for group in alike if group.ranks), "unknown")
    parts = [
        f"  {name}: {len(alike)} of size {'/'.join(map(str, sizes)) or 'unknown'}",
        f"ranks {ranks[:_RANKS_TEXT_LIMIT]}{' ...' if len(alike) > 1 else ''}",
        max(group.strength for group in alike).name.lower(),
    ]
    if operations:
        done = " ".join(f"{kind}:{count}" for kind, count in sorted(operations.items()))
        parts.append(f"{done} ({sum(group.bytes_sent for group in alike)} bytes)")
    return "; ".join(parts)
