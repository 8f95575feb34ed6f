"""Runs every rule over every skill, and tells what it found."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ringproof.findings.finding import Finding, Report
from ringproof.findings.formats import finding_data
from ringproof.lint.executing import check_execution
from ringproof.lint.fenced import check_commands, check_data, check_shell
from ringproof.lint.harming import check_harm
from ringproof.lint.references import check_references, check_unreferenced
from ringproof.lint.rules import RULES
from ringproof.lint.safety import check_characters, check_hidden, check_texts
from ringproof.lint.selection import LintConfig, apply_silences, silences_of
from ringproof.lint.skill import find_skills, read_skill
from ringproof.lint.spec import (
    check_card,
    check_duplicates,
    check_sizes,
    check_spec,
    has_skills_ref,
)

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
    check_execution,
    check_harm,
)


@dataclass(frozen=True)
class LintReport(Report):
    """What a run found, and silenced by comments with a reason.

    Attributes:
        skills_ref: Whether the reference validator took part.
    """

    skills: int = 0
    files: int = 0
    skills_ref: bool = False


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
    skills = [read_skill(*mains[folder]) for folder in sorted(mains)]
    texts = [text for skill in skills for text in skill.texts]
    checks = (*_CHECKS, partial(check_commands, program=program))
    every = {item for skill in skills for check in checks for item in check(skill)}
    every |= {*check_duplicates(skills), *(item for skill in skills for item in skill.unread)}
    silences = [item for text in texts for item in silences_of(text)] if obey_silences else []
    left, silenced = apply_silences(sorted(filter(config.applies, every), key=_order), silences)
    found = sorted(filter(config.applies, left), key=_order)
    levels = {rule.id: rule.level for rule in RULES}
    errors = [levels[item.rule] for item in found].count("error")
    counts = (
        f"{len(skills)} skills, {len(texts)} files: {errors} errors, {len(found) - errors} warnings"
    )
    more = f", {len(silenced)} silenced" if silenced else ""
    without = "" if has_skills_ref() else " (without skills-ref)"
    summary = (f"{counts}{more}{without}",)
    return LintReport(
        RULES, tuple(found), summary, silenced, len(skills), len(texts), has_skills_ref()
    )


def _order(finding: Finding) -> tuple[str, int, str, str]:
    return finding.path, finding.line, finding.rule, finding.message


def as_json(report: LintReport) -> dict[str, Any]:
    """Return the report as data."""
    return {
        "version": 1,
        "pass": not report.findings,
        "skills": report.skills,
        "files": report.files,
        "skills_ref": report.skills_ref,
        "findings": [finding_data(report, item) for item in report.findings],
        "silenced": [finding_data(report, item) for item in report.silenced],
    }
