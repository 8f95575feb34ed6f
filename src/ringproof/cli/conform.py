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
from ringproof.cli.rehearse import VERL_PACKAGES, RunOptions, require_packages
from ringproof.errors import InputError, shown
from ringproof.files import make_folder
from ringproof.options import option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringproof.rehearsal.conform.cases import Case
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
    framework: str = option(
        "megatron",
        "Whose programs train: those of Megatron-LM, or those of verl on Megatron-LM.",
        choices=("megatron", "verl"),
    )
    verl: str = option(
        "",
        "verl to run with --framework verl: a folder, git:PATH@REF or pip:verl==VERSION.  "
        "[default: pip:verl==0.9.1]",
        metavar="SPEC",
    )
    bridge: str = option(
        "",
        "Megatron-Bridge for verl, named alike, or mbridge for the package of this name.",
        metavar="SPEC|mbridge",
    )
    append: bool = option(
        False,
        "Keep the cases that the file of --json has, run only the others, and write it after each.",
    )
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

    matrix = cases.VERL_CASES if options.framework == "verl" else cases.CASES
    wanted = cases.chosen(options.case, options.group, matrix)
    if options.listed:
        for one in wanted:
            typer.echo(f"{one.id:30} {one.group:14} {one.ranks} ranks  {one.arguments}")
        return
    ids = {one.id for one in matrix}
    known = [one for one in records.shipped() if ids & one.by_id.keys()]
    other = _known(options.against, known) if options.against else None
    old = _begun(options)
    lacking = [one for one in wanted if old is None or one.id not in old.by_id]
    record = _recorded(options, lacking, old)
    if options.json_path:
        write_json(records.as_json(record), options.json_path)
    if options.json_path != "-":
        console = HarmlessConsole()
        wide = console if console.file.isatty() else HarmlessConsole(width=TABLE_WIDTH)
        table.print_record(record, known, wide)
    if other is not None:
        typer.echo(table.against(record, other), err=True)
    failed = table.failing(record, other)
    if failed:
        typer.echo(f"failed: {', '.join(failed)}", err=True)
        raise typer.Exit(1)
    nothing = table.nothing_agrees(record)
    if nothing and (other is None or table.ours(record)):
        raise InputError("--upstream", nothing)


def _begun(options: ConformCommand) -> ConformanceRecord | None:
    """Return the record that ``--append`` adds to; ``None`` where there is none yet."""
    from ringproof.rehearsal.conform import record as records

    if options.append and options.json_path in ("", "-"):
        raise InputError("--append", "there is no file to add to; name one with --json")
    path = Path(options.json_path)
    return records.read(path, "--append") if options.append and path.exists() else None


def _fitting(options: ConformCommand) -> bool:
    """Return whether verl trains, after a look whether the options fit its framework."""
    verl = options.framework == "verl"
    for name, value in (("--verl", options.verl), ("--bridge", options.bridge)):
        if value and not verl:
            raise InputError(name, "the framework is Megatron-LM; add --framework verl")
    if verl:
        require_packages("conform", VERL_PACKAGES, "verl")
    if not options.upstream and not verl:
        raise InputError("--upstream", "--upstream is missing; name a checkout, or git:PATH@REF")
    return verl


def _recorded(
    options: ConformCommand, wanted: Sequence[Case], old: ConformanceRecord | None
) -> ConformanceRecord:
    """Run the cases on what the options name, and add them to a record."""
    from ringproof.rehearsal.conform import record as records
    from ringproof.rehearsal.conform.matrix import run_matrix
    from ringproof.rehearsal.rehearsing import estimate
    from ringproof.rehearsal.runs.upstreams import open_upstream

    def tell(line: str) -> None:
        typer.echo(line, err=True)

    def whole(record: ConformanceRecord) -> ConformanceRecord:
        if options.append:
            records.check_lasting(record, options.te)
        return record if old is None else records.joined(old, record, "--append")

    def done(record: ConformanceRecord, line: str) -> None:
        so_far = whole(record)  # refuses other versions before a case runs, or where none is left
        if options.append and line:
            write_json(records.as_json(so_far), options.json_path)
        if line:
            tell(line)

    verl = _fitting(options)
    if wanted and not options.force:
        largest = max(wanted, key=lambda one: one.ranks)
        estimate(largest.ranks, largest.id, "--case").check(Machine.here())
    source: dict[str, Any] = {"cache": default_cache(), "offline": options.offline}
    steps, name = options.steps, options.name
    with tempfile.TemporaryDirectory(prefix="ringproof-conform-") as folder:
        kept = Path(options.out or folder).absolute()
        if not verl:
            opened = open_upstream(options.upstream, options.te, **source)
            make_folder(kept, field="--out")
            return whole(run_matrix(
                opened, wanted, kept, iterations=steps, name=name,
                locates=options.locate, progress=done,
            ))  # fmt: skip
        from ringproof.rehearsal.runs.releases import choose_releases
        from ringproof.rehearsal.verl.conforming import run_verl_matrix
        from ringproof.rehearsal.verl.upstreams import open_stack, open_verl

        vanilla = options.bridge == "mbridge"
        bridge = "" if vanilla else options.bridge
        chosen = choose_releases(options.upstream, bridge, vanilla=vanilla, **source)
        if chosen.said:
            tell(f"runs {chosen.said}")
        opened = open_upstream(chosen.megatron, options.te, **source)
        verl_folder = open_verl(options.verl, **source)
        stack = open_stack(opened, verl_folder, chosen.bridge, vanilla=vanilla, **source)
        make_folder(kept, field="--out")
        return whole(run_verl_matrix(
            stack, wanted, kept, vanilla=vanilla, iterations=steps, name=name,
            locates=options.locate, progress=done,
        ))  # fmt: skip


def _known(name: str, shipped: Sequence[ConformanceRecord]) -> ConformanceRecord:
    """The known upstream with this name, its short name or its commit."""
    for one in shipped:
        if name in (one.name, one.short, *one.name.split()):
            return one
    names = "; ".join(one.short for one in shipped)
    raise InputError("--against", f"{shown(name)} is not a known upstream; use one of {names}")
