"""Findings and rules as plain data: for JSON, and for the pages that explain the rules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ringproof.harness.reports.model import Finding, Report, Rule


def finding_data(report: Report, finding: Finding) -> dict[str, Any]:
    """One finding; ``end_line`` and ``details`` only where there are any."""
    rule = report.rule(finding)
    data: dict[str, Any] = {
        "rule": rule.id,
        "name": rule.name,
        "level": rule.level,
        "path": finding.path,
        "line": finding.line,
        "message": finding.message,
    }
    if finding.end_line is not None:
        data["end_line"] = finding.end_line
    if finding.details:
        data["details"] = list(finding.details)
    return data


def as_markdown(rules: Iterable[Rule]) -> Iterator[str]:
    """The lines of a page that lists rules, each under the heading that `help_uri` leads to."""
    for rule in rules:
        yield f"### {rule.id} `{rule.name}` ({rule.level})"
        yield ""
        yield rule.what
        yield ""
        if rule.remedy:
            yield f"- Remedy: {rule.remedy}"
            yield ""
