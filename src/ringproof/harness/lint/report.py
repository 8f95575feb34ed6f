"""A report as JSON, SARIF 2.1.0 or GitHub annotations; plain values, no printing."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from ringproof import __version__
from ringproof.harness.lint.engine import LintReport
from ringproof.harness.lint.model import Finding
from ringproof.harness.lint.rules import RULES, rule_of

SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def as_json(report: LintReport) -> dict[str, Any]:
    """The report as data."""
    return {
        "version": 1,
        "pass": not report.findings,
        "skills": report.skills,
        "files": report.files,
        "skills_ref": report.skills_ref,
        "findings": [_finding(item) for item in report.findings],
        "silenced": [_finding(item) for item in report.silenced],
    }


def _finding(finding: Finding) -> dict[str, Any]:
    rule = rule_of(finding.rule)
    return {
        "rule": rule.id,
        "name": rule.name,
        "level": rule.level,
        "path": finding.path,
        "line": finding.line,
        "message": finding.message,
    }


def as_sarif(report: LintReport) -> dict[str, Any]:
    """A SARIF 2.1.0 log; silenced findings are in it, as suppressed in source."""
    driver = {
        "name": "ringproof",
        "version": __version__,
        "rules": [
            {
                "id": rule.id,
                "name": "".join(part.capitalize() for part in rule.name.split("-")),
                "shortDescription": {"text": rule.what},
                "defaultConfiguration": {"level": rule.level},
            }
            for rule in RULES
        ],
    }
    results = [_result(item) for item in report.findings]
    results += [
        {**_result(item), "suppressions": [{"kind": "inSource"}]} for item in report.silenced
    ]
    return {
        "$schema": SARIF_SCHEMA,
        "version": "2.1.0",
        "runs": [
            {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
        ],
    }


def _result(finding: Finding) -> dict[str, Any]:
    rule = rule_of(finding.rule)
    scheme = "file://" if finding.path.startswith("/") else ""
    return {
        "ruleId": rule.id,
        "ruleIndex": RULES.index(rule),
        "level": rule.level,
        "message": {"text": finding.message},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": scheme + quote(finding.path)},
                    "region": {"startLine": finding.line},
                }
            }
        ],
    }


def as_github(report: LintReport) -> tuple[str, ...]:
    """Workflow commands, one line each; nothing in a message can start another command."""
    return tuple(
        f"::{rule_of(item.rule).level} file={_property(item.path)},line={item.line},"
        f"title={item.rule}::{_data(item.message)}"
        for item in report.findings
    )


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def summary(report: LintReport) -> str:
    """One line with the counts."""
    errors = sum(rule_of(item.rule).level == "error" for item in report.findings)
    warnings = len(report.findings) - errors
    silenced = f", {len(report.silenced)} silenced" if report.silenced else ""
    with_reference = "" if report.skills_ref else " (without skills-ref)"
    return (
        f"{report.skills} skills, {report.files} files: {errors} errors, {warnings} warnings"
        f"{silenced}{with_reference}"
    )
