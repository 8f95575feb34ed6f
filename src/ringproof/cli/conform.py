"""``ringproof conform``: what of context parallelism starts and agrees on this Megatron?"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from ringproof.budget import Machine
from ringproof.cache import default_cache
from ringproof.cli.options import ForceOption, JsonOption, OfflineOption
from ringproof.cli.output import write_json
from ringproof.cli.rehearse import CheckoutOption, EngineOption, StepsOption
from ringproof.errors import InputError, shown

if TYPE_CHECKING:
    from ringproof.rehearsal.conform.record import ConformanceRecord

TABLE_WIDTH = 160
EXAMPLE = "Example: ringproof conform --upstream git:PATH@REF --case dynamic-cp-tp2-sp"

CaseOption = Annotated[
    list[str] | None,
    typer.Option("--case", metavar="NAME", help="Run only this case. Can be given several times."),
]
GroupOption = Annotated[
    list[str] | None,
    typer.Option(
        "--group", metavar="NAME", help="Run only this group. Can be given several times."
    ),
]
AgainstOption = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="Known upstream with which the cases are compared: exit with 1 only where a case "
        "agreed there and does not agree here.",
    ),
]
OutOption = Annotated[
    str, typer.Option("--out", metavar="DIR", help="Folder for logs. Without it, none are kept.")
]
NameOption = Annotated[
    str, typer.Option(metavar="NAME", help="Name of this Megatron in the table and the JSON.")
]
ListOption = Annotated[bool, typer.Option("--list", help="Print the cases and exit.")]


def conform(
    *,
    upstream: CheckoutOption = "",
    te: EngineOption = None,
    case: CaseOption = None,
    group: GroupOption = None,
    steps: StepsOption = 5,
    against: AgainstOption = "",
    out: OutOption = "",
    name: NameOption = "",
    listed: ListOption = False,
    json_path: JsonOption = "",
    offline: OfflineOption = False,
    force: ForceOption = False,
) -> None:
    """Train tiny models on CPU with a Megatron and compare each with the same training on one rank.

    Exits with 1 where a case differs from its reference, takes another path than it asks for, or
    hangs. An error of upstream is a result, not a failure.
    """
    from ringproof.rehearsal.conform import cases, table
    from ringproof.rehearsal.conform import record as records

    wanted = cases.chosen(case or (), group or ())
    if listed:
        for one in wanted:
            typer.echo(f"{one.id:30} {one.group:14} {one.ranks} ranks  {one.arguments}")
        return
    if not upstream:
        raise InputError("--upstream", "--upstream is missing; name a checkout, or git:PATH@REF")
    other = _known(against) if against else None
    from ringproof.rehearsal.rehearsing import estimate, made_folder

    if not force:
        largest = max(wanted, key=lambda one: one.ranks)
        estimate(largest.ranks, largest.id, "--case").check(Machine.here())
    from ringproof.rehearsal.conform.matrix import run_matrix
    from ringproof.rehearsal.runs.upstreams import open_upstream

    cache = default_cache()
    opened = open_upstream(upstream, te, cache=cache, offline=offline)
    with tempfile.TemporaryDirectory(prefix="ringproof-conform-") as folder:
        kept = made_folder(Path(out).absolute()) if out else Path(folder)
        record = run_matrix(
            opened, wanted, kept, iterations=steps, name=name,
            progress=lambda line: typer.echo(line, err=True),
        )  # fmt: skip
    if json_path:
        write_json(records.as_json(record), json_path)
    if json_path != "-":
        console = Console()
        wide = console if console.is_terminal else Console(width=TABLE_WIDTH)
        table.print_record(record, records.shipped(), wide)
    if other is not None:
        typer.echo(table.against(record, other), err=True)
    failed = table.failing(record, other)
    if failed:
        typer.echo(f"failed: {', '.join(failed)}", err=True)
        raise typer.Exit(1)


def _known(name: str) -> ConformanceRecord:
    """The known upstream with this name, its short name or its commit."""
    from ringproof.rehearsal.conform.record import shipped

    for one in shipped():
        if name in (one.name, one.short, *one.name.split()):
            return one
    names = "; ".join(one.short for one in shipped())
    raise InputError("--against", f"{shown(name)} is not a known upstream; use one of {names}")
