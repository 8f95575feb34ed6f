"""``ringproof logs``: what a run's logs prove."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from ringproof.cli import logs_parity
from ringproof.cli.output import write_json
from ringproof.harness.logs.findings import parse_expectation
from ringproof.harness.logs.opening import STDIN
from ringproof.harness.logs.reader import read_groups
from ringproof.harness.logs.report import as_json, as_text

app = typer.Typer(
    help="Read what the logs of a run prove.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.command()
def groups(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...", help="Log files of one run. - is stdin, and gzip is unpacked."
        ),
    ],
    expect: Annotated[
        str | None,
        typer.Option(metavar="VERDICT", help="Expected verdict: hierarchical, flat or none."),
    ] = None,
    hcp: Annotated[
        str | None,
        typer.Option(
            metavar="SIZES",
            help="Expected level sizes of hierarchical CP, inner first, such as 2,4.",
        ),
    ] = None,
    json_path: Annotated[
        str | None,
        typer.Option(
            "--json", metavar="PATH", help="Write the report as JSON to this file; - is stdout."
        ),
    ] = None,
    require_traffic: Annotated[
        bool,
        typer.Option(
            "--require-traffic",
            help="Fail where the log does not show that context-parallel groups were used.",
        ),
    ] = False,
    dynamic: Annotated[
        str | None,
        typer.Option(metavar="SIZES", help="Expected CP sizes of Dynamic CP, such as 1,2,4."),
    ] = None,
) -> None:
    """Say whether hierarchical, flat or no context parallelism was active in a run."""
    expectation = parse_expectation(expect, hcp, require_traffic, dynamic)
    report = read_groups(files, expectation, stdin=sys.stdin.buffer if sys.stdin else None)
    if json_path is not None:
        write_json(as_json(report), json_path)
    if json_path != STDIN:
        for line in as_text(report):
            typer.echo(line)
    if report.as_expected is False:
        raise typer.Exit(1)


app.command("parity", epilog=logs_parity.EXAMPLE)(logs_parity.parity)
