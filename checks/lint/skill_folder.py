"""Skills made for a test, and what the linter says of them."""

from __future__ import annotations

from pathlib import Path

import typer

from ringproof.cli.main import app
from ringproof.lint.engine import LintReport, lint
from ringproof.lint.selection import LintConfig

PROGRAM = typer.main.get_command(app)
HEAD = "---\nname: {name}\ndescription: Use this skill when a test needs {name}.\n---\n"


def make_skill(root: Path, body: str = "", *, name: str = "one", head: str = HEAD) -> Path:
    """A valid skill with a body; its folder."""
    folder = root / "skills" / name
    folder.mkdir(parents=True, exist_ok=True)
    text = head.replace("{name}", name) + body
    (folder / "SKILL.md").write_text(text, encoding="utf-8")
    return folder


def report_on(*paths: Path, config: LintConfig | None = None, obey: bool = True) -> LintReport:
    """Lint with the commands of this ringproof."""
    return lint(paths, config or LintConfig(), PROGRAM, obey_silences=obey)


def rules_of(*paths: Path) -> list[str]:
    """The ids of what is found, sorted."""
    return sorted(finding.rule for finding in report_on(*paths).findings)
