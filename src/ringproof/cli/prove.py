"""``ringproof prove``: does everything the cards say hold here?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from ringproof.cli import options
from ringproof.cli.output import write_json, write_text
from ringproof.cli.upstream import bring_missing
from ringproof.errors import InputError
from ringproof.files import make_folder, write_atomically
from ringproof.prove.prove import ProveResult
from ringproof.prove.prove import prove as run_proofs
from ringproof.prove.showing import print_records, render_report
from ringproof.prove.suite import ProveRequest
from ringproof.shipped import workplace
from ringproof.upstream.sources import parse_overrides

_Out = Annotated[
    Path,
    typer.Option(metavar="DIR", help="Folder for the records, report.html and the logs of pytest."),
]
_Record = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Write the records also as evidence, DIR/CLASS/SKILL.json."),
]
_Html = Annotated[
    str,
    typer.Option(metavar="PATH", help="Write the report as a page to this file, too."),
]
_RequireAll = Annotated[
    bool,
    typer.Option(
        "--require-all", help="Fail when upstream code that a card or a proof needs is missing."
    ),
]
_Jobs = Annotated[
    int,
    typer.Option(
        min=0,
        help="Number of test processes side by side. 0 means two, or one where there are GPUs.",
    ),
]


def prove(
    skills: options.SkillsArgument = None,
    *,
    quick: Annotated[
        bool, typer.Option("--quick", help="Leave out tests that are marked slow.")
    ] = False,
    folder: options.FolderOption = Path("skills"),
    out: _Out = Path("build/prove"),
    record: _Record = None,
    json_path: options.JsonOption = "",
    html: _Html = "",
    cache: options.CacheOption = None,
    offline: options.OfflineOption = False,
    require_all: _RequireAll = False,
    upstream: options.UpstreamOption = None,
    timeout: Annotated[
        float, options.seconds("Seconds after which all tests together are ended.")
    ] = 3600,
    jobs: _Jobs = 0,
) -> None:
    """Run everything the skills' cards point to and give a verdict on each statement.

    Upstream code that a card names is fetched first, unless it is given or in the cache. Tests are
    those beside the folder of the skills, in checks/ and smoke/. Exit code 1: a statement is
    refuted, a card had no proof executed, or not everything ran. Example: ringproof prove --quick
    """
    if quick and record is not None:
        raise InputError("--record", "--record needs a whole run; leave out --quick")
    console = Console(stderr=True)
    with workplace(folder) as place:
        request = ProveRequest(
            skills=place, names=tuple(skills or ()), quick=quick, out=out,
            evidence=record if record is not None else place.resolve().parent / "evidence",
            cache=options.cache_folder(cache), offline=offline, timeout=timeout, jobs=jobs,
            upstreams=parse_overrides(upstream or []), require_all=require_all,
        )  # fmt: skip
        missing = bring_missing(request, console)
        if missing:  # then nothing tries to fetch it again
            short = tuple(f"not at hand: {item}" for item in missing)
            request = replace(request, offline=True, short=short)
        result = run_proofs(request, console, _notice)
    if missing:
        typer.echo(f"not at hand: {'; '.join(missing)}", err=True)
    _write(result, out, record, html)
    if json_path:
        write_json(_summary(result), json_path)
    print_records(
        result.records, result.problems, console if "-" in (json_path, html) else Console()
    )
    typer.echo(f"report: {out / 'report.html'}", err=True)
    if result.problems:
        raise typer.Exit(1)


def _notice(line: str) -> None:
    typer.echo(f"stale: {line}", err=True)


def _write(result: ProveResult, out: Path, record: Path | None, html: str) -> None:
    places = {"--out": out}
    if record is not None:
        places["--record"] = record / result.records[0]["environment"]["class"]
    for option, place in places.items():
        make_folder(place, field=option)
        for one in result.records:
            write_json(one, place / f"{one['skill']}.json", field=option)
    report = render_report(result.records, result.problems, result.stale)
    write_atomically(out / "report.html", report, field="--out")
    if html:
        write_text(report, html, field="--html")


def _summary(result: ProveResult) -> dict[str, Any]:
    return {
        "version": 1,
        "pass": not result.problems,
        "problems": list(result.problems),
        "stale": list(result.stale),
        "skills": list(result.records),
    }
