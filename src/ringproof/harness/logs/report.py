"""How the findings of ``ringproof logs groups`` are told: as JSON and as a few lines of text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from ringproof.harness.logs.configuration import engine_text
from ringproof.harness.logs.facts import Group, is_context_parallel, is_dynamic
from ringproof.harness.logs.reader import GroupsReport
from ringproof.reference.topology.census_line import format_ranks

VERSION = 1
MAX_GROUPS = 500
MAX_RANKS = 200_000
MAX_EVIDENCE = 60
_TEXT_EVIDENCE = 12
_RANKS_TEXT_LIMIT = 40


def as_json(report: GroupsReport) -> dict[str, Any]:
    """The report as plain data; ``groups_omitted`` counts those beyond what a report holds."""
    facts, decision = report.facts, report.decision
    expected = report.expectation.verdict
    told = facts.configuration
    told_groups = _bounded(facts.groups)
    return {
        "version": VERSION,
        "verdict": decision.verdict.value,
        "proof": decision.proof.value,
        "expected": None if expected is None else expected.value,
        "as_expected": report.as_expected,
        "level_sizes": list(decision.level_sizes) or None,
        "expected_dynamic_sizes": _listed(report.expectation.dynamic_sizes),
        "groups": [_group(group) for group in told_groups],
        "groups_omitted": len(facts.groups) - len(told_groups),
        "configuration": {
            "world_size": told.world_size,
            "data_parallel_size": told.data_parallel_size,
            "context_parallel_size": told.context_parallel_size,
            "hierarchical_context_parallel_sizes": _listed(told.hierarchical_sizes),
            "cp_comm_type": _listed(told.comm_types),
        },
        "engine": [
            {
                "context_parallel": line.context_parallel,
                "cp_comm_type": line.comm_type,
                "cp_size": line.size,
                "lines": count,
            }
            for line, count in facts.engine
        ],
        "findings": list(report.findings),
        "warnings": list(report.warnings),
        "evidence": [
            {"file": line.file, "line": line.line, "text": line.text, "shows": line.shows}
            for line in facts.evidence[:MAX_EVIDENCE]
        ],
        "files": [
            {"path": file.path, "bytes": file.bytes_read, "lines": file.lines}
            for file in report.files
        ],
    }


def as_text(report: GroupsReport) -> Iterator[str]:
    """The report for a reader, line by line."""
    decision = report.decision
    sizes = "x".join("?" if size is None else str(size) for size in decision.level_sizes)
    levels = f"  level sizes {sizes} (inner first)" if sizes else ""
    yield f"verdict: {decision.verdict.value}  proof: {decision.proof.value}{levels}"
    shown = [group for group in report.facts.groups if _is_shown(group.name)]
    yield from _table(shown)
    others = [group for group in report.facts.groups if not _is_shown(group.name)]
    if others:
        names = len({group.name for group in others})
        yield f"  other groups: {len(others)} under {names} names"
    if report.facts.engine:
        yield f"  Transformer Engine's attention: {engine_text(report.facts.engine)}"
    if report.facts.evidence:
        yield "evidence:"
    for line in report.facts.evidence[:_TEXT_EVIDENCE]:
        yield f"  {line.file}:{line.line}: {line.text}"
    if len(report.facts.evidence) > _TEXT_EVIDENCE:
        yield f"  ... {len(report.facts.evidence) - _TEXT_EVIDENCE} more with --json"
    yield from (f"warning: {warning}" for warning in report.warnings)
    yield from (f"finding: {finding}" for finding in report.findings)
    if report.as_expected:
        yield "as expected"


def _is_shown(name: str) -> bool:
    return is_context_parallel(name) or is_dynamic(name)


def _table(groups: list[Group]) -> Iterator[str]:
    """One line per group name: how many, how large, the first ranks, what is known of their use."""
    for name in dict.fromkeys(group.name for group in groups):
        alike = [group for group in groups if group.name == name]
        sizes = sorted({group.size for group in alike if group.size is not None})
        sent = sum(group.bytes_sent for group in alike)
        operations: Counter[str] = Counter()
        for group in alike:
            operations.update(dict(group.operations))
        ranks = next((format_ranks(group.ranks) for group in alike if group.ranks), "unknown")
        parts = [
            f"  {name}: {len(alike)} of size {'/'.join(map(str, sizes)) or 'unknown'}",
            f"ranks {ranks[:_RANKS_TEXT_LIMIT]}{' ...' if len(alike) > 1 else ''}",
            max(group.strength for group in alike).word,
        ]
        if operations:
            done = " ".join(f"{kind}:{count}" for kind, count in sorted(operations.items()))
            parts.append(f"{done} ({sent} bytes)")
        yield "; ".join(parts)


def _bounded(groups: tuple[Group, ...]) -> list[Group]:
    """The first groups, up to :data:`MAX_GROUPS` and :data:`MAX_RANKS` members in all."""
    kept: list[Group] = []
    members = 0
    for group in groups[:MAX_GROUPS]:
        members += len(group.ranks or ())
        if members > MAX_RANKS:
            break
        kept.append(group)
    return kept


def _group(group: Group) -> dict[str, Any]:
    return {
        "name": group.name,
        "ranks": None if group.ranks is None else list(group.ranks),
        "size": group.size,
        "backend": group.backend,
        "evidence": group.strength.word,
        "bytes": group.bytes_sent,
        "operations": dict(group.operations),
    }


def _listed(values: tuple[Any, ...] | None) -> list[Any] | None:
    return None if values is None else list(values)
