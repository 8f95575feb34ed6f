"""``ringproof prove``: does everything the cards say hold here?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from ringproof.cli.options import (
    CacheOption,
    FolderOption,
    JsonOption,
    OfflineOption,
    SkillsArgument,
    UpstreamOption,
    cache_folder,
    checked_seconds,
)
from ringproof.cli.output import write_json
from ringproof.cli.upstream import bring_missing
from ringproof.errors import InputError
from ringproof.files import write_atomically
from ringproof.harness.proofs.evidence import skill_record
from ringproof.harness.proofs.prove import ProveResult
from ringproof.harness.proofs.prove import prove as run_proofs
from ringproof.harness.proofs.report import print_result, render_report
from ringproof.harness.proofs.suite import ProveRequest
from ringproof.harness.upstreams.sources import parse_overrides
from ringproof.shipped import workplace

_Out = Annotated[
    Path,
    typer.Option(metavar="DIR", help="Folder for the records, report.html and the logs of pytest."),
]
_Record = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Write the records also as evidence, DIR/CLASS/SKILL.json."),
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
    skills: SkillsArgument = None,
    *,
    quick: Annotated[
        bool, typer.Option("--quick", help="Leave out tests that are marked slow.")
    ] = False,
    folder: FolderOption = Path("skills"),
    out: _Out = Path("build/prove"),
    record: _Record = None,
    json_path: JsonOption = "",
    cache: CacheOption = None,
    offline: OfflineOption = False,
    require_all: _RequireAll = False,
    upstream: UpstreamOption = None,
    timeout: Annotated[
        float,
        typer.Option(
            callback=checked_seconds, help="Seconds after which all tests together are ended."
        ),
    ] = 3600,
    jobs: _Jobs = 0,
) -> None:
    """Run everything the skills' cards point to and give a verdict on each statement.

    Upstream code that a card names is fetched first, unless it is given or in the cache. Tests are
    those beside the folder of the skills, in checks/ and smoke/. Exit code 1: a statement is
    refuted, a card had no proof executed, or not everything ran. Example: ringproof prove --quick
    """
    if quick and record is not None:
        raise InputError("--record", record, "a quick run is no evidence", "leave out --quick")
    console = Console(stderr=True)
    with workplace(folder) as place:
        request = ProveRequest(
            skills=place, names=tuple(skills or ()), quick=quick, out=out,
            evidence=record if record is not None else place.resolve().parent / "evidence",
            cache=cache_folder(cache), offline=offline, timeout=timeout, jobs=jobs,
            upstreams=parse_overrides(upstream or []), require_all=require_all,
        )  # fmt: skip
        missing = bring_missing(request, console)
        request = _without(missing, request)
        result = run_proofs(request, console, _notice)
    if missing:
        typer.echo(f"not at hand: {'; '.join(missing)}", err=True)
    _write(result, out, record)
    if json_path:
        write_json(_summary(result), json_path)
    print_result(result, console if json_path == "-" else Console())
    typer.echo(f"report: {out / 'report.html'}", err=True)
    if result.problems:
        raise typer.Exit(1)


def _without(missing: Sequence[str], request: ProveRequest) -> ProveRequest:
    """Return the request when something could not be fetched: nothing tries to again."""
    if not missing:
        return request
    short = tuple(f"not at hand: {item}" for item in missing)
    return replace(request, offline=True, short=short)


def _notice(line: str) -> None:
    typer.echo(f"stale: {line}", err=True)


def _records(result: ProveResult) -> list[dict[str, Any]]:
    return [skill_record(skill, result.facts) for skill in result.skills]


def _summary(result: ProveResult) -> dict[str, Any]:
    return {
        "version": 1,
        "pass": not result.problems,
        "problems": list(result.problems),
        "stale": list(result.stale),
        "skills": _records(result),
    }


def _write(result: ProveResult, out: Path, record: Path | None) -> None:
    records = _records(result)
    _write_records(records, out, "--out")
    if record is not None:
        _write_records(records, record / result.facts.environment.name, "--record")
    report = render_report(records, result.problems, result.stale)
    write_atomically(out / "report.html", report, field="--out")


def _write_records(records: list[dict[str, Any]], folder: Path, field: str) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = f"cannot be created: {error.strerror}"
        raise InputError(field, folder, problem, "name a writable folder") from error
    for record in records:
        write_json(record, folder / f"{record['skill']}.json", field=field)
