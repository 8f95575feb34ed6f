"""``ringproof lint``: is this a valid, safe, well-formed skill?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import typer

from ringproof.cli.options import command_of
from ringproof.cli.reporting import Outputs
from ringproof.errors import InputError, shown
from ringproof.lint.engine import as_json
from ringproof.lint.engine import lint as run_rules
from ringproof.lint.selection import LintConfig, check_prefix, read_config
from ringproof.options import option

_RULES = "this rule, or rules that begin with this prefix."


@dataclass(frozen=True, kw_only=True)
class LintCommand(Outputs):
    """The options of ``ringproof lint``."""

    paths: tuple[Path, ...] = option(
        ..., "A skill, a folder of skills or a repository.", metavar="PATH...", argument=True
    )
    select: tuple[str, ...] = option((), f"Apply only {_RULES}", metavar="RULE")
    ignore: tuple[str, ...] = option((), f"Leave out {_RULES}", metavar="RULE")
    config: Path | None = option(
        None, "File with a table [tool.ringproof.lint]. [default: ./pyproject.toml]", metavar="FILE"
    )
    exit_zero: bool = option(False, "Exit with 0 also where there are findings.")
    no_silence: bool = option(False, "Report also what comments in the text silence.")


@command_of(LintCommand)
def lint(context: typer.Context, options: LintCommand) -> None:
    """Check agent skills: the specification, references, sizes, commands, safety.

    Nothing is executed. Exit code 1: there are errors or warnings; 2: no skill was found there.
    Example: ringproof lint skills
    """
    rules = _rules(options.config, options.select, options.ignore)
    program = context.find_root().command
    report = run_rules(options.paths, rules, program, obey_silences=not options.no_silence)
    options.publish(report, as_json(report))
    if report.failed and not options.exit_zero:
        raise typer.Exit(1)


def _rules(config: Path | None, select: tuple[str, ...], ignore: tuple[str, ...]) -> LintConfig:
    default = Path("pyproject.toml")
    chosen = config if config is not None else default if default.is_file() else None
    base = read_config(chosen) if chosen is not None else LintConfig()
    for named, prefixes in (("--select", select), ("--ignore", ignore)):
        for prefix in prefixes:
            try:
                check_prefix(prefix)
            except ValueError as error:
                sentence = f"{shown(prefix)} {error}; docs/lint.md lists the rules"
                raise InputError(named, sentence) from error
    update = {"select": select or base.select, "ignore": base.ignore + ignore}
    return base.model_copy(update=update)
