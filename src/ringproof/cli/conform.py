"""``ringproof conform``: what of context parallelism starts and agrees on this Megatron?"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ringproof.budget import Machine
from ringproof.cache import default_cache
from ringproof.cli.console import HarmlessConsole
from ringproof.cli.options import command_of
from ringproof.cli.output import write_json
from ringproof.cli.rehearse import RunOptions
from ringproof.errors import InputError, shown
from ringproof.files import make_folder
from ringproof.options import option

if TYPE_CHECKING:
    from ringproof.rehearsal.conform.record import ConformanceRecord

TABLE_WIDTH = 160
EXAMPLE = "Example: ringproof conform --upstream git:PATH@REF --case dynamic-cp-tp2-sp"

_SEVERAL = "Can be given several times."


@dataclass(frozen=True, kw_only=True)
class ConformCommand(RunOptions):
    """The options of ``ringproof conform``."""

    case: tuple[str, ...] = option((), f"Run only this case. {_SEVERAL}", metavar="NAME")
    group: tuple[str, ...] = option((), f"Run only this group. {_SEVERAL}", metavar="NAME")
    against: str = option(
        "",
        "Known upstream with which the cases are compared: exit with 1 only where a case "
        "agreed there and does not agree here.",
        metavar="NAME",
    )
    locate: bool = option(True, "Look for the first wrong tensor of a case that differs.")
    out: str = option("", "Folder for logs. Without it, none are kept.", metavar="DIR")
    name: str = option("", "Name of this Megatron in the table and the JSON.", metavar="NAME")
    listed: bool = option(False, "Print the cases and exit.", "--list")


@command_of(ConformCommand)
def conform(options: ConformCommand) -> None:
    """Train tiny models on CPU with a Megatron and compare each with the same training on one rank.

    Exits with 1 where a case differs from its reference, takes another path than it asks for, or
    hangs, and with 2 where no case agrees. Beside others an error of upstream is a result, not a
    failure.
    """
    from ringproof.rehearsal.conform import cases, table
    from ringproof.rehearsal.conform import record as records

    wanted = cases.chosen(options.case, options.group)
    if options.listed:
        for one in wanted:
            typer.echo(f"{one.id:30} {one.group:14} {one.ranks} ranks  {one.arguments}")
        return
    if not options.upstream:
        raise InputError("--upstream", "--upstream is missing; name a checkout, or git:PATH@REF")
    other = _known(options.against) if options.against else None
    from ringproof.rehearsal.rehearsing import estimate

    if not options.force:
        largest = max(wanted, key=lambda one: one.ranks)
        estimate(largest.ranks, largest.id, "--case").check(Machine.here())
    from ringproof.rehearsal.conform.matrix import run_matrix
    from ringproof.rehearsal.runs.upstreams import open_upstream

    source: dict[str, Any] = {"cache": default_cache(), "offline": options.offline}
    opened = open_upstream(options.upstream, options.te, **source)
    with tempfile.TemporaryDirectory(prefix="ringproof-conform-") as folder:
        kept = Path(options.out or folder).absolute()
        make_folder(kept, field="--out")
        record = run_matrix(
            opened, wanted, kept, iterations=options.steps, name=options.name,
            locates=options.locate, progress=lambda line: typer.echo(line, err=True),
        )  # fmt: skip
    if options.json_path:
        write_json(records.as_json(record), options.json_path)
    if options.json_path != "-":
        console = HarmlessConsole()
        wide = console if console.is_terminal else HarmlessConsole(width=TABLE_WIDTH)
        table.print_record(record, records.shipped(), wide)
    if other is not None:
        typer.echo(table.against(record, other), err=True)
    failed = table.failing(record, other)
    if failed:
        typer.echo(f"failed: {', '.join(failed)}", err=True)
        raise typer.Exit(1)
    nothing = table.nothing_agrees(record)
    if nothing and other is None:
        raise InputError("--upstream", nothing)


def _known(name: str) -> ConformanceRecord:
    """The known upstream with this name, its short name or its commit."""
    from ringproof.rehearsal.conform.record import shipped

    for one in shipped():
        if name in (one.name, one.short, *one.name.split()):
            return one
    names = "; ".join(one.short for one in shipped())
    raise InputError("--against", f"{shown(name)} is not a known upstream; use one of {names}")
