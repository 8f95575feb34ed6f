"""The verdict on a run's groups as text and as JSON. Its words are in ``logs/templates``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from ringproof.logs.groups.judge import GroupsReport
from ringproof.logs.groups.observed import LoggedGroup, dynamic_size, is_context_parallel
from ringproof.logs.parsing import engine_text
from ringproof.logs.rendering import rendered_lines
from ringproof.reference.topology.census_line import format_ranks

VERSION = 1
MAX_GROUPS = 500
MAX_RANKS = 200_000
"""Members of all groups that are named; a line of a few bytes can name a million."""
MAX_EVIDENCE = 60
_RANKS_TEXT_LIMIT = 40


def as_json(report: GroupsReport) -> dict[str, Any]:
    """Return the report as plain data; ``groups_omitted`` counts those that it leaves out."""
    facts, decision, expectation = report.facts, report.decision, report.expectation
    kept = _bounded(facts.groups)
    return {
        "version": VERSION,
        "verdict": decision.verdict.value,
        "proof": decision.proof.value,
        "expected": expectation.verdict and expectation.verdict.value,
        "as_expected": report.as_expected,
        "level_sizes": decision.level_sizes or None,
        "expected_dynamic_sizes": expectation.dynamic_sizes,
        "groups": [_group(group) for group in kept],
        "groups_omitted": len(facts.groups) - len(kept),
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
    named: dict[str, list[LoggedGroup]] = {}
    others: list[LoggedGroup] = []
    for group in report.facts.groups:
        shown = is_context_parallel(group.name) or dynamic_size(group.name) is not None
        (named.setdefault(group.name, []) if shown else others).append(group)
    yield from rendered_lines(
        "groups.txt",
        report=report,
        named=[_line(name, alike) for name, alike in named.items()],
        others=others,
        engine=engine_text(report.facts.engine),
    )


def _line(name: str, alike: Sequence[LoggedGroup]) -> str:
    """Return how many groups have one name, how large, the first ranks, and their use."""
    sizes = sorted({group.size for group in alike if group.size is not None})
    operations: Counter[str] = Counter()
    for group in alike:
        operations.update(group.operations)
    ranks = next((format_ranks(group.ranks) for group in alike if group.ranks), "unknown")
    parts = [
        f"{name}: {len(alike)} of size {'/'.join(map(str, sizes)) or 'unknown'}",
        f"ranks {ranks[:_RANKS_TEXT_LIMIT]}{' ...' if len(alike) > 1 else ''}",
        max(group.strength for group in alike).name.lower(),
    ]
    if operations:
        done = " ".join(f"{kind}:{count}" for kind, count in sorted(operations.items()))
        parts.append(f"{done} ({sum(group.bytes_sent for group in alike)} bytes)")
    return "; ".join(parts)
