"""What the linter found, as a report and as JSON."""

from __future__ import annotations

from typing import Any

from ringproof.harness.lint.engine import LintReport
from ringproof.harness.lint.rules import RULES, rule_of
from ringproof.harness.reports.data import finding_data
from ringproof.harness.reports.model import Report


def as_report(lint: LintReport) -> Report:
    """The findings, the rules and one closing line with the counts."""
    return Report(RULES, lint.findings, (_summary(lint),), lint.silenced)


def as_json(lint: LintReport) -> dict[str, Any]:
    """The report as data."""
    report = as_report(lint)
    return {
        "version": 1,
        "pass": not lint.findings,
        "skills": lint.skills,
        "files": lint.files,
        "skills_ref": lint.skills_ref,
        "findings": [finding_data(report, item) for item in lint.findings],
        "silenced": [finding_data(report, item) for item in lint.silenced],
    }


def _summary(lint: LintReport) -> str:
    errors = sum(rule_of(item.rule).level == "error" for item in lint.findings)
    warnings = len(lint.findings) - errors
    silenced = f", {len(lint.silenced)} silenced" if lint.silenced else ""
    with_reference = "" if lint.skills_ref else " (without skills-ref)"
    return (
        f"{lint.skills} skills, {lint.files} files: {errors} errors, {warnings} warnings"
        f"{silenced}{with_reference}"
    )
