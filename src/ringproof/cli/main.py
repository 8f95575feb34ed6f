"""The ``ringproof`` command: its subcommands and its exit codes.

Exit codes of every command: 0 ok, 1 problems found, 2 bad usage or input.
"""

from __future__ import annotations

import io
import os
import sys

import typer

from ringproof import __version__
from ringproof.cli import (
    anchors,
    card,
    conform,
    lint,
    logs,
    parity,
    plan,
    prove,
    rehearse,
    render,
    train,
)
from ringproof.errors import InputError
from ringproof.harness.cluster import RankFailure

app = typer.Typer(
    name="ringproof",
    help="Context-parallelism skills whose every statement is proven by something that runs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(anchors.app, name="anchors")
app.add_typer(card.app, name="card")
app.add_typer(parity.app, name="parity")
app.add_typer(plan.app, name="plan")
app.add_typer(logs.app, name="logs")
app.command("conform", epilog=conform.EXAMPLE)(conform.conform)
app.command("lint")(lint.lint)
app.command("prove")(prove.prove)
app.command("rehearse", epilog=rehearse.EXAMPLE)(rehearse.rehearse)
app.command("render")(render.render)
app.command("train", epilog=train.EXAMPLE)(train.train)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    pass


def main() -> None:
    """Run the command line; bad input ends as one line on stderr and exit code 2."""
    for stream in (sys.stdout, sys.stderr):  # what a terminal cannot show is no reason to fail
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except InputError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2)
    except RankFailure as failure:
        typer.echo(f"error: {failure}", err=True)
        sys.exit(1)
    except OSError as error:  # input files are checked where they are read; this is the output
        typer.echo(f"error: output: cannot be written: {error.strerror or error}", err=True)
        _discard_output()
        sys.exit(2)


def _discard_output() -> None:
    """What is still buffered for a full or closed standard output must not fail again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
