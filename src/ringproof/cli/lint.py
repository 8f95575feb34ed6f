"""``ringproof lint``: is this a valid, safe, well-formed skill?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ringproof.cli.options import JsonOption
from ringproof.cli.reporting import Format, FormatOption, Outputs, SarifOption
from ringproof.errors import InputError, shown
from ringproof.lint.engine import as_json
from ringproof.lint.engine import lint as run_rules
from ringproof.lint.selection import LintConfig, check_prefix, read_config


def lint(
    ctx: typer.Context,
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH...", help="A skill, a folder of skills or a repository."),
    ],
    *,
    output: FormatOption = Format.TEXT,
    json_path: JsonOption = "",
    sarif_path: SarifOption = "",
    select: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RULE", help="Apply only this rule, or rules that begin with this prefix."
        ),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RULE", help="Leave out this rule, or rules that begin with this prefix."
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File with a table [tool.ringproof.lint]. [default: ./pyproject.toml]",
        ),
    ] = None,
    no_silence: Annotated[
        bool, typer.Option("--no-silence", help="Report also what comments in the text silence.")
    ] = False,
) -> None:
    """Check agent skills: the specification, references, sizes, commands, safety.

    Nothing is executed. Exit code 1: there are findings; 2: no skill was found there.
    Example: ringproof lint skills
    """
    outputs = Outputs(output, json_path, sarif_path)
    rules = _rules(config, tuple(select or ()), tuple(ignore or ()))
    program = ctx.find_root().command
    report = run_rules(tuple(paths), rules, program, obey_silences=not no_silence)
    outputs.publish(report, as_json(report))
    if report.findings:
        raise typer.Exit(1)


def _rules(config: Path | None, select: tuple[str, ...], ignore: tuple[str, ...]) -> LintConfig:
    default = Path("pyproject.toml")
    chosen = config if config is not None else default if default.is_file() else None
    base = read_config(chosen) if chosen is not None else LintConfig()
    for option, prefixes in (("--select", select), ("--ignore", ignore)):
        for prefix in prefixes:
            try:
                check_prefix(prefix)
            except ValueError as error:
                sentence = f"{shown(prefix)} {error}; docs/lint.md lists the rules"
                raise InputError(option, sentence) from error
    update = {"select": select or base.select, "ignore": base.ignore + ignore}
    return base.model_copy(update=update)
