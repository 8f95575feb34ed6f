"""Runs every rule over every skill, and tells what it found."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ringproof.harness.lint.fenced import check_commands, check_data, check_shell
from ringproof.harness.lint.references import check_references, check_unreferenced
from ringproof.harness.lint.rules import RULES, rule_of
from ringproof.harness.lint.safety import check_characters, check_hidden, check_texts
from ringproof.harness.lint.selection import LintConfig, Silence, apply_silences, silences_of
from ringproof.harness.lint.skill import Skill, find_skills, read_skill
from ringproof.harness.lint.spec import (
    check_card,
    check_duplicates,
    check_sizes,
    check_spec,
    has_skills_ref,
)
from ringproof.harness.reports.formats import finding_data
from ringproof.harness.reports.model import Finding, Report

_CHECKS = (
    check_spec,
    check_references,
    check_unreferenced,
    check_card,
    check_sizes,
    check_shell,
    check_data,
    check_characters,
    check_hidden,
    check_texts,
)


@dataclass(frozen=True)
class LintReport:
    """What a run found.

    Attributes:
        silenced: What comments with a reason silenced.
        skills_ref: Whether the reference validator took part.
    """

    findings: tuple[Finding, ...]
    silenced: tuple[Finding, ...]
    skills: int
    files: int
    skills_ref: bool


def lint(
    paths: tuple[Path, ...],
    config: LintConfig,
    program: Any,
    *,
    obey_silences: bool = True,
) -> LintReport:
    """Check the skills at and below paths, each skill once.

    Args:
        program: ringproof as a click command, for RP302.
        obey_silences: Whether comments may silence findings.

    Raises:
        InputError: A path does not exist or holds no skill.
    """
    mains = {main.parent: (main, home) for path in paths for main, home in find_skills(path)}
    findings: list[Finding] = []
    silences: list[Silence] = []
    slim: list[Skill] = []
    files = 0
    for folder in sorted(mains):
        skill = read_skill(*mains[folder])
        files += len(skill.texts)
        findings += skill.unread
        for check in _CHECKS:
            findings += check(skill)
        findings += check_commands(skill, program)
        silences += silences_of(skill) if obey_silences else ()
        slim.append(skill)
    findings += check_duplicates(slim)
    wanted = sorted({item for item in findings if config.applies(item)}, key=_order)
    left, silenced = apply_silences(wanted, silences)
    found = sorted((item for item in left if config.applies(item)), key=_order)
    return LintReport(tuple(found), silenced, len(mains), files, has_skills_ref())


def _order(finding: Finding) -> tuple[str, int, str, str]:
    return finding.path, finding.line, finding.rule, finding.message


def as_report(lint: LintReport) -> Report:
    """Return the findings, the rules and one closing line with the counts."""
    errors = sum(rule_of(item.rule).level == "error" for item in lint.findings)
    silenced = f", {len(lint.silenced)} silenced" if lint.silenced else ""
    summary = (
        f"{lint.skills} skills, {lint.files} files: {errors} errors, "
        f"{len(lint.findings) - errors} warnings{silenced}"
        f"{'' if lint.skills_ref else ' (without skills-ref)'}"
    )
    return Report(RULES, lint.findings, (summary,), lint.silenced)


def as_json(lint: LintReport) -> dict[str, Any]:
    """Return the report as data."""
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
