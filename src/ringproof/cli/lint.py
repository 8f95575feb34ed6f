"""``ringproof lint``: is this a valid, safe, well-formed skill?"""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from ringproof.cli.output import write_json
from ringproof.harness.lint.commands import CommandTable
from ringproof.harness.lint.config import LintConfig, check_prefixes, read_config
from ringproof.harness.lint.engine import LintReport
from ringproof.harness.lint.engine import lint as run_rules
from ringproof.harness.lint.report import as_github, as_json, as_sarif, summary
from ringproof.harness.lint.rules import rule_of


class Format(str, Enum):
    """What is printed."""

    TEXT = "text"
    JSON = "json"
    SARIF = "sarif"
    GITHUB = "github"


def lint(
    ctx: typer.Context,
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH...", help="A skill, a folder of skills or a repository."),
    ],
    *,
    output: Annotated[Format, typer.Option("--format", help="What to print.")] = Format.TEXT,
    json_path: Annotated[
        str, typer.Option("--json", metavar="PATH", help="Also write JSON here; - is stdout.")
    ] = "",
    select: Annotated[
        list[str] | None, typer.Option(metavar="RULE", help="Only these rules; a prefix will do.")
    ] = None,
    ignore: Annotated[
        list[str] | None, typer.Option(metavar="RULE", help="Not these rules; a prefix will do.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="With [tool.ringproof.lint]; else ./pyproject.toml."),
    ] = None,
    no_silence: Annotated[
        bool, typer.Option("--no-silence", help="Report what comments in the text silence, too.")
    ] = False,
) -> None:
    """Check agent skills: the specification, references, sizes, commands, safety.

    Nothing is executed. Exit code 1: there are findings; 2: no skill was found there.
    Example: ringproof lint skills
    """
    rules = _rules(config, tuple(select or ()), tuple(ignore or ()))
    table = command_table(ctx.find_root().command)
    report = run_rules(tuple(paths), rules, table, obey_silences=not no_silence)
    if json_path:
        write_json(as_json(report), json_path)
    if json_path != "-":
        _print(report, output)
    if report.findings:
        raise typer.Exit(1)


def _rules(config: Path | None, select: tuple[str, ...], ignore: tuple[str, ...]) -> LintConfig:
    default = Path("pyproject.toml")
    chosen = config if config is not None else default if default.is_file() else None
    base = read_config(chosen) if chosen is not None else LintConfig()
    return LintConfig(
        select=check_prefixes("--select", select) or base.select,
        ignore=base.ignore + check_prefixes("--ignore", ignore),
        per_path=base.per_path,
    )


def command_table(command: Any) -> CommandTable:
    """The options and subcommands of a click command, which typer makes from our functions."""
    options = [
        spelling
        for parameter in command.params
        if parameter.param_type_name == "option"
        for spelling in (*parameter.opts, *parameter.secondary_opts)
    ]
    inner = getattr(command, "commands", {})
    table = {name: command_table(subcommand) for name, subcommand in inner.items()}
    return CommandTable(frozenset(options), MappingProxyType(table))


def _print(report: LintReport, output: Format) -> None:
    if output is Format.JSON:
        write_json(as_json(report), "-")
    elif output is Format.SARIF:
        write_json(as_sarif(report), "-")
    elif output is Format.GITHUB:
        for line in as_github(report):
            typer.echo(line)
        typer.echo(summary(report), err=True)
    else:
        _print_text(report)


def _print_text(report: LintReport) -> None:
    console = Console(soft_wrap=True, highlight=False)
    for finding in report.findings:
        style = "red" if rule_of(finding.rule).level == "error" else "yellow"
        place = Text(f"{finding.path}:{finding.line}: ")
        console.print(place.append(finding.rule, style).append(f" {finding.message}"))
    console.print(Text(summary(report), "bold"))
